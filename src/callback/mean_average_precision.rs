//! COCO's average precision of a detector.

use super::Inferencer;
use super::coco_evaluation::{CocoEvaluation, Detection, GroundTruth};
use super::inferencer::{PREFIX, prefixed};
use crate::graph::Tensor;
use crate::tower::TowerHandle;
use tensorpack_tensor::{Error, HostTensor, Result};

/// The average precisions and recalls of boxes as COCO defines them: `validation_ap` (the mean over
/// thresholds of the intersection over union from 0.50 to 0.95), `validation_ap50`, `validation_ap75`,
/// `validation_ap_small`, `validation_ap_medium`, `validation_ap_large`, `validation_ar1`,
/// `validation_ar10`, `validation_ar100`, `validation_ar_small`, `validation_ar_medium` and
/// `validation_ar_large`.
///
/// Reads detections, `detected_boxes` `[batch, n, 4]`, `detected_scores` `[batch, n]` and
/// `detected_classes` `[batch, n]`, and annotations, `gt_boxes` `[batch, m, 4]` and `gt_classes`
/// `[batch, m]`, unless other names are given. Boxes are `(x1, y1, x2, y2)`. Entries with a negative
/// class are padding. The values are exact and equal to those of `pycocotools`; they are NaN where that
/// returns -1.
#[derive(Clone, Debug)]
#[doc(alias = "COCOeval")]
#[doc(alias = "mAP")]
pub struct MeanAveragePrecision {
    /// Boxes, scores and classes; boxes and classes.
    names: [String; 5],
    crowd: Option<String>,
    area: Option<String>,
    max_detections: [usize; 3],
    prefix: String,
    evaluation: CocoEvaluation,
}

impl Default for MeanAveragePrecision {
    fn default() -> MeanAveragePrecision {
        let names = ["detected_boxes", "detected_scores", "detected_classes", "gt_boxes", "gt_classes"];
        let max_detections = [1, 10, 100];
        MeanAveragePrecision {
            names: names.map(Into::into),
            crowd: None,
            area: None,
            max_detections,
            prefix: PREFIX.into(),
            evaluation: CocoEvaluation::new(max_detections),
        }
    }
}

impl MeanAveragePrecision {
    /// Reads tensors with the names above.
    pub fn new() -> MeanAveragePrecision {
        MeanAveragePrecision::default()
    }

    /// Reads detections with these names in the tower.
    #[must_use]
    pub fn detections(mut self, boxes: &str, scores: &str, classes: &str) -> MeanAveragePrecision {
        self.names[..3].clone_from_slice(&[boxes, scores, classes].map(String::from));
        self
    }

    /// Reads annotations with these names in the tower.
    #[must_use]
    pub fn ground_truth(mut self, boxes: &str, classes: &str) -> MeanAveragePrecision {
        self.names[3..].clone_from_slice(&[boxes, classes].map(String::from));
        self
    }

    /// Reads which annotations are crowds, zeros and ones `[batch, m]`. Without this none is.
    #[must_use]
    pub fn crowd(self, name: impl Into<String>) -> MeanAveragePrecision {
        MeanAveragePrecision { crowd: Some(name.into()), ..self }
    }

    /// Reads the areas of the annotated objects, `[batch, m]`. Without this they are those of the boxes.
    #[must_use]
    pub fn area(self, name: impl Into<String>) -> MeanAveragePrecision {
        MeanAveragePrecision { area: Some(name.into()), ..self }
    }

    /// Sets the numbers of detections per image and class, in ascending order, for the average recalls.
    /// The last one limits all other results. Defaults to 1, 10 and 100.
    #[must_use]
    pub fn max_detections(self, max_detections: [usize; 3]) -> MeanAveragePrecision {
        MeanAveragePrecision { max_detections, ..self }
    }

    /// Sets the [prefix](Inferencer) of the statistics.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> MeanAveragePrecision {
        MeanAveragePrecision { prefix: prefix.into(), ..self }
    }
}

impl Inferencer for MeanAveragePrecision {
    fn fetches(&mut self, tower: &TowerHandle) -> Result<Vec<Tensor>> {
        let names = self.names.iter().chain(&self.crowd).chain(&self.area);
        let tensors = names.map(|name| tower.get_tensor(name)).collect::<Result<Vec<Tensor>>>()?;
        for (i, tensor) in tensors.iter().enumerate() {
            let is_boxes = i == 0 || i == 3;
            if tensor.rank() != if is_boxes { 3 } else { 2 } {
                let expected = if is_boxes { "[batch, n, 4]" } else { "[batch, n]" };
                return Err(Error::shape(format!("{} is {}, not {expected}", tensor.name(), tensor.shape())));
            }
        }
        Ok(tensors)
    }

    fn start(&mut self) {
        self.evaluation = CocoEvaluation::new(self.max_detections);
    }

    fn batch(&mut self, values: &[HostTensor], _: usize) -> Result<()> {
        // The sizes of classes decide: [batch, n] for detections, [batch, m] for annotations.
        let (found, given) = (values[2].sizes(), values[4].sizes());
        for (i, value) in values.iter().enumerate() {
            let list = if i < 3 { found } else { given };
            let expected = if i == 0 || i == 3 { [list, &[4]].concat() } else { list.to_vec() };
            if value.sizes() != expected || value.sizes()[0] != found[0] {
                let (sizes, why) = (value.sizes(), "classes of detections and annotations");
                return Err(Error::shape(format!(
                    "value {i} is {sizes:?} for {why} {found:?} and {given:?}"
                )));
            }
        }
        let numbers: Vec<Vec<f64>> = values.iter().map(HostTensor::to_f64_vec).collect();
        let optional = |is_read: bool, at: usize| is_read.then(|| numbers[at].as_slice());
        let crowd = optional(self.crowd.is_some(), 5);
        let area = optional(self.area.is_some(), 5 + usize::from(self.crowd.is_some()));
        let corners = |of: usize, i: usize| std::array::from_fn(|k| numbers[of][4 * i + k]);
        for image in 0..found[0] {
            let entries = |of: usize, count: usize| {
                let classes = &numbers[of];
                (image * count..(image + 1) * count).filter(|&i| classes[i] >= 0.0).collect::<Vec<usize>>()
            };
            let detection = |&i: &usize| Detection {
                corners: corners(0, i),
                score: numbers[1][i],
                class: numbers[2][i] as i64,
            };
            let truth = |&i: &usize| GroundTruth {
                corners: corners(3, i),
                class: numbers[4][i] as i64,
                crowd: crowd.is_some_and(|c| c[i] != 0.0),
                area: area.map(|a| a[i]),
            };
            let detections: Vec<Detection> = entries(2, found[1]).iter().map(detection).collect();
            let truths: Vec<GroundTruth> = entries(4, given[1]).iter().map(truth).collect();
            self.evaluation.add_image(&detections, &truths)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Vec<(String, f64)> {
        let s = std::mem::take(&mut self.evaluation).summary();
        let values = [s.ap, s.ap50, s.ap75].into_iter().chain(s.ap_by_size).chain(s.ar).chain(s.ar_by_size);
        self.names().into_iter().zip(values).collect()
    }

    fn names(&self) -> Vec<String> {
        let sizes = |what: &str| ["small", "medium", "large"].map(|size| format!("{what}_{size}"));
        let precisions = ["ap", "ap50", "ap75"].map(String::from).into_iter().chain(sizes("ap"));
        let recalls = self.max_detections.map(|n| format!("ar{n}")).into_iter().chain(sizes("ar"));
        precisions.chain(recalls).map(|name| prefixed(&self.prefix, &name)).collect()
    }
}
