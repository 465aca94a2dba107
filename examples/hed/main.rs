//! Holistically-nested edge detection (Xie and Tu, 2015) on drawn scenes with exact edges: striped, shaded
//! and noisy shapes that overlap. Every stage of a convnet has an output of its own, and their weighted sum
//! is the result.
//!
//! `cargo run --release --example hed` trains for 5 epochs of 200 steps. On 200 test scenes the F-score of
//! edges is 0.965, and 0.573 with Sobel's filters. With `--assert` it fails below 0.93. It draws scenes,
//! true edges, results and Sobel's to `edges.png` in its directory. `--full` trains the original's five
//! stages, those of VGG-16, for 100 epochs of 1,000 steps.

#[path = "../pictures/mod.rs"]
mod pictures;
mod scenes;
mod score;
#[path = "../shapes/mod.rs"]
mod shapes;

use scenes::SIDE;
use score::{Score, best_score, sobel};
use tensorpack::dataflow::{DataFlow, RandomAccess, Sample};
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::{TrainArgs, Trained};

const BATCH: usize = 8;
const TEST: u64 = 200;
/// Scenes in the picture.
const DRAWN: usize = 4;
/// The smallest F-score that `--assert` accepts.
const TARGET: f64 = 0.93;

#[derive(Inputs)]
struct Batch {
    #[input(f32, [None, 64, 64, 3])]
    image: Tensor,
    #[input(f32, [None, 64, 64])]
    edges: Tensor,
}

struct Hed {
    /// For each stage, at half the resolution of the one before, the channels of its convolutions.
    stages: Vec<Vec<usize>>,
    learning_rate: f64,
    steps: u64,
}

impl Hed {
    fn default_run() -> Hed {
        let stages = [16, 32, 64, 64].map(|channels| vec![channels; 2]);
        Hed { stages: stages.into(), learning_rate: 2e-3, steps: 5 * 200 }
    }

    /// The stages of VGG-16.
    fn full() -> Hed {
        let stages = [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)];
        let stages = stages.map(|(channels, count)| vec![channels; count]);
        Hed { stages: stages.into(), learning_rate: 1e-4, steps: 100 * 1000 }
    }
}

/// The cross entropy of logits, balanced between edges and the rest, of which there is much more: each
/// class is weighted by the share of the other.
fn balanced_cross_entropy(logits: &Tensor, edges: &Tensor) -> Tensor {
    let rest = 1.0 - edges;
    let (share_of_edges, share_of_rest) = (edges.mean(), rest.mean());
    let on_edges = edges * (-logits).softplus() * share_of_rest;
    let on_rest = rest * logits.softplus() * share_of_edges;
    (on_edges + on_rest).mean()
}

impl Model for Hed {
    type Inputs = Batch;

    fn build_graph(&self, t: &TowerContext, Batch { image, edges }: Batch) -> Tensor {
        let mut x = image * 2.0 - 1.0;
        let mut sides = Vec::new();
        for (i, stage) in self.stages.iter().enumerate() {
            if i > 0 {
                x = x.max_pool(2);
            }
            for (j, &channels) in stage.iter().enumerate() {
                x = Conv2d::new(channels, 3).relu().apply(t, &format!("conv{i}.{j}"), &x);
            }
            let side = Conv2d::new(1, 1).init(Init::zeros()).apply(t, &format!("side{i}"), &x);
            sides.push(if i == 0 { side } else { side.resize_bilinear([SIDE, SIDE]) });
        }
        let weights = Init::Constant(1.0 / sides.len() as f64);
        let stacked = t.graph().concat(&sides, 3);
        sides.push(Conv2d::new(1, 1).no_bias().init(weights).apply(t, "fuse", &stacked));
        let costs = sides.iter().map(|side| balanced_cross_entropy(&side.squeeze(3), &edges));
        let costs: Vec<Tensor> = costs.collect();
        let fused = sides[sides.len() - 1].squeeze(3);
        fused.sigmoid().named("strength");
        let fused_cost = costs[costs.len() - 1].clone().named("fused_cost");
        let cost = t.graph().stack(&costs, 0).sum().named("cost");
        t.moving_summary(&[&cost, &fused_cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(Schedule::cosine(self.learning_rate, 0.0, self.steps)).boxed()
    }
}

/// Returns the scores of the model and of Sobel's filters on test scenes, and draws some of them.
fn evaluate(trained: Trained) -> Result<[Score; 2]> {
    let file = trained.logdir().map(|dir| dir.join("edges.png"));
    let test = scenes::test(TEST);
    let samples = (0..TEST).map(|i| test.get(i)).collect::<Result<Vec<Sample>>>()?;
    let images = pictures::stack::<f32>(samples.iter().map(|sample| &sample[0]))?;
    let edges = pictures::stack::<f32>(samples.iter().map(|sample| &sample[1]))?;
    let predictor = trained.get_predictor(&["image"], &["strength"])?;
    let strengths = predictor.predict(&[&images])?.swap_remove(0);
    let (strengths, edges) = (strengths.as_slice::<f32>()?, edges.as_slice::<f32>()?);
    let pixels = images.as_slice::<f32>()?;
    let slopes: Vec<f32> = pixels.chunks(SIDE * SIDE * 3).flat_map(|image| sobel(image, SIDE)).collect();
    if let Some(file) = file {
        let drawn = DRAWN * SIDE * SIDE;
        let largest = slopes.iter().copied().fold(0.0, f32::max);
        let gray = |values: &[f32], factor: f32| -> Vec<f32> {
            values[..drawn].iter().flat_map(|&v| [1.0 - factor * v; 3]).collect()
        };
        let rows = [
            pixels[..3 * drawn].to_vec(),
            gray(edges, 1.0),
            gray(strengths, 1.0),
            gray(&slopes, 1.5 / largest),
        ];
        pictures::save_grid(&file, &HostTensor::new([4 * DRAWN, SIDE, SIDE, 3], rows.concat())?, DRAWN)?;
    }
    let expected: Vec<bool> = edges.iter().map(|&edge| edge > 0.5).collect();
    Ok([best_score(strengths, &expected, SIDE), best_score(&slopes, &expected, SIDE)])
}

fn main() -> Result<()> {
    let args = TrainArgs::parse_program("Detects edges in drawn scenes (HED)", &["--fake", "--find-lr"])?;
    let (model, (epochs, steps)) = match args.full {
        true => (Hed::full(), (100, 1000)),
        false => (Hed::default_run(), (5, 200)),
    };
    let validation = ScalarStats::from_names(["cost", "fused_cost"]);
    let config = TrainConfig::new(model, scenes::train().shuffle().batch(BATCH))
        .steps_per_epoch(steps)
        .callback(ModelSaver::new())
        .callback(InferenceRunner::new(scenes::test(TEST).batch(50), [validation]))
        .callback(MinSaver::new("validation_fused_cost"))
        .max_epoch(epochs);
    let [found, baseline] = evaluate(args.configure(config)?.train()?)?;
    for (name, Score { f, precision, recall, threshold }) in
        [("the model", found), ("Sobel's filters", baseline)]
    {
        say!(
            "{name}: F-score {f:.3} (precision {precision:.3}, recall {recall:.3}, threshold {threshold:.2})"
        );
    }
    if args.assert && found.f < TARGET {
        return Err(Error::argument(format!("the F-score is below {TARGET}")));
    }
    Ok(())
}
