//! Random pipelines. A reader opened at any position continues with exactly the samples that
//! sequential reading returns, for any number of workers, and every state it reports can be opened.

mod build;

use build::{Build, KINDS};
use std::collections::BTreeSet;
use tensorpack_dataflow::tensor::{DType, ErrorKind};
use tensorpack_dataflow::{DataFlow, Flow, Reader, Sample, SampleRng, Seed, State};

/// Number of reads per pipeline, including ends of passes.
const READS: usize = 70;

/// The outcome of a read.
#[derive(Clone, Debug, PartialEq)]
enum Read {
    Sample(Vec<(DType, Vec<usize>, Vec<u8>)>),
    End,
    Failed(ErrorKind, String),
}

fn read(reader: &mut dyn Reader) -> Read {
    let parts = |sample: Sample| {
        sample.iter().map(|t| (t.dtype(), t.sizes().to_vec(), t.as_bytes().to_vec())).collect()
    };
    match reader.read() {
        Ok(Some(sample)) => Read::Sample(parts(sample)),
        Ok(None) => Read::End,
        Err(e) => Read::Failed(e.kind(), e.to_string()),
    }
}

/// Reads from the start and records the state before each read.
fn read_from_start(flow: &Flow, seed: Seed, what: &str) -> Vec<(State, Read)> {
    let mut reader = flow.open(seed, &State::start()).unwrap_or_else(|e| panic!("{what}: {e}"));
    (0..READS).map(|_| (reader.state(), read(&mut *reader))).collect()
}

fn check_positions(all: &[(State, Read)], size: Option<u64>, what: &str) {
    let (mut epoch, mut index) = (0, 0);
    for (state, read) in all {
        assert_eq!((state.epoch, state.index), (epoch, index), "{what}: a read does not move on by one");
        if *read == Read::End {
            if let Some(size) = size {
                assert_eq!(index, size, "{what}: the size of pass {epoch}");
            }
            (epoch, index) = (epoch + 1, 0);
        } else {
            index += 1;
            assert!(size.is_none_or(|size| index <= size), "{what}: pass {epoch} is longer than it says");
        }
    }
}

fn check_opened(flow: &Flow, seed: Seed, at: &State, expected: &[(State, Read)], what: &str) {
    let what = format!("{what}, opened at {at:?}");
    let mut reader = flow.open(seed, at).unwrap_or_else(|e| panic!("{what}: {e}"));
    for (i, (state, want)) in expected.iter().enumerate() {
        let stands = reader.state();
        assert_eq!((stands.epoch, stands.index), (state.epoch, state.index), "{what}: before read {i}");
        assert_eq!(read(&mut *reader), *want, "{what}: read {i}");
    }
}

fn cases() -> u64 {
    tensorpack_testing::test_cases(150).into()
}

#[test]
fn readers_resume_anywhere() {
    let mut seen = BTreeSet::new();
    for case in 0..cases() {
        let mut rng = Seed::new(0x7e57).rng(0, case);
        let mut expected: Option<Vec<(State, Read)>> = None;
        for workers in [1, 2, 4, 8] {
            let mut build = Build::new(Seed::new(case), workers);
            let flow = build.pipeline();
            let what = format!("case {case} with {workers} workers: {}", build.text());
            seen.extend(build.kinds());
            let seed = Seed::new(case ^ 0xda7a);
            let all = read_from_start(&flow, seed, &what);
            check_positions(&all, flow.size(), &what);
            let expected = expected.get_or_insert_with(|| all.clone());
            for ((_, got), (at, want)) in all.iter().zip(expected.iter()) {
                assert_eq!(got, want, "{what}: at {at:?}, unlike with one worker");
            }
            for _ in 0..4 {
                let from = rng.below(READS as u64) as usize;
                let few = &all[from..(from + 8).min(all.len())];
                let State { epoch, index, .. } = few[0].0;
                check_opened(&flow, seed, &State::at(epoch, index), few, &what);
                check_opened(&flow, seed, &few[0].0, few, &what);
            }
            check_chain(&flow, seed, expected, &mut rng, &what);
        }
    }
    if cases() >= 100 {
        let missing: Vec<_> = KINDS.iter().filter(|kind| !seen.contains(*kind)).collect();
        assert!(missing.is_empty(), "no pipeline had {missing:?}");
    }
}

/// Stops after a few samples again and again, and reopens at the reported state.
fn check_chain(flow: &Flow, seed: Seed, expected: &[(State, Read)], rng: &mut SampleRng, what: &str) {
    let (mut at, mut next) = (State::start(), 0);
    while next < expected.len() {
        let mut reader = flow.open(seed, &at).unwrap_or_else(|e| panic!("{what}: at {at:?}: {e}"));
        for _ in 0..5 + rng.below(30) {
            let Some((_, want)) = expected.get(next) else { return };
            assert_eq!(read(&mut *reader), *want, "{what}: in pieces, from {at:?}, read {next}");
            next += 1;
        }
        // Round trip through text.
        at = reader.state().to_string().parse().unwrap_or_else(|e| panic!("{what}: {e}"));
    }
}
