//! The ONNX operations that are known, by name.

use super::node_cx::NodeCx;
use super::value::Value;
use super::{convolution, elementwise, linear, normalization, rearrange, recurrent, reduction, resize};
use crate::onnx::Node;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Adds a node to the graph, and returns its outputs.
pub(super) type Translate = fn(&mut NodeCx<'_, '_>) -> Result<Vec<Value>>;

/// Returns the translation of a node, if its operation is known.
pub(super) fn find(node: &Node) -> Option<Translate> {
    if !node.domain.is_empty() {
        return None;
    }
    Some(match node.op_type.as_str() {
        "Abs" | "Ceil" | "Celu" | "Cos" | "Elu" | "Erf" | "Exp" | "Floor" | "Gelu" | "HardSigmoid"
        | "HardSwish" | "IsInf" | "IsNaN" | "LeakyRelu" | "Log" | "Mish" | "Neg" | "Not" | "Reciprocal"
        | "Relu" | "Round" | "Selu" | "Sigmoid" | "Sign" | "Sin" | "Softplus" | "Softsign" | "Sqrt"
        | "Tanh" | "ThresholdedRelu" => elementwise::unary,
        "Add" | "And" | "BitwiseAnd" | "BitwiseOr" | "Div" | "Equal" | "Greater" | "GreaterOrEqual"
        | "Less" | "LessOrEqual" | "Max" | "Mean" | "Min" | "Mod" | "Mul" | "Or" | "Pow" | "PRelu"
        | "Sub" | "Sum" | "Xor" => elementwise::binary,
        "Where" => elementwise::choose,
        "Clip" => elementwise::clip,
        "Cast" | "CastLike" => elementwise::cast,
        "Identity" | "Dropout" => elementwise::identity,
        "Constant" => elementwise::constant,
        "MatMul" => linear::matmul,
        "Gemm" => linear::gemm,
        "Einsum" => linear::einsum,
        "Conv" => convolution::conv,
        "ConvTranspose" => convolution::conv_transpose,
        "MaxPool" | "AveragePool" => convolution::pool,
        "GlobalAveragePool" | "GlobalMaxPool" => convolution::global_pool,
        "BatchNormalization" => normalization::batch_norm,
        "InstanceNormalization" => normalization::instance_norm,
        "LayerNormalization" => normalization::layer_norm,
        "GroupNormalization" => normalization::group_norm,
        "LpNormalization" => normalization::lp_norm,
        "LRN" => normalization::lrn,
        "Softmax" | "LogSoftmax" => normalization::softmax,
        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1" | "ReduceL2"
        | "ReduceSumSquare" | "ReduceLogSumExp" | "ReduceLogSum" => reduction::reduce,
        "ArgMax" | "ArgMin" => reduction::arg_reduce,
        "TopK" => reduction::top_k,
        "CumSum" => reduction::cumsum,
        "Shape" | "Size" => rearrange::shape,
        "Reshape" => rearrange::reshape,
        "Flatten" => rearrange::flatten,
        "Squeeze" => rearrange::squeeze,
        "Unsqueeze" => rearrange::unsqueeze,
        "Transpose" => rearrange::transpose,
        "Concat" => rearrange::concat,
        "Split" => rearrange::split,
        "Slice" => rearrange::slice,
        "Pad" => rearrange::pad,
        "Tile" => rearrange::tile,
        "Expand" => rearrange::expand,
        "ConstantOfShape" => rearrange::constant_of_shape,
        "Range" => rearrange::range,
        "Gather" => rearrange::gather,
        "GatherElements" => rearrange::gather_elements,
        "GatherND" => rearrange::gather_nd,
        "ScatterND" => rearrange::scatter_nd,
        "ScatterElements" | "Scatter" => rearrange::scatter_elements,
        "OneHot" => rearrange::one_hot,
        "DepthToSpace" => rearrange::depth_to_space,
        "SpaceToDepth" => rearrange::space_to_depth,
        "Trilu" => rearrange::trilu,
        "Resize" | "Upsample" => resize::resize,
        "LSTM" => recurrent::lstm,
        "GRU" => recurrent::gru,
        "If" => branch,
        _ => return None,
    })
}

/// Translates the branch of an `If` whose condition is known while the graph is built.
fn branch(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let condition = cx.number(0).ok().flatten().ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, "its condition is not known while the graph is built")
    })?;
    let node = cx.node;
    let body = node.body(if condition != 0.0 { "then_branch" } else { "else_branch" })?;
    cx.translator.body(node, body)
}
