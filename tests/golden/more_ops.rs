//! Maps the operations of `more_ops.json` to methods of `Tensor`.

use super::{counts, signed, text};
use serde_json::Value;
use tensorpack::graph::Tensor;
use tensorpack::ops::{AttentionOptions, CumsumOptions};
use tensorpack::{DType, HostTensor};

/// Applies the operation `op` to `x`. Returns `None` if it is not one of these.
pub(crate) fn apply(op: &str, attrs: &Value, x: &[Tensor]) -> Option<Tensor> {
    let number = |key: &str| attrs[key].as_u64().unwrap_or_else(|| panic!("{op} has no {key}")) as usize;
    let flag = |key: &str| attrs[key].as_bool().unwrap_or_else(|| panic!("{op} has no {key}"));
    let axis = || number("axis") as isize;
    let axes = || signed(&attrs["axes"]);
    let size = || counts(&attrs["size"]).try_into().expect("height and width");
    let graph = x[0].graph();
    Some(match op {
        "attention" => attention(attrs, x),
        "concat" => graph.concat(x, axis()),
        "stack" => graph.stack(x, axis()),
        "tile" => x[0].tile(&counts(&attrs["counts"])),
        "repeat" => x[0].repeat(number("count"), axis()),
        "reverse" => x[0].reverse(&axes()),
        "gather" => x[0].gather(&x[1], axis()),
        "take_along_axis" => x[0].take_along_axis(&x[1], axis()),
        "scatter_add" => x[0].scatter_add(&x[1], number("rows"), 0),
        "reduce_prod" => x[0].prod_axes(&axes()),
        "reduce_min" => x[0].min_axes(&axes()),
        "variance" => x[0].variance_axes(&axes()),
        "std" => x[0].std_axes(&axes()),
        "softmax_axis" => x[0].softmax_axis(axis()),
        "cumsum" => {
            let options = CumsumOptions { exclusive: flag("exclusive"), reverse: flag("reverse") };
            x[0].cumsum_with(axis(), options)
        }
        "top_k" => x[0].top_k(number("k")).0,
        "sort" if flag("descending") => x[0].sort_descending(axis()),
        "sort" => x[0].sort(axis()),
        "einsum" => graph.einsum(text(&attrs["equation"]), x),
        "resize_nearest" => x[0].resize_nearest(size()),
        "resize_bilinear" => x[0].resize_bilinear(size()),
        "log1p" => x[0].log1p(),
        "gelu" => x[0].gelu(),
        "silu" => x[0].silu(),
        "elu" => x[0].elu(),
        "leaky_relu" => x[0].leaky_relu(attrs["slope"].as_f64().expect("a slope")),
        "relu6" => (&x[0] * 4.0).relu6(),
        _ => return None,
    })
}

fn attention(attrs: &Value, x: &[Tensor]) -> Tensor {
    let mut options = AttentionOptions::default();
    if attrs["causal"] == true {
        options = options.causal();
    }
    if let Some(scale) = attrs["scale"].as_f64() {
        options = options.scale(scale);
    }
    for (given, x) in super::list(&attrs["with"]).iter().zip(&x[3..]) {
        options = match text(given) {
            "lengths" => options.lengths(x),
            "bias" => options.bias(x),
            "key_mask" => {
                let zero = HostTensor::from_f64(DType::I32, [], &[0.0]).expect("one value");
                options.key_mask(&x.not_equal(&x.graph().constant(zero)))
            }
            other => panic!("unknown input {other}"),
        };
    }
    x[0].attention(&x[1], &x[2], &options)
}
