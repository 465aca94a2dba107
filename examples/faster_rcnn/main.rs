//! Faster R-CNN with a feature pyramid: finds rectangles, ellipses and triangles in drawn scenes, or the
//! objects of COCO.
//!
//! `cargo run --release --example faster_rcnn` trains on drawn scenes of 64x64 pixels, new ones in every
//! pass, for 5 epochs of 200 steps, and reaches an average precision (COCO's) of 0.732 on 200 others; with
//! `--assert` it fails below 0.68. It can be interrupted at any time and resumes when started again.
//! `--data DIR` trains on a set in COCO's format: `DIR/annotations/instances_train2017.json`,
//! `DIR/train2017`, and the same with `val2017`. `--full` has the sizes and the schedule of the paper,
//! which need accelerators.

mod coco;
mod detector;
mod scenes;
mod targets;

use clap::Parser;
use coco::Coco;
use detector::{Detector, Settings};
use std::path::{Path, PathBuf};
use tensorpack::callback::MeanAveragePrecision;
use tensorpack::dataflow::image::{Interpolation, draw_boxes, resize, stack_patches};
use tensorpack::dataflow::{DataFlow, Flow, Seed};
use tensorpack::monitor::Image;
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;

/// The epochs of a default run. `Settings::steps` divides into them.
const EPOCHS: u64 = 5;
/// The smallest average precision on drawn scenes that `--assert` accepts.
const TARGET: f64 = 0.68;

/// Detects objects with Faster R-CNN.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
    /// A folder in COCO's format (defaults to drawn scenes).
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// Sizes for drawn scenes on CPUs.
fn small() -> Settings {
    Settings {
        size: scenes::SIZE,
        max_objects: scenes::MAX_SHAPES,
        classes: scenes::CLASSES.len(),
        width: 16,
        pyramid: 32,
        head: 128,
        anchors: [12.0, 18.0, 27.0],
        candidates: 128,
        proposals: 32,
        regions: 32,
        batch: 16,
        steps: 1000,
        learning_rate: 2e-3,
    }
}

/// The sizes and the schedule of the paper, for images of 512x512 pixels.
fn full() -> Settings {
    Settings {
        size: 512,
        max_objects: 64,
        width: 64,
        pyramid: 256,
        head: 1024,
        anchors: [32.0, 96.0, 256.0],
        candidates: 2000,
        proposals: 512,
        regions: 512,
        steps: 90_000,
        learning_rate: 1e-3,
        ..small()
    }
}

/// Returns training and test images, and the names of their classes.
fn data(args: &Args, settings: &mut Settings) -> Result<([Flow; 2], Vec<String>)> {
    let Some(dir) = &args.data else {
        // The scenes have one size.
        (settings.size, settings.max_objects) = (scenes::SIZE, scenes::MAX_SHAPES);
        return Ok(([scenes::train(), scenes::test(200)], scenes::CLASSES.map(String::from).into()));
    };
    let (train, test) = (Coco::read(dir, "train2017", true)?, Coco::read(dir, "val2017", false)?);
    let classes = train.classes.clone();
    if test.classes != classes {
        return Err(Error::argument(format!(
            "{}: train2017 and val2017 differ in their categories",
            dir.display()
        ))
        .note("both lists must have the same ids and names"));
    }
    (settings.classes, settings.max_objects) = (classes.len(), settings.max_objects.max(32));
    let [train, test] = [train, test].map(|part| part.into_flow(settings.size, settings.max_objects));
    Ok(([train.shuffle().into_flow(), test], classes))
}

/// Draws the detections with a score of at least 0.5 into images, 4 times as large: a color for each of
/// the first classes.
fn drawn(batch: &[HostTensor], detections: &[HostTensor]) -> Result<HostTensor> {
    let size = batch[0].sizes()[1];
    let (count, each) = (batch[0].sizes()[0], size * size * 3);
    let [boxes, scores, classes] = [0, 1, 2].map(|i| detections[i].to_f64_vec());
    let n = scores.len() / count;
    let mut images = Vec::new();
    for (i, pixels) in batch[0].as_slice::<f32>()?.chunks(each).enumerate() {
        let pixels: Vec<u8> = pixels.iter().map(|v| (v * 255.0) as u8).collect();
        let image = HostTensor::new([size, size, 3], pixels)?;
        let mut image = resize(&image, 4 * size, 4 * size, Interpolation::Nearest)?;
        for (class, color) in [[255.0, 0.0, 0.0], [0.0, 220.0, 0.0], [0.0, 80.0, 255.0]].iter().enumerate() {
            let is_shown = |k: &usize| scores[*k] >= 0.5 && classes[*k] == class as f64;
            let own: Vec<f64> = (i * n..(i + 1) * n)
                .filter(is_shown)
                .flat_map(|k| boxes[4 * k..4 * k + 4].to_vec())
                .collect();
            // Two outlines, so that lines are two pixels wide.
            for inset in [0.0, 1.0] {
                let signs = [1.0, 1.0, -1.0, -1.0];
                let own: Vec<f64> =
                    own.iter().enumerate().map(|(k, v)| 4.0 * v + inset * signs[k % 4]).collect();
                let own = HostTensor::from_f64(DType::F32, [own.len() / 4, 4], &own)?;
                image = draw_boxes(image, &own, color)?;
            }
        }
        images.extend_from_slice(image.as_slice::<u8>()?);
    }
    stack_patches(&HostTensor::new([count, 4 * size, 4 * size, 3], images)?, 4, 4, 255.0)
}

fn main() -> Result<()> {
    let args: Args = tensorpack::command_line::parse_without(&["--fake", "--find-lr"])?;
    let mut settings = if args.train.full { full() } else { small() };
    let epochs = args.train.max_epoch.unwrap_or(EPOCHS);
    let steps = args.train.steps_per_epoch.unwrap_or(settings.steps / EPOCHS);
    // The learning rate falls over the whole run. Its schedule needs a step.
    settings.steps = epochs.saturating_mul(steps).max(1);
    let ([train, test], classes) = data(&args, &mut settings)?;
    let batch = settings.batch;
    say!("{} classes: {}", classes.len(), classes.join(", "));
    let metric = MeanAveragePrecision::new().crowd("gt_crowd").prefix("val");
    let runner = InferenceRunner::new(test.clone().batch(20).keep_remainder(), [metric]);
    let config = TrainConfig::new(Detector::new(settings)?, train.repeat_forever().batch(batch).prefetch(4))
        .steps_per_epoch(steps)
        .callback(ModelSaver::new())
        .callback(runner)
        .callback(MaxSaver::new("val_ap"))
        .max_epoch(epochs);
    let trained = args.train.configure(config)?.train()?;

    let latest = |name: &str| trained.monitors.latest(name);
    let (ap, ap50) = (latest("val_ap"), latest("val_ap50"));
    let ap = ap.ok_or_else(|| Error::argument("no epoch was trained"))?;
    let folder = trained.logdir().map(Path::to_path_buf);
    let outputs = ["detected_boxes", "detected_scores", "detected_classes"];
    let model = trained.get_predictor(&["image"], &outputs)?;
    let mut reader = test.batch(4).open(Seed::new(0), &Default::default())?;
    if let (Some(folder), Some(batch)) = (folder, reader.read()?) {
        let image = drawn(&batch, &model.predict(&[&batch[0]])?)?;
        let path = folder.join("detections.png");
        let png = Image::from_tensor(&image)?[0].to_png()?;
        std::fs::write(&path, png).map_err(|e| Error::argument(format!("{}: {e}", path.display())))?;
        say!("detections were drawn to {}", path.display());
    }
    say!("average precision {ap:.3}, with a threshold of 0.50 {:.3}", ap50.unwrap_or(f64::NAN));
    if args.train.assert && args.data.is_none() && (ap.is_nan() || ap < TARGET) {
        return Err(Error::argument(format!("the average precision is below {TARGET}")));
    }
    Ok(())
}
