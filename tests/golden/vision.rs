//! Maps the operations of `vision.json` to methods of `Tensor`.

use super::{counts, floats, list};
use serde_json::Value;
use tensorpack::HostTensor;
use tensorpack::graph::Tensor;
use tensorpack::ops::{
    Conv3dOptions, GridSampleOptions, NmsOptions, Padding3d, Pool3dOptions, ResizeOptions, RoiAlignOptions,
};

/// Applies the operation `op` to `x`. Returns `None` if it is not one of these.
pub(crate) fn apply(op: &str, attrs: &Value, x: &[Tensor]) -> Option<Tensor> {
    let flag = |key: &str| attrs[key].as_bool().unwrap_or_else(|| panic!("{op} has no {key}"));
    let size = || counts(&attrs["size"]).try_into().expect("height and width");
    let weights = || floats(&attrs["weights"]).try_into().expect("four weights");
    let three = |key: &str| -> [usize; 3] { counts(&attrs[key]).try_into().expect("three sizes") };
    let pool = || {
        let padding = Padding3d::Explicit(three("pad").map(|n| [n, n]));
        Pool3dOptions { window: three("window"), stride: three("stride"), padding }
    };
    Some(match op {
        "resize_bilinear_aligned" => x[0].resize_bilinear_with(size(), ResizeOptions { align_corners: true }),
        "grid_sample" => {
            let (align_corners, border_padding) = (flag("align_corners"), flag("border_padding"));
            x[0].grid_sample_with(&x[1], GridSampleOptions { align_corners, border_padding })
        }
        "roi_align" => {
            let options = RoiAlignOptions {
                spatial_scale: attrs["spatial_scale"].as_f64().expect("a scale"),
                sampling_ratio: attrs["sampling_ratio"].as_u64().expect("a ratio") as usize,
            };
            let boxes: Vec<f64> = list(&attrs["boxes"]).iter().flat_map(floats).collect();
            let boxes = HostTensor::from_f64(x[0].dtype(), [boxes.len() / 4, 4], &boxes).expect("boxes");
            x[0].roi_align_with(&x[0].graph().constant(boxes), &x[1], size(), options)
        }
        "crop_and_resize" => x[0].crop_and_resize(&x[1], &x[2], size()),
        "box_iou" => x[0].box_iou(&x[1]),
        "clip_boxes" => {
            let [height, width]: [usize; 2] = size();
            x[0].clip_boxes([height as f64, width as f64])
        }
        "conv3d" => {
            let options = Conv3dOptions {
                stride: three("stride"),
                dilation: three("dilation"),
                padding: Padding3d::Explicit(
                    [0, 1, 2].map(|i| counts(&attrs["pads"][i]).try_into().expect("zeros before and after")),
                ),
                groups: attrs["groups"].as_u64().expect("a number of groups") as usize,
            };
            x[0].conv3d(&x[1], options)
        }
        "max_pool3d" => x[0].max_pool3d_with(pool()),
        "average_pool3d" => x[0].average_pool3d_with(pool()),
        "nms" => nms(attrs, &x[0]),
        "encode_boxes" => x[0].encode_boxes(&x[1], weights()),
        "decode_boxes" => x[0].decode_boxes(&x[1], weights()),
        _ => return None,
    })
}

/// Returns the boxes that suppression keeps, then zeros.
fn nms(attrs: &Value, boxes: &Tensor) -> Tensor {
    let graph = boxes.graph();
    let scores = floats(&attrs["scores"]);
    let n = scores.len();
    let scores = HostTensor::from_f64(boxes.dtype(), [n], &scores).expect("scores");
    let options = NmsOptions {
        iou_threshold: attrs["iou_threshold"].as_f64().expect("a threshold"),
        max_outputs: attrs["max_outputs"].as_u64().expect("a number of outputs") as usize,
        ..NmsOptions::default()
    };
    let scores = graph.constant(scores);
    let kept = match attrs.get("classes") {
        Some(classes) => {
            let classes: Vec<i64> = counts(classes).into_iter().map(|c| c as i64).collect();
            let classes = graph.constant(HostTensor::new([n], classes).expect("classes"));
            boxes.batched_nms(&scores, &classes, options)
        }
        None => boxes.nms(&scores, options),
    };
    // Index -1 is the row of zeros before the boxes.
    boxes.pad(&[1, 0], &[0, 0], &[0, 0]).gather(&(kept + 1.0), 0)
}
