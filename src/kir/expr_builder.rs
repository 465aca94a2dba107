//! Writes scalar expressions, folding constants and equal steps as it goes.

use super::{Binary, Class, Expr, Reg, Step, Unary};
use tensorpack_tensor::DType;

/// Builds an [`Expr`] step by step.
#[derive(Debug, Default)]
pub struct ExprBuilder {
    steps: Vec<Step>,
    /// For each step, whether it loads an operand as it is, without conversion.
    unconverted: Vec<bool>,
}

impl ExprBuilder {
    /// The expression with these outputs, without steps that none of them needs.
    pub fn finish(self, outputs: &[Reg]) -> Expr {
        let mut needed = vec![false; self.steps.len()];
        outputs.iter().for_each(|r| needed[r.0 as usize] = true);
        for i in (0..self.steps.len()).rev().filter(|&i| needed[i]).collect::<Vec<_>>() {
            mark(&self.steps, i, &mut needed);
        }
        let mut renamed = vec![Reg(0); self.steps.len()];
        let mut steps = Vec::new();
        for (i, step) in self.steps.iter().enumerate().filter(|&(i, _)| needed[i]) {
            renamed[i] = Reg(steps.len() as u16);
            steps.push(map_regs(*step, |r| renamed[r.0 as usize]));
        }
        Expr { steps, outputs: outputs.iter().map(|r| renamed[r.0 as usize]).collect() }
    }

    fn class(&self, reg: Reg) -> Class {
        match self.steps[reg.0 as usize] {
            Step::Operand { class, .. } | Step::Const(_, class) | Step::Index { class, .. } => class,
            Step::Cast(class, _) => class,
            Step::Unary(_, r) | Step::Binary(_, r, _) | Step::Select(_, r, _) => self.class(r),
        }
    }

    fn constant_of(&self, reg: Reg) -> Option<f64> {
        match self.steps[reg.0 as usize] {
            Step::Const(v, _) => Some(v),
            _ => None,
        }
    }

    fn push(&mut self, step: Step) -> Reg {
        // Constants are compared by bits: NaN equals itself here, and 0 differs from -0.
        let same = |s: &Step| match (s, &step) {
            (Step::Const(a, c), Step::Const(b, d)) => a.to_bits() == b.to_bits() && c == d,
            (s, t) => s == t,
        };
        let at = self.steps.iter().position(same).unwrap_or_else(|| {
            self.steps.push(step);
            self.unconverted.push(false);
            self.steps.len() - 1
        });
        Reg(at as u16)
    }

    /// The kernel's operand `index`, whose elements are of type `dtype`, in `class`.
    pub fn operand(&mut self, index: usize, dtype: DType, class: Class) -> Reg {
        let reg = self.push(Step::Operand { index: index as u16, class });
        self.unconverted[reg.0 as usize] = Class::of(dtype) == class;
        reg
    }

    /// A constant.
    pub fn constant(&mut self, value: f64, class: Class) -> Reg {
        let value = match class {
            Class::F32 => f64::from(value as f32),
            Class::F64 => value,
            Class::I64 => value.trunc(),
        };
        self.push(Step::Const(value, class))
    }

    /// The element's index along `axis`.
    pub fn index(&mut self, axis: usize, class: Class) -> Reg {
        self.push(Step::Index { axis: axis as u16, class })
    }

    /// A function of one number.
    pub fn unary(&mut self, op: Unary, x: Reg) -> Reg {
        match (op, self.constant_of(x)) {
            (Unary::Neg, Some(v)) => self.constant(-v, self.class(x)),
            (Unary::Square, Some(v)) if self.class(x) != Class::I64 => self.constant(v * v, self.class(x)),
            _ => self.push(Step::Unary(op, x)),
        }
    }

    /// A function of two numbers of one class.
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

    /// `a` where `condition` is true, else `b`.
    pub fn select(&mut self, condition: Reg, a: Reg, b: Reg) -> Reg {
        match self.constant_of(condition) {
            Some(0.0) => b,
            Some(_) => a,
            None => self.push(Step::Select(condition, a, b)),
        }
    }

    /// `x` in another class.
    pub fn cast(&mut self, class: Class, x: Reg) -> Reg {
        match self.steps[x.0 as usize] {
            _ if self.class(x) == class => x,
            Step::Const(v, _) => self.constant(v, class),
            // Elements are loaded in any class directly, converted as a cast would; but not what was converted before,
            // which may have lost digits.
            Step::Operand { index, .. } if self.unconverted[x.0 as usize] => {
                self.push(Step::Operand { index, class })
            }
            // 0 and 1 are the same in every class, so a truth value needs no detour.
            Step::Cast(_, truth) if self.is_truth(truth) => self.cast(class, truth),
            _ => self.push(Step::Cast(class, x)),
        }
    }

    /// `x` as a buffer of type `dtype` would give it back, in the class of that type. An expression
    /// may be of another class than its output, and storing converts. Not for types narrower than
    /// their class, which storing rounds or wraps.
    pub(crate) fn stored(&mut self, dtype: DType, x: Reg) -> Reg {
        debug_assert!(matches!(dtype, DType::F32 | DType::F64 | DType::I64 | DType::Bool));
        if dtype != DType::Bool || self.is_truth(x) {
            return self.cast(Class::of(dtype), x);
        }
        let zero = self.constant(0.0, self.class(x));
        let truth = self.binary(Binary::Ne, x, zero);
        self.cast(Class::I64, truth)
    }

    /// Whether a value is known to be 0 or 1.
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

    /// Copies `expr` in, with its operand `i` replaced by what `operand` says, and its dimension `d` by `axis`.
    /// Returns its outputs.
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

fn mark(steps: &[Step], at: usize, needed: &mut [bool]) {
    map_regs(steps[at], |r| {
        if !std::mem::replace(&mut needed[r.0 as usize], true) {
            mark(steps, r.0 as usize, needed);
        }
        r
    });
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
    fn equal_steps_are_one_and_unused_ones_go() {
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
    fn only_plus_zero_is_nothing_to_subtract() {
        let mut b = ExprBuilder::default();
        let x = b.operand(0, DType::F32, Class::F32);
        let [plus, minus] = [0.0, -0.0].map(|v| b.constant(v, Class::F32));
        assert_eq!(b.binary(Binary::Sub, x, plus), x);
        assert_ne!(b.binary(Binary::Sub, x, minus), x);
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
