//! Feeds have the right values on the device, also when a tensor is fed again or changed in
//! between.

use crate::device;
use tensorpack::prelude::*;

#[test]
fn tensors_fed_again_have_their_current_values() {
    let Some(device) = device() else { return };
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [None]));
    let total = x.sum();
    let options = SessionOptions { device, ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let sum = |x: &HostTensor| session.run(&[&total], &[("x", x)]).unwrap()[0].to_scalar().unwrap();
    let mut x = HostTensor::new([3], vec![1.0f32, 2.0, 3.0]).unwrap();
    assert_eq!([sum(&x), sum(&x), sum(&x.clone())], [6.0; 3]);
    x.as_mut_slice::<f32>().unwrap()[0] = 5.0;
    assert_eq!(sum(&x), 10.0);
    let one = HostTensor::new([1], vec![7.0f32]).unwrap();
    assert_eq!([sum(&one), sum(&HostTensor::new([1], vec![8.0f32]).unwrap())], [7.0, 8.0]);
    assert_eq!(sum(&x), 10.0);
}
