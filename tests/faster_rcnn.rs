//! Tests of the example `faster_rcnn`, compiled from the same files.

#[path = "../examples/faster_rcnn/coco.rs"]
mod coco;
#[path = "../examples/faster_rcnn/detector.rs"]
mod detector;
#[expect(dead_code, reason = "the flows are not read")]
#[path = "../examples/faster_rcnn/scenes.rs"]
mod scenes;
#[path = "../examples/faster_rcnn/targets.rs"]
mod targets;

use coco::Coco;
use detector::{Detector, Settings};
use std::path::Path;
use tensorpack::ErrorKind;
use tensorpack::callback::MeanAveragePrecision;
use tensorpack::dataflow::{DataFlow, FromList, Sample, Seed};
use tensorpack::monitor::Image;
use tensorpack::predict::OnnxOptions;
use tensorpack::prelude::*;
use tensorpack::serde_json::json;
use tensorpack_testing::assert_mentions;

fn read_all(flow: &impl DataFlow) -> Result<Vec<Sample>> {
    let mut reader = flow.open(Seed::new(0), &Default::default())?;
    std::iter::from_fn(|| reader.read().transpose()).collect()
}

/// Writes a folder in COCO's format: an image of 40x20 pixels with two objects and a crowd, and one of
/// 10x30 pixels without objects.
fn write_coco(dir: &Path) {
    std::fs::create_dir_all(dir.join("annotations")).unwrap();
    std::fs::create_dir_all(dir.join("val2017")).unwrap();
    for (name, width, height) in [("wide.png", 40, 20), ("high.png", 10, 30)] {
        let pixels = HostTensor::new([height, width, 3], vec![255u8; height * width * 3]).unwrap();
        let png = Image::from_tensor(&pixels).unwrap()[0].to_png().unwrap();
        std::fs::write(dir.join("val2017").join(name), png).unwrap();
    }
    let annotation = |category: i64, bbox: [f64; 4], crowd: i64| json!({ "image_id": 7, "category_id": category, "bbox": bbox, "iscrowd": crowd, "area": 1.0 });
    let file = json!({
        "images": [{ "id": 7, "file_name": "wide.png" }, { "id": 9, "file_name": "high.png" }],
        "categories": [{ "id": 90, "name": "cup" }, { "id": 3, "name": "cat" }],
        "annotations": [
            annotation(3, [4.0, 2.0, 8.0, 6.0], 1),
            annotation(90, [0.0, 0.0, 40.0, 20.0], 0),
            annotation(3, [10.0, 10.0, 5.0, 10.0], 0),
            annotation(3, [10.0, 10.0, 0.0, 10.0], 0),
        ],
    });
    std::fs::write(dir.join("annotations/instances_val2017.json"), file.to_string()).unwrap();
}

#[test]
fn a_folder_in_coco_format_is_read() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    write_coco(dir.path());
    assert_eq!(read_all(&Coco::read(dir.path(), "val2017", true)?.into_flow(64, 4))?.len(), 1);
    let coco = Coco::read(dir.path(), "val2017", false)?;
    assert_eq!(coco.classes, ["cat", "cup"]);
    let samples = read_all(&coco.into_flow(64, 4))?;
    // The longer edge becomes 64 pixels: 1.6 times as many.
    let boxes = samples[0][1].to_f64_vec();
    let expected =
        [[0.0, 0.0, 64.0, 32.0], [16.0, 16.0, 24.0, 32.0], [6.4, 3.2, 19.2, 12.8], [0.0, 0.0, 1.0, 1.0]];
    assert!(boxes.iter().zip(expected.concat()).all(|(a, b)| (a - b).abs() < 1e-5), "{boxes:?}");
    assert_eq!(samples[0][2].to_f64_vec(), [1.0, 0.0, 0.0, -1.0]);
    assert_eq!(samples[0][3].to_f64_vec(), [0.0, 0.0, 1.0, 0.0]);
    // Below the image is padding.
    let white = |sample: &Sample| sample[0].to_f64_vec().iter().filter(|v| **v == 1.0).count();
    assert_eq!([white(&samples[0]), white(&samples[1])], [64 * 32 * 3, 64 * 21 * 3]);
    assert_eq!(samples[1][2].to_f64_vec(), [-1.0; 4]);

    let error = Coco::read(dir.path(), "train2017", true).err().expect("there is no such part");
    assert_mentions(error.to_string(), &["instances_train2017.json"]);

    let empty =
        json!({ "images": [{ "id": 9, "file_name": "high.png" }], "categories": [], "annotations": [] });
    std::fs::write(dir.path().join("annotations/instances_val2017.json"), empty.to_string()).unwrap();
    Coco::read(dir.path(), "val2017", false)?;
    let error = Coco::read(dir.path(), "val2017", true).err().expect("nothing is annotated");
    assert_mentions(error.to_string(), &["instances_val2017.json", "no images with objects"]);
    Ok(())
}

/// Checks that shapes fill their boxes: of each class, a shape touches all four edges.
#[test]
fn the_boxes_of_scenes_are_exact() -> Result<()> {
    let mut seen = [0; 3];
    for i in 0..20 {
        let sample = scenes::scene(&mut Seed::new(1).rng(0, i))?;
        let (boxes, classes) = (sample[1].to_f64_vec(), sample[2].to_f64_vec());
        for (corners, &class) in boxes.chunks(4).zip(&classes).filter(|(_, class)| **class >= 0.0) {
            assert!(corners.iter().all(|v| v.fract() == 0.0 && (0.0..=64.0).contains(v)), "{corners:?}");
            assert!(corners[2] - corners[0] >= 6.0 && corners[3] - corners[1] >= 6.0, "{corners:?}");
            seen[class as usize] += 1;
        }
    }
    assert!(seen.iter().all(|&n| n > 5), "{seen:?}");
    Ok(())
}

/// A very small detector.
fn small() -> Settings {
    Settings {
        size: scenes::SIZE,
        max_objects: scenes::MAX_SHAPES,
        classes: 3,
        width: 2,
        pyramid: 4,
        head: 8,
        anchors: [12.0, 18.0, 27.0],
        candidates: 32,
        proposals: 8,
        regions: 8,
        batch: 2,
        steps: 2,
        learning_rate: 1e-3,
    }
}

/// A trained detector is one file. ONNX has no suppression that returns a fixed number of boxes: the
/// error says so, and nothing is written.
#[test]
fn a_detector_is_exported_to_its_own_file_only() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let outputs = ["detected_boxes", "detected_scores", "detected_classes"];
    let config = PredictConfig::new(Detector::new(small())?, outputs)?.inputs(["image"]);
    let predictor = OfflinePredictor::new(config)?;
    let [file, onnx] = ["detector.safetensors", "detector.onnx"].map(|name| dir.path().join(name));
    predictor.export(&file)?;
    let image = scenes::scene(&mut Seed::new(0).rng(0, 0))?.remove(0);
    let image = HostTensor::new([1, scenes::SIZE, scenes::SIZE, 3], image.as_slice::<f32>()?.to_vec())?;
    assert_eq!(ExportedModel::load(&file)?.predict(&[&image])?, predictor.predict(&[&image])?);
    let e = predictor.export_onnx(&onnx, &OnnxOptions::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert_mentions(e.to_string(), &["Nms"]);
    assert!(!onnx.exists());
    Ok(())
}

/// A step on two towers, and an evaluation, of a very small detector.
#[test]
fn a_small_detector_trains_on_two_towers() -> Result<()> {
    let settings = small();
    let scene = |i| scenes::scene(&mut Seed::new(0).rng(0, i));
    let samples = (0..4).map(scene).collect::<Result<Vec<Sample>>>()?;
    let flow = FromList::new(samples.iter().map(|s| s.to_vec()).collect::<Vec<_>>());
    let metric = MeanAveragePrecision::new().crowd("gt_crowd");
    let batch = settings.batch;
    let config = TrainConfig::new(Detector::new(settings)?, flow.clone().repeat_forever().batch(batch))
        .steps_per_epoch(2)
        .max_epoch(1)
        .no_logdir()
        .callback(InferenceRunner::new(flow.batch(2), [metric]));
    let towers = SyncMultiGpuTrainerReplicated::new(2);
    let trained = launch_train_with_config(config, towers)?;
    assert!(trained.monitors.latest("validation_ap").is_some_and(|ap| (0.0..=1.0).contains(&ap)));
    Ok(())
}
