//! Scalar expressions as StableHLO: each step becomes one operation on whole tensors.

use super::stablehlo::{Element, Value, Writer};
use crate::kir::{Binary, Class, Expr, Reg, Step, Unary};
use tensorpack_tensor::DType;

/// The result of a step. Booleans stay booleans until a step computes with them.
#[derive(Clone, Debug)]
enum Result {
    Number(Value),
    Bool(Value, Class),
}

/// Prints the steps of an expression over an iteration space.
struct Steps<'a> {
    w: &'a mut Writer,
    sizes: &'a [usize],
    /// The dtype in which class f32 is computed.
    float: DType,
    results: Vec<Result>,
}

/// Returns the outputs of an expression, each in the dtype of its class, which is `float` for f32.
/// `operands` have the sizes of the iteration space.
pub(super) fn write(
    w: &mut Writer,
    sizes: &[usize],
    operands: &[Value],
    expr: &Expr,
    float: DType,
) -> Vec<Value> {
    let mut steps = Steps { w, sizes, float, results: Vec::new() };
    for step in &expr.steps {
        let result = steps.step(*step, operands);
        steps.results.push(result);
    }
    expr.outputs.iter().map(|&r| steps.number(r)).collect()
}

/// Converts a result to the dtype of a tensor, as Rust's `as` does.
pub(super) fn store(w: &mut Writer, x: &Value, dtype: DType) -> Value {
    if x.element == Element::Of(DType::F64) && dtype.is_narrow_float() {
        // Round to f32 first, like arithmetic on floats of 16 bits.
        let x = w.convert(x, DType::F32);
        return w.convert(&x, dtype);
    }
    to(w, x, dtype.into())
}

fn to(w: &mut Writer, x: &Value, element: Element) -> Value {
    if x.element == element {
        return x.clone();
    }
    match element {
        Element::Of(DType::Bool) => {
            let zero = w.splat(0.0, x.element, &x.sizes);
            w.compare("NE", x, &zero)
        }
        Element::Of(dtype) if dtype.is_int() && x.element.is_float() => saturated(w, x, dtype),
        _ => w.convert(x, element),
    }
}

/// Converts floats to integers. Saturates; NaN becomes 0.
fn saturated(w: &mut Writer, x: &Value, dtype: DType) -> Value {
    let (low, high) = match dtype {
        DType::I32 => (i32::MIN as f64, i32::MAX as f64),
        DType::U8 => (0.0, 255.0),
        _ => (i64::MIN as f64, i64::MAX as f64),
    };
    let (low_x, high_x) = (w.splat(low, x.element, &x.sizes), w.splat(high, x.element, &x.sizes));
    let inside = w.convert(x, dtype);
    let (low, high) = (w.splat(low, dtype, &x.sizes), w.splat(high, dtype, &x.sizes));
    let above = w.compare("GE", x, &high_x);
    let below = w.compare("LE", x, &low_x);
    let zero = w.splat(0.0, dtype, &x.sizes);
    let nan = w.compare("NE", x, x);
    let bounded = w.select(&above, &high, &inside);
    let bounded = w.select(&below, &low, &bounded);
    w.select(&nan, &zero, &bounded)
}

impl Steps<'_> {
    /// Returns the type in which a class is computed.
    fn element_of(&self, class: Class) -> Element {
        Element::Of(match class {
            Class::F32 => self.float,
            Class::F64 => DType::F64,
            Class::I64 => DType::I64,
        })
    }

    fn class(&self, r: Reg) -> Class {
        match &self.results[r.0 as usize] {
            Result::Bool(_, class) => *class,
            Result::Number(v) => match v.element {
                Element::Of(DType::F32 | DType::Bf16 | DType::F16) => Class::F32,
                Element::Of(DType::F64) => Class::F64,
                _ => Class::I64,
            },
        }
    }

    fn number(&mut self, r: Reg) -> Value {
        match self.results[r.0 as usize].clone() {
            Result::Number(v) => v,
            Result::Bool(v, class) => {
                let element = self.element_of(class);
                self.w.convert(&v, element)
            }
        }
    }

    fn boolean(&mut self, r: Reg) -> Value {
        match self.results[r.0 as usize].clone() {
            Result::Bool(v, _) => v,
            Result::Number(v) => to(self.w, &v, DType::Bool.into()),
        }
    }

    fn step(&mut self, step: Step, operands: &[Value]) -> Result {
        Result::Number(match step {
            Step::Operand { index, class } => {
                let x = &operands[index as usize];
                if x.element == Element::Of(DType::Bool) {
                    return Result::Bool(x.clone(), class);
                }
                let element = self.element_of(class);
                to(self.w, x, element)
            }
            Step::Const(number, class) => {
                let element = self.element_of(class);
                self.w.splat(number, element, self.sizes)
            }
            Step::Index { axis, class } => {
                let element = self.element_of(class);
                self.w.iota(axis as usize, element, self.sizes)
            }
            Step::Unary(op, x) => return self.unary(op, x),
            Step::Binary(op, a, b) => return self.binary(op, a, b),
            Step::Select(c, a, b) => {
                let (c, a, b) = (self.boolean(c), self.number(a), self.number(b));
                self.w.select(&c, &a, &b)
            }
            Step::Cast(class, x) => match self.results[x.0 as usize].clone() {
                Result::Bool(v, _) => return Result::Bool(v, class),
                Result::Number(v) => {
                    let element = self.element_of(class);
                    to(self.w, &v, element)
                }
            },
        })
    }

    fn unary(&mut self, op: Unary, r: Reg) -> Result {
        let class = self.class(r);
        match op {
            Unary::Not => {
                let flag = self.boolean(r);
                return Result::Bool(self.w.like("not", &[&flag]), class);
            }
            Unary::IsFinite if class == Class::I64 => {
                return Result::Bool(self.w.splat(1.0, DType::Bool, self.sizes), class);
            }
            Unary::IsFinite => {
                let x = self.number(r);
                return Result::Bool(self.w.op("is_finite", &[&x], "", DType::Bool, self.sizes), class);
            }
            _ => {}
        }
        let x = self.number(r);
        Result::Number(if class == Class::I64 {
            self.integer_unary(op, &x)
        } else {
            self.float_unary(op, &x)
        })
    }

    fn float_unary(&mut self, op: Unary, x: &Value) -> Value {
        let name = match op {
            Unary::Neg => "negate",
            Unary::Abs => "abs",
            Unary::Sign => "sign",
            Unary::Exp => "exponential",
            Unary::Expm1 => "exponential_minus_one",
            Unary::Log => "log",
            Unary::Log1p => "log_plus_one",
            Unary::Sqrt => "sqrt",
            Unary::Rsqrt => "rsqrt",
            Unary::Tanh => "tanh",
            Unary::Sigmoid => "logistic",
            Unary::Sin => "sine",
            Unary::Cos => "cosine",
            Unary::Floor => "floor",
            Unary::Round => "round_nearest_even",
            Unary::Square => return self.w.like("multiply", &[x, x]),
            Unary::Recip => {
                let one = self.w.splat(1.0, x.element, self.sizes);
                return self.w.like("divide", &[&one, x]);
            }
            Unary::Relu => {
                // The maximum with NaN is NaN.
                let zero = self.w.splat(0.0, x.element, self.sizes);
                return self.w.like("maximum", &[x, &zero]);
            }
            // StableHLO has no erf, but XLA knows this custom call.
            Unary::Erf => {
                let attributes =
                    "call_target_name = \"mhlo.erf\", mhlo.attributes = {}, mhlo.version = 1 : i64";
                return self.w.op("custom_call", &[x], attributes, x.element, self.sizes);
            }
            Unary::Not | Unary::IsFinite => unreachable!("booleans are handled by `unary`"),
        };
        self.w.like(name, &[x])
    }

    fn integer_unary(&mut self, op: Unary, x: &Value) -> Value {
        match op {
            Unary::Neg => self.w.like("negate", &[x]),
            Unary::Abs => self.w.like("abs", &[x]),
            Unary::Sign => self.w.like("sign", &[x]),
            Unary::Square => self.w.like("multiply", &[x, x]),
            Unary::Floor | Unary::Round => x.clone(),
            Unary::Relu => {
                let zero = self.w.integer(0, x.element, self.sizes);
                self.w.like("maximum", &[x, &zero])
            }
            Unary::Recip => {
                let one = self.w.integer(1, x.element, self.sizes);
                self.divide(&one, x)
            }
            Unary::Rsqrt => {
                let root = self.integer_unary(Unary::Sqrt, x);
                self.integer_unary(Unary::Recip, &root)
            }
            _ => {
                let wide = self.w.convert(x, DType::F64);
                let y = self.float_unary(op, &wide);
                saturated(self.w, &y, DType::I64)
            }
        }
    }

    /// Integer division; division by zero returns 0.
    fn divide(&mut self, a: &Value, b: &Value) -> Value {
        let zero = self.w.integer(0, a.element, self.sizes);
        let one = self.w.integer(1, a.element, self.sizes);
        let by_zero = self.w.compare("EQ", b, &zero);
        let divisor = self.w.select(&by_zero, &one, b);
        let quotient = self.w.like("divide", &[a, &divisor]);
        self.w.select(&by_zero, &zero, &quotient)
    }

    fn binary(&mut self, op: Binary, a: Reg, b: Reg) -> Result {
        let class = self.class(a);
        let direction = match op {
            Binary::Eq => "EQ",
            Binary::Ne => "NE",
            Binary::Lt => "LT",
            Binary::Le => "LE",
            Binary::Gt => "GT",
            Binary::Ge => "GE",
            Binary::And | Binary::Or => {
                let (a, b) = (self.boolean(a), self.boolean(b));
                let name = if op == Binary::And { "and" } else { "or" };
                return Result::Bool(self.w.like(name, &[&a, &b]), class);
            }
            _ => {
                let (a, b) = (self.number(a), self.number(b));
                return Result::Number(self.arithmetic(op, class, &a, &b));
            }
        };
        let (a, b) = (self.number(a), self.number(b));
        Result::Bool(self.w.compare(direction, &a, &b), class)
    }

    fn arithmetic(&mut self, op: Binary, class: Class, a: &Value, b: &Value) -> Value {
        let name = match op {
            Binary::Add => "add",
            Binary::Sub => "subtract",
            Binary::Mul => "multiply",
            Binary::Div if class == Class::I64 => return self.divide(a, b),
            Binary::Div => "divide",
            Binary::Max => "maximum",
            Binary::Min => "minimum",
            Binary::Pow => "power",
            _ => unreachable!("booleans are handled by `binary`"),
        };
        self.w.like(name, &[a, b])
    }
}
