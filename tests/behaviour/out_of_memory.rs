//! A program that does not fit in memory is an error, and programs compiled before keep working.

use tensorpack::graph::{Graph, Tensor, TensorSpec};
use tensorpack::runtime::{Session, SessionOptions};
use tensorpack::{DType, ErrorKind, HostTensor};

/// Two programs of one session: `small`, and `vast`, whose arena is larger than the address space.
fn session() -> (Session, Tensor, Tensor) {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(3)]));
    let small = (x.exp() - 1.0).pad(&[1], &[1], &[0]).named("small");
    let vast = x.exp().pad(&[0], &[1 << 50], &[0]).named("vast");
    // A limit that lets the allocation itself fail.
    let options = SessionOptions { memory_limit: Some(usize::MAX), ..SessionOptions::default() };
    (Session::with(graph.freeze().unwrap(), options).unwrap(), small, vast)
}

#[test]
fn a_cached_program_runs_after_an_allocation_failed() {
    let (session, small, vast) = session();
    let x = HostTensor::zeros(DType::F32, [3]).unwrap();
    let before = session.run(&[&small], &[("x", &x)]).unwrap();
    for _ in 0..2 {
        let e = session.run(&[&vast], &[("x", &x)]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Memory, "{e}");
        assert_eq!(session.run(&[&small], &[("x", &x)]).unwrap(), before);
    }
}

#[test]
fn a_result_larger_than_the_limit_is_an_error_that_names_it() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(3)]));
    let line = line!() + 1;
    let vast = x.exp().pad(&[0], &[1 << 30], &[0]).named("vast");
    let options = SessionOptions { memory_limit: Some(1 << 20), ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let x = HostTensor::zeros(DType::F32, [3]).unwrap();
    let e = session.run(&[&vast], &[("x", &x)]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Memory, "{e}");
    assert!(e.to_string().contains("vast"), "{e}");
    assert_eq!(e.site().map(|s| s.line), Some(line), "{e}");
}
