//! Builds scalar expressions, folding constants and merging equal steps.

use super::{Binary, Class, Expr, Reg, Step, Unary};
use tensorpack_tensor::DType;

/// Maximum number of steps of an expression: registers have 16 bits.
const MAX_STEPS: usize = u16::MAX as usize;

/// Builds an [`Expr`] step by step. Validation rejects expressions of more than 65535 steps.
#[derive(Debug, Default)]
pub struct ExprBuilder {
    steps: Vec<Step>,
    /// For each step, whether it loads an operand without conversion.
    unconverted: Vec<bool>,
}

impl ExprBuilder {
    /// Returns the expression with these outputs, without unused steps.
    pub fn finish(self, outputs: &[Reg]) -> Expr {
        if self.steps.len() > MAX_STEPS {
            // Too many steps: an expression that validation rejects.
            return Expr { steps: Vec::new(), outputs: vec![Reg(u16::MAX); outputs.len()] };
        }
        let mut needed = vec![false; self.steps.len()];
        outputs.iter().for_each(|r| needed[r.0 as usize] = true);
        // Steps use only earlier ones, so one backward pass finds all that are needed.
        for i in (0..self.steps.len()).rev() {
            if needed[i] {
                map_regs(self.steps[i], |r| {
                    needed[r.0 as usize] = true;
                    r
                });
            }
        }
        let mut renamed = vec![Reg(0); self.steps.len()];
        let mut steps = Vec::new();
        for (i, step) in self.steps.iter().enumerate().filter(|&(i, _)| needed[i]) {
            renamed[i] = Reg(number(steps.len()));
            steps.push(map_regs(*step, |r| renamed[r.0 as usize]));
        }
        Expr { steps, outputs: outputs.iter().map(|r| renamed[r.0 as usize]).collect() }
    }

    fn class(&self, mut reg: Reg) -> Class {
        loop {
            reg = match self.steps[reg.0 as usize] {
                Step::Operand { class, .. } | Step::Const(_, class) | Step::Index { class, .. } => {
                    return class;
                }
                Step::Cast(class, _) => return class,
                Step::Unary(_, r) | Step::Binary(_, r, _) | Step::Select(_, r, _) => r,
            }
        }
    }

    fn constant_of(&self, reg: Reg) -> Option<f64> {
        match self.steps[reg.0 as usize] {
            Step::Const(v, _) => Some(v),
            _ => None,
        }
    }

    fn push(&mut self, step: Step) -> Reg {
        if self.steps.len() > MAX_STEPS {
            return Reg(u16::MAX);
        }
        let at = self.steps.iter().position(|s| *s == step).unwrap_or_else(|| {
            self.steps.push(step);
            self.unconverted.push(false);
            self.steps.len() - 1
        });
        Reg(number(at))
    }

    /// Loads the kernel's operand `index`, whose elements are of type `dtype`, in `class`.
    pub fn operand(&mut self, index: usize, dtype: DType, class: Class) -> Reg {
        let reg = self.push(Step::Operand { index: number(index), class });
        self.unconverted[reg.0 as usize] = Class::from_dtype(dtype) == class;
        reg
    }

    /// Adds a constant.
    pub fn constant(&mut self, value: f64, class: Class) -> Reg {
        let value = match class {
            Class::F32 => f64::from(value as f32),
            Class::F64 => value,
            Class::I64 => value.trunc(),
        };
        self.push(Step::Const(value, class))
    }

    /// Adds the element's index along `axis`.
    pub fn index(&mut self, axis: usize, class: Class) -> Reg {
        self.push(Step::Index { axis: number(axis), class })
    }

    /// Adds a function of one value.
    pub fn unary(&mut self, op: Unary, x: Reg) -> Reg {
        match (op, self.constant_of(x)) {
            (Unary::Neg, Some(v)) => self.constant(-v, self.class(x)),
            (Unary::Square, Some(v)) if self.class(x) != Class::I64 => self.constant(v * v, self.class(x)),
            _ => self.push(Step::Unary(op, x)),
        }
    }

    /// Adds a function of two values of the same class.
    pub fn binary(&mut self, op: Binary, a: Reg, b: Reg) -> Reg {
        let class = self.class(a);
        match (op, self.constant_of(a), self.constant_of(b)) {
            (Binary::Add, Some(x), Some(y)) if class != Class::I64 => return self.constant(x + y, class),
            (Binary::Sub, Some(x), Some(y)) if class != Class::I64 => return self.constant(x - y, class),
            (Binary::Mul, Some(x), Some(y)) if class != Class::I64 => return self.constant(x * y, class),
            // Exact identities only: x + 0 is not x for x = -0, nor is x - (-0), but x - 0 is, as
            // are x * 1 and x / 1.
            (Binary::Mul | Binary::Div, _, Some(1.0)) => return a,
            (Binary::Mul, Some(1.0), _) => return b,
            (Binary::Sub, _, Some(zero)) if zero.to_bits() == 0 => return a,
            _ => {}
        }
        self.push(Step::Binary(op, a, b))
    }

    /// Adds a selection: `a` where `condition` is true, otherwise `b`.
    pub fn select(&mut self, condition: Reg, a: Reg, b: Reg) -> Reg {
        match self.constant_of(condition) {
            Some(0.0) => b,
            Some(_) => a,
            None => self.push(Step::Select(condition, a, b)),
        }
    }

    /// Converts `x` to another class.
    pub fn cast(&mut self, class: Class, x: Reg) -> Reg {
        match self.steps[x.0 as usize] {
            _ if self.class(x) == class => x,
            Step::Const(v, _) => self.constant(v, class),
            // A load converts to any class as a cast would. A load that already converts may have
            // lost digits, so it is not replaced.
            Step::Operand { index, .. } if self.unconverted[x.0 as usize] => {
                self.push(Step::Operand { index, class })
            }
            // 0 and 1 are the same in every class, so a boolean is cast directly.
            Step::Cast(_, truth) if self.is_truth(truth) => self.cast(class, truth),
            _ => self.push(Step::Cast(class, x)),
        }
    }

    /// Returns `x` as it would be read back from a buffer of type `dtype`, in the class of that
    /// type. The class of an expression may differ from that of its output, and storing converts.
    /// Not for types narrower than their class, which storing rounds or wraps.
    pub(crate) fn stored(&mut self, dtype: DType, x: Reg) -> Reg {
        debug_assert!(matches!(dtype, DType::F32 | DType::F64 | DType::I64 | DType::Bool));
        if dtype != DType::Bool || self.is_truth(x) {
            return self.cast(Class::from_dtype(dtype), x);
        }
        let zero = self.constant(0.0, self.class(x));
        let truth = self.binary(Binary::Ne, x, zero);
        self.cast(Class::I64, truth)
    }

    /// Returns whether a value is known to be 0 or 1.
    fn is_truth(&self, reg: Reg) -> bool {
        use Binary::{And, Eq, Ge, Gt, Le, Lt, Ne, Or};
        match self.steps[reg.0 as usize] {
            Step::Binary(op, ..) => matches!(op, Eq | Ne | Lt | Le | Gt | Ge | And | Or),
            Step::Unary(op, _) => matches!(op, Unary::Not | Unary::IsFinite),
            Step::Const(v, _) => v == 0.0 || v == 1.0,
            Step::Cast(_, x) => self.is_truth(x),
            Step::Select(_, a, b) => self.is_truth(a) && self.is_truth(b),
            _ => false,
        }
    }

    /// Inlines `expr`, with its operand `i` replaced by `operand(i)` and its dimension `d` by
    /// `axis(d)`. Returns its outputs.
    pub fn inline(
        &mut self,
        expr: &Expr,
        mut operand: impl FnMut(&mut ExprBuilder, usize, Class) -> Reg,
        axis: impl Fn(usize) -> usize,
    ) -> Vec<Reg> {
        let mut regs: Vec<Reg> = Vec::with_capacity(expr.steps.len());
        for step in &expr.steps {
            let at = |r: Reg| regs[r.0 as usize];
            let reg = match *step {
                Step::Operand { index, class } => operand(self, index as usize, class),
                Step::Const(v, class) => self.constant(v, class),
                Step::Index { axis: a, class } => self.index(axis(a as usize), class),
                Step::Unary(op, x) => self.unary(op, at(x)),
                Step::Binary(op, a, b) => self.binary(op, at(a), at(b)),
                Step::Select(c, a, b) => self.select(at(c), at(a), at(b)),
                Step::Cast(class, x) => self.cast(class, at(x)),
            };
            regs.push(reg);
        }
        expr.outputs.iter().map(|r| regs[r.0 as usize]).collect()
    }
}

/// Returns an index as an expression stores it. One that is too large becomes `u16::MAX`, which
/// validation rejects.
fn number(index: usize) -> u16 {
    u16::try_from(index).unwrap_or(u16::MAX)
}

fn map_regs(step: Step, mut f: impl FnMut(Reg) -> Reg) -> Step {
    match step {
        Step::Unary(op, x) => Step::Unary(op, f(x)),
        Step::Binary(op, a, b) => Step::Binary(op, f(a), f(b)),
        Step::Select(c, a, b) => Step::Select(f(c), f(a), f(b)),
        Step::Cast(class, x) => Step::Cast(class, f(x)),
        leaf => leaf,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_steps_are_merged_and_unused_ones_removed() {
        let mut b = ExprBuilder::default();
        let x = b.operand(0, DType::F32, Class::F32);
        let unused = b.unary(Unary::Exp, x);
        let two = b.constant(2.0, Class::F32);
        let y = b.binary(Binary::Mul, x, two);
        let again = b.binary(Binary::Mul, x, two);
        assert_eq!(y, again);
        assert_ne!(unused, y);
        let one = b.constant(1.0, Class::F32);
        let same = b.binary(Binary::Mul, y, one);
        let expr = b.finish(&[same]);
        assert_eq!(expr.steps.len(), 3);
        assert_eq!(expr.outputs, [Reg(2)]);
    }

    #[test]
    fn subtracting_plus_zero_is_the_identity() {
        let mut b = ExprBuilder::default();
        let x = b.operand(0, DType::F32, Class::F32);
        let [plus, minus] = [0.0, -0.0].map(|v| b.constant(v, Class::F32));
        assert_eq!(b.binary(Binary::Sub, x, plus), x);
        assert_ne!(b.binary(Binary::Sub, x, minus), x);
    }

    #[test]
    fn too_many_steps_make_no_expression() {
        let full = |steps: usize| ExprBuilder {
            steps: vec![Step::Const(0.0, Class::F32); steps],
            unconverted: vec![false; steps],
        };
        let mut b = full(MAX_STEPS - 1);
        let last = b.index(0, Class::F32);
        assert_eq!(b.finish(&[last]).steps, [Step::Index { axis: 0, class: Class::F32 }]);
        let mut b = full(MAX_STEPS);
        b.index(0, Class::F32);
        let past = b.index(1, Class::F32);
        let expr = b.finish(&[past]);
        assert!(expr.steps.is_empty() && expr.outputs == [Reg(u16::MAX)], "{:?}", expr.outputs);
    }

    #[test]
    fn a_cast_of_a_cast_keeps_what_the_first_one_lost() {
        let mut b = ExprBuilder::default();
        let x = b.operand(0, DType::F32, Class::F32);
        let truncated = b.cast(Class::I64, x);
        let back = b.cast(Class::F32, truncated);
        assert_ne!(back, x);
        assert_eq!(b.finish(&[back]).steps.len(), 2);
    }
}
