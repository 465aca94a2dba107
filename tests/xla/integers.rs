//! Integer arithmetic: XLA computes what the CPU engine computes.

use crate::device;
use tensorpack::prelude::*;

/// XLA folds `x - x` to zero and then simplifies comparisons with it. Unless the comparison says
/// that its operands are signed, zero counts as less than a negative number.
#[test]
fn comparisons_of_folded_values_are_signed() {
    let Some(device) = device() else { return };
    for dtype in [DType::I32, DType::I64] {
        let run = |device: Device| {
            let graph = Graph::new();
            let x = graph.placeholder(&TensorSpec::new("x", dtype, [Some(3)]));
            let zero = &x - &x;
            let fetches =
                [zero.clip(-9.0, 9.0), zero.clip(-9.0, -3.0), zero.clip(2.0, 5.0), x.clip(-1.0, 1.0)];
            let options = SessionOptions { device, ..SessionOptions::default() };
            let session = Session::with(graph.freeze().unwrap(), options).unwrap();
            let feed = HostTensor::from_f64(dtype, [3], &[-4.0, 0.0, 7.0]).unwrap();
            let fetches: Vec<_> = fetches.iter().map(|t| t as _).collect();
            let found = session.run(&fetches, &[("x", &feed)]).unwrap();
            found.iter().map(HostTensor::to_f64_vec).collect::<Vec<_>>()
        };
        let expected = vec![vec![0.0; 3], vec![-3.0; 3], vec![2.0; 3], vec![-1.0, 0.0, 1.0]];
        assert_eq!(run(device), expected, "{dtype} on {device}");
        assert_eq!(run(Device::Cpu(0)), expected, "{dtype} on the CPU engine");
    }
}
