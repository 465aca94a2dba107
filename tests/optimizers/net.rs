//! The small network of `tests/golden/optimizers.json` and its data, with any optimizer.

use serde_json::Value;
use std::sync::OnceLock;
use tensorpack::graph::{FLUSH_OPS, Fetch, Graph, TensorSpec};
use tensorpack::nn::Linear;
use tensorpack::optim::{Optimizer, minimize};
use tensorpack::runtime::cpu::Isa;
use tensorpack::runtime::{Device, Session, SessionOptions};
use tensorpack::tower::TowerContext;
use tensorpack::{DType, HostTensor, Result};

/// The names of the network's weights.
pub(crate) const WEIGHTS: [&str; 4] = ["fc0/W", "fc0/b", "fc1/W", "fc1/b"];

pub(crate) fn file() -> &'static Value {
    static FILE: OnceLock<Value> = OnceLock::new();
    FILE.get_or_init(|| {
        let path = format!("{}/tests/golden/optimizers.json", env!("CARGO_MANIFEST_DIR"));
        serde_json::from_str(&std::fs::read_to_string(path).expect("the golden file exists"))
            .expect("valid JSON")
    })
}

pub(crate) fn list(v: &Value) -> &[Value] {
    v.as_array().unwrap_or_else(|| panic!("{v} is not a list"))
}

pub(crate) fn floats(v: &Value) -> Vec<f64> {
    list(v).iter().map(|x| x.as_f64().expect("a number")).collect()
}

pub(crate) fn text(v: &Value) -> &str {
    v.as_str().unwrap_or_else(|| panic!("{v} is not a string"))
}

/// Returns the CPU engine with kernels of this instruction set.
pub(crate) fn cpu(isa: Isa) -> SessionOptions {
    SessionOptions { isa: Some(isa), threads: Some(1), ..SessionOptions::default() }
}

/// Returns the CPU engine with each instruction set of this machine, and the reference interpreter.
pub(crate) fn engines() -> Vec<SessionOptions> {
    let reference = SessionOptions { device: Device::Reference, ..SessionOptions::default() };
    Isa::available().map(cpu).chain([reference]).collect()
}

/// Returns a description of an engine.
pub(crate) fn label(engine: &SessionOptions) -> String {
    engine.isa.map_or_else(|| engine.device.to_string(), |isa| format!("{} with {isa}", engine.device))
}

/// The network, its optimizer, and a session with the weights of the file.
pub(crate) struct Net {
    pub(crate) session: Session,
    float: DType,
    cost: Fetch,
    train: Fetch,
    flush: Vec<Fetch>,
}

/// Adds the network to the graph. Returns the cost and the training operation.
pub(crate) fn build(graph: &Graph, float: DType, optimizer: &dyn Optimizer) -> Result<[Fetch; 2]> {
    let t = TowerContext::training(graph);
    let x = graph.placeholder(&TensorSpec::new("x", float, [None, Some(6)]));
    let label = graph.placeholder(&TensorSpec::i32("label", [None]));
    // Gradients are divided by this value; a test may set it to 0.
    let divisor = graph.placeholder(&TensorSpec::new("divisor", float, []));
    let hidden = Linear::new(5).apply(&t, "fc0", &x).tanh();
    let logits = Linear::new(3).apply(&t, "fc1", &hidden);
    let cost = (logits / &divisor).sparse_softmax_cross_entropy(&label).mean().named("cost");
    let train = minimize(&cost, optimizer)?;
    let train = graph.group(&[&train, &graph.count_step()]);
    Ok([Fetch::from(&cost), Fetch::from(&train)])
}

impl Net {
    pub(crate) fn new(float: DType, optimizer: &dyn Optimizer) -> Net {
        Net::on(&cpu(Isa::detect()), float, optimizer)
    }

    /// Builds the network on this engine.
    pub(crate) fn on(engine: &SessionOptions, float: DType, optimizer: &dyn Optimizer) -> Net {
        let graph = Graph::new();
        let [cost, train] = build(&graph, float, optimizer).unwrap();
        Net::around(graph, engine, float, [cost, train])
    }

    /// Creates a network from a finished graph whose steps return `cost`.
    pub(crate) fn around(
        graph: Graph,
        engine: &SessionOptions,
        float: DType,
        [cost, train]: [Fetch; 2],
    ) -> Net {
        let flush = graph.collection_ops(FLUSH_OPS).iter().map(Fetch::from).collect();
        let session = Session::with(graph.freeze().unwrap(), engine.clone()).unwrap();
        for v in list(&file()["initial"]) {
            let sizes: Vec<usize> = floats(&v["shape"]).iter().map(|&n| n as usize).collect();
            let value = HostTensor::from_f64(float, sizes, &floats(&v["data"])).unwrap();
            session.write(text(&v["name"]), &value).unwrap();
        }
        Net { session, float, cost, train, flush }
    }

    /// Runs one step on the batches of these steps of the file, merged into one batch. Returns the
    /// loss before the update.
    pub(crate) fn step(&self, steps: std::ops::Range<usize>) -> f64 {
        self.try_step(steps, 1.0).unwrap()
    }

    /// Runs one step on the batch of each of these steps of the file. Returns the losses before the
    /// updates.
    pub(crate) fn steps(&self, steps: std::ops::Range<usize>) -> Vec<f64> {
        steps.map(|k| self.step(k..k + 1)).collect()
    }

    /// Runs one step with logits divided by `divisor`.
    pub(crate) fn try_step(&self, steps: std::ops::Range<usize>, divisor: f64) -> Result<f64> {
        let (x, labels) = (floats(&file()["x"]["data"]), floats(&file()["labels"]["data"]));
        let rows = 4 * steps.len();
        let x = HostTensor::from_f64(self.float, [rows, 6], &x[24 * steps.start..24 * steps.end])?;
        let labels = HostTensor::from_f64(DType::I32, [rows], &labels[4 * steps.start..4 * steps.end])?;
        let divisor = HostTensor::from_f64(self.float, [], &[divisor])?;
        let feeds = [("x", &x), ("label", &labels), ("divisor", &divisor)];
        Ok(self.session.run(&[&self.cost, &self.train], &feeds)?[0].to_f64_vec()[0])
    }

    /// Applies the accumulated gradients.
    pub(crate) fn flush(&self) {
        assert!(!self.flush.is_empty(), "nothing to flush");
        self.flush.iter().for_each(|op| drop(self.session.run(&[op], &[]).unwrap()));
    }

    pub(crate) fn read(&self, name: &str) -> Vec<f64> {
        self.session.read(name).unwrap_or_else(|e| panic!("{e}")).to_f64_vec()
    }

    /// Returns every variable with its bytes.
    pub(crate) fn variables(&self) -> Vec<(String, Vec<u8>)> {
        let names = self.session.graph().variables().iter().map(|v| v.name.clone());
        names.map(|n| (n.clone(), self.session.read(&n).unwrap().as_bytes().to_vec())).collect()
    }
}

#[track_caller]
pub(crate) fn assert_close(what: &str, found: &[f64], right: &[f64], tolerance: f64) {
    assert_eq!(found.len(), right.len(), "{what}");
    for (k, (a, b)) in found.iter().zip(right).enumerate() {
        assert!((a - b).abs() <= tolerance * b.abs().max(1e-2), "{what}: element {k} is {a}, not {b}");
    }
}
