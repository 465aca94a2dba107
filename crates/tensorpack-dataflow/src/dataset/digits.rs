//! Synthetic handwritten digits that need no file and no network.
//!
//! Each image is a function of its index. The strokes of the digit are distorted, rotated, sheared,
//! scaled and shifted, drawn with a pen of random width, crossed by a stray line and covered with
//! noise. A linear model classifies nine out of ten correctly, a small convnet nearly all.

use crate::{RandomAccess, Sample, SampleRng, Seed};
use std::f64::consts::TAU;
use tensorpack_tensor::{Error, HostTensor, Result};

/// The image size of MNIST.
const SIDE: usize = 28;
/// The noise of the pixels is read from the stream of uniform numbers, beyond those that a digit needs.
const FIRST_NOISE: u64 = 21;

/// Returns 12,000 training images: `[image 28x28 f32 in 0..1, label i32]`. Never fails; the type is
/// that of the other data sets.
pub fn train() -> Result<Digits> {
    Ok(Digits { seed: Seed::new(0).derive("train digits"), len: 12_000 })
}

/// Returns 2,000 test images: `[image 28x28 f32 in 0..1, label i32]`. Never fails, like [`train`].
pub fn test() -> Result<Digits> {
    Ok(Digits { seed: Seed::new(0).derive("test digits"), len: 2_000 })
}

/// Synthetic digits. Labels cycle from 0 to 9.
#[derive(Clone, Debug)]
pub struct Digits {
    seed: Seed,
    len: u64,
}

impl RandomAccess for Digits {
    fn len(&self) -> u64 {
        self.len
    }

    fn get(&self, index: u64) -> Result<Sample> {
        if index >= self.len {
            return Err(Error::argument(format!("sample {index} is out of range for {} samples", self.len)));
        }
        let label = (index % 10) as usize;
        let noise = self.seed.generator(0);
        let image = render(&mut self.seed.rng(0, index), label, &|i| noise.normal(index, FIRST_NOISE + i));
        Ok(vec![HostTensor::new([SIDE, SIDE], image)?, HostTensor::scalar(label as i32)])
    }
}

type Point = [f64; 2];

/// Returns the strokes of a digit in a box from (-1, -1) (top left) to (1, 1).
fn strokes(digit: usize) -> Vec<Vec<Point>> {
    // An arc of an ellipse; angles are in turns, clockwise from the right.
    let arc = |center: Point, radius: Point, from: f64, to: f64| -> Vec<Point> {
        let points = (24.0 * (to - from).abs()).ceil().max(2.0);
        let at = |i: f64| (from + (to - from) * i / points) * TAU;
        let point = |a: f64| [center[0] + radius[0] * a.cos(), center[1] + radius[1] * a.sin()];
        (0..=points as usize).map(|i| point(at(i as f64))).collect()
    };
    match digit {
        0 => vec![arc([0.0, 0.0], [0.65, 0.95], 0.0, 1.0)],
        1 => vec![vec![[-0.35, -0.6], [0.05, -0.95], [0.05, 0.95]]],
        2 => {
            let mut line = arc([0.0, -0.45], [0.6, 0.5], -0.5, 0.1);
            line.extend([[-0.6, 0.95], [0.65, 0.95]]);
            vec![line]
        }
        3 => {
            let mut line = arc([-0.05, -0.47], [0.6, 0.48], -0.42, 0.25);
            line.extend(arc([-0.05, 0.47], [0.65, 0.48], -0.25, 0.42));
            vec![line]
        }
        4 => vec![vec![[0.2, -0.95], [-0.65, 0.35], [0.7, 0.35]], vec![[0.3, -0.3], [0.3, 0.95]]],
        5 => {
            let mut line = vec![[0.6, -0.95], [-0.45, -0.95], [-0.5, -0.1]];
            line.extend(arc([-0.02, 0.38], [0.62, 0.56], -0.32, 0.4));
            vec![line]
        }
        6 => {
            let mut line = vec![[0.4, -0.95], [-0.2, -0.5]];
            line.extend(arc([0.0, 0.42], [0.6, 0.52], 0.5, 1.5));
            vec![line]
        }
        7 => vec![vec![[-0.6, -0.95], [0.6, -0.95], [-0.15, 0.95]]],
        8 => vec![arc([0.0, -0.48], [0.5, 0.46], 0.25, 1.25), arc([0.0, 0.46], [0.6, 0.49], -0.25, 0.75)],
        _ => {
            let mut line = arc([0.0, -0.42], [0.58, 0.5], 1.0, 0.0);
            line.extend([[0.5, 0.2], [0.1, 0.95]]);
            vec![line]
        }
    }
}

/// Draws a digit. `normal` returns the noise of a pixel.
fn render(rng: &mut SampleRng, digit: usize, normal: &dyn Fn(u64) -> f64) -> Vec<f32> {
    let mut lines = strokes(digit);
    distort(rng, &mut lines);
    lines.push(stray_line(rng));
    let width = rng.uniform_range(0.8, 1.7);
    let ink = rng.uniform_range(0.6, 1.0);
    let noise = rng.uniform_range(0.03, 0.14);
    let pixel = |i: usize| {
        let at = [(i % SIDE) as f64, (i / SIDE) as f64];
        let segments = lines.iter().flat_map(|line| line.windows(2));
        let nearest = segments.map(|s| distance(at, s[0], s[1])).fold(f64::INFINITY, f64::min);
        // Antialiased over half a pixel on either side of the pen's edge.
        let covered = (width + 0.5 - nearest).clamp(0.0, 1.0);
        (ink * covered + noise * normal(i as u64)).clamp(0.0, 1.0) as f32
    };
    (0..SIDE * SIDE).map(pixel).collect()
}

/// Distorts the strokes and maps them from their box into the image.
fn distort(rng: &mut SampleRng, lines: &mut [Vec<Point>]) {
    let turn = rng.uniform_range(-0.22, 0.22);
    let slant = rng.uniform_range(-0.25, 0.25);
    let size = rng.uniform_range(7.0, 9.5);
    let stretch = rng.uniform_range(0.8, 1.1);
    let middle = (SIDE as f64 - 1.0) / 2.0;
    let center = [middle + rng.uniform_range(-2.1, 2.1), middle + rng.uniform_range(-2.1, 2.1)];
    // Waves across the box displace nearby points alike, like an unsteady hand.
    let waves = [(); 2].map(|()| {
        (
            rng.uniform_range(0.0, 0.13),
            rng.uniform_range(1.5, 3.5),
            rng.uniform_range(0.0, TAU),
            rng.uniform_range(0.0, TAU),
        )
    });
    let (sin, cos) = turn.sin_cos();
    for [x, y] in lines.iter_mut().flatten() {
        let wave = |(height, speed, phase, way): (f64, f64, f64, f64)| {
            height * (speed * (*x * way.cos() + *y * way.sin()) + phase).sin()
        };
        let (u, v) = (*x + wave(waves[0]), *y + wave(waves[1]));
        let (u, v) = (size * stretch * (u - slant * v), size * v);
        (*x, *y) = (center[0] + cos * u - sin * v, center[1] + sin * u + cos * v);
    }
}

/// Returns a short line that is not part of the digit.
fn stray_line(rng: &mut SampleRng) -> Vec<Point> {
    let side = SIDE as f64;
    let start = [rng.uniform_range(0.0, side), rng.uniform_range(0.0, side)];
    let (length, way) = (rng.uniform_range(2.0, 8.0), rng.uniform_range(0.0, TAU));
    vec![start, [start[0] + length * way.cos(), start[1] + length * way.sin()]]
}

/// Returns the distance of a point from a segment.
fn distance([x, y]: Point, [ax, ay]: Point, [bx, by]: Point) -> f64 {
    let (dx, dy) = (bx - ax, by - ay);
    let length = dx * dx + dy * dy;
    let along = if length > 0.0 { (((x - ax) * dx + (y - ay) * dy) / length).clamp(0.0, 1.0) } else { 0.0 };
    (x - ax - along * dx).hypot(y - ay - along * dy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_is_a_function_of_its_index() {
        let (a, b) = (train().unwrap(), train().unwrap());
        assert_eq!(a.get(4321).unwrap(), b.get(4321).unwrap());
        assert_ne!(a.get(4321).unwrap(), a.get(4331).unwrap());
        assert_ne!(a.get(7).unwrap(), test().unwrap().get(7).unwrap());
        assert_eq!(a.get(4321).unwrap()[1], HostTensor::scalar(1i32));
        assert!(a.get(12_000).is_err());
        // Trained models are compared across machines and versions, so the pixels must not change.
        let sum: f64 = (0..10).map(|i| a.get(i).unwrap()[0].to_f64_vec().iter().sum::<f64>()).sum();
        assert!((sum - 1245.940834).abs() < 1e-3, "{sum}");
    }

    #[test]
    fn distance_to_a_segment() {
        assert_eq!(distance([0.0, 2.0], [-1.0, 0.0], [1.0, 0.0]), 2.0);
        assert_eq!(distance([4.0, 4.0], [-1.0, 0.0], [1.0, 0.0]), 5.0);
        assert_eq!(distance([3.0, 4.0], [0.0, 0.0], [0.0, 0.0]), 5.0);
    }
}
