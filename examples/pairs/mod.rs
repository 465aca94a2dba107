//! Pairs of pictures for image-to-image translation: the outlines of a drawn scene, and the same scene
//! with each kind of shape in a color of its own. With the evaluation of a model that colors outlines.

#![allow(dead_code, reason = "each example uses a part of this")]

#[path = "../shapes/mod.rs"]
pub(crate) mod shapes;

use shapes::{KINDS, Scene, Style};
use tensorpack::dataflow::{RandomAccess, Sample, Seed};
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::{TrainArgs, Trained};

/// Height and width of a picture.
pub(crate) const SIDE: usize = 32;
const STYLE: Style = Style { side: SIDE, shapes: (1, 3), extent: (9.0, 18.0), overlap: false };
/// The colors of the background, of rectangles, ellipses and triangles.
const COLORS: [[f32; 3]; KINDS + 1] =
    [[0.95, 0.95, 0.9], [0.85, 0.2, 0.15], [0.2, 0.65, 0.25], [0.15, 0.3, 0.8]];
const TRAIN: u64 = 10_000;
const TEST: u64 = 200;
/// Pairs in the picture.
const DRAWN: usize = 8;

/// Pairs of outlines `[32, 32, 1]`, black on white, and colored pictures `[32, 32, 3]`, both with values
/// from 0 to 1. Pair `i` is a function of the seed and `i`.
#[derive(Clone)]
pub(crate) struct Pairs {
    seed: Seed,
    len: u64,
}

impl Pairs {
    /// Returns 10,000 pairs for training.
    pub(crate) fn train() -> Pairs {
        Pairs { seed: Seed::new(0).derive("training pairs"), len: TRAIN }
    }

    /// Returns 200 other pairs.
    pub(crate) fn test() -> Pairs {
        Pairs { seed: Seed::new(0).derive("test pairs"), len: TEST }
    }
}

impl RandomAccess for Pairs {
    fn len(&self) -> u64 {
        self.len
    }

    fn get(&self, index: u64) -> Result<Sample> {
        let scene = Scene::new(STYLE, &mut self.seed.rng(0, index));
        let outline = scene.edges().iter().map(|&edge| if edge { 0.0f32 } else { 1.0 }).collect();
        let color = |shape: &Option<usize>| COLORS[shape.map_or(0, |shape| 1 + scene.kinds[shape])];
        let colored = scene.visible.iter().flat_map(color).collect();
        Ok(vec![HostTensor::new([SIDE, SIDE, 1], outline)?, HostTensor::new([SIDE, SIDE, 3], colored)?])
    }
}

/// The halves of pairs without their partners: the outlines of every other pair, and the colors of those
/// between them.
#[derive(Clone)]
pub(crate) struct Unpaired(pub(crate) Pairs);

impl RandomAccess for Unpaired {
    fn len(&self) -> u64 {
        self.0.len() / 2
    }

    fn get(&self, index: u64) -> Result<Sample> {
        let [outline, colored] =
            [0, 1].map(|half| Ok::<_, Error>(self.0.get(2 * index + half)?.swap_remove(half as usize)));
        Ok(vec![outline?, colored?])
    }
}

/// The input signature of a batch of pairs.
pub(crate) fn pair_specs() -> Vec<TensorSpec> {
    [("outline", 1), ("colored", 3)]
        .map(|(name, channels)| TensorSpec::f32(name, [None, Some(SIDE), Some(SIDE), Some(channels)]))
        .into()
}

/// Returns pixels with values from -1 to 1 from those with 0 to 1, as generators take and make them.
pub(crate) fn to_signed(pixels: &Tensor) -> Tensor {
    pixels * 2.0 - 1.0
}

/// Returns the outlines and the colored pictures of all test pairs, as batches.
fn test_pairs() -> Result<[HostTensor; 2]> {
    let test = Pairs::test();
    let (mut outlines, mut colored) = (Vec::<f32>::new(), Vec::<f32>::new());
    for i in 0..TEST {
        let pair = test.get(i)?;
        outlines.extend(pair[0].as_slice::<f32>()?);
        colored.extend(pair[1].as_slice::<f32>()?);
    }
    let count = TEST as usize;
    Ok([
        HostTensor::new([count, SIDE, SIDE, 1], outlines)?,
        HostTensor::new([count, SIDE, SIDE, 3], colored)?,
    ])
}

/// Adds `outputs` to the graph, the pictures that the generator makes of the test outlines in inference
/// mode; and `grid`, an image of the first outlines, outputs and true partners, one below the other.
pub(crate) fn add_outputs(graph: &Graph, generator: impl Fn(&TowerContext, &Tensor) -> Tensor) -> Result<()> {
    let [outlines, colored] = test_pairs()?.map(|pictures| graph.constant(pictures));
    let t = TowerContext::inference(graph);
    let made = t.name_scope("look", |t| t.reuse(|t| generator(t, &to_signed(&outlines))));
    let outputs = ((made + 1.0) * 0.5).named("outputs");
    let first = [&outlines.tile(&[1, 1, 1, 3]), &outputs, &colored].map(|x| x.slice_axis(0, 0, Some(DRAWN)));
    // [row, column, y, x, channel] to [row, y, column, x, channel].
    let rows = graph.stack(&first, 0).transpose(&[0, 2, 1, 3, 4]);
    rows.merge_dims(0, 2).merge_dims(1, 2).named("grid");
    Ok(())
}

/// The quality of colored pictures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Quality {
    /// The share of pixels with the right color: that of the true partner is the nearest of the four.
    pub(crate) right: f64,
    /// The mean over the kinds of shapes of intersection over union: pixels that have the kind's color in
    /// both pictures, over those that have it in one.
    pub(crate) mean_iou: f64,
}

/// Returns the index of the nearest of the four colors.
fn nearest_color(pixel: &[f32]) -> usize {
    let distance = |color: &[f32; 3]| color.iter().zip(pixel).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
    (1..COLORS.len()).fold(0, |best, i| if distance(&COLORS[i]) < distance(&COLORS[best]) { i } else { best })
}

/// Compares pictures, given as the index of each pixel's color, with their true partners.
pub(crate) fn quality(found: &[usize], expected: &[usize]) -> Quality {
    let count = |holds: &dyn Fn(usize, usize) -> bool| {
        found.iter().zip(expected).filter(|&(&f, &e)| holds(f, e)).count() as f64
    };
    let iou =
        |kind: usize| count(&|f, e| f == kind && e == kind) / count(&|f, e| f == kind || e == kind).max(1.0);
    let mean_iou = (1..=KINDS).map(iou).sum::<f64>() / KINDS as f64;
    Quality { right: count(&|f, e| f == e) / expected.len() as f64, mean_iou }
}

/// Colors a picture of outlines without learning: what the border of the picture cannot reach without
/// crossing a line is a rectangle.
pub(crate) fn filled(outline: &[f32]) -> Vec<usize> {
    let mut reached = vec![false; SIDE * SIDE];
    let mut open: Vec<usize> = (0..SIDE * SIDE).filter(|i| [0, SIDE - 1].contains(&(i % SIDE))).collect();
    while let Some(i) = open.pop() {
        if reached[i] || outline[i] < 0.5 {
            continue;
        }
        reached[i] = true;
        let (x, y) = (i % SIDE, i / SIDE);
        open.extend((x > 0).then(|| i - 1));
        open.extend((x + 1 < SIDE).then_some(i + 1));
        open.extend((y > 0).then(|| i - SIDE));
        open.extend((y + 1 < SIDE).then_some(i + SIDE));
    }
    reached.iter().map(|&background| usize::from(!background)).collect()
}

/// Prints the quality of a trained model's pictures of the test outlines, and of [`filled`]. With
/// `--assert`, a mean intersection over union below `target` is an error.
pub(crate) fn judge(args: &TrainArgs, trained: &Trained, target: f64) -> Result<()> {
    if args.fake {
        return Ok(());
    }
    let [outlines, colored] = test_pairs()?;
    let outputs = trained.session.graph().fetch("outputs")?;
    let outputs = trained.session.run(&[&outputs], &[])?.swap_remove(0);
    let colors = |pictures: &HostTensor| -> Result<Vec<usize>> {
        Ok(pictures.as_slice::<f32>()?.chunks(3).map(nearest_color).collect())
    };
    let expected = colors(&colored)?;
    let found = quality(&colors(&outputs)?, &expected);
    let baseline: Vec<usize> = outlines.as_slice::<f32>()?.chunks(SIDE * SIDE).flat_map(filled).collect();
    let baseline = quality(&baseline, &expected);
    for (name, Quality { right, mean_iou }) in [("the model", found), ("filled with one color", baseline)] {
        say!(
            "{name}: {:.1} % of pixels have the right color; mean intersection over union {mean_iou:.3}",
            100.0 * right
        );
    }
    if args.assert && found.mean_iou < target {
        return Err(Error::argument(format!("the mean intersection over union is below {target}")));
    }
    Ok(())
}
