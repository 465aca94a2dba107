//! Class activation maps (Zhou et al., 2016) and saliency (Simonyan et al., 2013): what a classifier
//! looks at. It learns the class of one digit among fragments of others, and is never told where the
//! digit is; its maps show it.
//!
//! `cargo run --release --example cam` draws scenes of MNIST, or of generated digits if that cannot be
//! downloaded, and trains for 5 epochs of 200 steps. It then draws maps of test scenes to `maps.png` in
//! its directory, and counts how often the largest value of the map of the predicted class is inside the
//! digit's 28x28 pixels, which are a fifth of the scene. With `--assert` it needs MNIST and fails below
//! 90 %.

mod digits;
mod pictures;

use digits::Digits;
use tensorpack::dataflow::{DataFlow, FromFn, RandomAccess, Sample, SampleRng, Seed};
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::{TrainArgs, Trained};

/// The side of a scene, of a digit, and of a fragment.
const SCENE: usize = 64;
const DIGIT: usize = 28;
const FRAGMENT: usize = 9;
const FRAGMENTS: usize = 8;
/// Pixels of the scene for each element of a map.
const STRIDE: usize = 4;
const STEPS: u64 = 200;
const BATCH: usize = 64;
const TEST: u64 = 1000;
/// Scenes in the picture.
const DRAWN: usize = 8;
/// The smallest share of maps with their largest value in the digit that `--assert` accepts.
const TARGET: f64 = 0.9;

#[derive(Inputs)]
struct Batch {
    #[input(f32, [None, 64, 64])]
    image: Tensor,
    #[input(i32, [None])]
    label: Tensor,
}

struct Classifier {
    epochs: u64,
}

impl Model for Classifier {
    type Inputs = Batch;

    fn build_graph(&self, t: &TowerContext, Batch { image, label }: Batch) -> Tensor {
        let features = t.argscope(
            |conv: Conv2d| conv.no_bias(),
            |t| {
                let norm = BatchNorm::new().relu();
                LinearWrap::new(t, &image.expand_dims(3))
                    .layer("conv0", Conv2d::new(16, 3))
                    .layer("bn0", norm.clone())
                    .apply(|x| x.max_pool(2))
                    .layer("conv1", Conv2d::new(32, 3))
                    .layer("bn1", norm.clone())
                    .apply(|x| x.max_pool(2))
                    .layer("conv2", Conv2d::new(48, 5))
                    .layer("bn2", norm.clone())
                    .layer("conv3", Conv2d::new(48, 3))
                    .layer("bn3", norm)
                    .tensor()
            },
        );
        // The last layer is linear, so the mean of its values at all positions is its value for the mean
        // of the features: the maps add up to the logits.
        let maps = Linear::new(10).no_bias().last_axis().apply(t, "fc", &features);
        let logits = maps.mean_axes(&[1, 2]);
        let predicted = logits.argmax(-1);
        if !t.is_training() {
            let chosen = predicted.one_hot(10, DType::F32);
            (&maps * chosen.expand_dims(1).expand_dims(1)).sum_axes(&[3]).named("map");
            (&logits * chosen).sum().gradient(&image).abs().named("saliency");
        }
        let cost = logits.sparse_softmax_cross_entropy(&label).mean().named("cross_entropy_loss");
        let wrong = predicted.not_equal(&label.cast(DType::I64)).cast(DType::F32);
        let error = wrong.mean().named("error");
        t.moving_summary(&[&cost, &error]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(Schedule::cosine(2e-3, 0.0, self.epochs * STEPS)).boxed()
    }
}

/// Draws a scene: a digit, and fragments of others outside of it. Returns the image, the class, and the
/// left and upper edge of the digit.
fn scene(source: &Digits, rng: &mut SampleRng) -> Result<Sample> {
    let mut pixels = vec![0f32; SCENE * SCENE];
    let mut paste = |digit: &[f32], from: [usize; 2], to: [usize; 2], side: usize| {
        for y in 0..side {
            let row = &digit[(from[1] + y) * DIGIT + from[0]..][..side];
            let line = &mut pixels[(to[1] + y) * SCENE + to[0]..][..side];
            line.iter_mut().zip(row).for_each(|(to, from)| *to = to.max(*from));
        }
    };
    let within = |rng: &mut SampleRng, room: usize| [0; 2].map(|_| rng.below(room as u64 + 1) as usize);
    let corner = within(rng, SCENE - DIGIT);
    let digit = source.get(rng.below(source.len()))?;
    paste(digit[0].as_slice()?, [0; 2], corner, DIGIT);
    let mut left = FRAGMENTS;
    while left > 0 {
        let to = within(rng, SCENE - FRAGMENT);
        let apart = |i: usize| to[i] + FRAGMENT <= corner[i] || to[i] >= corner[i] + DIGIT;
        if apart(0) || apart(1) {
            let other = source.get(rng.below(source.len()))?;
            paste(other[0].as_slice()?, within(rng, DIGIT - FRAGMENT), to, FRAGMENT);
            left -= 1;
        }
    }
    Ok(vec![
        HostTensor::new([SCENE, SCENE], pixels)?,
        digit[1].clone(),
        HostTensor::new([2], corner.map(|v| v as i32).to_vec())?,
    ])
}

/// Returns what the model is given of a scene.
fn without_corner(mut scene: Sample) -> Result<Sample> {
    scene.truncate(2);
    Ok(scene)
}

/// Returns a test scene, the same one in every run.
fn test_scene(source: &Digits, index: u64) -> Result<Sample> {
    scene(source, &mut Seed::new(0).derive("test scenes").rng(0, index))
}

/// Returns the share of test scenes with the largest value of the map in the digit.
fn evaluate(trained: Trained, test: &Digits) -> Result<f64> {
    let file = trained.logdir().map(|dir| dir.join("maps.png"));
    let predictor = trained.get_predictor(&["image"], &["map", "saliency"])?;
    let scenes = (0..TEST).map(|i| test_scene(test, i)).collect::<Result<Vec<Sample>>>()?;
    let mut found = 0;
    for (part, scenes) in scenes.chunks(100).enumerate() {
        let images = pictures::stack::<f32>(scenes.iter().map(|scene| &scene[0]))?;
        let outputs = predictor.predict(&[&images])?;
        let side = SCENE / STRIDE;
        for (map, scene) in outputs[0].as_slice::<f32>()?.chunks(side * side).zip(scenes) {
            let largest = (0..map.len()).max_by(|&a, &b| map[a].total_cmp(&map[b])).unwrap_or(0);
            let center = [largest % side, largest / side].map(|i| (i * STRIDE + STRIDE / 2) as i32);
            let corner = scene[2].as_slice::<i32>()?;
            found += usize::from((0..2).all(|i| (0..DIGIT as i32).contains(&(center[i] - corner[i]))));
        }
        if let (0, Some(file)) = (part, &file) {
            pictures::save_grid(file, &drawn(&images, &outputs)?, DRAWN)?;
        }
    }
    Ok(found as f64 / TEST as f64)
}

/// Returns the first scenes, their maps as red on the scene, and their saliency.
fn drawn(images: &HostTensor, outputs: &[HostTensor]) -> Result<HostTensor> {
    let side = SCENE / STRIDE;
    let (images, maps) = (images.as_slice::<f32>()?, outputs[0].as_slice::<f32>()?);
    let saliency = outputs[1].as_slice::<f32>()?;
    let mut pixels = Vec::new();
    let area = SCENE * SCENE;
    pixels.extend(images[..DRAWN * area].iter().flat_map(|&x| [x; 3]));
    for i in 0..DRAWN {
        let map = &maps[i * side * side..][..side * side];
        let largest = map.iter().fold(1e-9f32, |max, &x| max.max(x));
        for (p, &x) in images[i * area..][..area].iter().enumerate() {
            let heat = (map[p / SCENE / STRIDE * side + p % SCENE / STRIDE] / largest).max(0.0);
            pixels.extend([x.max(heat), x * 0.7, x * 0.7]);
        }
    }
    for values in saliency.chunks(area).take(DRAWN) {
        let largest = values.iter().fold(1e-9f32, |max, &x| max.max(x));
        pixels.extend(values.iter().flat_map(|&x| [x / largest; 3]));
    }
    HostTensor::new([3 * DRAWN, SCENE, SCENE, 3], pixels)
}

fn main() -> Result<()> {
    let args = TrainArgs::parse_program("Draws what a classifier of digits looks at", &["--fake"])?;
    let [train, test] = digits::load(args.assert)?;
    let epochs = if args.full { 50 } else { 5 };
    let nothing = FromFn::new(STEPS * BATCH as u64, |_| Ok(Vec::new()));
    let flow = nothing.map_random(move |_, rng| without_corner(scene(&train, rng)?)).batch(BATCH);
    let source = test.clone();
    let scenes = FromFn::new(TEST, move |i| without_corner(test_scene(&source, i)?)).batch(100);
    let validation = ScalarStats::from_names(["cross_entropy_loss", "error"]);
    let config = TrainConfig::new(Classifier { epochs }, flow)
        .callback(ModelSaver::new())
        .callback(InferenceRunner::new(scenes, [validation]))
        .max_epoch(epochs);
    let trained = args.configure(config)?.train()?;

    let error = trained.monitors.latest("validation_error");
    let error = error.ok_or_else(|| Error::argument("no epoch was trained"))?;
    let found = evaluate(trained, &test)?;
    say!("test error {:.2} %; the map's largest value is in the digit in {:.1} %", 100.0 * error, 100.0 * found);
    if args.assert && found < TARGET {
        let why = format!("in fewer than {:.0} % of scenes the map finds the digit", 100.0 * TARGET);
        return Err(Error::argument(why));
    }
    Ok(())
}
