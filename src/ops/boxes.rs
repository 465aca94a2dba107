//! Boxes `(x1, y1, x2, y2)` in the last axis: overlap, bounds, and offsets from anchors.

use super::composed;
use crate::graph::Tensor;
use std::panic::Location;
use tensorpack_tensor::{Error, Result};

/// The largest logarithm of a scale that is decoded, so that its exponential stays finite.
const MAX_LOG_SCALE: f64 = 4.135_166_556_742_356; // ln(1000 / 16)

/// The columns of boxes, each `[..., 1]`.
struct Columns([Tensor; 4]);

impl Columns {
    #[track_caller]
    fn new(boxes: &Tensor) -> Columns {
        Columns([0, 1, 2, 3].map(|i| boxes.slice_axis(-1, i, Some(i + 1))))
    }

    /// Returns width, height, and the center's x and y.
    fn sizes_and_centers(&self) -> [Tensor; 4] {
        let [x1, y1, x2, y2] = &self.0;
        let (width, height) = (x2 - x1, y2 - y1);
        let (x, y) = (x1 + &width * 0.5, y1 + &height * 0.5);
        [width, height, x, y]
    }
}

impl Tensor {
    /// Returns the intersection over union of every box of this tensor, `[..., n, 4]`, with every box
    /// of `other`, `[..., m, 4]`: `[..., n, m]`. Zero where the union is empty.
    #[track_caller]
    pub fn box_iou(&self, other: &Tensor) -> Tensor {
        self.on_boxes("BoxIou", Location::caller(), Some(other), 2, || {
            let (a, b) = (Columns::new(&self.expand_dims(-2)), Columns::new(&other.expand_dims(-3)));
            let [width, height] = [0, 1].map(|i| {
                let overlap = a.0[i + 2].minimum(&b.0[i + 2]) - a.0[i].maximum(&b.0[i]);
                overlap.relu()
            });
            let area = |c: &Columns| (&c.0[2] - &c.0[0]) * (&c.0[3] - &c.0[1]);
            let intersection = width * height;
            let union = area(&a) + area(&b) - &intersection;
            let is_positive = union.greater(0.0);
            // The inner selection keeps the gradient finite where the union is empty.
            let iou = intersection / is_positive.select(&union, &union.one());
            is_positive.select(&iou, &iou.zero()).squeeze(-1)
        })
    }

    /// Moves the corners of boxes `[..., 4]` into an image of this height and width, in pixels.
    #[track_caller]
    pub fn clip_boxes(&self, size: [f64; 2]) -> Tensor {
        self.on_boxes("ClipBoxes", Location::caller(), None, 1, || {
            let [height, width] = size;
            let [x1, y1, x2, y2] = Columns::new(self).0;
            let clipped = [(x1, width), (y1, height), (x2, width), (y2, height)].map(|(c, n)| c.clip(0.0, n));
            self.graph().concat(&clipped, -1)
        })
    }

    /// Encodes boxes `[..., 4]` as offsets from `anchors` of the same shape (Girshick et al., 2014):
    /// the distances of the centers in units of the anchor's width and height, and the logarithms of
    /// the ratios of widths and heights, times `weights`. The usual weights are 1 for proposals and
    /// 10, 10, 5, 5 for the box head. Boxes and anchors must have positive sizes.
    #[track_caller]
    pub fn encode_boxes(&self, anchors: &Tensor, weights: [f64; 4]) -> Tensor {
        if let Err(e) = check_weights(weights) {
            return self.fail("EncodeBoxes", e);
        }
        self.on_boxes("EncodeBoxes", Location::caller(), Some(anchors), 1, || {
            let [width, height, x, y] = Columns::new(self).sizes_and_centers();
            let [anchor_width, anchor_height, anchor_x, anchor_y] = Columns::new(anchors).sizes_and_centers();
            let offsets = [
                (x - anchor_x) / &anchor_width * weights[0],
                (y - anchor_y) / &anchor_height * weights[1],
                (width / anchor_width).log() * weights[2],
                (height / anchor_height).log() * weights[3],
            ];
            self.graph().concat(&offsets, -1)
        })
    }

    /// Decodes offsets `[..., 4]` from `anchors` into boxes: the inverse of
    /// [`Tensor::encode_boxes`]. A box is at most 62.5 times as wide or high as its anchor.
    #[track_caller]
    pub fn decode_boxes(&self, anchors: &Tensor, weights: [f64; 4]) -> Tensor {
        if let Err(e) = check_weights(weights) {
            return self.fail("DecodeBoxes", e);
        }
        self.on_boxes("DecodeBoxes", Location::caller(), Some(anchors), 1, || {
            let Columns(offsets) = Columns::new(self);
            let [anchor_width, anchor_height, anchor_x, anchor_y] = Columns::new(anchors).sizes_and_centers();
            let scale = |i: usize| {
                let log_scale = &offsets[i] * (1.0 / weights[i]);
                log_scale.minimum(MAX_LOG_SCALE).exp()
            };
            let x = &offsets[0] * (1.0 / weights[0]) * &anchor_width + anchor_x;
            let y = &offsets[1] * (1.0 / weights[1]) * &anchor_height + anchor_y;
            let (half_width, half_height) = (scale(2) * anchor_width * 0.5, scale(3) * anchor_height * 0.5);
            let corners = [&x - &half_width, &y - &half_height, x + half_width, y + half_height];
            self.graph().concat(&corners, -1)
        })
    }

    /// Checks that this tensor and `other` hold boxes and have at least `rank` dims, and builds an
    /// operation on them.
    #[track_caller]
    fn on_boxes(
        &self,
        name: &str,
        caller: &'static Location<'static>,
        other: Option<&Tensor>,
        rank: usize,
        build: impl FnOnce() -> Tensor,
    ) -> Tensor {
        for boxes in [Some(self), other].into_iter().flatten() {
            if boxes.is_poison() {
                return boxes.clone();
            }
            let last = boxes.shape().last().and_then(|d| d.known());
            if boxes.rank() < rank || last != Some(4) || !boxes.dtype().is_float() {
                let found = format!("{}{}", boxes.dtype(), boxes.shape());
                return self.fail(name, Error::shape(format!("expected float boxes [..., 4], got {found}")));
            }
        }
        composed(self, name, caller, build)
    }
}

/// Checks the weights of offsets, by which decoding divides.
fn check_weights(weights: [f64; 4]) -> Result<()> {
    match weights.iter().all(|w| w.is_finite() && *w > 0.0) {
        true => Ok(()),
        false => Err(Error::argument(format!("the weights {weights:?} must be positive and finite"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    /// Boxes of positive size around distinct corners.
    fn boxes(x: &Tensor) -> Tensor {
        let corner = x.slice_axis(-1, 0, Some(2));
        let size = x.slice_axis(-1, 2, None).square() + 0.5;
        x.graph().concat(&[corner.clone(), corner + size], -1)
    }

    fn drawn(draw: &mut Draw<'_>, counts: &[usize]) -> Vec<Input> {
        let batch = draw.between(1, 2);
        counts.iter().map(|&n| Input::floats(draw, [batch, n, 4], Apart).closed()).collect()
    }

    cases![
        case("BoxIou", Twice, |draw| {
            let counts = [draw.below(4), draw.below(4)];
            Trial::new(drawn(draw, &counts), |x| vec![boxes(&x[0]).box_iou(&boxes(&x[1]))])
        })
        .empty("x.box_iou(y)", "[0, 4], [3, 4]", "empty [0, 3]", |x| x[0].box_iou(&x[1])),
        case("ClipBoxes", Twice, |draw| {
            let counts = [draw.below(4)];
            Trial::new(drawn(draw, &counts), |x| vec![boxes(&x[0]).clip_boxes([1.03, 1.51])])
        })
        .empty("x.clip_boxes([2.0, 3.0])", "[0, 4]", "empty [0, 4]", |x| x[0].clip_boxes([2.0, 3.0])),
        case("EncodeBoxes", Twice, |draw| {
            let count = draw.below(4);
            Trial::new(drawn(draw, &[count, count]), |x| {
                vec![boxes(&x[0]).encode_boxes(&boxes(&x[1]), [10.0, 10.0, 5.0, 5.0])]
            })
        })
        .empty("x.encode_boxes(y, [1.0; 4])", "[0, 4], [0, 4]", "empty [0, 4]", |x| {
            x[0].encode_boxes(&x[1], [1.0; 4])
        }),
        case("DecodeBoxes", Twice, |draw| {
            let count = draw.below(4);
            Trial::new(drawn(draw, &[count, count]), |x| {
                vec![x[0].decode_boxes(&boxes(&x[1]), [1.0, 1.0, 2.0, 2.0])]
            })
        })
        .empty("x.decode_boxes(y, [1.0; 4])", "[0, 4], [0, 4]", "empty [0, 4]", |x| {
            x[0].decode_boxes(&x[1], [1.0; 4])
        }),
    ];
}
