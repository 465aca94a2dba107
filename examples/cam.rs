//! Class activation maps (Zhou et al., 2016) and saliency (Simonyan et al., 2013): what a classifier
//! looks at. It learns the class of one digit among fragments of others, and is never told where the
//! digit is; its maps show it.
//!
//! `cargo run --release --example cam` draws scenes of MNIST, or of generated digits if that cannot be
//! downloaded, and trains for 2 epochs of 200 steps. Then it looks at 500 test scenes with two digits, and
//! counts how often the map of a digit's class has its largest value inside that digit: in 98.4 % of cases
//! on MNIST. With `--assert` it needs MNIST and fails below 90 %. `--full` trains for 20 epochs. It draws
//! scenes, maps and saliency to `maps.png` in its directory.

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
/// Test scenes with one digit, and with two.
const TEST: u64 = 1000;
const PAIRS: u64 = 500;
/// Scenes in the picture.
const DRAWN: usize = 8;
/// The smallest share of maps with their largest value in their digit that `--assert` accepts.
const TARGET: f64 = 0.9;

#[derive(Inputs)]
pub(crate) struct Batch {
    #[input(f32, [None, 64, 64])]
    image: Tensor,
    #[input(i32, [None])]
    label: Tensor,
}

pub(crate) struct Classifier {
    pub(crate) epochs: u64,
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
        let maps = Linear::new(10).no_bias().last_axis().apply(t, "fc", &features).named("maps");
        let logits = maps.mean_axes(&[1, 2]);
        let predicted = logits.argmax(-1);
        if !t.is_training() {
            let chosen = predicted.one_hot(10, DType::F32);
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

/// A digit in a scene: its class, and its left and upper edge.
struct Placed {
    class: usize,
    corner: [usize; 2],
}

/// Draws a scene of this many digits of different classes, and of fragments outside of them.
fn scene(source: &Digits, count: usize, rng: &mut SampleRng) -> Result<(HostTensor, Vec<Placed>)> {
    let mut pixels = vec![0f32; SCENE * SCENE];
    let mut paste = |digit: &[f32], from: [usize; 2], to: [usize; 2], side: usize| {
        for y in 0..side {
            let row = &digit[(from[1] + y) * DIGIT + from[0]..][..side];
            let line = &mut pixels[(to[1] + y) * SCENE + to[0]..][..side];
            line.iter_mut().zip(row).for_each(|(to, from)| *to = to.max(*from));
        }
    };
    let mut placed: Vec<Placed> = Vec::new();
    let mut fragments = FRAGMENTS;
    while fragments > 0 {
        let side = if placed.len() < count { DIGIT } else { FRAGMENT };
        let within = |rng: &mut SampleRng, room: usize| [0; 2].map(|_| rng.below(room as u64 + 1) as usize);
        let (from, mut corner) = (within(rng, DIGIT - side), within(rng, SCENE - side));
        if count > 1 && side == DIGIT {
            // Each digit has its half of the scene.
            corner[0] = corner[0] % (SCENE / 2 - DIGIT + 1) + placed.len() * SCENE / 2;
        }
        let drawn = source.get(rng.below(source.len()))?;
        let class = drawn[1].to_scalar()? as usize;
        let apart = |other: &Placed| {
            (0..2).any(|i| corner[i] + side <= other.corner[i] || corner[i] >= other.corner[i] + DIGIT)
        };
        if !placed.iter().all(apart) || (side == DIGIT && placed.iter().any(|other| other.class == class)) {
            continue;
        }
        paste(drawn[0].as_slice()?, from, corner, side);
        match side {
            DIGIT => placed.push(Placed { class, corner }),
            _ => fragments -= 1,
        }
    }
    Ok((HostTensor::new([SCENE, SCENE], pixels)?, placed))
}

/// Draws a scene of one digit, with its class.
fn example(source: &Digits, rng: &mut SampleRng) -> Result<Sample> {
    let (image, placed) = scene(source, 1, rng)?;
    Ok(vec![image, HostTensor::scalar(placed[0].class as i32)])
}

/// The random numbers of a test scene, the same ones in every run.
fn test_rng(scenes: &str, index: u64) -> SampleRng {
    Seed::new(0).derive(scenes).rng(0, index)
}

/// The map of a class in the maps of all, `[height, width, classes]`.
fn map_of(maps: &[f32], class: usize) -> Vec<f32> {
    maps.iter().skip(class).step_by(10).copied().collect()
}

/// Returns the share of digits in scenes of two that the map of their class has its largest value in.
fn evaluate(trained: Trained, test: &Digits) -> Result<f64> {
    let file = trained.logdir().map(|dir| dir.join("maps.png"));
    let predictor = trained.get_predictor(&["image"], &["maps", "saliency"])?;
    let side = SCENE / STRIDE;
    let scenes: Result<Vec<_>> = (0..PAIRS).map(|i| scene(test, 2, &mut test_rng("pairs", i))).collect();
    let mut found = 0;
    for (part, scenes) in scenes?.chunks(100).enumerate() {
        let images = pictures::stack::<f32>(scenes.iter().map(|(image, _)| image))?;
        let outputs = predictor.predict(&[&images])?;
        for (maps, (_, placed)) in outputs[0].as_slice::<f32>()?.chunks(side * side * 10).zip(scenes) {
            for digit in placed {
                let map = map_of(maps, digit.class);
                let largest = (0..map.len()).max_by(|&a, &b| map[a].total_cmp(&map[b])).unwrap_or(0);
                let center = [largest % side, largest / side].map(|i| i * STRIDE + STRIDE / 2);
                let inside = |i: usize| (digit.corner[i]..digit.corner[i] + DIGIT).contains(&center[i]);
                found += usize::from(inside(0) && inside(1));
            }
        }
        if let (0, Some(file)) = (part, &file) {
            pictures::save_grid(file, &drawn(scenes, &outputs)?, DRAWN)?;
        }
    }
    Ok(found as f64 / (2 * PAIRS) as f64)
}

/// Returns the first scenes, the maps of their two digits on them in red and green, and the saliency of
/// the predicted class.
fn drawn(scenes: &[(HostTensor, Vec<Placed>)], outputs: &[HostTensor]) -> Result<HostTensor> {
    let (side, area) = (SCENE / STRIDE, SCENE * SCENE);
    let (mut plain, mut heated, mut salient) = (Vec::new(), Vec::new(), Vec::new());
    let relative = |values: Vec<f32>| {
        let largest = values.iter().fold(1e-9f32, |max, &x| max.max(x));
        values.iter().map(|x| (x / largest).max(0.0)).collect::<Vec<f32>>()
    };
    for (i, (image, placed)) in scenes.iter().take(DRAWN).enumerate() {
        let maps = &outputs[0].as_slice::<f32>()?[i * side * side * 10..][..side * side * 10];
        let [red, green] = [0, 1].map(|digit| relative(map_of(maps, placed[digit].class)));
        for (p, &x) in image.as_slice::<f32>()?.iter().enumerate() {
            let at = p / SCENE / STRIDE * side + p % SCENE / STRIDE;
            plain.extend([x; 3]);
            heated.extend([x.max(red[at]), x.max(green[at]), x * 0.8]);
        }
        let saliency = relative(outputs[1].as_slice::<f32>()?[i * area..][..area].to_vec());
        salient.extend(saliency.iter().flat_map(|&x| [x; 3]));
    }
    HostTensor::new([3 * DRAWN, SCENE, SCENE, 3], [plain, heated, salient].concat())
}

fn main() -> Result<()> {
    let args =
        TrainArgs::parse_program("Draws what a classifier of digits looks at", &["--fake", "--find-lr"])?;
    let [train, test] = digits::load(args.assert)?;
    let epochs = if args.full { 20 } else { 2 };
    let nothing = FromFn::new(STEPS * BATCH as u64, |_| Ok(Vec::new()));
    let flow = nothing.map_random(move |_, rng| example(&train, rng)).batch(BATCH);
    let source = test.clone();
    let scenes = FromFn::new(TEST, move |i| example(&source, &mut test_rng("test", i))).batch(100);
    let validation = ScalarStats::from_names(["cross_entropy_loss", "error"]);
    let config = TrainConfig::new(Classifier { epochs }, flow)
        .callback(ModelSaver::new())
        .callback(InferenceRunner::new(scenes, [validation]))
        .max_epoch(epochs);
    let trained = args.configure(config)?.train()?;

    let error = trained.monitors.latest("validation_error");
    let error = error.ok_or_else(|| Error::argument("no epoch was trained"))?;
    let found = evaluate(trained, &test)?;
    say!("test error {:.2} %", 100.0 * error);
    say!("of two digits, the map of a class finds its own in {:.1} %", 100.0 * found);
    if args.assert && found < TARGET {
        let why =
            format!("in fewer than {:.0} % of cases the map of a class finds its digit", 100.0 * TARGET);
        return Err(Error::argument(why));
    }
    Ok(())
}
