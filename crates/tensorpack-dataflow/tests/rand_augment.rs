//! Compares the operations of `RandAugment` with torchvision's on Pillow images.

use serde_json::Value;
use std::collections::HashSet;
use tensorpack_dataflow::image::{Augmentor, RandAugment, RandAugmentOp};
use tensorpack_dataflow::tensor::HostTensor;
use tensorpack_dataflow::{Seed, tensor::DType};

fn golden() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/rand_augment.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("the golden file")).expect("JSON")
}

fn bytes(v: &Value) -> Vec<u8> {
    v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u8).collect()
}

/// Returns the image and its height and width.
fn image(golden: &Value) -> (HostTensor, usize, usize) {
    let [h, w] = ["height", "width"].map(|side| golden[side].as_u64().unwrap() as usize);
    (HostTensor::new([h, w, 3], bytes(&golden["image"])).unwrap(), h, w)
}

#[test]
fn operations_match_torchvision() {
    let golden = golden();
    let (image, h, w) = image(&golden);
    let mut seen = HashSet::new();
    for case in golden["cases"].as_array().unwrap() {
        let name = case["op"].as_str().unwrap();
        let op = *RandAugmentOp::ALL.iter().find(|op| format!("{op:?}") == name).expect(name);
        let magnitude = case["magnitude"].as_f64().unwrap();
        let own = op.magnitude(case["bin"].as_f64().unwrap() / 30.0, h, w);
        assert!((own - magnitude.abs()).abs() < 1e-4, "{name}: magnitude {own}, not {magnitude}");
        assert_eq!(case["signed"].as_bool(), Some(op.has_sign()), "{name}");
        let found = op.transform(&image, magnitude).unwrap().apply_image(image.clone()).unwrap();
        let expected = bytes(&case["values"]);
        let pairs = found.as_slice::<u8>().unwrap().iter().zip(&expected);
        let differ = pairs.filter(|(found, expected)| found != expected).count();
        // Pillow computes positions with 16 fractional bits: where they fall between two pixels, it
        // may take the other one. All values are exact.
        let moves = ["ShearX", "ShearY", "Rotate"].contains(&name);
        let limit = if moves { expected.len() / 100 } else { 0 };
        assert!(differ <= limit, "{name} by {magnitude}: {differ} of {} values differ", expected.len());
        seen.insert(op);
    }
    assert_eq!(seen.len(), RandAugmentOp::ALL.len());
}

#[test]
fn coordinates_move_with_the_pixels() {
    let (h, w) = (15, 21);
    let at = |y: usize, x: usize| y * w + x;
    let mut values = vec![0u8; h * w];
    // A single pixel may be between the samples.
    for y in 5..8 {
        values[at(y, 11)..=at(y, 13)].fill(255);
    }
    let image = HostTensor::new([h, w], values).unwrap();
    for (op, magnitude) in [
        (RandAugmentOp::ShearX, 0.25),
        (RandAugmentOp::ShearY, -0.2),
        (RandAugmentOp::TranslateX, -3.7),
        (RandAugmentOp::TranslateY, 2.2),
        (RandAugmentOp::Rotate, 20.0),
    ] {
        let transform = op.transform(&image, magnitude).unwrap();
        let moved = transform.apply_image(image.clone()).unwrap();
        let mut point = [[12.5, 6.5]];
        transform.apply_coords(&mut point).unwrap();
        let (x, y) = (point[0][0].floor() as usize, point[0][1].floor() as usize);
        assert_eq!(moved.as_slice::<u8>().unwrap()[at(y, x)], 255, "{op:?} moved it to {point:?}");
    }
}

#[test]
fn operations_are_drawn_from_the_list_and_settings_are_checked() {
    let (image, ..) = image(&golden());
    let augment = |augmentor: &RandAugment, seed: u64| {
        augmentor.augment(image.clone(), &mut Seed::new(seed).rng(0, 0)).map(|(image, _)| image)
    };
    let unchanged = RandAugment::new(3, 30).ops([RandAugmentOp::Identity]);
    assert_eq!(augment(&unchanged, 0).unwrap().as_slice::<u8>().unwrap(), image.as_slice::<u8>().unwrap());
    let results: HashSet<Vec<u8>> = (0..40)
        .map(|seed| augment(&RandAugment::new(2, 9), seed).unwrap().as_slice::<u8>().unwrap().to_vec())
        .collect();
    assert!(results.len() > 30, "only {} different images", results.len());
    assert!(augment(&RandAugment::new(2, 31), 0).is_err());
    assert!(augment(&RandAugment::new(1, 0).ops([]), 0).is_err());
    assert!(augment(&RandAugment::new(1, 3).bins(10), 0).is_ok());
    let float = HostTensor::zeros(DType::F32, [4, 4, 3]).unwrap();
    let e = RandAugmentOp::Equalize.transform(&float, 0.0).unwrap().apply_image(float).unwrap_err();
    assert!(e.message().contains("u8") && e.to_string().contains("ToUint8"), "{e}");
}
