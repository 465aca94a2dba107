//! Drawn scenes: rectangles, ellipses and triangles on a background with noise.

use tensorpack::dataflow::{DataFlow, Flow, FromFn, Sample, SampleRng, Seed};
use tensorpack::prelude::*;

/// The classes, in order.
pub(crate) const CLASSES: [&str; 3] = ["rectangle", "ellipse", "triangle"];
/// Height and width of a scene.
pub(crate) const SIZE: usize = 64;
/// The number of training scenes in a pass, whatever the schedule is, so that a resumed run may have
/// another one.
const PASS: u64 = 3200;
/// The largest number of shapes.
pub(crate) const MAX_SHAPES: usize = 5;

/// Returns whether the shape of this class, in a box from -1 to 1, covers a point.
fn covers(class: usize, x: f64, y: f64) -> bool {
    match class {
        0 => x.abs() <= 1.0 && y.abs() <= 1.0,
        1 => x * x + y * y <= 1.0,
        // The tip is above.
        _ => y <= 1.0 && 2.0 * x.abs() <= y + 1.0,
    }
}

/// Returns the intersection of two boxes over the area of the smaller one.
fn covered(a: &[f64; 4], b: &[f64; 4]) -> f64 {
    let extent = |i: usize| (a[i + 2].min(b[i + 2]) - a[i].max(b[i])).max(0.0);
    let area = |c: &[f64; 4]| (c[2] - c[0]) * (c[3] - c[1]);
    extent(0) * extent(1) / area(a).min(area(b))
}

/// Draws a scene: its image, and the boxes and classes of its shapes, none of which hides much of
/// another.
pub(crate) fn scene(rng: &mut SampleRng) -> Result<Sample> {
    let background: [f64; 3] = std::array::from_fn(|_| rng.uniform());
    let mut image: Vec<f64> = (0..SIZE * SIZE * 3).map(|i| background[i % 3] + 0.06 * rng.normal()).collect();
    let mut shapes: Vec<([f64; 4], i32)> = Vec::new();
    let count = 1 + rng.below(MAX_SHAPES as u64) as usize;
    for _ in 0..4 * count {
        let class = rng.below(CLASSES.len() as u64) as usize;
        let side = rng.uniform_range(9.0, 30.0);
        let ratio = rng.uniform_range(0.7, 1.4);
        let half = [side * ratio.sqrt() / 2.0, side / ratio.sqrt() / 2.0];
        let center = half.map(|h| rng.uniform_range(h, SIZE as f64 - h));
        let color: [f64; 3] = std::array::from_fn(|_| rng.uniform());
        let contrast: f64 = color.iter().zip(&background).map(|(a, b)| (a - b).abs()).sum();
        // The pixels whose centers are inside, and the smallest box around them.
        let pixels: Vec<[usize; 2]> = (0..SIZE * SIZE)
            .map(|i| [i % SIZE, i / SIZE])
            .filter(|p| {
                let [x, y] = [0, 1].map(|k| (p[k] as f64 + 0.5 - center[k]) / half[k]);
                covers(class, x, y)
            })
            .collect();
        let bound = |k: usize| {
            let along = pixels.iter().map(|p| p[k] as f64);
            (along.clone().fold(f64::MAX, f64::min), along.fold(0.0, f64::max) + 1.0)
        };
        let ((x1, x2), (y1, y2)) = (bound(0), bound(1));
        let corners = [x1, y1, x2, y2];
        if contrast < 0.6 || shapes.iter().any(|(other, _)| covered(other, &corners) > 0.15) {
            continue;
        }
        for [x, y] in pixels {
            let at = 3 * (y * SIZE + x);
            image[at..at + 3].iter_mut().zip(color).for_each(|(p, c)| *p = c + 0.06 * rng.normal());
        }
        shapes.push((corners, class as i32));
        if shapes.len() == count {
            break;
        }
    }
    sample(image.iter().map(|v| v.clamp(0.0, 1.0) as f32).collect(), SIZE, MAX_SHAPES, &shapes, 0)
}

/// Returns the inputs of the model for an image and the boxes and classes of its objects, of which the
/// last ones are crowds.
pub(crate) fn sample(
    image: Vec<f32>,
    size: usize,
    max_objects: usize,
    objects: &[([f64; 4], i32)],
    crowds: usize,
) -> Result<Sample> {
    let count = objects.len().min(max_objects);
    // Padding has an extent, so that its offsets are finite.
    let mut boxes: Vec<f32> = [0.0, 0.0, 1.0, 1.0].repeat(max_objects);
    let (mut classes, mut crowd) = (vec![-1; max_objects], vec![0; max_objects]);
    for (i, (corners, class)) in objects[..count].iter().enumerate() {
        boxes[4 * i..4 * i + 4].copy_from_slice(&corners.map(|v| v as f32));
        classes[i] = *class;
        crowd[i] = i32::from(i + crowds >= objects.len());
    }
    Ok(vec![
        HostTensor::new([size, size, 3], image)?,
        HostTensor::new([max_objects, 4], boxes)?,
        HostTensor::new([max_objects], classes)?,
        HostTensor::new([max_objects], crowd)?,
    ])
}

/// Returns training scenes, new ones in every pass.
pub(crate) fn train() -> Flow {
    FromFn::new(PASS, |_| Ok(Vec::new())).map_random(|_, rng| scene(rng)).into_flow()
}

/// Returns scenes that are always the same.
pub(crate) fn test(count: u64) -> Flow {
    let seed = Seed::new(0).derive("test scenes");
    FromFn::new(count, move |i| scene(&mut seed.rng(0, i))).into_flow()
}
