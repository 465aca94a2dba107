//! Embedding lookups: bit-identical for any number of threads; an index out of range changes no
//! variable.

use tensorpack::prelude::*;
use tensorpack::runtime::cpu::Isa;
use tensorpack::tensor::CounterRng;

const WORDS: usize = 3000;
const LOOKED_UP: usize = 5000;

/// Trains a table of vectors so that the cumulative sum of the looked-up rows approaches a target.
fn train(isa: Isa, threads: usize, indices: &[i32], steps: usize) -> (Vec<Result<f32>>, HostTensor) {
    let graph = Graph::new();
    let table = TowerContext::training(&graph)
        .variable(VariableSpec::new("table", [WORDS, 24]).init(Init::Normal(0.0, 1.0)));
    let words = graph.placeholder(&TensorSpec::i32("words", [None]));
    let found = table.value().gather(&words, 0);
    let cost = (found.cumsum(0) * 0.01 + found.sort_descending(1)).square().mean();
    let train = minimize(&cost, &Sgd::new(0.1)).unwrap();
    let options = SessionOptions { threads: Some(threads), isa: Some(isa), ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let fed = HostTensor::new([indices.len()], indices.to_vec()).unwrap();
    let run = || -> Result<f32> {
        let fetched = session.run(&[&cost, &train], &[("words", &fed)])?;
        Ok(fetched[0].as_slice::<f32>()?[0])
    };
    let losses = (0..steps).map(|_| run()).collect();
    (losses, session.read("table").unwrap())
}

fn words() -> Vec<i32> {
    let rng = CounterRng::new(1, "words");
    // A few indices repeat often, so that many gradients are added to one row.
    (0..LOOKED_UP as u64).map(|i| (rng.uniform(0, i).powi(3) * WORDS as f64) as i32).collect()
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    for isa in Isa::available() {
        let (losses, table) = train(isa, 1, &words(), 3);
        let losses: Vec<f32> = losses.into_iter().map(Result::unwrap).collect();
        assert!(losses[2] < losses[0], "{isa}: training must lower the loss: {losses:?}");
        for threads in [2, 3] {
            let (others, other_table) = train(isa, threads, &words(), 3);
            let others: Vec<f32> = others.into_iter().map(Result::unwrap).collect();
            assert_eq!(losses, others, "{isa}: losses with 1 and {threads} threads");
            assert!(
                table.as_bytes() == other_table.as_bytes(),
                "{isa}: the table with 1 and {threads} threads"
            );
        }
    }
}

#[test]
fn an_index_out_of_range_changes_no_variable() {
    let isa = Isa::available().last().unwrap();
    let (_, before) = train(isa, 2, &words(), 0);
    let mut wrong = words();
    wrong[4321] = WORDS as i32;
    let (losses, after) = train(isa, 2, &wrong, 2);
    for loss in losses {
        let message = loss.unwrap_err().to_string();
        let right = format!("element 4321 of the indices is {WORDS}, which is outside 0..{WORDS}");
        assert!(message.contains(&right) && message.contains(file!()), "{message}");
    }
    assert!(before.as_bytes() == after.as_bytes());
}
