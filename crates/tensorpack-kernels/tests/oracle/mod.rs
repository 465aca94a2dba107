//! Shared test code: aligned memory, random cases, and a reference implementation of every step in
//! f64.

use tensorpack_kernels::expr::{Binary, Class, Expr, Reg, Step, Unary};
use tensorpack_kernels::{Isa, Operand};
use tensorpack_tensor::{CounterRng, DType, bf16, f16};

/// Bytes aligned to 64, initially all 0xFF: NaN in every float type, so that reads of uninitialized
/// memory show.
#[derive(Clone)]
pub(crate) struct Memory {
    words: Vec<[u64; 8]>,
    start: usize,
    len: usize,
}

impl Memory {
    pub(crate) fn new(len: usize) -> Memory {
        let words = vec![[u64::MAX; 8]; len.div_ceil(64) + 1];
        let start = words.as_ptr().cast::<u8>().align_offset(64);
        Memory { words, start, len }
    }
    pub(crate) fn ptr(&self) -> *const u8 {
        self.words.as_ptr().cast::<u8>().wrapping_add(self.start)
    }
    pub(crate) fn ptr_mut(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast::<u8>().wrapping_add(self.start)
    }
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `new` allocated `len` bytes after the start.
        unsafe { std::slice::from_raw_parts(self.ptr(), self.len) }
    }
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.ptr_mut(), len) }
    }
    pub(crate) fn get(&self, dtype: DType, i: usize) -> Scalar {
        let size = dtype.size();
        let b = &self.bytes()[i * size..(i + 1) * size];
        match dtype {
            DType::F32 => Scalar::F(f32::from_ne_bytes(b.try_into().unwrap()).into()),
            DType::F64 => Scalar::F(f64::from_ne_bytes(b.try_into().unwrap())),
            DType::Bf16 => Scalar::F(bf16::from_ne_bytes(b.try_into().unwrap()).to_f64()),
            DType::F16 => Scalar::F(f16::from_ne_bytes(b.try_into().unwrap()).to_f64()),
            DType::I32 => Scalar::I(i32::from_ne_bytes(b.try_into().unwrap()).into()),
            DType::I64 => Scalar::I(i64::from_ne_bytes(b.try_into().unwrap())),
            DType::U8 | DType::Bool => Scalar::I(b[0].into()),
        }
    }
    pub(crate) fn set(&mut self, dtype: DType, i: usize, v: Scalar) {
        let size = dtype.size();
        let b = &mut self.bytes_mut()[i * size..(i + 1) * size];
        match (dtype, v) {
            (DType::F32, Scalar::F(x)) => b.copy_from_slice(&(x as f32).to_ne_bytes()),
            (DType::F32, Scalar::I(x)) => b.copy_from_slice(&(x as f32).to_ne_bytes()),
            (DType::F64, v) => b.copy_from_slice(&v.f().to_ne_bytes()),
            (DType::Bf16, Scalar::F(x)) => b.copy_from_slice(&bf16::from_f32(x as f32).to_ne_bytes()),
            (DType::Bf16, Scalar::I(x)) => b.copy_from_slice(&bf16::from_f32(x as f32).to_ne_bytes()),
            (DType::F16, Scalar::F(x)) => b.copy_from_slice(&f16::from_f32(x as f32).to_ne_bytes()),
            (DType::F16, Scalar::I(x)) => b.copy_from_slice(&f16::from_f32(x as f32).to_ne_bytes()),
            (DType::I32, Scalar::F(x)) => b.copy_from_slice(&(x as i32).to_ne_bytes()),
            (DType::I32, Scalar::I(x)) => b.copy_from_slice(&(x as i32).to_ne_bytes()),
            (DType::I64, v) => b.copy_from_slice(&v.i().to_ne_bytes()),
            (DType::U8, Scalar::F(x)) => b[0] = x as u8,
            (DType::U8, Scalar::I(x)) => b[0] = x as u8,
            (DType::Bool, v) => b[0] = u8::from(v.is_true()),
        }
    }
}

/// One element, exact for every type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scalar {
    F(f64),
    I(i64),
}

impl Scalar {
    pub(crate) fn f(self) -> f64 {
        match self {
            Scalar::F(x) => x,
            Scalar::I(x) => x as f64,
        }
    }
    pub(crate) fn i(self) -> i64 {
        match self {
            Scalar::F(x) => x as i64,
            Scalar::I(x) => x,
        }
    }
    pub(crate) fn is_true(self) -> bool {
        match self {
            Scalar::F(x) => x != 0.0,
            Scalar::I(x) => x != 0,
        }
    }
    pub(crate) fn same(self, other: Scalar) -> bool {
        match (self, other) {
            (Scalar::F(a), Scalar::F(b)) => a == b || a.is_nan() && b.is_nan(),
            (Scalar::I(a), Scalar::I(b)) => a == b,
            _ => false,
        }
    }
    /// Returns whether `got` equals `self` up to a relative error of `limit` (of `floor` if that is
    /// larger). Integers must be equal.
    pub(crate) fn near(self, got: Scalar, limit: f64, floor: f64) -> bool {
        match (self, got) {
            (Scalar::F(a), Scalar::F(b)) if a.is_finite() => (a - b).abs() <= limit * a.abs().max(floor),
            _ => self.same(got),
        }
    }
    /// Converts to a class with the semantics of `as`.
    pub(crate) fn to_class(self, class: Class) -> Scalar {
        match (class, self) {
            (Class::F32, Scalar::F(x)) => Scalar::F((x as f32).into()),
            (Class::F32, Scalar::I(x)) => Scalar::F((x as f32).into()),
            (Class::F64, x) => Scalar::F(x.f()),
            (Class::I64, x) => Scalar::I(x.i()),
        }
    }
}

pub(crate) fn native(class: Class) -> DType {
    match class {
        Class::F32 => DType::F32,
        Class::F64 => DType::F64,
        Class::I64 => DType::I64,
    }
}

/// A sequence of random numbers.
pub(crate) struct TestRng {
    rng: CounterRng,
    next: u64,
}

impl TestRng {
    pub(crate) fn new(seed: u64) -> TestRng {
        TestRng { rng: CounterRng::new(seed, "kernel tests"), next: 0 }
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.next += 1;
        self.rng.word(0, self.next) as usize % n
    }
    pub(crate) fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
    pub(crate) fn normal(&mut self) -> f64 {
        self.next += 1;
        self.rng.normal(1, self.next)
    }
    pub(crate) fn scalar(&mut self, dtype: DType) -> Scalar {
        if dtype.is_float() {
            let special =
                [0.0, -0.0, 1.0, -1.0, 2.5, -0.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e30, 1e-30];
            Scalar::F(if self.chance(12) {
                self.pick(&special)
            } else {
                self.normal() * self.pick(&[1.0, 1.0, 10.0])
            })
        } else if dtype == DType::Bool {
            Scalar::I(self.below(2) as i64)
        } else {
            Scalar::I(self.below(21) as i64 - if dtype == DType::U8 { 0 } else { 10 })
        }
    }
    pub(crate) fn fill(&mut self, dtype: DType, len: usize) -> Memory {
        let mut m = Memory::new(len * dtype.size());
        for i in 0..len {
            let v = self.scalar(dtype);
            m.set(dtype, i, v);
        }
        m
    }
    /// Returns an operand over `dims`, with its memory and the position of the element at index 0.
    pub(crate) fn operand(&mut self, dims: &[usize], dtype: DType, dense: bool) -> Input {
        let rank = dims.len();
        let mut order: Vec<usize> = (0..rank).collect();
        let (mut repeat, mut flip, mut gap) = (vec![false; rank], vec![false; rank], 1);
        if !dense {
            if self.chance(3) {
                for i in (1..rank).rev() {
                    order.swap(i, self.below(i + 1));
                }
            }
            let often = self.pick(&[2, 3, 100]);
            repeat.iter_mut().for_each(|r| *r = self.chance(often));
            flip.iter_mut().for_each(|f| *f = self.chance(8));
            gap = self.pick(&[1, 1, 1, 2]);
        }
        let mut strides = vec![0; rank];
        let (mut step, mut start) = (gap as isize, 0);
        for &d in order.iter().rev() {
            if repeat[d] || dims[d] == 0 {
                continue;
            }
            let whole = step * dims[d] as isize;
            strides[d] = if flip[d] { -step } else { step };
            if flip[d] {
                start += (whole - step) as usize;
            }
            step = whole;
        }
        Input { operand: Operand { dtype, strides }, memory: self.fill(dtype, step as usize), start }
    }
    /// Returns a random expression over `inputs`.
    pub(crate) fn expr(&mut self, dims: &[usize], inputs: &[Input], steps: usize) -> Expr {
        let classes = [Class::F32, Class::F32, Class::F64, Class::I64];
        let mut expr = Expr { steps: Vec::new(), outputs: Vec::new() };
        for (index, input) in inputs.iter().enumerate() {
            let class =
                if self.chance(3) { self.pick(&classes) } else { Class::from_dtype(input.operand.dtype) };
            expr.steps.push(Step::Operand { index: index as u16, class });
        }
        expr.steps.push(Step::Const(self.pick(&[0.0, 1.0, -2.0, 0.3]), self.pick(&classes)));
        for _ in 0..steps {
            let n = expr.steps.len();
            let a = Reg(self.below(n) as u16);
            let class = expr.class(a);
            let alike: Vec<Reg> = (0..n as u16).map(Reg).filter(|&r| expr.class(r) == class).collect();
            let b = self.pick(&alike);
            expr.steps.push(match self.below(12) {
                0 => Step::Const(self.normal() * 3.0, self.pick(&classes)),
                1 if !dims.is_empty() => {
                    Step::Index { axis: self.below(dims.len()) as u16, class: self.pick(&classes) }
                }
                1 | 2 => Step::Cast(self.pick(&classes), a),
                3 | 4 => Step::Select(Reg(self.below(n) as u16), a, b),
                5..8 => Step::Unary(self.pick(&UNARY), a),
                _ => Step::Binary(self.pick(&BINARY), a, b),
            });
        }
        expr
    }
}

pub(crate) struct Input {
    pub(crate) operand: Operand,
    pub(crate) memory: Memory,
    pub(crate) start: usize,
}

impl Input {
    pub(crate) fn ptr(&self) -> *const u8 {
        self.memory.ptr().wrapping_add(self.start * self.operand.dtype.size())
    }
    pub(crate) fn at(&self, index: &[usize]) -> Scalar {
        let offset: isize = index.iter().zip(&self.operand.strides).map(|(&i, &s)| i as isize * s).sum();
        self.memory.get(self.operand.dtype, (self.start as isize + offset) as usize)
    }
}

pub(crate) const UNARY: [Unary; 21] = [
    Unary::Neg,
    Unary::Abs,
    Unary::Sign,
    Unary::Exp,
    Unary::Expm1,
    Unary::Log,
    Unary::Log1p,
    Unary::Sqrt,
    Unary::Rsqrt,
    Unary::Recip,
    Unary::Square,
    Unary::Tanh,
    Unary::Sigmoid,
    Unary::Erf,
    Unary::Sin,
    Unary::Cos,
    Unary::Floor,
    Unary::Round,
    Unary::Relu,
    Unary::Not,
    Unary::IsFinite,
];

pub(crate) const BINARY: [Binary; 15] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Max,
    Binary::Min,
    Binary::Pow,
    Binary::Eq,
    Binary::Ne,
    Binary::Lt,
    Binary::Le,
    Binary::Gt,
    Binary::Ge,
    Binary::And,
    Binary::Or,
];

/// Returns the index of row-major position `flat` in `dims`.
pub(crate) fn unflatten(dims: &[usize], mut flat: usize) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for d in (0..dims.len()).rev() {
        index[d] = flat % dims[d];
        flat /= dims[d];
    }
    index
}

fn truth(b: bool, like: Scalar) -> Scalar {
    match like {
        Scalar::F(_) => Scalar::F(b.into()),
        Scalar::I(_) => Scalar::I(b.into()),
    }
}

/// Returns the error function by numerical integration: slow, but independent of the code under
/// test.
pub(crate) fn erf(x: f64) -> f64 {
    if x.abs() > 5.9 {
        return 1f64.copysign(x);
    }
    let (n, end) = (4000, x.abs());
    let h = end / f64::from(n);
    let f = |t: f64| (-t * t).exp();
    let mut sum = f(0.0) + f(end);
    for i in 1..n {
        sum += f(f64::from(i) * h) * if i % 2 == 1 { 4.0 } else { 2.0 };
    }
    if x.is_nan() { x } else { (sum * h / 3.0 * std::f64::consts::FRAC_2_SQRT_PI).copysign(x) }
}

pub(crate) fn unary(op: Unary, a: Scalar) -> Scalar {
    let x = a.f();
    if let Scalar::I(i) = a {
        match op {
            Unary::Neg => return Scalar::I(i.wrapping_neg()),
            Unary::Abs => return Scalar::I(i.wrapping_abs()),
            Unary::Square => return Scalar::I(i.wrapping_mul(i)),
            Unary::Floor | Unary::Round => return a,
            Unary::Recip => return Scalar::I(if i == 0 { 0 } else { 1 / i }),
            Unary::Rsqrt => {
                let r = x.sqrt() as i64;
                return Scalar::I(if r == 0 { 0 } else { 1 / r });
            }
            Unary::Relu => return Scalar::I(i.max(0)),
            _ => {}
        }
    }
    let y = match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign if x > 0.0 => 1.0,
        Unary::Sign if x < 0.0 => -1.0,
        Unary::Sign => x,
        Unary::Exp => x.exp(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log1p => x.ln_1p(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Recip => 1.0 / x,
        Unary::Square => x * x,
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Erf => erf(x),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Floor => x.floor(),
        Unary::Round => x.round_ties_even(),
        Unary::Relu if x < 0.0 => 0.0,
        Unary::Relu => x,
        Unary::Not => return truth(!a.is_true(), a),
        Unary::IsFinite => return truth(x.is_finite(), a),
    };
    match a {
        Scalar::F(_) => Scalar::F(y),
        Scalar::I(_) => Scalar::I(y as i64),
    }
}

pub(crate) fn binary(op: Binary, a: Scalar, b: Scalar) -> Scalar {
    match (op, a, b) {
        (Binary::Add, Scalar::I(a), Scalar::I(b)) => Scalar::I(a.wrapping_add(b)),
        (Binary::Sub, Scalar::I(a), Scalar::I(b)) => Scalar::I(a.wrapping_sub(b)),
        (Binary::Mul, Scalar::I(a), Scalar::I(b)) => Scalar::I(a.wrapping_mul(b)),
        (Binary::Div, Scalar::I(a), Scalar::I(b)) => Scalar::I(if b == 0 { 0 } else { a.wrapping_div(b) }),
        (Binary::Max, Scalar::I(a), Scalar::I(b)) => Scalar::I(a.max(b)),
        (Binary::Min, Scalar::I(a), Scalar::I(b)) => Scalar::I(a.min(b)),
        (Binary::Pow, Scalar::I(a), Scalar::I(b)) => Scalar::I(match (a, b) {
            (1, _) => 1,
            (-1, b) => {
                if b % 2 == 0 {
                    1
                } else {
                    -1
                }
            }
            (_, ..0) => 0,
            // In two parts, because std takes 32-bit exponents.
            (a, b) => {
                let high = a.wrapping_pow(1 << 31).wrapping_pow(2).wrapping_pow((b >> 32) as u32);
                high.wrapping_mul(a.wrapping_pow(b as u32))
            }
        }),
        (Binary::Add, a, b) => Scalar::F(a.f() + b.f()),
        (Binary::Sub, a, b) => Scalar::F(a.f() - b.f()),
        (Binary::Mul, a, b) => Scalar::F(a.f() * b.f()),
        (Binary::Div, a, b) => Scalar::F(a.f() / b.f()),
        (Binary::Max, a, b) if a.f().is_nan() || b.f().is_nan() => Scalar::F(f64::NAN),
        (Binary::Min, a, b) if a.f().is_nan() || b.f().is_nan() => Scalar::F(f64::NAN),
        (Binary::Max, a, b) => Scalar::F(a.f().max(b.f())),
        (Binary::Min, a, b) => Scalar::F(a.f().min(b.f())),
        (Binary::Pow, a, b) => Scalar::F(a.f().powf(b.f())),
        (Binary::And, a, b) => truth(a.is_true() && b.is_true(), a),
        (Binary::Or, a, b) => truth(a.is_true() || b.is_true(), a),
        (op, a, b) => {
            let order = match (a, b) {
                (Scalar::I(x), Scalar::I(y)) => Some(x.cmp(&y)),
                _ => a.f().partial_cmp(&b.f()),
            };
            truth(
                match op {
                    Binary::Eq => order.is_some_and(|o| o.is_eq()),
                    Binary::Ne => order.is_none_or(|o| o.is_ne()),
                    Binary::Lt => order.is_some_and(|o| o.is_lt()),
                    Binary::Le => order.is_some_and(|o| o.is_le()),
                    Binary::Gt => order.is_some_and(|o| o.is_gt()),
                    _ => order.is_some_and(|o| o.is_ge()),
                },
                a,
            )
        }
    }
}

/// Computes one step for the element at `index` from the results of the steps before it. Also
/// returns the error allowed for an implementation in `class`: the relative limit, and the
/// magnitude below which it is absolute.
pub(crate) fn step(
    expr: &Expr,
    i: usize,
    before: &[Scalar],
    inputs: &[Input],
    index: &[usize],
) -> (Scalar, f64, f64) {
    let class = expr.class(Reg(i as u16));
    let (ulp, smallest) = if class == Class::F32 {
        (1.2e-7, f64::from(f32::MIN_POSITIVE))
    } else {
        (2.3e-16, f64::MIN_POSITIVE)
    };
    // Kernels flush subnormal numbers to zero, so an ulp of this may be missing.
    let tiny = smallest / ulp;
    let at = |r: Reg| before[r.0 as usize];
    match expr.steps[i] {
        Step::Operand { index: o, class } => (inputs[o as usize].at(index).to_class(class), 0.0, 0.0),
        Step::Const(x, class) => (Scalar::F(x).to_class(class), 0.0, 0.0),
        Step::Index { axis, class } => (Scalar::I(index[axis as usize] as i64).to_class(class), 0.0, 0.0),
        Step::Unary(op, a) => {
            let v = unary(op, at(a));
            // Rounded to the class first, so that overflows show.
            let v = if v.f().is_finite() { v.to_class(class) } else { v };
            match op {
                Unary::Erf if class == Class::F64 => (v, 1e-6, 1e-7),
                _ => (v, 5.0 * ulp, tiny),
            }
        }
        Step::Binary(op, a, b) => {
            let v = binary(op, at(a), at(b));
            let v = if v.f().is_finite() { v.to_class(class) } else { v };
            (v, if op == Binary::Pow { 1e3 * ulp } else { 2.0 * ulp }, tiny)
        }
        Step::Select(c, a, b) => (if at(c).is_true() { at(a) } else { at(b) }, 0.0, 0.0),
        Step::Cast(class, a) => (at(a).to_class(class), 0.0, 0.0),
    }
}

pub(crate) fn isas() -> Vec<Isa> {
    Isa::available().collect()
}

/// Configures proptest to run `default` cases, or `TENSORPACK_TEST_CASES`, and not to write failures
/// to files.
pub(crate) fn cases(default: u32) -> proptest::prelude::ProptestConfig {
    let cases = tensorpack_testing::test_cases(default);
    proptest::prelude::ProptestConfig { cases, failure_persistence: None, ..Default::default() }
}
