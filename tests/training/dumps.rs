//! Callbacks that run, fetch, write and check tensors.

use crate::models::{Knobs, Line, line};
use std::cell::RefCell;
use std::rc::Rc;
use tensorpack::callback::{CheckNumerics, DumpTensorAsImage, DumpTensors, ProcessTensors, RunOp, TrainCx};
use tensorpack::graph::GLOBAL_VARIABLES;
use tensorpack::io::safetensors;
use tensorpack::prelude::*;
use tensorpack_testing::assert_mentions;

fn config() -> TrainConfig {
    TrainConfig::new(Line, line(2)).no_logdir().max_epoch(2)
}

#[test]
fn run_op_before_training_at_triggers_or_with_steps() {
    let count = |before, as_trigger, with_steps| {
        let op = RunOp::new(|g| {
            let all = g.graph().collection(GLOBAL_VARIABLES).variables;
            let knob = all.iter().map(|id| g.graph().variable_handle(*id)).find(|v| v.name() == "knob");
            Ok(knob.expect("a knob").update(|x| x + 1.0))
        });
        let op = if before { op } else { op.no_before_train() };
        let op = if as_trigger { op } else { op.no_trigger() };
        let op = if with_steps { op.with_steps() } else { op };
        let config = TrainConfig::new(Knobs, line(3)).no_logdir().max_epoch(2).callback(op);
        let trained = launch_train_with_config(config, SimpleTrainer::new()).unwrap();
        trained.session.read("knob").unwrap().to_scalar().unwrap() - 1.0
    };
    assert_eq!(count(true, true, false), 3.0);
    assert_eq!(count(true, false, false), 1.0);
    assert_eq!(count(false, true, false), 2.0);
    assert_eq!(count(false, false, true), 6.0);
    assert_eq!(count(false, false, false), 0.0);
}

#[test]
fn values_of_every_step_are_passed_to_a_function_and_written_to_files() {
    let dir = tempfile::tempdir().unwrap();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let noted = seen.clone();
    let process = ProcessTensors::new(["x", "cost"], move |cx, values| {
        noted.borrow_mut().push((cx.global_step + 1, values.to_vec()));
        Ok(())
    });
    let config = config().logdir(dir.path()).callback(process).callback(DumpTensors::new(["x", "cost"]));
    launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    let seen = seen.take();
    assert_eq!(seen.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(seen[0].1[0], seen[2].1[0], "each epoch reads the same data");
    assert_ne!(seen[0].1[1], seen[2].1[1], "and costs less");
    for (step, values) in seen {
        let file = safetensors::read(dir.path().join(format!("DumpTensor-{step}.safetensors"))).unwrap();
        for (name, value) in ["x", "cost"].iter().zip(values) {
            assert!(file.contains(&(name.to_string(), value)), "{name} at {step}");
        }
    }
}

#[test]
fn a_function_can_stop_training_or_fail() {
    let stop = ProcessTensors::new(["cost"], |cx, _| {
        cx.stop("enough");
        Ok(())
    });
    let trained = launch_train_with_config(config().callback(stop), SimpleTrainer::new()).unwrap();
    assert_eq!(trained.ended, tensorpack::train::Ended::Stopped("enough".into()));
    let fail = ProcessTensors::new(["cost"], |_, _| Err(Error::argument("rejected")));
    let e = launch_train_with_config(config().callback(fail), SimpleTrainer::new()).err().unwrap();
    assert!(e.to_string().contains("rejected"), "{e}");
}

#[test]
fn variables_as_images() {
    let dir = tempfile::tempdir().unwrap();
    let image = DumpTensorAsImage::new("fc/W").map(|w| {
        assert_eq!(w.sizes(), [3, 1]);
        HostTensor::new([2, 1, 3, 1], vec![-1.0f32, 0.0, 0.5, 1.0, 2.0, 0.2])
    });
    let config = config().logdir(dir.path()).callback(image);
    launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    let pixels = |name: &str| {
        let file = std::fs::File::open(dir.path().join(name)).unwrap();
        let mut reader = png::Decoder::new(std::io::BufReader::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        pixels
    };
    for epoch in ["001", "002"] {
        assert_eq!(pixels(&format!("fc-W-ep{epoch}.png")), [0, 0, 128]);
        assert_eq!(pixels(&format!("fc-W-ep{epoch}-1.png")), [255, 255, 51]);
    }
}

#[test]
fn check_numerics_names_a_non_finite_variable() {
    /// Writes an infinity to a variable after the second step.
    struct WriteInfinity;
    impl Callback for WriteInfinity {
        fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
            if cx.global_step == 2 {
                let bad = HostTensor::new([3, 1], vec![0.0f32, f32::INFINITY, 0.0])?;
                cx.session().write("fc/W", &bad)?;
            }
            Ok(())
        }
    }
    for check in [CheckNumerics::new(), CheckNumerics::new().every_step()] {
        let config = config().callback(WriteInfinity).callback(check);
        let e = launch_train_with_config(config, NoOpTrainer::new()).err().expect("an error");
        assert_eq!(e.kind(), tensorpack::ErrorKind::NotFinite);
        assert_mentions(&e, &["fc/W", "element 1", "[3, 1]"]);
    }
    launch_train_with_config(config().callback(CheckNumerics::new().every_step()), NoOpTrainer::new())
        .unwrap();
}
