//! Drawn scenes with exact edges: striped and shaded shapes that overlap, under noise.

use super::shapes::{Scene, Style};
use tensorpack::dataflow::{DataFlow, Flow, FromFn, Sample, SampleRng, Seed};
use tensorpack::prelude::*;

/// Height and width of a scene.
pub(crate) const SIDE: usize = 64;
const STYLE: Style = Style { side: SIDE, shapes: (3, 6), extent: (14.0, 40.0), overlap: true };
/// The number of training scenes in a pass.
const PASS: u64 = 3200;

/// How a shape, or the background, is painted.
struct Paint {
    color: [f64; 3],
    /// The waves of its stripes: phases at the origin and per pixel.
    stripes: [f64; 3],
    /// How much the stripes change the color.
    contrast: f64,
    /// The change of brightness per pixel, to the right and down.
    shade: [f64; 2],
}

impl Paint {
    fn new(rng: &mut SampleRng) -> Paint {
        let color = std::array::from_fn(|_| rng.uniform_range(0.15, 0.85));
        let (angle, length) = (rng.uniform() * std::f64::consts::TAU, rng.uniform_range(3.0, 9.0));
        let wave = std::f64::consts::TAU / length;
        let stripes = [rng.uniform() * std::f64::consts::TAU, wave * angle.cos(), wave * angle.sin()];
        let shade = [0; 2].map(|_| rng.uniform_range(-0.006, 0.006));
        Paint { color, stripes, contrast: rng.uniform_range(0.0, 0.15), shade }
    }

    /// Returns the brightness that is added to the color at a pixel.
    fn brightness(&self, x: f64, y: f64) -> f64 {
        let [phase, to_right, down] = self.stripes;
        let half = SIDE as f64 / 2.0;
        self.contrast * (phase + to_right * x + down * y).sin()
            + self.shade[0] * (x - half)
            + self.shade[1] * (y - half)
    }
}

/// Draws a scene: an image `[64, 64, 3]` with values from 0 to 1, and 1 where there is an edge,
/// `[64, 64]`.
pub(crate) fn scene(rng: &mut SampleRng) -> Result<Sample> {
    let scene = Scene::new(STYLE, rng);
    // The background is painted by the last.
    let paints: Vec<Paint> = (0..=scene.kinds.len()).map(|_| Paint::new(rng)).collect();
    let mut image = Vec::with_capacity(SIDE * SIDE * 3);
    for (i, shape) in scene.visible.iter().enumerate() {
        let paint = &paints[shape.unwrap_or(scene.kinds.len())];
        let brightness = paint.brightness((i % SIDE) as f64, (i / SIDE) as f64);
        image.extend(paint.color.map(|c| (c + brightness + 0.06 * rng.normal()).clamp(0.0, 1.0) as f32));
    }
    let edges: Vec<f32> = scene.edges().iter().map(|&edge| f32::from(u8::from(edge))).collect();
    Ok(vec![HostTensor::new([SIDE, SIDE, 3], image)?, HostTensor::new([SIDE, SIDE], edges)?])
}

/// Returns training scenes, new ones in every pass.
pub(crate) fn train() -> Flow {
    FromFn::new(PASS, |_| Ok(Vec::new())).map_random(|_, rng| scene(rng)).into_flow()
}

/// Returns scenes that are always the same.
pub(crate) fn test(count: u64) -> FromFn {
    let seed = Seed::new(0).derive("test scenes");
    FromFn::new(count, move |i| scene(&mut seed.rng(0, i)))
}
