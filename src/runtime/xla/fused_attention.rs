//! Attention and its gradient as cuDNN's fused kernels, which store no scores. XLA knows them on CUDA as
//! custom calls.

use super::stablehlo::{Element, Value, Writer, list};
use crate::kir::{Attention, AttentionKind};
use serde_json::{Value as Json, json};
use tensorpack_tensor::DType;

/// Added to the scores of masked keys: finite, because cuDNN subtracts scores from each other.
const MASKED: f64 = -((1u64 << 41) as f64);

/// The largest number of features that the kernels take.
const MOST_FEATURES: usize = 128;

/// Whether a module may call these kernels, and whether it does.
#[derive(Clone, Copy, Debug)]
pub(super) struct FusedAttention {
    pub(super) is_available: bool,
    pub(super) is_used: bool,
}

impl FusedAttention {
    /// Prints attention or its gradient, if there is a kernel for it. Returns the outputs of the kind.
    pub(super) fn write(
        &mut self,
        w: &mut Writer,
        kind: AttentionKind,
        attention: &Attention,
        inputs: &[Value],
    ) -> Option<Vec<Value>> {
        let applies = matches!(kind, AttentionKind::Forward | AttentionKind::Grad);
        if !(self.is_available && applies && is_supported(attention, inputs)) {
            return None;
        }
        self.is_used = true;
        Some(match kind {
            AttentionKind::Forward => forward(w, attention, inputs).into(),
            _ => grads(w, attention, inputs).into(),
        })
    }
}

/// Whether cuDNN has kernels for this attention and for its gradient.
fn is_supported(a: &Attention, inputs: &[Value]) -> bool {
    let element = inputs[0].element;
    let narrow = matches!(element, Element::Of(DType::Bf16 | DType::F16));
    let same = inputs[..3].iter().all(|x| x.element == element);
    let fits =
        a.width == a.value_width && a.width.is_multiple_of(8) && (8..=MOST_FEATURES).contains(&a.width);
    let any = a.batch > 0 && a.heads > 0;
    let any = any && a.queries > 1 && a.keys > 1;
    // Rows of what is added to the scores have even lengths, and f16 ends before a number that masks every
    // score.
    let even = a.queries.is_multiple_of(2) && a.keys.is_multiple_of(2);
    let added = !(a.mask || a.bias) || even && element == Element::Of(DType::Bf16);
    // cuDNN's dropout draws other numbers.
    narrow && same && fits && added && a.dropout.is_none() && any
}

/// Prints attention. Returns the result and the logarithms of the sums of exponentials.
fn forward(w: &mut Writer, a: &Attention, inputs: &[Value]) -> [Value; 2] {
    let [q, k, v] = operands(w, a, inputs);
    let added = added(w, a, inputs);
    let mut operands = vec![&q, &k, &v];
    operands.extend(&added);
    let name = if added.is_some() { "__cudnn$fmhaScaleBiasSoftmax" } else { "__cudnn$fmhaSoftmax" };
    let results = [
        (q.element, vec![a.batch, a.heads, a.queries, a.value_width]),
        (DType::F32.into(), vec![a.batch, a.heads, a.queries]),
    ];
    let mut results = call(w, a, name, &FORWARD, &operands, &results);
    let log_sums = results.swap_remove(1);
    let out = w.transpose(&results[0], &TIME_FIRST);
    if added.is_none() {
        return [out, log_sums];
    }
    // Where all keys are masked, both are 0.
    let masked = all_masked(w, &log_sums);
    let zero = w.splat(0.0, log_sums.element, &log_sums.sizes);
    let log_sums = w.select(&masked, &zero, &log_sums);
    let masked = w.broadcast(&masked, &[0, 2, 1], &out.sizes);
    let zero = w.splat(0.0, out.element, &out.sizes);
    [w.select(&masked, &zero, &out), log_sums]
}

/// Prints the gradients of queries, keys and values.
fn grads(w: &mut Writer, a: &Attention, inputs: &[Value]) -> [Value; 3] {
    let [q, k, v] = operands(w, a, inputs);
    let [out, log_sums, dy] = [3, 2, 1].map(|i| &inputs[inputs.len() - i]);
    let [out, dy] = [out, dy].map(|x| {
        let x = w.convert(x, q.element);
        w.reshape(&x, &[a.batch, a.queries, a.heads, a.value_width])
    });
    let log_sums = w.convert(log_sums, DType::F32);
    let log_sums = w.reshape(&log_sums, &[a.batch, a.heads, a.queries]);
    let added = added(w, a, inputs);
    let mut operands = vec![&q, &k, &v, &log_sums, &dy];
    operands.extend(&added);
    operands.push(&out);
    let name = match added {
        Some(_) => "__cudnn$fmhaScaleBiasSoftmaxBackward",
        None => "__cudnn$fmhaSoftmaxBackward",
    };
    let of = |heads: usize, time: usize, width: usize| (q.element, vec![a.batch, heads, time, width]);
    let results = [
        of(a.heads, a.queries, a.width),
        of(a.kv_heads, a.keys, a.width),
        of(a.kv_heads, a.keys, a.value_width),
    ];
    let results = call(w, a, name, &BACKWARD, &operands, &results);
    [0, 1, 2].map(|i| w.transpose(&results[i], &TIME_FIRST))
}

/// From `[batch, heads, time, features]`, as the kernels name their results, to `[batch, time, heads,
/// features]`, as they lay them out.
const TIME_FIRST: [usize; 4] = [0, 2, 1, 3];

/// Queries, keys and values with all their dimensions.
fn operands(w: &mut Writer, a: &Attention, inputs: &[Value]) -> [Value; 3] {
    [
        w.reshape(&inputs[0], &[a.batch, a.queries, a.heads, a.width]),
        w.reshape(&inputs[1], &[a.batch, a.keys, a.kv_heads, a.width]),
        w.reshape(&inputs[2], &[a.batch, a.keys, a.kv_heads, a.value_width]),
    ]
}

/// What is added to the scores: the bias, and a large negative number for masked keys.
fn added(w: &mut Writer, a: &Attention, inputs: &[Value]) -> Option<Value> {
    let element = inputs[0].element;
    let bias = a.bias.then(|| {
        // It had the type of the queries before it was widened.
        let bias = w.convert(&inputs[3 + usize::from(a.mask)], element);
        let bias = w.reshape(&bias, &a.score_sizes());
        let lowest = w.splat(MASKED, element, &bias.sizes);
        // Users mask with minus infinity.
        w.like("maximum", &[&bias, &lowest])
    });
    if !a.mask {
        return bias;
    }
    let sizes = bias.as_ref().map_or(vec![a.batch, 1, a.queries, a.keys], |bias| bias.sizes.clone());
    let mask = w.reshape(&inputs[3], &[a.batch, a.keys]);
    let mask = w.broadcast(&mask, &[0, 3], &sizes);
    let seen = bias.unwrap_or_else(|| w.splat(0.0, element, &sizes));
    let lowest = w.splat(MASKED, element, &sizes);
    Some(w.select(&mask, &seen, &lowest))
}

/// Whether all keys of a query are masked, from the logarithms of its sums. NaN is not: it must not become 0.
fn all_masked(w: &mut Writer, log_sums: &Value) -> Value {
    let limit = w.splat(MASKED / 2.0, log_sums.element, &log_sums.sizes);
    w.compare("LE", log_sums, &limit)
}

/// The dimensions of a matrix product: those that are summed over, and those of the batch, of the left and
/// of the right operand.
type ProductDims = (&'static str, [usize; 2], [[usize; 2]; 2]);

/// The products of attention over operands `[batch, time, heads, features]` and scores `[batch, heads,
/// queries, keys]`.
const FORWARD: [ProductDims; 2] = [
    ("bmm1_dot_dimension_numbers", [3, 3], [[0, 2], [0, 2]]),
    ("bmm2_dot_dimension_numbers", [3, 1], [[0, 1], [0, 2]]),
];
const BACKWARD: [ProductDims; 4] = [
    ("bmm1_grad_gemm1_dot_dimension_numbers", [2, 1], [[0, 1], [0, 2]]),
    ("bmm1_grad_gemm2_dot_dimension_numbers", [3, 1], [[0, 1], [0, 2]]),
    ("bmm2_grad_gemm1_dot_dimension_numbers", [2, 1], [[0, 1], [0, 2]]),
    ("bmm2_grad_gemm2_dot_dimension_numbers", [3, 3], [[0, 2], [0, 2]]),
];

/// Prints a call of cuDNN. Results of four dimensions are laid out with time before heads.
fn call(
    w: &mut Writer,
    a: &Attention,
    target: &str,
    products: &[ProductDims],
    operands: &[&Value],
    results: &[(Element, Vec<usize>)],
) -> Vec<Value> {
    let config = backend_config(a, operands[0].element, products).to_string();
    let layout = |order: &[usize]| format!("dense<{}> : tensor<{}xindex>", list(order), order.len());
    let dense = |rank: usize| layout(&(0..rank).rev().collect::<Vec<_>>());
    let operand_layouts = operands.iter().map(|x| dense(x.sizes.len()));
    let result_layouts = results.iter().map(|(_, sizes)| match sizes.len() {
        4 => layout(&[3, 1, 2, 0]),
        rank => dense(rank),
    });
    // The compiler replaces the last result by the memory that the kernel works in.
    let workspace = (DType::U8.into(), vec![0]);
    let attributes = format!(
        "call_target_name = \"{target}\", api_version = 2 : i32, backend_config = \"{}\", \
         operand_layouts = {}, result_layouts = {}",
        config.replace('"', "\\22"),
        list(operand_layouts),
        list(result_layouts.chain([layout(&[0])])),
    );
    let results: Vec<(Element, Vec<usize>)> = results.iter().cloned().chain([workspace]).collect();
    let mut values = w.several("custom_call", operands, &attributes, &results);
    values.pop();
    values
}

/// What XLA needs to know of a call.
fn backend_config(a: &Attention, element: Element, products: &[ProductDims]) -> Json {
    let texts = |numbers: &[usize]| Json::from(numbers.iter().map(usize::to_string).collect::<Vec<_>>());
    let element = if element == Element::Of(DType::F16) { "F16" } else { "BF16" };
    let mut config = json!({
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            "tuning_knobs": { "17": "1", "24": "0" },
            "is_cudnn_frontend": true,
            "workspace_size": "0",
        },
        "fmha_scale": a.scale.value(),
        "intermediate_tensor_shape": {
            "element_type": element,
            "dimensions": texts(&a.score_sizes()),
            "layout": { "minor_to_major": texts(&[3, 2, 1, 0]) },
            "is_dynamic_dimension": [false, false, false, false],
        },
        "is_flash_attention": true,
        "mask_type": if a.causal { "CAUSAL" } else { "NO_MASK" },
        "dropout_rate": 0.0,
        "seed": 0,
        "sliding_window_length": 0,
        "max_seg_per_batch": 1,
        "is_paged_attention": false,
    });
    for (name, contracted, batch) in products {
        config[name] = json!({
            "lhs_contracting_dimensions": texts(&contracted[..1]),
            "rhs_contracting_dimensions": texts(&contracted[1..]),
            "lhs_batch_dimensions": texts(&batch[0]),
            "rhs_batch_dimensions": texts(&batch[1]),
        });
    }
    json!({ "operation_queue_id": "0", "cudnn_fmha_backend_config": config })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kir::FloatBits;
    use std::fmt::Write;
    use tensorpack_pjrt::{Client, CompileOptions, OptionValue};
    use tensorpack_tensor::ErrorKind;

    const ATTENTION: Attention = Attention {
        batch: 3,
        heads: 4,
        kv_heads: 2,
        queries: 10,
        keys: 6,
        width: 16,
        value_width: 16,
        scale: FloatBits::new(0.25),
        causal: true,
        mask: false,
        bias: false,
        dropout: None,
    };

    /// Returns attention and its gradient as a module, if cuDNN has a kernel for it.
    fn module(a: &Attention, dtype: DType) -> Option<String> {
        let mut w = Writer::default();
        let queries = [a.batch, a.queries, a.heads, a.width];
        let keys = [a.batch, a.keys, a.kv_heads, a.width];
        let mut inputs =
            vec![w.argument(dtype, &queries), w.argument(dtype, &keys), w.argument(dtype, &keys)];
        if a.mask {
            inputs.push(w.argument(DType::Bool, &[a.batch, a.keys]));
        }
        if a.bias {
            inputs.push(w.argument(DType::F32, &a.score_sizes()));
        }
        let slope = w.argument(dtype, &queries);
        let mut arguments = String::new();
        for x in inputs.iter().chain([&slope]) {
            let _ = write!(arguments, "{}{x}: {}", if arguments.is_empty() { "" } else { ", " }, x.ty());
        }
        let mut fused = FusedAttention { is_available: true, is_used: false };
        let results = fused.write(&mut w, AttentionKind::Forward, a, &inputs)?;
        assert!(fused.is_used);
        let all: Vec<Value> = inputs.iter().chain(&results).chain([&slope]).cloned().collect();
        let grads = fused.write(&mut w, AttentionKind::Grad, a, &all)?;
        assert_eq!([&grads[0].sizes[..], &grads[1].sizes, &grads[2].sizes], [&queries[..], &keys, &keys]);
        let results: Vec<Value> = results.into_iter().chain(grads).collect();
        w.finish_function(&results);
        let types = results.iter().map(Value::ty).collect::<Vec<_>>().join(", ");
        let body = w.finish();
        Some(format!("module @m {{ func.func public @main({arguments}) -> ({types}) {{\n{body} }} }}"))
    }

    /// XLA's compiler for CPUs reads the module, and misses only the kernels.
    fn is_read_by_xla(a: &Attention, kernel: &str) {
        let Some(plugin) = tensorpack_testing::plugin_for_tests("cpu") else { return };
        let text = module(a, DType::Bf16).unwrap();
        assert!(
            text.contains(&format!("\"{kernel}\"")) && text.contains(&format!("\"{kernel}Backward\"")),
            "{text}"
        );
        let [q, k] = ["tensor<3x10x4x16xbf16>", "tensor<3x6x2x16xbf16>"];
        let added = match (a.mask, a.bias) {
            (_, true) => "tensor<3x4x10x6xbf16>, ",
            (true, false) => "tensor<3x1x10x6xbf16>, ",
            _ => "",
        };
        let backward = format!("({q}, {k}, {k}, tensor<3x4x10xf32>, {q}, {added}{q})");
        assert!(text.contains(&backward), "{text}");
        let client = Client::new(&plugin, &[("cpu_device_count", OptionValue::Int(1))]);
        let e = client.unwrap().compile(&text, &CompileOptions::new()).map(|_| ()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Engine);
        assert!(e.to_string().contains("NOT_FOUND") && e.to_string().contains(kernel), "{e}");
    }

    #[test]
    fn xla_reads_the_calls() {
        is_read_by_xla(&ATTENTION, "__cudnn$fmhaSoftmax");
        is_read_by_xla(&Attention { mask: true, ..ATTENTION }, "__cudnn$fmhaScaleBiasSoftmax");
        is_read_by_xla(&Attention { mask: true, bias: true, ..ATTENTION }, "__cudnn$fmhaScaleBiasSoftmax");
    }

    /// A comparison that is false for NaN selects the zeros.
    #[test]
    fn a_mask_does_not_hide_nan() {
        let text = module(&Attention { mask: true, ..ATTENTION }, DType::Bf16).unwrap();
        let line = |of: &str| text.lines().find(|line| line.contains(of)).unwrap_or_default().to_string();
        let compared = line("stablehlo.compare");
        assert!(compared.contains("comparison_direction LE"), "{compared}");
        let name = compared.trim().split(' ').next().unwrap().to_string();
        let selected = line(&format!("stablehlo.select\"({name}, "));
        let zeros = selected.split(", ").nth(1).unwrap().to_string();
        assert!(line(&format!("{zeros} = ")).contains("dense<0x00000000>"), "{selected}");
    }

    #[test]
    fn what_cudnn_lacks_is_not_called() {
        let lacks = |a: Attention, dtype: DType| assert!(module(&a, dtype).is_none(), "{a:?} in {dtype}");
        assert!(module(&ATTENTION, DType::F16).is_some());
        lacks(ATTENTION, DType::F32);
        lacks(Attention { mask: true, ..ATTENTION }, DType::F16);
        assert!(module(&Attention { keys: 5, ..ATTENTION }, DType::Bf16).is_some());
        lacks(Attention { keys: 5, mask: true, ..ATTENTION }, DType::Bf16);
        lacks(Attention { queries: 7, bias: true, ..ATTENTION }, DType::Bf16);
        lacks(Attention { queries: 1, ..ATTENTION }, DType::Bf16);
        lacks(Attention { queries: 0, ..ATTENTION }, DType::Bf16);
        lacks(Attention { heads: 0, ..ATTENTION }, DType::Bf16);
        lacks(Attention { width: 12, value_width: 12, ..ATTENTION }, DType::Bf16);
        lacks(Attention { width: 136, value_width: 136, ..ATTENTION }, DType::Bf16);
        lacks(Attention { dropout: Some(FloatBits::new(0.1)), ..ATTENTION }, DType::Bf16);
    }

    /// The names and values that XLA's parser of this text expects.
    #[test]
    fn the_configuration_names_sizes_and_products() {
        let config = &backend_config(&ATTENTION, DType::Bf16.into(), &FORWARD)["cudnn_fmha_backend_config"];
        assert_eq!(config["intermediate_tensor_shape"]["dimensions"], json!(["3", "4", "10", "6"]));
        assert_eq!(config["intermediate_tensor_shape"]["element_type"], "BF16");
        assert_eq!((&config["mask_type"], &config["fmha_scale"]), (&json!("CAUSAL"), &json!(0.25)));
        let scores = &config["bmm1_dot_dimension_numbers"];
        assert_eq!(scores["lhs_batch_dimensions"], json!(["0", "2"]));
        assert_eq!(scores["rhs_contracting_dimensions"], json!(["3"]));
        assert_eq!(config["bmm2_dot_dimension_numbers"]["rhs_contracting_dimensions"], json!(["1"]));
    }
}
