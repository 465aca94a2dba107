//! Scalars are fetched with the report of a run, in one download, and keep their bits.

use crate::device;
use tensorpack::graph::{Graph, TensorSpec};
use tensorpack::runtime::{IntoFetch, Session, SessionOptions};
use tensorpack::tensor::bf16;
use tensorpack::{DType, HostTensor};

#[test]
fn scalars_of_every_dtype_keep_their_bits() {
    let Some(device) = device() else { return };
    let values = [
        HostTensor::scalar(-1.5e-38f32),
        HostTensor::scalar(f32::MAX),
        HostTensor::scalar(-0.0f32),
        HostTensor::scalar(std::f64::consts::PI),
        HostTensor::scalar(f64::MIN_POSITIVE),
        HostTensor::scalar(bf16::from_f32(-3.140625)),
        HostTensor::scalar(bf16::from_f32(1e38)),
        HostTensor::scalar(i32::MIN),
        HostTensor::scalar(-7i32),
        HostTensor::scalar(i64::MIN),
        HostTensor::scalar(i64::MAX),
        HostTensor::scalar(255u8),
        HostTensor::scalar(true),
        HostTensor::scalar(false),
        // Not a scalar, in between: it has a download of its own.
        HostTensor::new([1], vec![0.1f32]).unwrap(),
        HostTensor::scalar(42u8),
    ];
    let g = Graph::new();
    let names: Vec<String> = (0..values.len()).map(|i| format!("x{i}")).collect();
    let inputs = names.iter().zip(&values).map(|(name, value)| {
        let sizes: Vec<Option<usize>> = value.sizes().iter().map(|&n| Some(n)).collect();
        g.placeholder(&TensorSpec::new(name.as_str(), value.dtype(), sizes))
    });
    let inputs: Vec<_> = inputs.collect();
    // A value that is computed, and one that is fetched twice.
    let sum = inputs[4].clone() + &inputs[3];
    let options = SessionOptions { device, ..SessionOptions::default() };
    let session = Session::with(g.freeze().unwrap(), options).unwrap();
    let mut fetches: Vec<&dyn IntoFetch> = inputs.iter().map(|x| x as &dyn IntoFetch).collect();
    fetches.extend([&sum as &dyn IntoFetch, &inputs[0]]);
    let feeds: Vec<(&str, &HostTensor)> = names.iter().map(String::as_str).zip(&values).collect();
    let found = session.run(&fetches, &feeds).unwrap();
    for (found, right) in found.iter().zip(&values) {
        assert_eq!((found.dtype(), found.sizes()), (right.dtype(), right.sizes()));
        assert_eq!(found.as_bytes(), right.as_bytes(), "{found:?}, fed {right:?}");
    }
    assert_eq!(found[values.len()].dtype(), DType::F64);
    assert_eq!(found[values.len()].to_scalar().unwrap(), std::f64::consts::PI);
    assert_eq!(found[values.len() + 1], values[0]);
}
