//! The null device: correct shapes, zeros, and unchanged variables.

use super::models;
use tensorpack::runtime::{Cadence, Clock, Device, Session, SessionOptions, StepProgram};
use tensorpack::{DType, HostTensor};
use tensorpack_testing::assert_mentions;

#[test]
fn shapes_are_correct_values_zero_and_variables_unchanged() {
    let model = models::mnist();
    let [image, label] = model.batch(3, 0);
    let logits = model.graph.tensor("fc1/Add").unwrap();
    let hit = logits.argmax(-1);
    let options = SessionOptions { device: Device::Null, ..SessionOptions::default() };
    let session = Session::with(model.graph.freeze().unwrap(), options).unwrap();
    let names: Vec<String> = session.graph().variables().iter().map(|v| v.name.clone()).collect();
    let values = || names.iter().map(|n| session.read(n).unwrap()).collect::<Vec<HostTensor>>();
    let before = values();
    assert!(
        before[0].as_slice::<f32>().unwrap().iter().any(|&x| x != 0.0),
        "initial values are drawn as on any device"
    );
    let feeds = [("image", &image), ("label", &label)];
    for _ in 0..2 {
        let got = session.run(&[&model.cost, &model.train, &logits, &hit], &feeds).unwrap();
        let forms: Vec<(DType, &[usize])> = got.iter().map(|t| (t.dtype(), t.sizes())).collect();
        assert_eq!(forms, [(DType::F32, &[][..]), (DType::F32, &[3, 10][..]), (hit.dtype(), &[3][..])]);
        assert!(got.iter().all(|t| t.to_f64_vec().iter().all(|&x| x == 0.0)));
    }
    assert_eq!(values(), before);
    let e = session.run(&[&model.cost], &[("image", &image)]).unwrap_err();
    assert_mentions(&e, &["label", "fed"]);
}

#[test]
fn variables_can_be_written_and_runs_are_counted() {
    let model = models::mlp();
    let [image, label] = model.batch(2, 0);
    let options = SessionOptions { device: "null".parse().unwrap(), ..SessionOptions::default() };
    let session = Session::with(model.graph.freeze().unwrap(), options).unwrap();
    let bias = HostTensor::new([10], vec![0.5f32; 10]).unwrap();
    session.write("fc2/b", &bias).unwrap();
    let mut run = StepProgram::new(&[&model.train]);
    let cost = run.declare(&model.cost, Cadence::EveryRun).unwrap();
    let clock = Clock { global_step: 1, last_of_epoch: true };
    run.run(&session, clock, &[("image", &image), ("label", &label)]).unwrap();
    assert_eq!(run.value(cost), Some(&HostTensor::scalar(0.0f32)));
    assert_eq!(session.run_index().unwrap(), 1);
    assert_eq!(session.read("fc2/b").unwrap(), bias);
}
