//! Maps the operations of `sequences.json` to methods of `Tensor`.

use super::{counts, list};
use serde_json::Value;
use tensorpack::HostTensor;
use tensorpack::ctc::CtcOptions;
use tensorpack::graph::Tensor;

/// Applies the operation `op` to `x`. Returns `None` if it is not one of these.
pub(crate) fn apply(op: &str, attrs: &Value, x: &[Tensor]) -> Option<Tensor> {
    if op != "ctc_loss" {
        return None;
    }
    let constant = |sizes: &[usize], values: Vec<usize>| {
        let values = values.into_iter().map(|v| v as i64).collect();
        x[0].graph().constant(HostTensor::new(sizes, values).expect("as many values as the sizes say"))
    };
    let labels = list(&attrs["labels"]);
    let (batch, length) = (labels.len(), counts(&labels[0]).len());
    let labels = constant(&[batch, length], labels.iter().flat_map(counts).collect());
    let [inputs, lengths] =
        ["input_lengths", "label_lengths"].map(|key| constant(&[batch], counts(&attrs[key])));
    let mut options = CtcOptions::default().blank(attrs["blank"].as_u64().expect("a class") as usize);
    if attrs["zero_infinity"] == true {
        options = options.zero_infinity();
    }
    Some(x[0].ctc_loss(&labels, &inputs, &lengths, &options))
}
