//! The network: backbone, feature pyramid, proposals and heads.

use super::targets::{Objects, at_least, rows, sample};
use tensorpack::prelude::*;

/// The sizes of a detector and of its training.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Height and width of images.
    pub(crate) size: usize,
    /// The largest number of annotations of an image.
    pub(crate) max_objects: usize,
    /// The number of classes.
    pub(crate) classes: usize,
    /// Channels of the first convolution, of the pyramid and of the heads.
    pub(crate) width: usize,
    pub(crate) pyramid: usize,
    pub(crate) head: usize,
    /// The size of the anchors of each level of the pyramid, whose strides are 4, 8 and 16.
    pub(crate) anchors: [f64; 3],
    /// The number of anchors before, and of proposals after suppression.
    pub(crate) candidates: usize,
    pub(crate) proposals: usize,
    /// The number of regions of an image that train the heads, of which a quarter are objects.
    pub(crate) regions: usize,
    pub(crate) batch: usize,
    pub(crate) steps: u64,
    pub(crate) learning_rate: f64,
}

/// Height and width of a region's features.
const POOLED: usize = 5;
/// The factors of the offsets that the box head predicts.
const HEAD_WEIGHTS: [f64; 4] = [10.0, 10.0, 5.0, 5.0];
/// Width to height of the anchors.
const RATIOS: [f64; 3] = [0.5, 1.0, 2.0];
const STRIDES: [usize; 3] = [4, 8, 16];
/// The number of detections of an image.
const DETECTIONS: usize = 20;

/// Faster R-CNN (Ren et al., 2015) with a feature pyramid (Lin et al., 2017).
#[derive(Clone)]
pub(crate) struct Detector {
    settings: Settings,
    /// The anchors of all levels, `[anchors, 4]`, and the level of each.
    anchors: HostTensor,
    levels: HostTensor,
}

/// Proposed regions.
struct Regions {
    /// `[batch, n, 4]`.
    boxes: Tensor,
    /// 1 for a region, 0 for padding, `[batch, n]`.
    exists: Tensor,
}

impl Detector {
    /// Creates a detector of these sizes.
    pub(crate) fn new(settings: Settings) -> Result<Detector> {
        let (mut boxes, mut levels) = (Vec::new(), Vec::new());
        for (level, (stride, side)) in STRIDES.into_iter().zip(settings.anchors).enumerate() {
            let cells = settings.size / stride;
            for (row, column) in (0..cells * cells).map(|i| (i / cells, i % cells)) {
                for ratio in RATIOS {
                    let [x, y] = [column, row].map(|i| (i as f64 + 0.5) * stride as f64);
                    let (w, h) = (side * ratio.sqrt() / 2.0, side / ratio.sqrt() / 2.0);
                    boxes.extend([x - w, y - h, x + w, y + h].map(|v| v as f32));
                    levels.push(level as i64);
                }
            }
        }
        let anchors = HostTensor::new([levels.len(), 4], boxes)?;
        let levels = HostTensor::new([levels.len()], levels)?;
        Ok(Detector { settings, anchors, levels })
    }

    /// Returns the levels of the feature pyramid.
    fn features(&self, t: &TowerContext, image: &Tensor) -> [Tensor; 3] {
        let conv = |t: &TowerContext, name: &str, x: &Tensor, channels: usize, stride: usize| {
            let x = Conv2d::new(channels, 3).stride(stride).no_bias().apply(t, name, x);
            BatchNorm::new().relu().apply(t, &format!("{name}_bn"), &x)
        };
        let width = self.settings.width;
        let mut x = conv(t, "stem", &(image - 0.5), width, 2);
        let mut stages = Vec::new();
        for stage in 0..3 {
            let channels = width << (stage + 1);
            x = conv(t, &format!("stage{stage}_0"), &x, channels, 2);
            x = conv(t, &format!("stage{stage}_1"), &x, channels, 1);
            stages.push(x.clone());
        }
        let lateral =
            |i: usize| Conv2d::new(self.settings.pyramid, 1).apply(t, &format!("lateral{i}"), &stages[i]);
        let mut above = lateral(2);
        let mut levels = vec![above.clone()];
        for i in [1, 0] {
            above = lateral(i) + above.resize_nearest([self.settings.size / STRIDES[i]; 2]);
            levels.insert(0, above.clone());
        }
        let smooth = Conv2d::new(self.settings.pyramid, 3);
        [0, 1, 2].map(|i| smooth.apply(t, &format!("pyramid{i}"), &levels[i]))
    }

    /// Returns the score of every anchor, `[batch, anchors]`, and its offsets, `[batch, anchors, 4]`.
    fn propose(&self, t: &TowerContext, features: &[Tensor; 3]) -> [Tensor; 2] {
        let (mut scores, mut offsets) = (Vec::new(), Vec::new());
        // The levels share one head.
        t.auto_reuse(|t| {
            for level in features {
                let x = Conv2d::new(self.settings.pyramid, 3).relu().apply(t, "rpn", level);
                let small = Init::Normal(0.0, 0.01);
                let score = Conv2d::new(RATIOS.len(), 1).init(small.clone()).apply(t, "rpn_score", &x);
                let offset = Conv2d::new(4 * RATIOS.len(), 1).init(small).apply(t, "rpn_offset", &x);
                scores.push(score.merge_dims(1, 3));
                offsets.push(offset.merge_dims(1, 3).split_dim(1, &[-1, 4]));
            }
        });
        [t.graph().concat(&scores, 1), t.graph().concat(&offsets, 1)]
    }

    /// Returns the best boxes that do not overlap too much.
    fn select(&self, scores: &Tensor, offsets: &Tensor, anchors: &Tensor, levels: &Tensor) -> Regions {
        let (scores, best) = scores.stop_gradient().top_k(self.settings.candidates);
        let offsets = rows(&offsets.stop_gradient(), &best);
        let boxes = offsets
            .decode_boxes(&anchors.gather(&best, 0), [1.0; 4])
            .clip_boxes([self.settings.size as f64; 2]);
        let options =
            NmsOptions { iou_threshold: 0.7, max_outputs: self.settings.proposals, ..NmsOptions::default() };
        // Only boxes of the same level suppress each other.
        let kept = boxes.batched_nms(&scores, &levels.gather(&best, 0), options);
        // Index -1 is a row of zeros before the boxes.
        let boxes = rows(&boxes.pad(&[0, 1, 0], &[0; 3], &[0; 3]), &(&kept + 1.0));
        // A box without an extent has no offsets.
        let (near, far) = (boxes.slice_axis(2, 0, Some(2)), boxes.slice_axis(2, 2, None));
        let boxes = boxes.graph().concat(&[&near, &far.maximum(&(&near + 1.0))], 2);
        Regions { boxes, exists: at_least(&kept, 0.0).cast(DType::F32) }
    }

    /// Returns the class scores of regions `[batch, n, 4]`, `[batch * n, classes + 1]`, where class 0 is
    /// the background, and their offsets for every class, `[batch * n, classes, 4]`.
    fn classify(&self, t: &TowerContext, features: &[Tensor; 3], boxes: &Tensor) -> [Tensor; 2] {
        let image = boxes.slice_axis(2, 0, Some(1)).squeeze(2).iota_like(0, DType::I64).merge_dims(0, 2);
        let boxes = boxes.stop_gradient().merge_dims(0, 2);
        let extent = boxes.slice_axis(1, 2, None) - boxes.slice_axis(1, 0, Some(2));
        let side = (extent.slice_axis(1, 0, Some(1)) * extent.slice_axis(1, 1, None)).sqrt();
        // A region belongs to the level whose anchors are closest in size.
        let [small, medium, large] = self.settings.anchors;
        let larger =
            [(small * medium).sqrt(), (medium * large).sqrt()].map(|s| at_least(&side, s).cast(DType::F32));
        let is_in = [1.0 - &larger[0], &larger[0] - &larger[1], larger[1].clone()];
        let mut pooled: Option<Tensor> = None;
        for ((level, stride), is_in) in features.iter().zip(STRIDES).zip(is_in) {
            let options =
                RoiAlignOptions { spatial_scale: 1.0 / stride as f64, ..RoiAlignOptions::default() };
            let part = level.roi_align_with(&boxes, &image, [POOLED; 2], options);
            let part = part * is_in.expand_dims(2).expand_dims(3);
            pooled = Some(match pooled {
                Some(sum) => sum + part,
                None => part,
            });
        }
        let x = pooled.map_or_else(|| boxes.clone(), |x| x.flatten(1));
        let x = Linear::new(self.settings.head).relu().apply(t, "head0", &x);
        let x = Linear::new(self.settings.head).relu().apply(t, "head1", &x);
        let classes =
            Linear::new(self.settings.classes + 1).init(Init::Normal(0.0, 0.01)).apply(t, "class", &x);
        let offsets =
            Linear::new(4 * self.settings.classes).init(Init::Normal(0.0, 0.001)).apply(t, "box", &x);
        [classes, offsets.split_dim(1, &[-1, 4])]
    }

    /// Returns the cost of proposals: objects are anchors that overlap one by 0.6 or more than any other,
    /// and background those that overlap none by 0.3.
    fn proposal_cost(
        &self,
        scores: &Tensor,
        offsets: &Tensor,
        anchors: &Tensor,
        objects: &Objects,
    ) -> [Tensor; 2] {
        let matches = objects.matched(anchors);
        let is_object = at_least(&matches.overlap, 0.6).logical_or(&matches.is_best);
        let is_near = at_least(&matches.overlap.maximum(&matches.crowd_overlap), 0.3).logical_or(&is_object);
        let (found, is_found) = sample(&is_object, 32);
        let (missed, is_missed) = sample(&is_near.logical_not(), 96);
        let samples = 128.0;
        let scores = |at: &Tensor| scores.take_along_axis(at, 1);
        let (found_scores, missed_scores) = (scores(&found), scores(&missed));
        let found_cost = found_scores.sigmoid_cross_entropy(&is_found) * &is_found;
        let missed_cost = missed_scores.sigmoid_cross_entropy(&is_missed.zeros_like()) * is_missed;
        let object = matches.object.take_along_axis(&found, 1);
        let target = rows(&objects.boxes, &object).encode_boxes(&anchors.gather(&found, 0), [1.0; 4]);
        let box_cost = rows(offsets, &found).huber_loss(&target, 1.0 / 9.0) * 9.0 * is_found.expand_dims(2);
        let total = |cost: Tensor| cost.flatten(1).sum_axes(&[1]).mean() * (1.0 / samples);
        [total(found_cost) + total(missed_cost), total(box_cost)]
    }

    /// Returns the cost of the heads, for a sample of the regions and of the objects themselves.
    fn head_cost(
        &self,
        t: &TowerContext,
        features: &[Tensor; 3],
        regions: &Regions,
        objects: &Objects,
    ) -> [Tensor; 2] {
        let boxes = t.graph().concat(&[&regions.boxes, &objects.boxes], 1);
        let exists = at_least(&t.graph().concat(&[&regions.exists, &objects.exists], 1), 0.5);
        let matches = objects.matched(&boxes);
        let is_object = at_least(&matches.overlap, 0.5);
        let is_near = at_least(&matches.crowd_overlap, 0.5).logical_or(&is_object);
        let found_count = self.settings.regions / 4;
        let (found, is_found) = sample(&is_object.logical_and(&exists), found_count);
        let (missed, is_missed) =
            sample(&is_near.logical_not().logical_and(&exists), self.settings.regions - found_count);
        let boxes = rows(&boxes, &t.graph().concat(&[&found, &missed], 1));
        let object = matches.object.take_along_axis(&found, 1);
        let class = objects.classes.take_along_axis(&object, 1);
        // Where too few objects were found, the class may be that of none.
        let class = class.maximum(0.0);
        let label = t.graph().concat(&[&class + 1.0, missed.zeros_like()], 1).merge_dims(0, 2);
        let weight = t.graph().concat(&[&is_found, &is_missed], 1).merge_dims(0, 2);
        let [scores, offsets] = self.classify(t, features, &boxes);
        let class_cost =
            (scores.sparse_softmax_cross_entropy(&label) * &weight).sum() / (weight.sum() + 1e-3);

        let target = rows(&objects.boxes, &object)
            .encode_boxes(&boxes.slice_axis(1, 0, Some(found_count)), HEAD_WEIGHTS);
        let offsets =
            offsets.split_dim(0, &[-1, self.settings.regions as isize]).slice_axis(1, 0, Some(found_count));
        let own = (offsets * class.one_hot(self.settings.classes, DType::F32).expand_dims(3)).sum_axes(&[2]);
        let box_cost = own.huber_loss(&target, 1.0) * is_found.expand_dims(2);
        [class_cost, box_cost.sum() / (weight.sum() + 1e-3)]
    }

    /// Names the detections: boxes, scores and classes, which are -1 after the last detection.
    fn detect(&self, t: &TowerContext, features: &[Tensor; 3], regions: &Regions) {
        let [scores, offsets] = self.classify(t, features, &regions.boxes);
        let count = self.settings.proposals as isize;
        let scores = scores.softmax().slice_axis(1, 1, None).split_dim(0, &[-1, count])
            * regions.exists.expand_dims(2);
        let classes = scores.iota_like(2, DType::I64).merge_dims(1, 2);
        let offsets = offsets.split_dim(0, &[-1, count]);
        let boxes = offsets.decode_boxes(&regions.boxes.expand_dims(2), HEAD_WEIGHTS);
        let boxes = boxes.clip_boxes([self.settings.size as f64; 2]).merge_dims(1, 2);
        let scores = scores.merge_dims(1, 2);
        let options = NmsOptions { iou_threshold: 0.5, score_threshold: 0.05, max_outputs: DETECTIONS };
        let kept = boxes.batched_nms(&scores, &classes, options);
        // Index -1 is a row of zeros before the others.
        let found = |x: &Tensor| rows(&x.pad(&[0, 1, 0], &[0; 3], &[0; 3]), &(&kept + 1.0));
        found(&boxes).named("detected_boxes");
        found(&scores.expand_dims(2)).squeeze(2).named("detected_scores");
        (found(&(classes + 1.0).expand_dims(2)).squeeze(2) - 1.0).named("detected_classes");
    }
}

impl ModelDesc for Detector {
    fn inputs(&self) -> Vec<TensorSpec> {
        let (size, n) = (Some(self.settings.size), Some(self.settings.max_objects));
        vec![
            TensorSpec::f32("image", [None, size, size, Some(3)]),
            TensorSpec::f32("gt_boxes", [None, n, Some(4)]),
            TensorSpec::i32("gt_classes", [None, n]),
            TensorSpec::i32("gt_crowd", [None, n]),
        ]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let objects = Objects::new(&inputs[1], &inputs[2], &inputs[3]);
        let [anchors, levels] = [&self.anchors, &self.levels].map(|value| t.graph().constant(value.clone()));
        let features = self.features(t, &inputs[0]);
        let [scores, offsets] = self.propose(t, &features);
        let regions = self.select(&scores, &offsets, &anchors, &levels);
        let mut costs = Vec::from(self.proposal_cost(&scores, &offsets, &anchors, &objects));
        if t.is_training() {
            costs.extend(self.head_cost(t, &features, &regions, &objects));
        } else {
            self.detect(t, &features, &regions);
        }
        let names = ["rpn_class_cost", "rpn_box_cost", "class_cost", "box_cost"];
        let costs: Vec<Tensor> = costs.iter().zip(names).map(|(cost, name)| cost.named(name)).collect();
        t.moving_summary(&costs.iter().collect::<Vec<_>>());
        costs.into_iter().reduce(|a, b| a + b).unwrap_or(scores).named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        let rate = Schedule::cosine(self.settings.learning_rate, 0.0, self.settings.steps);
        Adam::new(rate).process(GlobalNormClip::new(5.0)).boxed()
    }
}
