//! Infinities in feeds: rejected, unless the input is declared with `allow_infinite`.

use super::{assert_close, engines, session};
use tensorpack::graph::{Graph, TensorSpec};
use tensorpack::{DType, ErrorKind, HostTensor};

fn row(values: &[f64]) -> HostTensor {
    HostTensor::from_f64(DType::F32, [1, values.len()], values).unwrap()
}

#[test]
fn an_allow_infinite_input_accepts_infinities_but_no_nan() {
    for device in engines() {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(3)]));
        let mask = graph.placeholder(&TensorSpec::f32("mask", [None, Some(3)]).allow_infinite());
        let y = (&x + &mask).softmax();
        let session = session(graph, device).unwrap();
        let run = |x: &[f64], mask: &[f64]| session.run(&[&y], &[("x", &row(x)), ("mask", &row(mask))]);
        let half = run(&[1.0, 1.0, 9.0], &[0.0, 0.0, f64::NEG_INFINITY]).unwrap().remove(0);
        assert_close(&half.to_f64_vec(), &[0.5, 0.5, 0.0], DType::F32, "softmax");
        let refused = |result: tensorpack::Result<Vec<HostTensor>>, name: &str| {
            let e = result.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::NotFinite, "{e}");
            assert!(e.to_string().contains(name), "{e}");
        };
        if device == tensorpack::runtime::Device::Cpu(0) {
            refused(run(&[1.0, f64::INFINITY, 9.0], &[0.0; 3]), "feed of x");
            refused(run(&[1.0; 3], &[0.0, f64::NAN, 0.0]), "feed of mask");
        }
    }
}

#[test]
fn a_training_step_may_be_fed_a_mask_of_infinities() {
    use tensorpack::nn::Linear;
    use tensorpack::optim::{Sgd, minimize};
    use tensorpack::tower::TowerContext;
    for device in engines() {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(2)]));
        let mask = graph.placeholder(&TensorSpec::f32("mask", [None, Some(3)]).allow_infinite());
        let label = graph.placeholder(&TensorSpec::i32("label", [None]));
        let logits = Linear::new(3).apply(&t, "fc", &x) + &mask;
        let cost = logits.sparse_softmax_cross_entropy(&label).mean();
        let train = minimize(&cost, &Sgd::new(0.1)).unwrap();
        let session = session(graph, device).unwrap();
        let label = HostTensor::new([1], vec![0i32]).unwrap();
        let mut costs = Vec::new();
        for _ in 0..3 {
            let feeds =
                [("x", &row(&[1.0, 2.0])), ("mask", &row(&[0.0, f64::NEG_INFINITY, 0.0])), ("label", &label)];
            let fetched = session.run(&[&cost, &train], &feeds);
            costs.push(fetched.unwrap()[0].to_scalar().unwrap());
        }
        assert!(costs[2] < costs[0] && costs[2].is_finite(), "{device}: {costs:?}");
    }
}

#[test]
fn an_exported_model_keeps_allow_infinite() {
    use tensorpack::predict::{ExportedModel, OfflinePredictor, PredictConfig};
    use tensorpack::tower::{TowerContext, TowerFunc};
    let inputs = vec![
        TensorSpec::f32("x", [None, Some(2)]),
        TensorSpec::f32("mask", [None, Some(2)]).allow_infinite(),
    ];
    let build =
        |_: &TowerContext, i: &[tensorpack::graph::Tensor]| vec![(&i[0] + &i[1]).softmax().named("p")];
    let net = TowerFunc::new(inputs.clone(), build).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.safetensors");
    let code = OfflinePredictor::new(PredictConfig::from_tower(net, ["p"]).inputs(["x", "mask"])).unwrap();
    code.export(&path).unwrap();
    let file = ExportedModel::load(&path).unwrap();
    assert_eq!(file.inputs(), inputs);
    let p = file.predict(&[&row(&[1.0, 2.0]), &row(&[0.0, f64::NEG_INFINITY])]).unwrap();
    assert_eq!(p[0].to_f64_vec(), [1.0, 0.0]);
}
