//! The types that operations compute in under a precision policy.

use tensorpack::prelude::*;

/// Builds a tower in this precision on an image `[8, 8, 3]` and a vector `[6]`, both f32.
fn tower<R>(precision: Precision, build: impl FnOnce(&TowerContext, &Tensor, &Tensor) -> R) -> R {
    let graph = Graph::new();
    graph.set_precision(precision);
    let image = graph.placeholder(&TensorSpec::f32("image", [None, Some(8), Some(8), Some(3)]));
    let vector = graph.placeholder(&TensorSpec::f32("vector", [None, Some(6)]));
    let found = TowerContext::training(&graph).build(|t| build(t, &image, &vector));
    graph.freeze().unwrap();
    found
}

const NARROW: [(Precision, DType); 2] = [(Precision::Bf16, DType::Bf16), (Precision::F16, DType::F16)];

#[test]
fn contractions_narrow_their_inputs() {
    for (precision, narrow) in NARROW {
        tower(precision, |t, image, x| {
            let w = t.variable(VariableSpec::new("w", [6, 6]));
            assert_eq!(x.matmul(w.value()).dtype(), narrow);
            assert_eq!(x.graph().einsum("bi,ij->bj", &[x, w.value()]).dtype(), narrow);
            assert_eq!(Conv2d::new(4, 3).apply(t, "conv", image).dtype(), narrow);
            assert_eq!(Conv2dTranspose::new(4, 2).apply(t, "up", image).dtype(), narrow);
            assert_eq!(DepthwiseConv2d::new(3).apply(t, "depthwise", image).dtype(), narrow);
            let heads = image.reshape(&[-1, 8, 8, 3]);
            assert_eq!(heads.attention(&heads, &heads, &AttentionOptions::default()).dtype(), narrow);
            let dropout = AttentionOptions::default().dropout(0.5);
            assert_eq!(heads.attention(&heads, &heads, &dropout).dtype(), narrow);
            let y = Linear::new(5).relu().apply(t, "fc", x);
            assert_eq!(y.dtype(), narrow);
            // The variables and their gradients are f32.
            assert_eq!((w.value().dtype(), y.sum().gradient(x).dtype()), (DType::F32, DType::F32));
        });
    }
}

#[test]
fn statistics_losses_and_reductions_stay_f32() {
    for (precision, narrow) in NARROW {
        tower(precision, |t, image, x| {
            let y = Linear::new(6).apply(t, "fc", x);
            assert_eq!(y.dtype(), narrow);
            let wide = [
                y.sum(),
                y.mean(),
                y.mean_axes(&[0]),
                y.softmax(),
                y.log_softmax(),
                y.normalize(&[1], 1e-5),
                y.cumsum(0),
                y.prod_axes(&[1]),
                y.square(),
                y.exp(),
                y.sigmoid_cross_entropy(x),
            ];
            for (i, tensor) in wide.iter().enumerate() {
                assert_eq!(tensor.dtype(), DType::F32, "number {i}");
            }
            for same in [y.relu(), -&y, &y * 0.5, y.max_axes(&[1]), y.tanh(), y.reshape(&[-1])] {
                assert_eq!(same.dtype(), narrow);
            }
            // Other operations take the widest type of their inputs.
            for mixed in [&y + x, x * &y, y.greater(x).select(&y, x), y.maximum(x)] {
                assert_eq!(mixed.dtype(), DType::F32);
            }
            assert_eq!(x.graph().concat(&[&y, x], 1).dtype(), DType::F32);
            // Normalization layers return the type of their input.
            let conv = Conv2d::new(4, 3).apply(t, "conv", image);
            assert_eq!(BatchNorm::new().apply(t, "bn", &conv).dtype(), narrow);
        });
    }
}

#[test]
fn means_divide_by_the_exact_number() {
    // bf16 has no 257.
    let graph = Graph::new();
    graph.set_precision(Precision::Bf16);
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(257), Some(1)]));
    let mean = TowerContext::training(&graph).build(|t| {
        let one = t.graph().constant(HostTensor::new([1, 1], vec![1.0f32]).unwrap());
        x.matmul(&one).mean()
    });
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let ones = HostTensor::new([257, 1], vec![1.0f32; 257]).unwrap();
    assert_eq!(session.run(&[&mean], &[("x", &ones)]).unwrap()[0].to_scalar().unwrap(), 1.0);
}

#[test]
fn a_part_is_exempt() {
    for (precision, narrow) in NARROW {
        tower(precision, |t, _, x| {
            let y = Linear::new(6).apply(t, "a", x);
            let z = t.full_precision(|t| Linear::new(6).apply(t, "b", &y));
            let w = Linear::new(6).apply(t, "c", &z);
            assert_eq!([y, z, w].map(|t| t.dtype()), [narrow, DType::F32, narrow]);
        });
    }
    // Without a policy there is nothing to be exempt from.
    tower(Precision::Tf32, |t, _, x| {
        let y = Linear::new(6).apply(t, "a", &x.cast(DType::Bf16));
        let z = t.full_precision(|t| Linear::new(6).apply(t, "b", &y));
        assert_eq!(z.dtype(), DType::Bf16);
    });
}

#[test]
fn f32_and_f64_change_nothing() {
    let dump = |precision: Precision| {
        let graph = Graph::new();
        graph.set_precision(precision);
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(6)]));
        TowerContext::training(&graph).build(|t| Linear::new(3).apply(t, "fc", &x).softmax());
        graph.freeze().unwrap().nodes().len()
    };
    assert_eq!(dump(Precision::F32), dump(Precision::Tf32));
    assert!(dump(Precision::Bf16) > dump(Precision::F32));
    tower(Precision::Bf16, |t, _, x| {
        let y = Linear::new(6).apply(t, "fc", &x.cast(DType::F64));
        assert_eq!((y.dtype(), y.sum().dtype()), (DType::F64, DType::F64));
    });
}

#[test]
fn errors_of_casts_name_the_line_of_the_call() {
    let graph = Graph::new();
    graph.set_precision(Precision::Bf16);
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(6)]));
    let line = line!() + 1;
    let y = TowerContext::training(&graph).build(|_| x.matmul(&x.transpose(&[1, 0])));
    let frozen = graph.freeze().unwrap();
    let casts: Vec<_> = frozen.nodes().iter().filter(|n| n.name.contains("Cast")).collect();
    assert!(!casts.is_empty() && casts.iter().all(|n| n.site.line == line), "{casts:?}");
    assert_eq!(y.dtype(), DType::Bf16);
}

#[test]
fn only_xla_in_f32_needs_all_digits() {
    let full = |device: &str, precision: Precision| {
        let options = SessionOptions { device: device.parse().unwrap(), ..SessionOptions::default() };
        options.in_precision(precision).full_precision
    };
    for precision in Precision::ALL {
        assert_eq!(full("xla:cuda:0", precision), precision == Precision::F32, "{precision}");
        // There it would turn off Winograd convolutions.
        assert!(!full("cpu:0", precision), "{precision}");
    }
    let given = SessionOptions { full_precision: true, ..SessionOptions::default() };
    assert!(given.in_precision(Precision::Tf32).full_precision);
}

#[test]
fn predictors_compute_in_their_own_precision() {
    let dtype = |precision: Option<Precision>| {
        let inputs = vec![TensorSpec::f32("x", [None, Some(6)])];
        let model = tensorpack::tower::TowerFunc::new(inputs, |t, x| {
            vec![Linear::new(2).apply(t, "fc", &x[0]).named("y")]
        });
        let config = PredictConfig::from_tower(model.unwrap(), ["y"]);
        let config = precision.into_iter().fold(config, PredictConfig::precision);
        let x = HostTensor::zeros(DType::F32, [1, 6]).unwrap();
        OfflinePredictor::new(config).unwrap().predict(&[&x]).unwrap()[0].dtype()
    };
    assert_eq!(dtype(None), DType::F32);
    assert_eq!(dtype(Some(Precision::Bf16)), DType::Bf16);
}

#[test]
fn names_are_parsed() {
    for precision in Precision::ALL {
        assert_eq!(precision.to_string().parse::<Precision>().unwrap(), precision);
    }
    let e = "fp16".parse::<Precision>().unwrap_err();
    assert_eq!(e.kind(), tensorpack::ErrorKind::Argument);
    assert!(e.to_string().contains("fp16") && e.to_string().contains("bf16"), "{e}");
    assert_eq!(Precision::default(), Precision::Tf32);
}
