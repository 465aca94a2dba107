//! Tests of the drawn data of the examples `gan_pix2pix`, `gan_cyclegan` and `hed`, and of their
//! evaluation, compiled from the same files.

#[path = "../examples/pairs/mod.rs"]
mod pairs;
#[path = "../examples/hed/scenes.rs"]
#[expect(dead_code, reason = "the training flow is not read")]
mod scenes;
#[path = "../examples/hed/score.rs"]
mod score;

use pairs::{Pairs, SIDE, Unpaired, filled, quality, shapes};
use tensorpack::dataflow::RandomAccess;
use tensorpack::prelude::*;

fn floats(x: &HostTensor) -> &[f32] {
    x.as_slice().unwrap()
}

#[test]
fn a_pair_is_a_function_of_its_index() {
    let (train, test) = (Pairs::train(), Pairs::test());
    assert_eq!(train.get(5).unwrap(), Pairs::train().get(5).unwrap());
    assert_ne!(train.get(5).unwrap(), train.get(6).unwrap());
    assert_ne!(train.get(5).unwrap(), test.get(5).unwrap());
    // Without partners: outlines of even pairs, colors of odd ones.
    let unpaired = Unpaired(train.clone());
    assert_eq!(unpaired.len(), train.len() / 2);
    let sample = unpaired.get(3).unwrap();
    assert_eq!(sample, [train.get(6).unwrap()[0].clone(), train.get(7).unwrap()[1].clone()]);
}

/// A line is drawn exactly where the color changes to the right or below.
#[test]
fn outlines_are_where_colors_change() {
    for i in 0..20 {
        let pair = Pairs::train().get(i).unwrap();
        let (outline, colored) = (floats(&pair[0]), floats(&pair[1]));
        let color = |i: usize| &colored[3 * i..3 * i + 3];
        for (p, &line) in outline.iter().enumerate() {
            let changes = (p % SIDE + 1 < SIDE && color(p) != color(p + 1))
                || (p / SIDE + 1 < SIDE && color(p) != color(p + SIDE));
            assert_eq!(line == 0.0, changes, "pixel {p} of pair {i}");
        }
        assert!(outline.contains(&0.0));
    }
}

#[test]
fn the_quality_of_colors() {
    // Kind 1: two of four pixels in both; kind 2: one of two; kind 3: none of one.
    let found = [0, 1, 1, 1, 2, 2, 0];
    let expected = [0, 1, 1, 0, 1, 2, 3];
    let quality = quality(&found, &expected);
    assert_eq!(quality.right, 4.0 / 7.0);
    assert!((quality.mean_iou - (0.5 + 0.5) / 3.0).abs() < 1e-12);
}

/// Filling finds the shapes, but for the lines on its left and above, and calls all of them rectangles.
#[test]
fn filling_finds_what_is_inside() {
    let test = Pairs::test();
    for i in 0..20 {
        let pair = test.get(i).unwrap();
        let found = filled(floats(&pair[0]));
        let background = &floats(&pair[1])[..3];
        let inside = floats(&pair[1]).chunks(3).map(|c| c != background);
        let wrong = inside.zip(&found).filter(|&(inside, &found)| inside && found == 0).count();
        assert_eq!(wrong, 0, "pair {i}");
        assert!(found.iter().all(|&color| color < 2));
    }
}

#[test]
fn scores_of_edges_allow_one_pixel() {
    let side = 8;
    let column = |x: usize| -> Vec<bool> { (0..2 * side * side).map(|i| i % side == x).collect() };
    let expected = column(3);
    let strengths = |x: usize, strength: f32| -> Vec<f32> {
        column(x).iter().map(|&edge| if edge { strength } else { 0.1 }).collect()
    };
    let next_to_it = score::best_score(&strengths(4, 0.8), &expected, side);
    assert_eq!((next_to_it.f, next_to_it.precision, next_to_it.recall), (1.0, 1.0, 1.0));
    assert!(next_to_it.threshold > 0.1 && next_to_it.threshold <= 0.8);
    // Two pixels away nothing is right; the best threshold then finds everything.
    let far = score::best_score(&strengths(5, 0.8), &expected, side);
    assert_eq!((far.precision, far.recall), (3.0 / 8.0, 1.0));
}

#[test]
fn sobel_finds_a_step_and_ignores_a_plain() {
    let side = 8;
    let image: Vec<f32> = (0..side * side).flat_map(|i| [if i % side < 4 { 0.2 } else { 0.8 }; 3]).collect();
    let strengths = score::sobel(&image, side);
    for row in strengths.chunks(side) {
        assert!(row[0].abs() < 1e-6 && row[7].abs() < 1e-6, "{row:?}");
        assert!(row[3] > 1.0 && (row[3] - row[4]).abs() < 1e-5, "{row:?}");
    }
}

#[test]
fn scenes_have_edges_and_are_always_the_same() {
    let test = scenes::test(3);
    let scene = test.get(1).unwrap();
    assert_eq!(scene, scenes::test(3).get(1).unwrap());
    assert_eq!((scene[0].sizes(), scene[1].sizes()), (&[64, 64, 3][..], &[64, 64][..]));
    let edges = floats(&scene[1]).iter().filter(|&&edge| edge == 1.0).count();
    assert!((50..1500).contains(&edges), "{edges} pixels");
    assert!(floats(&scene[1]).iter().all(|edge| [0.0, 1.0].contains(edge)));
}
