//! The F-score of edges, and edges found without learning.

/// The number of thresholds that are tried.
const THRESHOLDS: usize = 100;

/// The result of the best threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Score {
    pub(crate) f: f64,
    pub(crate) precision: f64,
    pub(crate) recall: f64,
    pub(crate) threshold: f64,
}

/// Returns for each pixel of images with this side whether it or one of its eight neighbors is set.
fn dilated(set: &[bool], side: usize) -> Vec<bool> {
    let near = |i: usize| {
        let (image, x, y) = (i / (side * side), i % side, i / side % side);
        let span = |at: usize| at.saturating_sub(1)..(at + 2).min(side);
        span(y).any(|y| span(x).any(|x| set[(image * side + y) * side + x]))
    };
    (0..set.len()).map(near).collect()
}

/// Returns precision and recall of the pixels that are `found`. A pixel is right if it is at most one pixel
/// away from a true one.
fn precision_and_recall(
    found: &[bool],
    expected: &[bool],
    near_expected: &[bool],
    side: usize,
) -> (f64, f64) {
    let share = |of: &[bool], within: &[bool]| {
        let right = of.iter().zip(within).filter(|&(&a, &b)| a && b).count();
        right as f64 / of.iter().filter(|&&a| a).count().max(1) as f64
    };
    (share(found, near_expected), share(expected, &dilated(found, side)))
}

/// Returns the largest F-score over one threshold for all images, of edges with these strengths of 0 or
/// more.
pub(crate) fn best_score(strengths: &[f32], expected: &[bool], side: usize) -> Score {
    let largest = f64::from(strengths.iter().copied().fold(0.0, f32::max));
    let near_expected = dilated(expected, side);
    let mut best = Score { f: -1.0, precision: 0.0, recall: 0.0, threshold: 0.0 };
    for i in 1..THRESHOLDS {
        let threshold = largest * i as f64 / THRESHOLDS as f64;
        let found: Vec<bool> = strengths.iter().map(|&s| f64::from(s) >= threshold).collect();
        let (precision, recall) = precision_and_recall(&found, expected, &near_expected, side);
        let f = 2.0 * precision * recall / (precision + recall).max(1e-9);
        if f > best.f {
            best = Score { f, precision, recall, threshold };
        }
    }
    best
}

/// Returns the strength of edges by Sobel's filters: the length of the gradient of brightness, after it was
/// averaged over 3x3 pixels. The image has three channels.
pub(crate) fn sobel(image: &[f32], side: usize) -> Vec<f32> {
    let gray: Vec<f32> = image.chunks(3).map(|c| c.iter().sum::<f32>() / 3.0).collect();
    // Pixels outside equal those at the border.
    let at = |of: &[f32], x: isize, y: isize| {
        let inside = |v: isize| v.clamp(0, side as isize - 1) as usize;
        of[inside(y) * side + inside(x)]
    };
    let filtered = |of: &[f32], weight: &dyn Fn(isize, isize) -> f32| -> Vec<f32> {
        let pixel = |i: usize| {
            let (x, y) = ((i % side) as isize, (i / side) as isize);
            let sum = |dy: isize| (-1..=1).map(|dx| weight(dx, dy) * at(of, x + dx, y + dy)).sum::<f32>();
            (-1..=1).map(sum).sum()
        };
        (0..side * side).map(pixel).collect()
    };
    let smooth = filtered(&gray, &|_, _| 1.0 / 9.0);
    let across = filtered(&smooth, &|dx, dy| dx as f32 * (2 - dy.abs()) as f32);
    let down = filtered(&smooth, &|dx, dy| dy as f32 * (2 - dx.abs()) as f32);
    across.iter().zip(&down).map(|(a, d)| a.hypot(*d)).collect()
}
