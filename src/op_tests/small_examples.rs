//! Small examples, checked by hand, of operations that only move, order or compare elements.

use crate::graph::{Graph, Tensor};
use crate::ops::CumsumOptions;
use crate::runtime::Session;
use tensorpack_tensor::{DType, HostTensor};

/// Returns the elements of the result of `build` on a constant.
fn result(sizes: &[usize], values: &[f64], build: impl FnOnce(&Tensor) -> Tensor) -> Vec<f64> {
    let graph = Graph::new();
    let x = graph.constant(HostTensor::from_f64(DType::F32, sizes, values).unwrap());
    let y = build(&x);
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    session.run(&[&y], &[]).unwrap()[0].to_f64_vec()
}

#[test]
fn tensors_are_joined_and_cut() {
    let join = |x: &Tensor, axis| x.graph().concat(&[x, &(x * 10.0)], axis);
    assert_eq!(result(&[2, 2], &[1., 2., 3., 4.], |x| join(x, 0)), [1., 2., 3., 4., 10., 20., 30., 40.]);
    assert_eq!(result(&[2, 2], &[1., 2., 3., 4.], |x| join(x, 1)), [1., 2., 10., 20., 3., 4., 30., 40.]);
    let stack = |x: &Tensor, axis| x.graph().stack(&[x, &(x * 10.0)], axis);
    assert_eq!(result(&[2], &[1., 2.], |x| stack(x, 0)), [1., 2., 10., 20.]);
    assert_eq!(result(&[2], &[1., 2.], |x| stack(x, -1)), [1., 10., 2., 20.]);
    assert_eq!(
        result(&[2, 3], &[1., 2., 3., 4., 5., 6.], |x| x.split(&[1, 2], 1).remove(1)),
        [2., 3., 5., 6.]
    );
    assert_eq!(result(&[4], &[1., 2., 3., 4.], |x| x.split_equal(2, 0).remove(1)), [3., 4.]);
    assert_eq!(result(&[2, 3], &[1., 2., 3., 4., 5., 6.], |x| x.unstack(1).remove(2)), [3., 6.]);
    assert_eq!(result(&[2], &[1., 2.], |x| x.tile(&[2])), [1., 2., 1., 2.]);
    assert_eq!(result(&[2, 1], &[1., 2.], |x| x.tile(&[1, 3])), [1., 1., 1., 2., 2., 2.]);
    assert_eq!(result(&[2], &[1., 2.], |x| x.repeat(2, 0)), [1., 1., 2., 2.]);
    assert_eq!(result(&[2, 2], &[1., 2., 3., 4.], |x| x.repeat(2, 0)), [1., 2., 1., 2., 3., 4., 3., 4.]);
    assert_eq!(result(&[2, 3], &[1., 2., 3., 4., 5., 6.], |x| x.reverse(&[1])), [3., 2., 1., 6., 5., 4.]);
    assert_eq!(result(&[2, 2], &[1., 2., 3., 4.], |x| x.reverse(&[])), [4., 3., 2., 1.]);
}

#[test]
fn sums_run_from_either_end() {
    let sums = |exclusive, reverse| {
        result(&[3], &[1., 2., 4.], |x| x.cumsum_with(0, CumsumOptions { exclusive, reverse }))
    };
    assert_eq!(sums(false, false), [1., 3., 7.]);
    assert_eq!(sums(true, false), [0., 1., 3.]);
    assert_eq!(sums(false, true), [7., 6., 4.]);
    assert_eq!(sums(true, true), [6., 4., 0.]);
}

#[test]
fn counting() {
    assert_eq!(result(&[2, 2], &[0.; 4], |x| x.iota_like(1, DType::F32)), [0., 1., 0., 1.]);
    assert_eq!(result(&[2, 2], &[0.; 4], |x| x.iota_like(0, DType::U8)), [0., 0., 1., 1.]);
    assert_eq!(result(&[], &[0.], |x| x.graph().iota(4, DType::I64)), [0., 1., 2., 3.]);
}

#[test]
fn some_and_all() {
    let x = [0., 0., 0., 1., 1., 1.];
    let truths = |x: &Tensor| x.greater(&x.zero());
    assert_eq!(result(&[3, 2], &x, |x| truths(x).any_axes(&[1])), [0., 1., 1.]);
    assert_eq!(result(&[3, 2], &x, |x| truths(x).all_axes(&[1])), [0., 0., 1.]);
    assert_eq!(result(&[3, 2], &x, |x| truths(x).any_axes(&[])), [1.]);
    assert_eq!(result(&[3, 2], &x, |x| truths(x).all_axes(&[])), [0.]);
}

#[test]
fn sorting_is_stable_and_nan_is_largest() {
    let x = [2., 5., 2., f64::NAN, 5., -1.];
    assert_eq!(result(&[6], &x, |x| x.top_k(4).1), [3., 1., 4., 0.]);
    assert_eq!(result(&[6], &x, |x| x.top_k(4).0)[1..], [5., 5., 2.]);
    assert_eq!(result(&[6], &x, |x| x.argsort(0)), [5., 0., 2., 1., 4., 3.]);
    assert_eq!(result(&[3, 2], &[3., 1., 2., 2., 1., 3.], |x| x.sort(0)), [1., 1., 2., 2., 3., 3.]);
    assert_eq!(result(&[2, 2], &[3., 4., 2., 1.], |x| x.sort_descending(1)), [4., 3., 2., 1.]);
}

#[test]
fn ranks_of_targets() {
    let among = |scores: &[f64; 4], target: i32, k| {
        let found = result(&[1, 4], scores, |x| {
            x.in_top_k(&x.graph().constant(HostTensor::new([1], vec![target]).unwrap()), k)
        });
        found == [1.0]
    };
    let scores = [0.1, 0.4, 0.4, 0.2];
    assert!(among(&scores, 1, 1) && among(&scores, 2, 1), "equal scores share the first rank");
    assert!(!among(&scores, 3, 2) && among(&scores, 3, 3) && !among(&scores, 0, 3) && !among(&scores, 1, 0));
    assert!(!among(&scores, 4, 4) && !among(&scores, -1, 4), "no class is not among any");
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert!(!among(&[0.1, bad, 0.2, 0.3], 3, 4), "a row with {bad} says nothing");
    }
}

#[test]
fn small_floats_are_added_up_in_larger_ones() {
    // 256 + 1 is 256 in bf16, but the sum of a thousand ones must be 1000.
    let ones = |x: &Tensor| x.cast(DType::Bf16).broadcast_to(&[1000]);
    let places = |x: &Tensor| x.graph().iota(1000, DType::I32) * x.zero().cast(DType::I32);
    assert_eq!(result(&[], &[1.0], |x| ones(x).scatter_add(&places(x), 1, 0).cast(DType::F32)), [1000.0]);
    let last = result(&[], &[1.0], |x| ones(x).cumsum(0).slice_axis(0, 999, None).cast(DType::F32));
    assert_eq!(last, [1000.0]);
    assert_eq!(result(&[3], &[1.0, 3.0, 2.0], |x| x.cast(DType::Bf16).top_k(2).1), [1.0, 2.0]);
}
