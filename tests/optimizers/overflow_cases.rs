//! Updates that overflow: the gradients are finite, but an optimizer's state or a variable would
//! not be.

use tensorpack::graph::{Graph, Op, TensorSpec, VariableSpec};
use tensorpack::optim::{
    Accumulate, Adagrad, Adam, AdamW, Ema, Lamb, Momentum, Optimizer, RmsProp, Sgd, minimize,
};
use tensorpack::runtime::{Device, Session, SessionOptions};
use tensorpack::tower::TowerContext;
use tensorpack::{DType, ErrorKind, HostTensor};

/// An optimizer, with a gradient for f32 and one for f64 that overflow a variable within three
/// steps.
struct Case {
    optimizer: Box<dyn Optimizer>,
    gradients: [f64; 2],
    overflows: &'static str,
}

/// Gradients whose squares overflow.
const SQUARES: [f64; 2] = [1e25, 1e200];
/// Gradients for which the sum of two overflows.
const SUMS: [f64; 2] = [3e38, 1.5e308];
/// A rate so small that these gradients change variables little.
const SLOW: f64 = 1e-38;

fn cases() -> Vec<Case> {
    let case = |optimizer, gradients, overflows| Case { optimizer, gradients, overflows };
    vec![
        case(Sgd::new(1e3).boxed(), SUMS, "w"),
        case(Momentum::new(SLOW, 0.9).boxed(), SUMS, "w/momentum"),
        case(Momentum::new(SLOW, 0.9).nesterov().boxed(), SUMS, "w"),
        case(Adam::new(0.1).boxed(), SQUARES, "w/adam_v"),
        case(AdamW::new(0.1).boxed(), SQUARES, "w/adamw_v"),
        case(RmsProp::new(0.1).boxed(), SQUARES, "w/rmsprop_v"),
        case(RmsProp::new(0.1).centered().momentum(0.9).boxed(), SQUARES, "w/rmsprop_v"),
        case(Adagrad::new(0.1).boxed(), SQUARES, "w/adagrad"),
        case(Lamb::new(0.1).boxed(), SQUARES, "w/lamb_v"),
        case(Accumulate::new(Sgd::new(SLOW), 4).boxed(), SUMS, "w/accumulated"),
        case(Ema::new(Sgd::new(1e3), 0.9).boxed(), SUMS, "w"),
        // The root of the second moment is zero where the gradient is, and epsilon is zero.
        case(Adam::new(0.1).epsilon(0.0).boxed(), [0.0, 0.0], "w"),
    ]
}

pub(crate) struct Model {
    pub(crate) session: Session,
    train: Op,
    dtype: DType,
    len: usize,
}

impl Model {
    /// Builds a cost that is always 0 but has the fed gradient, and a second variable that never
    /// overflows.
    pub(crate) fn new(optimizer: &dyn Optimizer, dtype: DType, device: Device, len: usize) -> Model {
        let g = Graph::new();
        let t = TowerContext::training(&g);
        let x = g.placeholder(&TensorSpec::new("x", dtype, [Some(len)]));
        let fed = |name: &str, x: &tensorpack::graph::Tensor| {
            let w = t.variable(VariableSpec::new(name, [len]).dtype(dtype));
            ((w.value() - w.value().stop_gradient()) * x).sum()
        };
        let cost = fed("calm", &(&x * 0.0 + 1.0)) + fed("w", &x);
        let train = minimize(&cost, optimizer).unwrap();
        let options = SessionOptions { device, profile: true, ..SessionOptions::default() };
        Model { session: Session::with(g.freeze().unwrap(), options).unwrap(), train, dtype, len }
    }

    pub(crate) fn step(&self, gradient: f64) -> tensorpack::Result<()> {
        // Only one element can overflow.
        let number = |i: usize| if i == self.len / 2 { gradient } else { 0.5 + (i % 3) as f64 };
        let x: Vec<f64> = (0..self.len).map(number).collect();
        let x = HostTensor::from_f64(self.dtype, [self.len], &x).unwrap();
        self.session.run(&[&self.train], &[("x", &x)]).map(|_| ())
    }

    /// Returns the largest number of runs of any kernel.
    #[allow(dead_code, reason = "only the CPU engine counts")]
    pub(crate) fn runs(&self) -> u64 {
        self.session.profile().unwrap().iter().map(|kernel| kernel.runs).max().unwrap_or(0)
    }

    fn variables(&self) -> Vec<(String, Vec<u8>)> {
        let names = self.session.graph().variables().iter().map(|v| v.name.clone());
        names.map(|n| (n.clone(), self.session.read(&n).unwrap().as_bytes().to_vec())).collect()
    }
}

/// Checks every optimizer in f32 and f64: a step that overflows fails with an error that names the
/// variable, leaves all variables unchanged, and training can continue.
pub(crate) fn every_optimizer(device: Device, len: usize) {
    for case in cases() {
        for (dtype, gradient) in [DType::F32, DType::F64].into_iter().zip(case.gradients) {
            let what = format!("{:?} {dtype} on {device}", case.optimizer);
            let model = Model::new(&*case.optimizer, dtype, device, len);
            let mut before = Vec::new();
            let failed = (0..3).find_map(|_| {
                before = model.variables();
                model.step(gradient).err()
            });
            let e =
                failed.unwrap_or_else(|| panic!("{what}: no step failed; w: {:?}", model.session.read("w")));
            assert!(model.variables() == before, "{what}: a variable changed");
            assert_eq!(e.kind(), ErrorKind::NotFinite, "{what}: {e}");
            let named = format!("the variable {}", case.overflows);
            let names_it = |line: &str| line.ends_with(&named) || line.contains(&format!("{named} "));
            assert!(e.to_string().lines().any(names_it), "{what}: {e}");
            assert!(e.to_string().contains("no variable was changed"), "{what}: {e}");
            model.step(1.0).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(model.variables() != before, "{what}: nothing changed after a bad step");
        }
    }
}
