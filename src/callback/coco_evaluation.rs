//! Average precision and recall of detections, as COCO defines them.

use std::collections::BTreeMap;
use tensorpack_tensor::{Error, Result};

/// A detected box.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detection {
    /// The corners `(x1, y1, x2, y2)`.
    pub corners: [f64; 4],
    /// The confidence.
    pub score: f64,
    /// The class.
    pub class: i64,
}

/// A box of an annotated object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroundTruth {
    /// The corners `(x1, y1, x2, y2)`.
    pub corners: [f64; 4],
    /// The class.
    pub class: i64,
    /// Whether the box is a crowd: it counts as no object, and detections inside of it are ignored.
    pub crowd: bool,
    /// The area of the object, which decides whether it is small, medium or large. COCO's annotations
    /// give the area of the mask; without one it is the area of the box.
    pub area: Option<f64>,
}

/// Ranges of areas in pixels, both ends included: all, small, medium and large.
const AREAS: [[f64; 2]; 4] = [[0.0, 1e10], [0.0, 1024.0], [1024.0, 9216.0], [9216.0, 1e10]];

/// The number of thresholds of the intersection over union: 0.50, 0.55, .., 0.95.
const THRESHOLDS: usize = 10;

/// The number of recalls at which precision is sampled: 0.00, 0.01, .., 1.00.
const RECALLS: usize = 101;

/// The objects and the detections of one class in one image.
#[derive(Clone, Debug, Default, PartialEq)]
struct ClassInImage {
    detections: Vec<Detection>,
    truths: Vec<GroundTruth>,
}

/// The results of COCO's evaluation. A value is NaN if it is a mean over no class: where the official
/// evaluation returns -1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CocoSummary {
    /// Average precision, the mean over thresholds from 0.50 to 0.95.
    pub ap: f64,
    /// Average precision at a threshold of 0.50.
    pub ap50: f64,
    /// Average precision at a threshold of 0.75.
    pub ap75: f64,
    /// Average precision of small (below 32x32), medium and large (above 96x96) objects.
    pub ap_by_size: [f64; 3],
    /// Average recall with each maximum number of detections.
    pub ar: [f64; 3],
    /// Average recall of small, medium and large objects.
    pub ar_by_size: [f64; 3],
}

/// Detections and annotations of images, compared as by COCO's `COCOeval` for boxes.
///
/// The results are exact. Among equal scores the detection that was added first comes first.
#[derive(Clone, Debug, PartialEq)]
#[doc(alias = "COCOeval")]
pub struct CocoEvaluation {
    max_detections: [usize; 3],
    /// For every class, its images in the order of adding.
    classes: BTreeMap<i64, Vec<ClassInImage>>,
}

impl Default for CocoEvaluation {
    fn default() -> CocoEvaluation {
        CocoEvaluation::new([1, 10, 100])
    }
}

/// What a detection of an image was found to be, at every threshold.
struct Judged {
    score: f64,
    outcomes: [Outcome; THRESHOLDS],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Hit,
    FalseAlarm,
    Ignored,
}

impl CocoEvaluation {
    /// Creates an evaluation without images. `max_detections`, in ascending order, are the numbers of
    /// detections per image and class for the average recalls; the last one limits all other results.
    pub fn new(max_detections: [usize; 3]) -> CocoEvaluation {
        CocoEvaluation { max_detections, classes: BTreeMap::new() }
    }

    /// Adds an image. Returns an error if a score is NaN.
    pub fn add_image(&mut self, detections: &[Detection], truths: &[GroundTruth]) -> Result<()> {
        if let Some(i) = detections.iter().position(|d| d.score.is_nan()) {
            return Err(Error::argument(format!("the score of detection {i} is NaN")));
        }
        let mut classes: BTreeMap<i64, ClassInImage> = BTreeMap::new();
        detections.iter().for_each(|d| classes.entry(d.class).or_default().detections.push(*d));
        truths.iter().for_each(|t| classes.entry(t.class).or_default().truths.push(*t));
        for (class, mut image) in classes {
            image.detections.sort_by(|a, b| b.score.total_cmp(&a.score));
            image.detections.truncate(self.max_detections[2]);
            self.classes.entry(class).or_default().push(image);
        }
        Ok(())
    }

    /// Returns the results for all images.
    pub fn summary(&self) -> CocoSummary {
        let most = self.max_detections[2];
        let all = self.curves(AREAS[0], most);
        let sizes = [1, 2, 3].map(|i| self.curves(AREAS[i], most));
        let ap = |curves: &[Curve], threshold: Option<usize>| {
            mean(curves.iter().flat_map(|c| match threshold {
                Some(t) => c.precisions[t].to_vec(),
                None => c.precisions.concat(),
            }))
        };
        let ar = |curves: &[Curve]| mean(curves.iter().flat_map(|c| c.recalls));
        CocoSummary {
            ap: ap(&all, None),
            ap50: ap(&all, Some(0)),
            ap75: ap(&all, Some(5)),
            ap_by_size: [0, 1, 2].map(|i| ap(&sizes[i], None)),
            ar: self.max_detections.map(|most| ar(&self.curves(AREAS[0], most))),
            ar_by_size: [0, 1, 2].map(|i| ar(&sizes[i])),
        }
    }

    /// Returns the curve of every class that has objects of this size.
    fn curves(&self, area: [f64; 2], most: usize) -> Vec<Curve> {
        self.classes.values().filter_map(|images| Curve::new(images, area, most)).collect()
    }
}

/// Precisions at every threshold and recall, and the largest recall at every threshold.
struct Curve {
    precisions: [[f64; RECALLS]; THRESHOLDS],
    recalls: [f64; THRESHOLDS],
}

impl Curve {
    /// Returns the curve of one class, `None` without objects.
    fn new(images: &[ClassInImage], area: [f64; 2], most: usize) -> Option<Curve> {
        let objects = |image: &ClassInImage| image.truths.iter().filter(|t| !is_ignored(t, area)).count();
        let objects: usize = images.iter().map(objects).sum();
        let mut judged: Vec<Judged> =
            images.iter().flat_map(|i| i.judge(area).into_iter().take(most)).collect();
        judged.sort_by(|a, b| b.score.total_cmp(&a.score));
        (objects > 0).then(|| {
            let mut curve = Curve { precisions: [[0.0; RECALLS]; THRESHOLDS], recalls: [0.0; THRESHOLDS] };
            for t in 0..THRESHOLDS {
                let outcomes = judged.iter().map(|j| j.outcomes[t]);
                (curve.precisions[t], curve.recalls[t]) = sampled(outcomes, objects as f64);
            }
            curve
        })
    }
}

/// Returns the precision at every sampled recall, and the largest recall, of detections in order of
/// score.
fn sampled(outcomes: impl Iterator<Item = Outcome>, objects: f64) -> ([f64; RECALLS], f64) {
    let (mut hits, mut false_alarms) = (0.0, 0.0);
    let (mut recalls, mut precisions) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        hits += f64::from(u8::from(outcome == Outcome::Hit));
        false_alarms += f64::from(u8::from(outcome == Outcome::FalseAlarm));
        recalls.push(hits / objects);
        precisions.push(hits / (hits + false_alarms + f64::EPSILON));
    }
    // The best precision at this recall or a larger one.
    for i in (1..precisions.len()).rev() {
        precisions[i - 1] = precisions[i - 1].max(precisions[i]);
    }
    let at = |i: usize| {
        let recall = if i + 1 == RECALLS { 1.0 } else { i as f64 * 0.01 };
        let first = recalls.partition_point(|&r| r < recall);
        precisions.get(first).copied().unwrap_or(0.0)
    };
    (std::array::from_fn(at), recalls.last().copied().unwrap_or(0.0))
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), v| (sum + v, count + 1));
    sum / count as f64
}

fn box_area(corners: &[f64; 4]) -> f64 {
    (corners[2] - corners[0]) * (corners[3] - corners[1])
}

fn outside(area: f64, range: [f64; 2]) -> bool {
    area < range[0] || area > range[1]
}

fn is_ignored(truth: &GroundTruth, area: [f64; 2]) -> bool {
    truth.crowd || outside(truth.area.unwrap_or_else(|| box_area(&truth.corners)), area)
}

/// Returns the intersection over union; with a crowd, over the area of the detection.
fn overlap(detection: &Detection, truth: &GroundTruth) -> f64 {
    let (d, t) = (&detection.corners, &truth.corners);
    let extent = |i: usize| (d[i + 2].min(t[i + 2]) - d[i].max(t[i])).max(0.0);
    let shared = extent(0) * extent(1);
    if shared == 0.0 {
        return 0.0;
    }
    let own = box_area(d);
    shared / if truth.crowd { own } else { own + box_area(t) - shared }
}

/// Returns a threshold of the intersection over union: linear from 0.5 to 0.95.
fn threshold(i: usize) -> f64 {
    let last = THRESHOLDS - 1;
    if i == last { 0.95 } else { 0.5 + i as f64 * ((0.95 - 0.5) / last as f64) }
}

impl ClassInImage {
    /// Matches detections with objects, best score first. Objects outside of the range of areas, and
    /// crowds, are ignored, and so are the detections that match them. A crowd may match many.
    fn judge(&self, area: [f64; 2]) -> Vec<Judged> {
        let mut truths: Vec<(GroundTruth, bool)> =
            self.truths.iter().map(|t| (*t, is_ignored(t, area))).collect();
        truths.sort_by_key(|(_, ignored)| *ignored);
        let mut judged: Vec<Judged> = self
            .detections
            .iter()
            .map(|d| {
                let unmatched = match outside(box_area(&d.corners), area) {
                    true => Outcome::Ignored,
                    false => Outcome::FalseAlarm,
                };
                Judged { score: d.score, outcomes: [unmatched; THRESHOLDS] }
            })
            .collect();
        let overlaps: Vec<Vec<f64>> =
            self.detections.iter().map(|d| truths.iter().map(|(t, _)| overlap(d, t)).collect()).collect();
        for t in 0..THRESHOLDS {
            let mut taken = vec![false; truths.len()];
            for (judged, overlaps) in judged.iter_mut().zip(&overlaps) {
                let mut best: Option<usize> = None;
                let mut least = threshold(t).min(1.0 - 1e-10);
                for (i, (truth, ignored)) in truths.iter().enumerate() {
                    if taken[i] && !truth.crowd {
                        continue;
                    }
                    // An object that counts is better than any that is ignored, which come last.
                    if *ignored && best.is_some_and(|b| !truths[b].1) {
                        break;
                    }
                    if overlaps[i] >= least {
                        (least, best) = (overlaps[i], Some(i));
                    }
                }
                if let Some(i) = best {
                    taken[i] = true;
                    judged.outcomes[t] = if truths[i].1 { Outcome::Ignored } else { Outcome::Hit };
                }
            }
        }
        judged
    }
}
