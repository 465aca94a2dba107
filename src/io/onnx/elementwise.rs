//! Elementwise ONNX operations.

use super::node_cx::{NodeCx, one};
use super::value::{Value, channels_last};
use crate::graph::Tensor;
use crate::onnx::dtype_of;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// Returns the operands of a function that is applied elementwise, and whether they have their
/// channels last. They have if one of them is stored in this way.
fn operands(cx: &mut NodeCx<'_, '_>) -> Result<(Vec<Tensor>, bool)> {
    let count = cx.inputs.len();
    let rank = (0..count).map(|i| cx.rank(i)).max().unwrap_or(0);
    let is_last = (0..count).any(|i| cx.is_channels_last(i) && cx.rank(i) == rank);
    let mut operands = Vec::new();
    for i in 0..count {
        let x = match is_last {
            true if cx.is_channels_last(i) && cx.rank(i) == rank => cx.channels_last(i)?,
            true if cx.rank(i) > 0 => {
                let x = cx.operand(i)?;
                let full = (x.rank()..rank).fold(x, |x, _| x.expand_dims(0));
                channels_last(&full)
            }
            _ => cx.operand(i)?,
        };
        operands.push(x);
    }
    Ok((operands, is_last))
}

fn result(y: Tensor, is_last: bool) -> Result<Vec<Value>> {
    Ok(vec![if is_last { Value::ChannelsLast(y) } else { Value::Computed(y) }])
}

pub(super) fn unary(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let is_last = cx.is_channels_last(0);
    let x = &if is_last { cx.channels_last(0)? } else { cx.tensor(0)? };
    let node = cx.node;
    let scalar = |value: f64| cx.scalar(value, x.dtype());
    let positive = || Ok::<Tensor, Error>(x.greater(&scalar(0.0)?));
    let y = match node.op_type.as_str() {
        "Abs" => x.abs(),
        "Ceil" => -(-x).floor(),
        "Cos" => x.cos(),
        "Erf" => x.erf(),
        "Exp" => x.exp(),
        "Floor" => x.floor(),
        "Log" => x.log(),
        "Neg" => -x,
        "Not" => x.logical_not(),
        "Reciprocal" => x.reciprocal(),
        "Relu" => x.relu(),
        "Round" => x.round(),
        "Sigmoid" => x.sigmoid(),
        "Sign" => x.sign(),
        "Sin" => x.sin(),
        "Softplus" => x.softplus(),
        "Softsign" => x / (x.abs() + 1.0),
        "Sqrt" => x.sqrt(),
        "Tanh" => x.tanh(),
        "Mish" => x * x.softplus().tanh(),
        "LeakyRelu" => x.leaky_relu(node.float("alpha", 0.01)?),
        "Elu" => {
            let alpha = node.float("alpha", 1.0)?;
            positive()?.select(x, &(x.elu() * alpha))
        }
        "Celu" => {
            let alpha = node.float("alpha", 1.0)?;
            positive()?.select(x, &((x / alpha).elu() * alpha))
        }
        "Selu" => {
            let (alpha, gamma) = (node.float("alpha", 1.673_263_2)?, node.float("gamma", 1.050_701)?);
            positive()?.select(x, &(x.elu() * alpha)) * gamma
        }
        "ThresholdedRelu" => x.greater(&scalar(node.float("alpha", 1.0)?)?).select(x, &scalar(0.0)?),
        "HardSigmoid" => (x * node.float("alpha", 0.2)? + node.float("beta", 0.5)?).clip(0.0, 1.0),
        "HardSwish" => x * (x * (1.0 / 6.0) + 0.5).clip(0.0, 1.0),
        "Gelu" if node.text("approximate", "none")? == "tanh" => {
            let inner = (x + x * x * x * 0.044_715) * (2.0 / std::f64::consts::PI).sqrt();
            x * (inner.tanh() + 1.0) * 0.5
        }
        "Gelu" => x.gelu(),
        "IsNaN" => x.not_equal(x),
        "IsInf" => {
            let infinite = |value: f64| Ok::<Tensor, Error>(x.equal(&scalar(value)?));
            match [node.int("detect_positive", 1)? != 0, node.int("detect_negative", 1)? != 0] {
                [true, true] => infinite(f64::INFINITY)?.logical_or(&infinite(f64::NEG_INFINITY)?),
                [true, false] => infinite(f64::INFINITY)?,
                [false, true] => infinite(f64::NEG_INFINITY)?,
                [false, false] => return Err(cx.unsupported("neither infinity")),
            }
        }
        other => return Err(cx.unsupported(other)),
    };
    result(y, is_last)
}

pub(super) fn binary(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    if cx.opset() < 7 && cx.node.int("broadcast", 0)? != 0 && cx.rank(1) > 0 {
        return Err(cx.unsupported("the broadcasting of opset 6"));
    }
    let op = cx.node.op_type.as_str();
    if op == "Pow"
        && cx.rank(1) <= cx.rank(0)
        && let Some(exponent) = cx.number(1).ok().flatten()
    {
        return power(cx, exponent);
    }
    let (operands, is_last) = operands(cx)?;
    let (Some(first), others) = (operands.first(), operands.get(1..).unwrap_or_default()) else {
        return Err(Error::new(ErrorKind::Io, "it has no inputs"));
    };
    let mut y = first.clone();
    for x in others {
        y = match op {
            "Add" | "Sum" | "Mean" => &y + x,
            "Sub" => &y - x,
            "Mul" => &y * x,
            "Div" => &y / x,
            "Max" => y.maximum(x),
            "Min" => y.minimum(x),
            "Pow" => y.pow(&x.cast(y.dtype())),
            "PRelu" => y.greater(&cx.scalar(0.0, y.dtype())?).select(&y, &(&y * x)),
            "Equal" => y.equal(x),
            "Less" => y.less(x),
            "LessOrEqual" => y.less_equal(x),
            "Greater" => y.greater(x),
            "GreaterOrEqual" => y.greater_equal(x),
            "And" => y.logical_and(x),
            "Or" => y.logical_or(x),
            "Xor" => y.not_equal(x),
            "BitwiseAnd" if y.dtype() == DType::Bool => y.logical_and(x),
            "BitwiseOr" if y.dtype() == DType::Bool => y.logical_or(x),
            "Mod" => modulo(cx, &y, x)?,
            other => return Err(cx.unsupported(other)),
        };
    }
    if op == "Mean" {
        y = y * (1.0 / operands.len() as f64);
    }
    result(y, is_last)
}

/// The remainder of a division, with the sign of the divisor, or with `fmod` that of the dividend.
fn modulo(cx: &NodeCx<'_, '_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.dtype().is_float() {
        let ratio = a / b;
        let whole = match cx.node.flag("fmod")? {
            true => ratio.sign() * ratio.abs().floor(),
            false => ratio.floor(),
        };
        return Ok(a - b * whole);
    }
    let rest = a - (a / b) * b;
    if cx.node.flag("fmod")? {
        return Ok(rest);
    }
    let zero = cx.scalar(0.0, a.dtype())?;
    let differs = rest.not_equal(&zero).logical_and(&rest.less(&zero).not_equal(&b.less(&zero)));
    Ok(differs.select(&(&rest + b), &rest))
}

fn power(cx: &mut NodeCx<'_, '_>, exponent: f64) -> Result<Vec<Value>> {
    let is_last = cx.is_channels_last(0);
    let x = if is_last { cx.channels_last(0)? } else { cx.tensor(0)? };
    let y = match exponent {
        1.0 => x,
        2.0 => x.square(),
        3.0 => &x * &x * &x,
        0.5 => x.sqrt(),
        -1.0 => x.reciprocal(),
        _ => x.pow(&cx.scalar(exponent, x.dtype())?),
    };
    result(y, is_last)
}

pub(super) fn choose(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let (operands, is_last) = operands(cx)?;
    let [condition, a, b] = &operands[..] else {
        return Err(Error::new(ErrorKind::Io, "it needs three inputs"));
    };
    result(condition.select(a, b), is_last)
}

pub(super) fn clip(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let is_last = cx.is_channels_last(0);
    let x = if is_last { cx.channels_last(0)? } else { cx.tensor(0)? };
    let attribute = |name: &str| cx.node.float(name, f64::NAN).map(|v| Some(v).filter(|v| !v.is_nan()));
    let (low, high) = match cx.opset() < 11 {
        true => (attribute("min")?, attribute("max")?),
        false => (cx.number(1)?, cx.number(2)?),
    };
    // The largest number of a type stands for no limit.
    let (low, high) = (low.filter(|&v| v > f64::from(f32::MIN)), high.filter(|&v| v < f64::from(f32::MAX)));
    let y = match (low, high) {
        (Some(0.0), Some(6.0)) => x.relu6(),
        (Some(0.0), None) => x.relu(),
        (Some(low), Some(high)) => x.clip(low, high),
        (Some(low), None) => x.maximum(&cx.scalar(low, x.dtype())?),
        (None, Some(high)) => x.minimum(&cx.scalar(high, x.dtype())?),
        (None, None) => x,
    };
    result(y, is_last)
}

pub(super) fn cast(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let dtype = match cx.node.op_type.as_str() {
        "CastLike" => cx.dtype(1),
        _ => dtype_of(cx.node.int("to", 1)?)?,
    };
    match cx.value(0) {
        value if value.dtype() == dtype => Ok(vec![value]),
        // A weight stays one, such as those that are stored as f16.
        Value::Host(name, tensor) if tensor.dtype().is_float() && dtype.is_float() => {
            let cast = HostTensor::from_f64(dtype, tensor.sizes(), &tensor.to_f64_vec())?;
            Ok(vec![Value::Host(name, cast)])
        }
        Value::ChannelsLast(x) => Ok(vec![Value::ChannelsLast(x.cast(dtype))]),
        _ => one(cx.tensor(0)?.cast(dtype)),
    }
}

pub(super) fn identity(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let mut outputs = vec![cx.value(0)];
    if cx.node.outputs.get(1).is_some_and(|mask| !mask.is_empty()) {
        return Err(cx.unsupported("the mask of dropout"));
    }
    if cx.node.op_type == "Dropout" && cx.number(2)? == Some(1.0) {
        return Err(cx.unsupported("dropout in training mode"));
    }
    outputs.truncate(cx.node.outputs.len());
    Ok(outputs)
}

pub(super) fn constant(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let node = cx.node;
    let tensor = if let Some(tensor) = node.tensor("value")? {
        tensor.clone()
    } else if let Some(values) = node.ints("value_ints")? {
        HostTensor::new([values.len()], values.to_vec())?
    } else if let Some(values) = node.floats("value_floats")? {
        HostTensor::new([values.len()], values.to_vec())?
    } else if node.attributes.iter().any(|(name, _)| name == "value_int") {
        HostTensor::scalar(node.int("value_int", 0)?)
    } else if node.attributes.iter().any(|(name, _)| name == "value_float") {
        HostTensor::scalar(node.float("value_float", 0.0)? as f32)
    } else {
        return Err(cx.unsupported("a constant that is not a tensor of numbers"));
    };
    Ok(vec![Value::Host("".into(), tensor)])
}
