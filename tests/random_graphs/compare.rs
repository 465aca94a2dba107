//! Compares results with the reference, with a tolerance for each tensor.
//!
//! The tolerance of a tensor comes from runs of the reference in which inputs and variables are
//! moved by about an ulp and every result of every node, gradients and partial sums included, is
//! rounded up or down at random. So ill-conditioned results do not fail, and the others are checked
//! tightly.

use crate::program::Program;
use crate::run::{Engine, Found, VARIABLE, run};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tensorpack::prelude::*;
use tensorpack::runtime::StochasticRounding;

/// The number of runs of each rounding where one does not decide.
const RUNS: u64 = 3;
/// Runs of each rounding before a failure is reported. Where a normalized update amplifies a gradient
/// that is only noise, few of them differ.
const CONFIRMING_RUNS: u64 = 16;
/// The tolerance of a tensor, as a multiple of its change under perturbation.
const SPREADS: f64 = 40.0;
/// Plus this many ulps of its largest element.
const ULPS: f64 = 32.0;
/// The least magnitude assumed for the operands of a forward result.
const CANCELLED: f64 = 0.05;
/// The coarser of the two roundings has this many bits less. A smooth result moves in proportion.
const WIDE_BITS: u32 = 3;
const WIDE: f64 = (1 << WIDE_BITS) as f64;
/// f64 has no wider type to round from, so its spread is measured with this many bits less and
/// scaled.
const F64_SPARE_BITS: u32 = 8;
/// A result that changes more than this many times its proportional share under the coarser rounding
/// is near a kink.
const KINK: f64 = 12.0;

/// A result in f64 that moves by more than this share of its magnitude jumps.
const JUMP: f64 = 1e-4;
/// Results below this are what rounding leaves of terms that cancel.
const CANCELLED_GRADIENT: f64 = 1e-6;

/// The tolerance of a tensor in a program with floats of 16 bits, as a multiple of its change under the coarser
/// rounding.
const NARROW_SPREADS: f64 = 8.0;
/// The seeds of the runs that confirm a failure in a program with floats of 16 bits.
const CONFIRMATIONS: std::ops::Range<u64> = 4..24;

/// How the names of gradients begin.
const GRADIENTS: [&str; 2] = ["the gradient of the cost", "the gradient of the squared gradients"];

/// The results of the reference.
pub(crate) struct Expected {
    pub(crate) found: Vec<Found>,
    pub(crate) tolerances: Vec<f64>,
}

/// Why a program is rejected and drawn again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// A perturbation of a few ulps takes another branch.
    Kink(String),
    /// A result is infinite or NaN.
    NotFinite(String),
    /// The graph or the reference rejects the program.
    Refused(String),
}

/// A result that is wrong, or missing.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) engine: Engine,
    pub(crate) what: String,
    /// Whether it is an error or a panic instead of a value.
    pub(crate) raised: bool,
}

/// Runs the reference.
fn attempt(
    program: &Program,
    engine: Engine,
    rounding: Option<StochasticRounding>,
) -> std::result::Result<Vec<Found>, Unfit> {
    match quietly(|| run(program, engine, rounding)) {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(e)) if e.kind() == tensorpack::ErrorKind::NotFinite => Err(Unfit::NotFinite(e.to_string())),
        Ok(Err(e)) => Err(Unfit::Refused(e.to_string())),
        Err(panic) => Err(Unfit::Refused(format!("the reference panicked: {panic}"))),
    }
}

/// Runs the reference with and without noise.
pub(crate) fn expect(program: &Program) -> std::result::Result<Expected, Unfit> {
    let found = attempt(program, Engine::Reference, None)?;
    if let Some(bad) = found.iter().find(|f| f.values.iter().any(|v| !v.is_finite() || v.abs() > 1e12)) {
        return Err(Unfit::NotFinite(bad.name.clone()));
    }
    if program.narrow.is_some() {
        let tolerances = vec![0.0; found.len()];
        let mut expected = Expected { found, tolerances };
        widen_narrow(program, &mut expected, f32::MANTISSA_DIGITS - WIDE_BITS, 0..4)?;
        return Ok(expected);
    }
    // One run of each rounding is enough for most programs. The others decide about a kink, and
    // about a failure in `check`.
    match tolerances(program, &found, 1) {
        Err(Unfit::Kink(_)) => tolerances(program, &found, RUNS),
        other => other,
    }
    .map(|tolerances| Expected { found, tolerances })
}

/// Returns the tolerance of every tensor, from this many runs of each of the two roundings.
fn tolerances(program: &Program, found: &[Found], runs: u64) -> std::result::Result<Vec<f64>, Unfit> {
    let ulp = ulp(program);
    let (bits, share_of_ulp) = match program.float {
        DType::F32 => (f32::MANTISSA_DIGITS, 1.0),
        _ => (f64::MANTISSA_DIGITS - F64_SPARE_BITS, 1.0 / (1 << F64_SPARE_BITS) as f64),
    };
    let spread = |bits: u32, seeds: std::ops::Range<u64>| -> std::result::Result<Vec<f64>, Unfit> {
        let mut widest = vec![0.0f64; found.len()];
        for seed in seeds {
            let moved = attempt(program, Engine::Reference, Some(StochasticRounding { bits, seed }))?;
            for ((at, moved), still) in widest.iter_mut().zip(moved).zip(found) {
                *at = at.max(distance(&moved.values, &still.values));
            }
        }
        Ok(widest)
    };
    let narrow = spread(bits, 1..1 + runs)?;
    let wide = spread(bits - WIDE_BITS, 101..101 + runs)?;
    let mut tolerances = Vec::new();
    for ((f, narrow), wide) in found.iter().zip(narrow).zip(wide) {
        let jump = narrow.max(wide);
        let (narrow, wide) = (narrow * share_of_ulp, wide * share_of_ulp);
        let scale = f.values.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        // Operands have a magnitude of about 1, and terms may cancel.
        let floor = ULPS * ulp * if f.name.starts_with("the value") { scale.max(CANCELLED) } else { scale };
        let share = narrow.max(wide / WIDE);
        // Results that are only noise, such as the gradient of a bias before a normalization, do
        // not grow in proportion.
        let noise = narrow > 0.01 * scale;
        let bent = !noise && wide > KINK * WIDE * narrow.max(4.0 * ulp * scale) || share.is_nan();
        // A jump does not shrink with the rounding, so it must not be scaled.
        let jumps = share_of_ulp < 1.0 && jump > JUMP * scale.max(CANCELLED_GRADIENT);
        if bent || jumps || !f.is_float && wide + narrow > 0.0 {
            return Err(Unfit::Kink(format!("{}: {narrow:e}, {wide:e} of {scale:e}", f.name)));
        }
        tolerances.push(if f.is_float { SPREADS * share + floor } else { 0.0 });
    }
    Ok(tolerances)
}

/// Raises the tolerances of a program with floats of 16 bits to what runs with these seeds show.
///
/// A result of 16 bits that is rounded the other way jumps, so changes do not grow in proportion to
/// the rounding. Its tolerance is a multiple of the largest change under the coarser rounding.
fn widen_narrow(
    program: &Program,
    expected: &mut Expected,
    bits: u32,
    seeds: std::ops::Range<u64>,
) -> std::result::Result<(), Unfit> {
    for seed in seeds {
        let moved = attempt(program, Engine::Reference, Some(StochasticRounding { bits, seed }))?;
        for ((f, moved), tolerance) in expected.found.iter().zip(moved).zip(&mut expected.tolerances) {
            let change = distance(&moved.values, &f.values);
            if change.is_nan() || !f.is_float && change > 0.0 {
                return Err(Unfit::Kink(format!("{}: {change:e}", f.name)));
            }
            let floor = ULPS * ulp(program) * f.values.iter().fold(CANCELLED, |m, v| m.max(v.abs()));
            *tolerance = tolerance.max(NARROW_SPREADS * change + floor);
        }
    }
    Ok(())
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return f64::NAN;
    }
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |m, d| if d.is_nan() || m.is_nan() { f64::NAN } else { m.max(d) })
}

/// Compares an engine with the reference, and returns its results.
pub(crate) fn check(
    program: &Program,
    engine: Engine,
    expected: &Expected,
) -> std::result::Result<Vec<Found>, Failure> {
    let failure = |what: String, raised| Failure { engine, what, raised };
    let found = match quietly(|| run(program, engine, None)) {
        Ok(Ok(found)) => found,
        // Nothing to compare.
        Ok(Err(e)) if e.kind() == tensorpack::ErrorKind::NotFinite && may_overflow(program) => {
            return Ok(Vec::new());
        }
        Ok(Err(e)) => return Err(failure(format!("error: {e}"), true)),
        Err(panic) => return Err(failure(format!("panic: {panic}"), true)),
    };
    if found.len() != expected.found.len() {
        return Err(failure(format!("{} results, not {}", found.len(), expected.found.len()), true));
    }
    let outcome = match compare(program, engine, expected, &found) {
        // Few results of 16 bits are so near to the middle between two neighbors that an engine may
        // round them the other way, and the first runs may have missed one. With a bit less even
        // exact ties go either way, as on engines that multiply by a reciprocal.
        Err(missed) if program.narrow.is_some() && !missed.raised => {
            let mut wider =
                Expected { found: expected.found.clone(), tolerances: expected.tolerances.clone() };
            match widen_narrow(program, &mut wider, f32::MANTISSA_DIGITS - WIDE_BITS - 1, CONFIRMATIONS) {
                Ok(()) => compare(program, engine, &wider, &found),
                Err(_) => Ok(()),
            }
        }
        // The first runs may have missed a kink, or most of what rounding changes.
        Err(missed) if !missed.raised => match tolerances(program, &expected.found, CONFIRMING_RUNS) {
            Ok(tolerances) => {
                let wider = Expected { found: expected.found.clone(), tolerances };
                compare(program, engine, &wider, &found)
            }
            Err(_) => Ok(()),
        },
        outcome => outcome,
    };
    match outcome {
        Err(missed) if !missed.raised && may_overflow(program) => Ok(Vec::new()),
        outcome => outcome.map(|()| found),
    }
}

/// Returns whether a program in f32 overflows with some rounding and in some order of additions.
/// The reference, in f64, then says nothing about it: the infinity may have become any number, such
/// as the 1 that is its `tanh`.
fn may_overflow(program: &Program) -> bool {
    let bits = f32::MANTISSA_DIGITS;
    let overflows = |seed| {
        let rounding = StochasticRounding { bits, seed };
        match attempt(program, Engine::ReferenceInF32, Some(rounding)) {
            Ok(found) => found.iter().flat_map(|f| &f.values).any(|v| !v.is_finite()),
            Err(unfit) => matches!(unfit, Unfit::NotFinite(_)),
        }
    };
    program.float == DType::F32 && (1..=CONFIRMING_RUNS).any(overflows)
}

/// Compares the results of an engine with those of another run of it, which `how` names, bit by bit.
pub(crate) fn check_bits(
    engine: Engine,
    found: &[Found],
    other: &[Found],
    how: &str,
) -> std::result::Result<(), Failure> {
    for (f, other) in found.iter().zip(other) {
        let mut pairs = f.values.iter().zip(&other.values).enumerate();
        if let Some((i, (value, right))) = pairs.find(|(_, (a, b))| a.to_bits() != b.to_bits()) {
            let what = format!("{}, element {i}: {value:?}, {how} {right:?}", f.name);
            return Err(Failure { engine, what, raised: false });
        }
    }
    Ok(())
}

/// Compares the results of an engine with the expected ones.
fn compare(
    program: &Program,
    engine: Engine,
    expected: &Expected,
    found: &[Found],
) -> std::result::Result<(), Failure> {
    let failure = |what: String, raised| Failure { engine, what, raised };
    let mut worst: Option<(f64, String)> = None;
    for ((f, e), &tolerance) in found.iter().zip(&expected.found).zip(&expected.tolerances) {
        let tolerance = tolerance + engine_floor(program, engine, expected, e);
        if f.name != e.name || f.values.len() != e.values.len() {
            return Err(failure(format!("{} of {} elements, not {}", f.name, f.values.len(), e.name), true));
        }
        for (i, (&value, &right)) in f.values.iter().zip(&e.values).enumerate() {
            let far = (value - right).abs();
            let by = if far == 0.0 { 0.0 } else { far / tolerance };
            let bad = by.is_nan() || by > 1.0;
            if bad && worst.as_ref().is_none_or(|(w, _)| by.is_nan() || by > *w) {
                let what = format!(
                    "{}, element {i} of {}: {value:?}, not {right:?} (tolerance {tolerance:e})",
                    f.name,
                    f.values.len()
                );
                worst = Some((by, what));
            }
        }
    }
    worst.map_or(Ok(()), |(_, what)| Err(failure(what, false)))
}

/// XLA's compiler rewrites sums and exponentials, so terms that cancel exactly here leave a few ulps
/// of the largest gradient there. Each step may add as much to a variable, such as a momentum.
fn engine_floor(program: &Program, engine: Engine, expected: &Expected, tensor: &Found) -> f64 {
    if !matches!(engine, Engine::Xla(_)) {
        return 0.0;
    }
    let (group, times) = match GRADIENTS.iter().find(|g| tensor.name.starts_with(**g)) {
        Some(group) => (*group, 1),
        None if tensor.name.starts_with(VARIABLE) => (GRADIENTS[0], program.steps),
        None => return 0.0,
    };
    let largest = |group: &str| {
        let members = expected.found.iter().filter(|f| f.name.starts_with(group));
        members.flat_map(|f| &f.values).fold(0.0f64, |m, v| m.max(v.abs()))
    };
    // A program that fetches no gradients shows their size in the sums that the optimizer keeps.
    let largest = largest(group).max(if times > 1 { largest(VARIABLE) } else { 0.0 });
    4.0 * ULPS * ulp(program) * largest * times as f64
}

/// Returns the distance from 1 to the next number of the program's float type.
fn ulp(program: &Program) -> f64 {
    if program.float == DType::F32 { f64::from(f32::EPSILON) } else { f64::EPSILON }
}

/// Runs `f` and returns a panic as text.
pub(crate) fn quietly<T>(f: impl FnOnce() -> T) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or("no message".into())
    })
}
