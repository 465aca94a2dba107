//! Compares augmentors with the original at fixed parameters, and coordinates with pixels.

use serde_json::Value;
use tensorpack_dataflow::image::*;
use tensorpack_dataflow::tensor::{DType, ErrorKind, HostTensor};
use tensorpack_dataflow::{DataFlow, FromList, SampleRng, Seed, State};

fn golden() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/augmentors.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("the golden file")).expect("JSON")
}

fn sizes(v: &Value) -> Vec<usize> {
    v["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
}

fn values(v: &Value) -> Vec<f64> {
    v["values"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
}

fn tensor(v: &Value, dtype: DType) -> HostTensor {
    HostTensor::from_f64(dtype, sizes(v), &values(v)).unwrap()
}

fn rng() -> SampleRng {
    Seed::new(3).rng(0, 0)
}

fn augment(augmentor: &dyn Augmentor, image: &HostTensor) -> HostTensor {
    augmentor.augment(image.clone(), &mut rng()).unwrap().0
}

fn assert_close(actual: &HostTensor, expected: &Value, tolerance: f64, name: &str) {
    assert_eq!(actual.sizes(), sizes(expected), "{name}");
    for (i, (actual, expected)) in actual.to_f64_vec().iter().zip(values(expected)).enumerate() {
        assert!((actual - expected).abs() <= tolerance, "{name}: value {i} is {actual}, not {expected}");
    }
}

#[test]
fn photometric_augmentors_match_the_original() {
    let golden = golden();
    let image = tensor(&golden["image"], DType::F32);
    let bytes = tensor(&golden["image"], DType::U8);
    let cases: [(&str, Box<dyn Augmentor>); 18] = [
        ("brightness", Box::new(Brightness::range(-33.5, -33.5))),
        ("brightness_scale", Box::new(BrightnessScale::new(1.3, 1.3))),
        ("contrast", Box::new(Contrast::new(0.7, 0.7))),
        ("contrast_of_grey", Box::new(Contrast::new(1.4, 1.4).grayscale_mean())),
        ("saturation", Box::new(Saturation::range(0.65, 0.65))),
        ("saturation_up", Box::new(Saturation::range(1.35, 1.35))),
        ("hue", Box::new(Hue::new(35.0, 35.0))),
        ("gamma", Box::new(Gamma::new(0.3, 0.3))),
        ("clip", Box::new(Clip::new(30.0, 200.0))),
        ("mean_variance", Box::new(MeanVarianceNormalize::new())),
        ("mean_variance_by_channel", Box::new(MeanVarianceNormalize::new().per_channel())),
        ("min_max", Box::new(MinMaxNormalize::new(-1.0, 1.0))),
        ("min_max_by_channel", Box::new(MinMaxNormalize::new(0.0, 1.0).per_channel())),
        ("blur_5", Box::new(GaussianBlur::new(2, 3))),
        ("blur_9", Box::new(GaussianBlur::new(4, 5))),
        ("blur_11", Box::new(GaussianBlur::new(5, 6))),
        ("blur_sigma", Box::new(GaussianBlur::new(3, 4).sigma(1.2, 1.2))),
        ("grayscale", Box::new(Grayscale::new())),
    ];
    for (name, augmentor) in &cases {
        let expected = &golden["photometric"][name];
        assert_close(&augment(&**augmentor, &image), expected, 2e-3, name);
        // u8 values are rounded once, except that saturation also rounds the gray it mixes in.
        let tolerance = if name.starts_with("saturation") { 0.75 } else { 0.51 };
        assert_close(&augment(&**augmentor, &bytes), expected, tolerance, name);
    }
}

#[test]
fn geometric_augmentors_match_the_original() {
    let golden = golden();
    let image = tensor(&golden["image"], DType::F32);
    let points: Vec<[f64; 2]> = values(&golden["points"]).as_chunks::<2>().0.to_vec();
    let turn = || Rotation::range(25.0, 25.0).center(0.5, 0.5);
    // OpenCV interpolates at 1/32 of a pixel, and the values differ by up to 160.
    let cases: [(&str, Box<dyn Augmentor>, f64); 5] = [
        ("flip_horizontal", Box::new(Flip::horizontal().probability(1.0)), 0.0),
        ("flip_vertical", Box::new(Flip::vertical().probability(1.0)), 0.0),
        ("resize", Box::new(Resize::new(13, 17)), 1e-3),
        ("rotation", Box::new(turn()), 160.0 / 32.0),
        ("rotation_constant", Box::new(turn().border(Border::Constant(60.0))), 160.0 / 32.0),
    ];
    for (name, augmentor, tolerance) in cases {
        let expected = &golden["geometric"][name];
        let (out, transform) = augmentor.augment(image.clone(), &mut rng()).unwrap();
        assert_close(&out, &expected["image"], tolerance, name);
        let mut moved = points.clone();
        transform.apply_coords(&mut moved).unwrap();
        for (actual, expected) in moved.as_flattened().iter().zip(values(&expected["coords"])) {
            assert!((actual - expected).abs() < 1e-4, "{name}: {actual}, not {expected}");
        }
    }
}

#[test]
fn resize_matches_opencv() {
    let golden = golden();
    let image = tensor(&golden["larger"], DType::U8);
    for case in golden["resize"].as_array().unwrap() {
        let method = match case["method"].as_str().unwrap() {
            "Linear" => Interpolation::Linear,
            "Cubic" => Interpolation::Cubic,
            "Lanczos" => Interpolation::Lanczos,
            "Nearest" => Interpolation::Nearest,
            _ => Interpolation::Area,
        };
        let &[h, w, _] = &sizes(&case["out"])[..] else { panic!("a picture") };
        // One of the libraries rounds twice.
        let tolerance = if method == Interpolation::Nearest { 0.0 } else { 2.0 };
        let name = format!("{method:?} to {h} by {w}");
        assert_close(&resize(&image, h, w, method).unwrap(), &case["out"], tolerance, &name);
    }
}

#[test]
fn resize_shortest_edge_sizes() {
    for case in golden()["shortest_edge"].as_array().unwrap() {
        let n: Vec<usize> = case.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
        let image = HostTensor::zeros(DType::U8, [n[0], n[1], 1]).unwrap();
        let out = augment(&ResizeShortestEdge::new(n[2]), &image);
        assert_eq!(out.sizes(), [n[3], n[4], 1], "{n:?}");
    }
}

/// A black image with a smooth bright blob at (x, y).
fn blob(h: usize, w: usize, x: f64, y: f64) -> HostTensor {
    let at = |i: usize| ((i % w) as f64 + 0.5 - x, (i / w) as f64 + 0.5 - y);
    let value = |(dx, dy): (f64, f64)| 200.0 * (-(dx * dx + dy * dy) / 8.0).exp();
    let values: Vec<f64> = (0..h * w).map(|i| value(at(i))).collect();
    HostTensor::from_f64(DType::F32, [h, w, 1], &values).unwrap()
}

/// The center of mass of the bright pixels.
fn center_of_mass(image: &HostTensor) -> [f64; 2] {
    let w = image.sizes()[1];
    let (mut sum, mut x, mut y) = (0.0, 0.0, 0.0);
    for (i, v) in image.to_f64_vec().into_iter().enumerate() {
        let v = if v > 2.0 { v } else { 0.0 };
        (sum, x, y) = (sum + v, x + v * ((i % w) as f64 + 0.5), y + v * ((i / w) as f64 + 0.5));
    }
    [x / sum, y / sum]
}

#[test]
fn coordinates_follow_the_pixels() {
    let augmentors: Vec<(&str, Box<dyn Augmentor>)> = vec![
        ("flip", Box::new(Flip::horizontal())),
        ("flip down", Box::new(Flip::vertical())),
        ("transpose", Box::new(Transpose::new(0.5))),
        ("crop", Box::new(RandomCrop::new(50, 60))),
        ("center crop", Box::new(CenterCrop::new(50, 60))),
        ("resize", Box::new(Resize::new(91, 83))),
        ("shortest edge", Box::new(ResizeShortestEdge::new(90))),
        ("random resize", Box::new(RandomResize::scale((0.9, 1.3), (0.9, 1.3)))),
        ("random-resized crop", Box::new(RandomResizedCrop::new(96).area(0.8, 1.0))),
        ("paste", Box::new(Paste::random(100, 110))),
        ("shift", Box::new(Shift::new(0.1, 0.1))),
        ("rotation", Box::new(Rotation::new(15.0))),
        ("rotation and crop", Box::new(RotationAndCropValid::new(10.0))),
        ("affine", Box::new(Affine::new().scale(0.9, 1.2).shift(0.05, 0.05).rotation(15.0).shear(10.0))),
        (
            "list",
            Box::new(
                AugmentorList::new()
                    .then(Rotation::new(9.0))
                    .then(Flip::horizontal())
                    .then(Resize::new(88, 90)),
            ),
        ),
        ("order", Box::new(RandomOrder::new().with(Brightness::new(1.0)).with(Shift::new(0.05, 0.05)))),
    ];
    for (name, augmentor) in &augmentors {
        for seed in 0..12 {
            let mut rng = Seed::new(seed).rng(0, 0);
            let (x, y) = (36.0 + rng.uniform_range(-5.0, 5.0), 32.0 + rng.uniform_range(-5.0, 5.0));
            let (out, transform) = augmentor.augment(blob(66, 74, x, y), &mut rng).unwrap();
            let mut point = [[x, y]];
            transform.apply_coords(&mut point).unwrap();
            let actual = center_of_mass(&out);
            let error = (actual[0] - point[0][0]).hypot(actual[1] - point[0][1]);
            assert!(
                error < 0.2,
                "{name}, seed {seed}: the blob is at {actual:?}, the point at {:?}",
                point[0]
            );
        }
    }
}

#[test]
fn random_choices_follow_their_probabilities() {
    let image = HostTensor::zeros(DType::U8, [1, 1, 1]).unwrap();
    let to = |value: f32| MapImage::new(move |_| HostTensor::new([1, 1, 1], vec![value]));
    let choice = RandomChoose::new().or_with_weight(to(1.0), 1.0).or_with_weight(to(2.0), 3.0);
    let apply = RandomApply::new(to(5.0), 0.25);
    let order = RandomOrder::new().with(to(1.0)).with(to(2.0)).with(to(3.0));
    let mut counts = [0; 6];
    for i in 0..4000 {
        let mut rng = Seed::new(9).rng(0, i);
        let mut value =
            |a: &dyn Augmentor| a.augment(image.clone(), &mut rng).unwrap().0.to_scalar().unwrap();
        counts[0] += i32::from(value(&choice) == 1.0);
        counts[1] += i32::from(value(&apply) == 5.0);
        counts[1 + value(&order) as usize] += 1;
    }
    for (actual, expected) in counts.into_iter().zip([1000, 1000, 1333, 1333, 1333]) {
        assert!((actual - expected).abs() < 120, "{counts:?}");
    }
}

#[test]
fn noise_has_the_requested_strength() {
    let image = HostTensor::from_f64(DType::F32, [40, 50, 3], &vec![128.0; 6000]).unwrap();
    let noisy = augment(&GaussianNoise::new(10.0), &image).to_f64_vec();
    let mean = noisy.iter().sum::<f64>() / 6000.0;
    let deviation = (noisy.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 6000.0).sqrt();
    assert!((mean - 128.0).abs() < 0.6 && (deviation - 10.0).abs() < 0.4, "{mean} {deviation}");
    let salted = augment(&SaltPepperNoise::new(0.1, 0.05), &image).to_f64_vec();
    let share = |value: f64| salted.iter().filter(|&&x| x == value).count() as f64 / 6000.0;
    assert!((share(255.0) - 0.1).abs() < 0.02 && (share(0.0) - 0.05).abs() < 0.015);
    let golden = golden();
    let picture = tensor(&golden["larger"], DType::U8);
    let compressed = augment(&JpegNoise::new(60, 61), &picture);
    assert_ne!(compressed, picture);
    let errors = compressed.to_f64_vec().into_iter().zip(picture.to_f64_vec()).map(|(a, b)| (a - b).abs());
    assert!(errors.sum::<f64>() / (picture.len() as f64) < 12.0);
}

#[test]
fn cutout_fills_only_its_rectangle() {
    let image = HostTensor::from_f64(DType::U8, [20, 30, 3], &vec![9.0; 1800]).unwrap();
    let out = augment(&RandomCutout::new(4, 6).fill(77.0), &image).to_f64_vec();
    assert_eq!(out.iter().filter(|&&x| x == 77.0).count(), 4 * 6 * 3);
    assert_eq!(out.iter().filter(|&&x| x == 9.0).count(), 1800 - 72);
}

#[test]
fn invalid_images_are_errors() {
    let message = |augmentor: &dyn Augmentor, sizes: &[usize]| {
        let image = HostTensor::zeros(DType::U8, sizes).unwrap();
        augmentor.augment(image, &mut rng()).unwrap_err().message().to_string()
    };
    let crop = message(&RandomCrop::new(30, 30), &[20, 40, 3]);
    assert!(crop.starts_with("RandomCrop: ") && crop.contains("20x40"), "{crop}");
    assert!(message(&Flip::horizontal(), &[20]).contains("[height, width, channels]"));
    assert!(message(&Saturation::new(0.4), &[2, 2, 1]).contains("3 channels"));
    assert!(message(&Resize::new(0, 4), &[2, 2, 1]).contains("0x4"));
    assert!(message(&Paste::center(3, 3), &[4, 2, 1]).contains("4x2"));
    assert!(message(&RandomChoose::new(), &[4, 2, 1]).contains("RandomChoose"));
}

/// MNIST images have no channel axis. They are augmented like those with one channel, and stay
/// without.
#[test]
fn images_without_a_channel_axis_keep_their_rank() {
    let values: Vec<f64> = (0..20 * 30).map(|i| f64::from(i * 7 % 251)).collect();
    let augmentors: Vec<(&str, Box<dyn Augmentor>)> = vec![
        ("flip", Box::new(Flip::horizontal().probability(1.0))),
        ("transpose", Box::new(Transpose::new(1.0))),
        ("crop", Box::new(RandomCrop::new(8, 9))),
        ("resize", Box::new(Resize::new(13, 17))),
        ("random-resized crop", Box::new(RandomResizedCrop::new(16))),
        ("paste", Box::new(Paste::random(40, 41))),
        ("rotation", Box::new(Rotation::new(20.0))),
        ("blur", Box::new(GaussianBlur::new(1, 3))),
        ("brightness", Box::new(Brightness::new(30.0))),
        ("contrast", Box::new(Contrast::new(0.5, 1.5))),
        ("normalize", Box::new(MeanVarianceNormalize::new())),
        ("noise", Box::new(GaussianNoise::new(5.0))),
        ("cutout", Box::new(RandomCutout::new(3, 4))),
        ("convert", Box::new(ToFloat32)),
    ];
    for dtype in [DType::U8, DType::F32] {
        let flat = HostTensor::from_f64(dtype, [20, 30], &values).unwrap();
        let channel = HostTensor::from_f64(dtype, [20, 30, 1], &values).unwrap();
        for (name, augmentor) in &augmentors {
            let (flat, channel) = (augment(&**augmentor, &flat), augment(&**augmentor, &channel));
            assert_eq!((flat.sizes().len(), flat.dtype()), (2, channel.dtype()), "{name}");
            assert_eq!(flat.sizes(), &channel.sizes()[..2], "{name}");
            assert_eq!(flat.as_bytes(), channel.as_bytes(), "{name}");
        }
    }
    // Color needs three channels, and the error says so.
    let flat = HostTensor::zeros(DType::U8, [4, 4]).unwrap();
    let e = Saturation::new(0.4).augment(flat, &mut rng()).unwrap_err();
    assert!(e.kind() == ErrorKind::Shape && e.message().contains("3 channels"), "{e}");
}

#[test]
fn images_and_coordinates_of_a_sample_share_one_transform() {
    let image = blob(40, 50, 20.0, 15.0);
    let points = HostTensor::new([1, 2], vec![20.0f32, 15.0]).unwrap();
    let data = FromList::new(vec![vec![image.clone(), image, points, HostTensor::scalar(1i32)]; 8]);
    let augmentors = AugmentorList::new().then(RandomCrop::new(34, 42)).then(Flip::horizontal());
    let mut reader =
        data.augment_images([0, 1], [2], augmentors).open(Seed::new(1), &State::start()).unwrap();
    let mut seen = Vec::new();
    while let Some(sample) = reader.read().unwrap() {
        assert_eq!(sample[0], sample[1]);
        let point = sample[2].to_f64_vec();
        let actual = center_of_mass(&sample[0]);
        assert!((actual[0] - point[0]).hypot(actual[1] - point[1]) < 0.3, "{actual:?}, {point:?}");
        seen.push(point);
    }
    seen.dedup();
    assert!(seen.len() > 3, "samples differ in what is drawn for them");
}

#[test]
fn random_crop_of_a_file_matches_the_decoded_image() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/images/444_29x43.jpg");
    let file = std::fs::read(path).unwrap();
    let whole = decode(&file, Channels::Rgb).unwrap();
    let crop = RandomResizedCrop::new(30);
    for i in 0..30 {
        let of_file = crop.decode(&file, &mut Seed::new(5).rng(0, i)).unwrap();
        let (of_picture, _) = crop.augment(whole.clone(), &mut Seed::new(5).rng(0, i)).unwrap();
        assert_eq!(of_file, of_picture);
    }
}
