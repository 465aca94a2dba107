//! Results are bit-identical for any number of threads, on every instruction set.

use super::models;
use tensorpack::HostTensor;
use tensorpack::runtime::cpu::Isa;
use tensorpack::runtime::{Session, SessionOptions};

const STEPS: u64 = 50;

/// Returns the losses of all steps as bits, and the variables after the last.
fn train(isa: Isa, threads: usize) -> (Vec<u32>, Vec<(String, HostTensor)>) {
    let model = models::mnist();
    let batches: Vec<[HostTensor; 2]> = (0..STEPS).map(|k| model.batch(8, k)).collect();
    let options = SessionOptions { threads: Some(threads), isa: Some(isa), ..SessionOptions::default() };
    let session = Session::with(model.graph.freeze().unwrap(), options).unwrap();
    let step = session.prepare(&[&model.cost, &model.train]).unwrap();
    let mut outputs = Vec::new();
    let losses = batches
        .iter()
        .map(|[image, label]| {
            session.run_prepared(&step, &[("image", image), ("label", label)], &mut outputs).unwrap();
            outputs[0].as_slice::<f32>().unwrap()[0].to_bits()
        })
        .collect();
    let names = session.graph().variables().iter().map(|v| v.name.clone());
    (losses, names.map(|n| (n.clone(), session.read(&n).unwrap())).collect())
}

fn assert_same_for_any_number_of_threads(isa: Isa) {
    let (losses, variables) = train(isa, 1);
    assert_ne!(losses[0], losses[STEPS as usize - 1], "{isa}: training must change the loss");
    for threads in [2, 3] {
        let (other_losses, other_variables) = train(isa, threads);
        assert_eq!(losses, other_losses, "{isa}: losses with 1 and {threads} threads");
        for ((name, one), (_, many)) in variables.iter().zip(&other_variables) {
            assert!(
                one.as_bytes() == many.as_bytes(),
                "{isa}: {name} differs between 1 and {threads} threads"
            );
        }
    }
}

#[test]
fn plain_loops() {
    assert_same_for_any_number_of_threads(Isa::Plain);
}

/// Every vector instruction set of this machine.
#[test]
fn vector_loops() {
    Isa::available().filter(|&isa| isa != Isa::Plain).for_each(assert_same_for_any_number_of_threads);
}
