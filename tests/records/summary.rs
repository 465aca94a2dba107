//! `nn::summary`: layers, parameters, multiply-adds, memory.

use tensorpack::ErrorKind;
use tensorpack::nn::ModelSummary;
use tensorpack::prelude::*;

/// A convolution, a linear layer inside another scope, and a product outside of layers.
fn net(t: &TowerContext, x: &Tensor) -> Tensor {
    let x = Conv2d::new(8, 3).relu().apply(t, "conv", x).max_pool(2);
    let x = t.scope("head", |t| Linear::new(5).apply(t, "fc", &x));
    let w = t.variable(VariableSpec::new("w", [5, 2]));
    x.matmul(w.value()).square().mean()
}

fn images(graph: &Graph) -> Tensor {
    graph.placeholder(&TensorSpec::f32("x", [None, Some(12), Some(10), Some(3)]))
}

#[test]
fn layers_have_their_shapes_parameters_and_multiply_adds() {
    let graph = Graph::new();
    let x = images(&graph);
    let cost = net(&TowerContext::training(&graph), &x);
    minimize(&cost, &Momentum::new(0.1, 0.9)).unwrap();
    let summary = tensorpack::nn::summary(&graph.freeze().unwrap(), &[("x", &[4, 12, 10, 3])]).unwrap();
    let names: Vec<&str> = summary.layers.iter().map(|layer| layer.name.as_str()).collect();
    assert_eq!(names, ["conv", "head/fc", "(outside layers)"]);
    let [conv, fc, outside] = &summary.layers[..] else { unreachable!() };
    assert_eq!(
        (conv.output.as_slice(), conv.parameters, conv.bytes),
        (&[4, 12, 10, 8][..], 3 * 3 * 3 * 8 + 8, 4 * 4 * 960)
    );
    assert_eq!((fc.output.as_slice(), fc.parameters, fc.bytes), (&[4, 5][..], 240 * 5 + 5, 80));
    // An output element takes one multiply-add for each tap and channel. The gradient of the filter
    // takes as many, and the images need none.
    let macs = 4 * 12 * 10 * 8 * 27;
    assert_eq!((conv.forward, conv.backward), (macs, macs));
    // The gradient of a linear layer has a product for the weights and one for its input.
    assert_eq!((fc.forward, fc.backward), (4 * 240 * 5, 2 * 4 * 240 * 5));
    assert_eq!((outside.parameters, outside.forward, outside.backward), (10, 4 * 5 * 2, 2 * 4 * 5 * 2));
    let parameters = conv.parameters + fc.parameters + 10;
    assert_eq!(summary.parameters(), parameters);
    assert_eq!(summary.multiply_adds(), (macs + 4800 + 40, macs + 9600 + 80));
    // Momentum has a slot for each parameter.
    assert!(summary.variable_bytes >= 2 * 4 * parameters, "{summary:?}");
    assert_eq!(summary.seconds_at_peak(), None);
    let (forward, backward) = summary.multiply_adds();
    let measured = ModelSummary { multiply_adds_per_second: Some(1e9), ..summary.clone() };
    assert_eq!(measured.seconds_at_peak(), Some((forward + backward) as f64 / 1e9));
    assert!(measured.to_string().lines().last().unwrap().contains(" 1.0 G multiply-adds/s"), "{measured}");
    let table = summary.to_string();
    for part in ["conv", "[4, 12, 10, 8]", "head/fc", "total", &parameters.to_string()] {
        assert!(table.contains(part), "{table}");
    }
}

#[test]
fn towers_and_inference_graphs_count_one_model() {
    let inference = Graph::new();
    let x = images(&inference);
    net(&TowerContext::inference(&inference), &x);
    let summary = tensorpack::nn::summary(&inference.freeze().unwrap(), &[("x", &[1, 12, 10, 3])]).unwrap();
    // Only layers are known here: what follows the last one is no part of a cost.
    assert_eq!(summary.multiply_adds(), (12 * 10 * 8 * 27 + 240 * 5, 0));
}

#[test]
fn inputs_of_unknown_size_are_errors_with_their_line() {
    let graph = Graph::new();
    let x = images(&graph);
    net(&TowerContext::inference(&graph), &x);
    let frozen = graph.freeze().unwrap();
    let e = tensorpack::nn::summary(&frozen, &[]).unwrap_err();
    assert_eq!((e.kind(), e.site().map(|site| site.file)), (ErrorKind::Name, Some(file!())), "{e}");
    let e = tensorpack::nn::summary(&frozen, &[("x", &[1, 12, 10])]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Shape, "{e}");
}
