//! Layers that compute in bf16 or f16: one line casts the input, and the variables stay f32.

use tensorpack::prelude::*;

/// Returns the logits of a small network with most kinds of layers, for images `[8, 8, 3]`.
pub(crate) fn most_layers(t: &TowerContext, image: &Tensor) -> Tensor {
    let x = Conv2d::new(8, 3).no_bias().apply(t, "conv0", image);
    let x = BatchNorm::new().relu().apply(t, "bn", &x).max_pool(2);
    let x = DepthwiseConv2d::new(3).apply(t, "depthwise", &x);
    let x = GroupNorm::new(2).apply(t, "group", &x);
    let x = PRelu::new().apply(t, "prelu", &Conv2dTranspose::new(4, 2).apply(t, "up", &x));
    let x = x.reshape(&[-1, 4, 16]);
    let (x, _) = Lstm::new(6).apply(t, "lstm", &x, None);
    let (x, _) = Gru::new(6).apply(t, "gru", &x, None);
    let x = LayerNorm::new().last_axis().apply(t, "layer", &x);
    let x = MultiHeadAttention::new(2).apply(t, "attention", &x);
    Linear::new(3).apply(t, "fc", &x)
}

/// Returns the costs of 30 steps on the same images.
fn costs(dtype: DType) -> Vec<f64> {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let image = graph.placeholder(&TensorSpec::f32("image", [None, Some(8), Some(8), Some(3)]));
    let label = graph.placeholder(&TensorSpec::i32("label", [None]));
    let logits = most_layers(&t, &image.cast(dtype));
    assert_eq!(logits.dtype(), dtype);
    let cost = logits.sparse_softmax_cross_entropy(&label).mean();
    assert_eq!(cost.dtype(), DType::F32);
    let train = minimize(&cost, &Adam::new(3e-3)).unwrap();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    for v in session.graph().variables() {
        assert!(!v.dtype.is_narrow_float(), "{}", v.name);
    }
    let images = (0..24 * 192).map(|i| (i as f32 * 0.37).sin() + (i / 192 % 3) as f32).collect();
    let images = HostTensor::new([24, 8, 8, 3], images).unwrap();
    let labels = HostTensor::new([24], (0..24).map(|i| i % 3).collect::<Vec<i32>>()).unwrap();
    let step = || {
        let values = session.run(&[&cost, &train], &[("image", &images), ("label", &labels)]).unwrap();
        values[0].to_scalar().unwrap()
    };
    (0..30).map(|_| step()).collect()
}

/// The relative error of a bf16 product is at most 2^-8, and that of f16 2^-11. With a cost of about
/// 1, the costs of two runs therefore stay within a few hundredths or thousandths of each other.
#[test]
fn training_in_16_bits_matches_f32() {
    let wide = costs(DType::F32);
    for (dtype, tolerance) in [(DType::Bf16, 0.05), (DType::F16, 0.01)] {
        let narrow = costs(dtype);
        for (i, (n, w)) in narrow.iter().zip(&wide).enumerate() {
            assert!((n - w).abs() < tolerance, "step {i}: {n} in {dtype}, {w} in f32");
        }
        assert_ne!(narrow, wide);
    }
    assert!(wide[29] < 0.5 * wide[0], "{wide:?}");
}
