//! An index out of range ends the run with an error that names it, and no variable changes.

use crate::device;
use tensorpack::graph::{Graph, TensorSpec, VariableSpec};
use tensorpack::runtime::{Session, SessionOptions};
use tensorpack::tower::TowerContext;
use tensorpack::{DType, HostTensor};

#[test]
fn a_bad_index_is_named_and_nothing_changes() {
    let Some(device) = device() else { return };
    for bad in [-1, 3, i64::MAX, i64::MIN] {
        let g = Graph::new();
        let t = TowerContext::training(&g);
        let indices = g.placeholder(&TensorSpec::new("i", DType::I64, [None]));
        let w = t.variable(VariableSpec::new("w", [3, 2]));
        let line = line!() + 1;
        let rows = w.value().gather(&indices, 0);
        let op = w.update(|w| w + rows.sum());
        let options = SessionOptions { device, ..SessionOptions::default() };
        let session = Session::with(g.freeze().unwrap(), options).unwrap();
        let run =
            |indices: Vec<i64>| session.run(&[&rows, &op], &[("i", &HostTensor::new([3], indices).unwrap())]);
        let before = session.read("w").unwrap();
        let e = run(vec![0, bad, 99]).unwrap_err();
        let right = format!("element 1 of the indices is {bad}, which is outside 0..3");
        assert!(e.message().ends_with(&right), "{e}");
        assert_eq!(e.site().map(|s| s.line), Some(line), "{e}");
        assert_eq!(session.read("w").unwrap(), before);
        run(vec![0, 1, 1]).unwrap();
    }
}
