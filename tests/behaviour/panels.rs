//! Weights that many small matrix products read are packed once for all of them, with bit-identical
//! results.

use tensorpack::HostTensor;
use tensorpack::autodiff::gradients;
use tensorpack::graph::{Fetch, Graph, Init, TensorSpec, VariableSpec};
use tensorpack::runtime::cpu::Isa;
use tensorpack::runtime::{Session, SessionOptions};
use tensorpack::tower::TowerContext;

/// Not a multiple of a panel's columns, and large enough to be packed.
const UNITS: usize = 263;
const STEPS: usize = 7;

#[derive(Clone, Copy, PartialEq)]
enum Weights {
    Variable,
    Constant,
}

/// Runs a recurrent net on this many rows. Returns its output and its gradient with respect to the
/// rows as bits, row by row, and the plan.
fn run(isa: Isa, rows: usize, weights: Weights) -> (Vec<u32>, String) {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [None, Some(UNITS)]));
    let w = match weights {
        Weights::Variable => {
            let spec = VariableSpec::new("w", [UNITS, UNITS]).init(Init::Uniform(-0.1, 0.1));
            t.variable(spec).value().clone()
        }
        Weights::Constant => {
            let elements: Vec<f32> =
                (0..UNITS * UNITS).map(|i| (i * 7877 % 1000) as f32 * 2e-4 - 0.1).collect();
            g.constant(HostTensor::new([UNITS, UNITS], elements).unwrap())
        }
    };
    let y = (0..STEPS).fold(x.clone(), |h, _| h.matmul(&w).tanh());
    let dx = gradients(&y.square().sum(), &[&x]).unwrap().remove(0).unwrap();
    let (y, dx) = (Fetch::from(&y), Fetch::from(&dx));
    let options = SessionOptions { isa: Some(isa), threads: Some(2), ..SessionOptions::default() };
    let session = Session::with(g.freeze().unwrap(), options).unwrap();
    let x: Vec<f32> = (0..rows * UNITS).map(|i| (i * 7919 % 1000) as f32 * 0.002 - 1.0).collect();
    let x = HostTensor::new([rows, UNITS], x).unwrap();
    let fetched = session.run(&[&y, &dx], &[("x", &x)]).unwrap();
    let bits =
        fetched.iter().flat_map(|m| m.as_slice::<f32>().unwrap()[..3 * UNITS].iter().map(|x| x.to_bits()));
    (bits.collect(), session.plan_text(&[&y, &dx], &[("x", &x)]).unwrap())
}

#[test]
fn many_small_products_share_panels() {
    for isa in Isa::available() {
        let (few, few_plan) = run(isa, 3, Weights::Variable);
        let (many, many_plan) = run(isa, 100, Weights::Variable);
        let packed = |plan: &str| {
            let copies = plan.lines().filter(|l| l.contains("= copy(var0)"));
            copies.filter(|l| l.contains("in panels")).count()
        };
        assert_eq!(packed(&few_plan), 2, "once as it is, once transposed:\n{few_plan}");
        assert_eq!(packed(&many_plan), 0, "large products pack for themselves:\n{many_plan}");
        assert_eq!(few, many, "{isa}");
    }
}

#[test]
fn constant_weights_are_packed_when_the_program_is_compiled() {
    for isa in Isa::available() {
        let (few, few_plan) = run(isa, 3, Weights::Constant);
        let (many, _) = run(isa, 100, Weights::Constant);
        assert!(!few_plan.contains("= copy("), "no step copies weights:\n{few_plan}");
        assert_eq!(few, many, "{isa}");
    }
}
