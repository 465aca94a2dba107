//! Exported files with weights of 8 bits.

use std::path::Path;
use tensorpack::ErrorKind;
use tensorpack::io::safetensors;
use tensorpack::prelude::*;
use tensorpack::tower::TowerFunc;
use tensorpack_testing::assert_mentions;

/// A net with weights of all kinds; those of `small` are too few to be worth it.
fn predictor() -> OfflinePredictor {
    let image = TensorSpec::f32("image", [None, Some(8), Some(8), Some(16)]);
    let tower = TowerFunc::new(vec![image], |t, x| {
        let y = Conv2d::new(32, 3).relu().apply(t, "conv0", &x[0]);
        let y = Conv2d::new(32, 3).groups(2).relu().apply(t, "conv1", &y);
        let y = BatchNorm::new().apply(t, "bn", &y).global_average_pool();
        let y = Linear::new(64).relu().apply(t, "fc", &y);
        vec![Linear::new(10).apply(t, "small", &y).named("y")]
    });
    OfflinePredictor::new(PredictConfig::from_tower(tower.unwrap(), ["y"])).unwrap()
}

fn images() -> HostTensor {
    HostTensor::new([4, 8, 8, 16], (0..4096).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<f32>>()).unwrap()
}

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

#[test]
fn weights_change_by_at_most_half_a_step() {
    let dir = tempfile::tempdir().unwrap();
    let [full, narrow, again] =
        ["full", "narrow", "again"].map(|n| dir.path().join(format!("{n}.safetensors")));
    let predictor = predictor();
    // A channel of zeros has no scale.
    let zeros: Vec<f32> =
        (0..3 * 3 * 16 * 32).map(|i| if i % 32 == 5 { 0.0 } else { (i as f32).sin() }).collect();
    predictor.session().write("conv0/W", &HostTensor::new([3, 3, 16, 32], zeros).unwrap()).unwrap();
    predictor.export(&full).unwrap();
    predictor.export_int8(&narrow).unwrap();
    assert!(size(&narrow) < size(&full) * 2 / 5, "{} of {}", size(&narrow), size(&full));
    let model = ExportedModel::load(&narrow).unwrap();
    model.export(&again).unwrap();
    let [before, after] = [&full, &again].map(|path| safetensors::read(path).unwrap());
    assert_eq!(before.len(), after.len());
    let mut changed = Vec::new();
    for ((name, before), (other, after)) in before.iter().zip(&after) {
        assert_eq!((name, before.dtype(), before.sizes()), (other, after.dtype(), after.sizes()));
        if before == after {
            continue;
        }
        changed.push(name.as_str());
        let channels = *before.sizes().last().unwrap();
        let (before, after) = (before.to_f64_vec(), after.to_f64_vec());
        for channel in 0..channels {
            let of =
                |values: &[f64]| values.iter().skip(channel).step_by(channels).copied().collect::<Vec<f64>>();
            let (before, after) = (of(&before), of(&after));
            let largest = before.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
            let error = before.iter().zip(&after).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(error <= largest / 254.0 * 1.001, "{name}: {error} of {largest}");
        }
    }
    assert_eq!(changed, ["conv0/W", "conv1/W", "fc/W"]);
    let x = images();
    let (right, found) = (predictor.predict(&[&x]).unwrap(), model.predict(&[&x]).unwrap());
    let (right, found) = (right[0].to_f64_vec(), found[0].to_f64_vec());
    let largest = right.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
    let error = right.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(error > 0.0 && error < 0.02 * largest, "{error} of {largest}");
}

#[test]
fn damaged_files_are_errors_that_name_the_weight() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.safetensors");
    predictor().export_int8(&path).unwrap();
    let (tensors, metadata) = safetensors::read_with_metadata(&path).unwrap();
    let scale = "conv0/W:scale";
    let with = |name: &str, value: Option<HostTensor>| {
        let mut tensors = tensors.clone();
        tensors.retain(|(have, _)| have != name);
        tensors.extend(value.map(|value| (name.to_string(), value)));
        safetensors::write_with_metadata(&path, &tensors, &metadata).unwrap();
        ExportedModel::load(&path).err().unwrap()
    };
    for e in [
        with(scale, None),
        with("conv0/W", None),
        with(scale, Some(HostTensor::zeros(DType::F32, [31]).unwrap())),
        with(scale, Some(HostTensor::zeros(DType::I32, [32]).unwrap())),
        with("conv0/W", Some(HostTensor::zeros(DType::I32, [3, 3, 16, 32]).unwrap())),
        with("conv0/W", Some(HostTensor::scalar(1u8))),
    ] {
        assert_eq!(e.kind(), ErrorKind::Io);
        assert_mentions(&e, &["conv0/W", "net.safetensors"]);
    }
    // The weights themselves still must match the graph.
    let e = with("conv0/W", Some(HostTensor::zeros(DType::U8, [3, 3, 15, 32]).unwrap()));
    assert_eq!(e.kind(), ErrorKind::Shape);
}
