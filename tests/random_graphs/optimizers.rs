//! Optimizers, their wrappers, and learning rates: how they are drawn, built and printed.

use crate::draw::Draw;
use crate::program::Value;
use std::fmt;
use tensorpack::prelude::*;

/// One way of using an optimizer, a wrapper or a rate. As with the rows of operations, the
/// expression is kept as text.
pub(crate) struct Setting<F> {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) build: F,
    pub(crate) draw: fn(&mut Draw) -> Vec<Value>,
}

impl<F> fmt::Debug for Setting<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

pub(crate) type RateSetting = Setting<fn(&TowerContext, &[Value]) -> Rate>;
pub(crate) type RuleSetting = Setting<fn(Rate, &[Value]) -> Box<dyn Optimizer>>;
pub(crate) type WrapperSetting = Setting<fn(Box<dyn Optimizer>, &[Value]) -> Box<dyn Optimizer>>;

macro_rules! settings {
    ($of:ident: $setting:ident; $($label:literal [$($a:ident: $ty:ty),*] => $body:expr; $draw:expr;)*) => {
        vec![$($setting {
            name: $label,
            text: stringify!($body),
            arguments: &[$(stringify!($a)),*],
            build: |$of, values| {
                let _ = &$of;
                let mut _values = values.iter();
                $(let $a: $ty = _values.next().expect("an argument").into();)*
                $body
            },
            draw: $draw,
        }),*]
    };
}

/// A list that is created once.
macro_rules! once {
    ($t:ty, $made:expr) => {{
        static ONCE: std::sync::OnceLock<Vec<$t>> = std::sync::OnceLock::new();
        ONCE.get_or_init(|| $made)
    }};
}

fn reals<const N: usize>(d: &mut Draw, ranges: [(f64, f64); N]) -> Vec<Value> {
    ranges.iter().map(|&(low, high)| Value::Real(d.real(low, high))).collect()
}

/// Learning rates.
pub(crate) fn rates() -> &'static [RateSetting] {
    once!(
        RateSetting,
        settings! { t: Setting;
            "fixed" [v: f64] => Rate::from(v); |d| reals(d, [(0.01, 0.1)]);
            "constant with warm-up" [v: f64, n: u64] => Rate::from(Schedule::constant(v).warm_up(n));
                |d| vec![Value::Real(d.real(0.01, 0.1)), Value::Int(d.between(1, 4) as i64)];
            "piecewise" [a: f64, b: f64] => Rate::from(Schedule::piecewise(a, [(1, b), (3, a)]));
                |d| reals(d, [(0.01, 0.1), (0.01, 0.1)]);
            "exponential" [a: f64, f: f64, n: u64] => Rate::from(Schedule::exponential(a, f, n));
                |d| vec![Value::Real(d.real(0.01, 0.1)), Value::Real(d.real(0.3, 0.9)), Value::Int(d.between(1, 4) as i64)];
            "staircase" [a: f64, f: f64, n: u64] => Rate::from(Schedule::staircase(a, f, n));
                |d| vec![Value::Real(d.real(0.01, 0.1)), Value::Real(d.real(0.3, 0.9)), Value::Int(d.between(1, 4) as i64)];
            "polynomial" [a: f64, b: f64, p: f64] => Rate::from(Schedule::polynomial(a, b, 4, p));
                |d| reals(d, [(0.02, 0.1), (0.0, 0.02), (0.5, 2.0)]);
            "cosine" [a: f64, b: f64, n: u64] => Rate::from(Schedule::cosine(a, b, 3).warm_up(n));
                |d| vec![Value::Real(d.real(0.02, 0.1)), Value::Real(d.real(0.0, 0.02)), Value::Int(d.between(0, 2) as i64)];
            "hyper-parameter" [v: f64] => Rate::from(t.hyper_param("rate", v)); |d| vec![Value::Real(d.of(&[0.0625, 0.03125]))];
        }
    )
}

/// Optimizers.
pub(crate) fn rules() -> &'static [RuleSetting] {
    once!(
        RuleSetting,
        settings! { rate: Setting;
            "Sgd" [] => Sgd::new(rate).boxed(); |_| vec![];
            "Momentum" [m: f64] => Momentum::new(rate, m).boxed(); |d| reals(d, [(0.0, 0.95)]);
            "Nesterov" [m: f64] => Momentum::new(rate, m).nesterov().boxed(); |d| reals(d, [(0.1, 0.95)]);
            "Adam" [] => Adam::new(rate).boxed(); |_| vec![];
            "Adam with settings" [a: f64, b: f64, e: f64] => Adam::new(rate).betas(a, b).epsilon(e).boxed();
                |d| vec![Value::Real(d.real(0.0, 0.95)), Value::Real(d.of(&[0.5, 0.9, 0.99])), Value::Real(d.of(&[1e-3, 1e-2, 0.1]))];
            "AdamW" [a: f64, b: f64, e: f64, w: f64] => AdamW::new(rate).betas(a, b).epsilon(e).decay(w).boxed();
                |d| vec![Value::Real(d.real(0.0, 0.95)), Value::Real(d.of(&[0.5, 0.9, 0.99])), Value::Real(d.of(&[1e-8, 1e-2])), Value::Real(d.real(0.0, 0.2))];
            "Lamb" [a: f64, b: f64, e: f64, w: f64] => Lamb::new(rate).betas(a, b).epsilon(e).decay(w).boxed();
                |d| vec![Value::Real(d.real(0.0, 0.95)), Value::Real(d.of(&[0.5, 0.9, 0.99])), Value::Real(d.of(&[1e-6, 1e-2])), Value::Real(d.real(0.0, 0.2))];
            "Adagrad" [e: f64, s: f64] => Adagrad::new(rate).epsilon(e).initial_accumulator_value(s).boxed();
                |d| vec![Value::Real(d.of(&[1e-10, 1e-3])), Value::Real(d.of(&[0.0, 0.1, 1.0]))];
            "RmsProp" [a: f64, e: f64, m: f64] => RmsProp::new(rate).alpha(a).epsilon(e).momentum(m).boxed();
                |d| vec![Value::Real(d.real(0.3, 0.99)), Value::Real(d.of(&[1e-8, 1e-2])), Value::Real(d.of(&[0.0, 0.5, 0.9]))];
            "RmsProp centered" [a: f64, m: f64] => RmsProp::new(rate).alpha(a).epsilon(0.1).momentum(m).centered().boxed();
                |d| vec![Value::Real(d.real(0.3, 0.9)), Value::Real(d.of(&[0.0, 0.5]))];
        }
    )
}

/// Wrappers of an optimizer, the innermost first.
pub(crate) fn wrappers() -> &'static [WrapperSetting] {
    once!(
        WrapperSetting,
        settings! { inner: Setting;
            "GlobalNormClip" [v: f64] => inner.process(GlobalNormClip::new(v)).boxed(); |d| reals(d, [(0.05, 3.0)]);
            "ValueClip" [v: f64] => inner.process(ValueClip::new(v)).boxed(); |d| reals(d, [(0.05, 1.0)]);
            "ScaleGradient" [v: f64] => inner.process(ScaleGradient::new(".*b.*|.*w.*|.*W.*|.*", v)).boxed();
                |d| reals(d, [(0.2, 2.0)]);
            "FilterGradient" [] => inner.process(FilterGradient::keep(".*")).boxed(); |_| vec![];
            "MapGradient" [v: f64] => inner.process(MapGradient::new(".*", move |_, g| Some(g * v + 0.01))).boxed();
                |d| reals(d, [(0.2, 2.0)]);
            "SummaryGradient" [] => inner.process(SummaryGradient::new()).boxed(); |_| vec![];
            "ParamGroups" [r: f64, w: f64] => ParamGroups::new(inner).group(".*", |g| g.rate(r).decay(w)).boxed();
                |d| reals(d, [(0.2, 2.0), (0.0, 0.2)]);
            "Accumulate" [n: usize] => Accumulate::new(inner, n).boxed(); |d| vec![Value::Int(d.between(1, 3) as i64)];
            "Ema" [v: f64] => Ema::new(inner, v).boxed(); |d| reals(d, [(0.0, 0.95)]);
            "Ema debiased" [v: f64] => Ema::new(inner, v).debiased().boxed(); |d| reals(d, [(0.0, 0.95)]);
            "Swa" [s: u64, n: u64] => Swa::new(inner, s).every(n).boxed();
                |d| vec![Value::Int(d.between(0, 2) as i64), Value::Int(d.between(1, 2) as i64)];
            "PostProcess" [v: f64] => PostProcess::new(inner, move |_, w| Some(w.clip(-v, v))).boxed(); |d| reals(d, [(0.5, 2.0)]);
        }
    )
}

/// How a program is trained.
#[derive(Clone, Debug)]
pub(crate) struct Training {
    pub(crate) rate: (&'static RateSetting, Vec<Value>),
    pub(crate) rule: (&'static RuleSetting, Vec<Value>),
    pub(crate) wrappers: Vec<(&'static WrapperSetting, Vec<Value>)>,
}

impl Training {
    /// Gradient descent with a fixed rate.
    pub(crate) fn plain() -> Training {
        Training {
            rate: (&rates()[0], vec![Value::Real(0.05)]),
            rule: (&rules()[0], vec![]),
            wrappers: Vec::new(),
        }
    }

    pub(crate) fn draw(d: &mut Draw) -> Training {
        let (rates, rules, list) = (rates(), rules(), wrappers());
        let rate = &rates[d.below(rates.len())];
        let rule = &rules[d.below(rules.len())];
        let mut chosen: Vec<usize> = Vec::new();
        for _ in 0..d.of(&[0, 0, 1, 1, 2, 3]) {
            let at = d.below(list.len());
            // One average and one accumulation are enough for one optimizer.
            let ema = |i: usize| list[i].name.starts_with("Ema") || list[i].name == "Swa";
            if !chosen.iter().any(|&i| i == at || ema(i) && ema(at)) {
                chosen.push(at);
            }
        }
        let wrappers = chosen.into_iter().map(|i| (&list[i], (list[i].draw)(d))).collect();
        Training { rate: (rate, (rate.draw)(d)), rule: (rule, (rule.draw)(d)), wrappers }
    }

    pub(crate) fn build(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        let rate = (self.rate.0.build)(t, &self.rate.1);
        let rule = (self.rule.0.build)(rate, &self.rule.1);
        self.wrappers.iter().fold(rule, |inner, (w, values)| (w.build)(inner, values))
    }
}
