//! Timelines of steps on XLA: the host's part of each launch.

use crate::{devices, trace};
use std::path::Path;
use tensorpack::callback::Profiler;
use tensorpack::dataflow::FromFn;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::runtime::Device;

struct Line;

impl ModelDesc for Line {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(3)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        Linear::new(2).apply(t, "fc", &inputs[0]).square().mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.1).boxed()
    }
}

pub(crate) fn train(
    dir: &Path,
    devices: &[Device],
    steps_per_launch: usize,
    profiler: Option<Profiler>,
) -> Vec<u8> {
    let batches = FromFn::new(12, |index| {
        let x: Vec<f32> = (0..12).map(|i| ((index * 12 + i) as f32).sin()).collect();
        Ok(vec![HostTensor::new([4, 3], x)?])
    });
    let config = TrainConfig::new(Line, batches)
        .logdir(dir)
        .steps_per_epoch(6)
        .max_epoch(2)
        .steps_per_launch(steps_per_launch);
    let config = profiler.into_iter().fold(config, TrainConfig::callback);
    let trainer = SyncMultiGpuTrainer::on(devices.iter().copied());
    let trained = launch_train_with_config(config, trainer).unwrap();
    trained.session.read("fc/W").unwrap().as_bytes().to_vec()
}

/// Recording changes no bit, with one tower and with two, one step per launch and several.
#[test]
fn launches_on_the_timeline() {
    let Some(devices) = devices(2) else { return };
    for (towers, steps_per_launch) in [(1, 1), (2, 1), (1, 3)] {
        let devices = &devices[..towers];
        let [plain, recorded] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let expected = train(plain.path(), devices, steps_per_launch, None);
        let found = train(recorded.path(), devices, steps_per_launch, Some(Profiler::steps(2..=6)));
        assert_eq!(found, expected);
        let trace = trace::read(&recorded.path().join("timeline-2-6.json"));
        let parts = ["argument setup", "execute call", "next variables", "start of fetches", "event waits"];
        for part in parts {
            let name = format!("host: {part}");
            assert!(!trace.named(&name).is_empty(), "{name}: {:?}", trace.names("launch"));
        }
        // A launch is part of the computation of a step, on the thread of the training loop.
        let call = trace.named("host: execute call")[0];
        let inside = |outer: &&trace::Event| {
            outer.thread == call.thread && outer.begun <= call.begun && call.ended <= outer.ended
        };
        assert!(trace.named("compute").into_iter().any(|outer| inside(&outer)), "{call:?}");
    }
}
