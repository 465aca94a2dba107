//! Runs programs on engines.

use crate::build::{Change, Fault, Whole, build};
use crate::program::{Class, Program, Source, Towers};
use std::fmt;
use tensorpack::prelude::*;
use tensorpack::runtime::cpu::Isa;
use tensorpack::runtime::{IntoFetch, StochasticRounding};

/// How the names of variables after training start.
pub(crate) const VARIABLE: &str = "the variable";

/// The rounding of the reference in programs with floats of 16 bits: these are rounded, and no others.
const ONLY_NARROW: StochasticRounding = StochasticRounding { bits: f64::MANTISSA_DIGITS, seed: 0 };

/// An engine that runs programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Engine {
    /// The device that the others are compared with. It runs every program in f64.
    Reference,
    /// The same device with the types that the program declares, where f32 overflows.
    ReferenceInF32,
    Cpu {
        isa: Isa,
        threads: usize,
        full_precision: bool,
    },
    Xla(Device),
    /// The reference with an error, to test the comparison.
    Faulty(Fault),
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Engine::Reference => f.write_str("the reference"),
            Engine::ReferenceInF32 => f.write_str("the reference in f32"),
            Engine::Cpu { isa, threads, full_precision } => {
                let precision = if *full_precision { ", full precision" } else { "" };
                write!(f, "cpu:0 ({isa}, {threads} threads{precision})")
            }
            Engine::Xla(device) => write!(f, "{device}"),
            Engine::Faulty(fault) => write!(f, "the reference with the error {fault:?}"),
        }
    }
}

impl Engine {
    pub(crate) fn options(self) -> SessionOptions {
        let plain = SessionOptions { threads: Some(1), ..SessionOptions::default() };
        match self {
            Engine::Reference | Engine::ReferenceInF32 | Engine::Faulty(_) => {
                SessionOptions { device: reference(), ..plain }
            }
            Engine::Cpu { isa, threads, full_precision } => {
                SessionOptions { threads: Some(threads), isa: Some(isa), full_precision, ..plain }
            }
            // The tolerances assume products in full precision.
            Engine::Xla(device) => SessionOptions { device, full_precision: true, ..plain },
        }
    }

    /// Returns the same engine with one thread, if it has several.
    pub(crate) fn with_one_thread(self) -> Option<Engine> {
        match self {
            Engine::Cpu { isa, threads, full_precision } if threads > 1 => {
                Some(Engine::Cpu { isa, threads: 1, full_precision })
            }
            _ => None,
        }
    }

    /// Returns whether the engine runs programs with these towers.
    pub(crate) fn supports(self, towers: Towers) -> bool {
        // XLA's towers are one SPMD program, whose shapes are equal.
        !matches!(self, Engine::Xla(_)) || towers.last_batch.is_none()
    }

    /// Returns the CPU engine's variants: every instruction set, with one and several threads, and
    /// in full precision.
    pub(crate) fn on_cpu() -> Vec<Engine> {
        let mut engines = Vec::new();
        for isa in Isa::available() {
            let several = if isa == Isa::detect() { 3 } else { 2 };
            engines.push(Engine::Cpu { isa, threads: 1, full_precision: false });
            engines.push(Engine::Cpu { isa, threads: several, full_precision: false });
        }
        engines.push(Engine::Cpu { isa: Isa::detect(), threads: 2, full_precision: true });
        engines
    }

    /// Returns XLA's processor device, if its plugin is installed.
    pub(crate) fn on_xla() -> Option<Engine> {
        static FOUND: std::sync::OnceLock<Option<Engine>> = std::sync::OnceLock::new();
        *FOUND.get_or_init(|| {
            let name = std::env::var("TENSORPACK_XLA_TEST_DEVICE").unwrap_or("xla:cpu:0".into());
            let device: Device = name.parse().unwrap_or_else(|e| panic!("{e}"));
            let Device::Xla { platform, .. } = device else { panic!("{name} is no XLA device") };
            tensorpack_testing::plugin_for_tests(platform.name()).map(|_| Engine::Xla(device))
        })
    }
}

fn reference() -> Device {
    "reference".parse().unwrap_or_else(|e| panic!("{e}"))
}

/// A tensor that a run returned.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) is_float: bool,
    pub(crate) values: Vec<f64>,
}

/// Runs a program and returns its fetches, and all variables after the last step. With `rounding` (reference only) every result rounds at random, and inputs and variables
/// are moved by about an ulp.
pub(crate) fn run(
    program: &Program,
    engine: Engine,
    rounding: Option<StochasticRounding>,
) -> Result<Vec<Found>> {
    let exact = matches!(engine, Engine::Reference | Engine::ReferenceInF32 | Engine::Faulty(_));
    let floats = match engine {
        Engine::Reference | Engine::Faulty(_) => program.reference_floats(),
        Engine::ReferenceInF32 | Engine::Cpu { .. } | Engine::Xla(_) => program.floats(),
    };
    let fault = if let Engine::Faulty(fault) = engine { Some(fault) } else { None };
    let only_narrow = (exact && program.narrow.is_some()).then_some(ONLY_NARROW);
    let Whole { graph, inputs, costs, forward, gradients, second, train } =
        build(program, floats, &Change { known: exact, fault })?;
    let session = Session::with(
        graph.freeze()?,
        SessionOptions { stochastic_rounding: rounding.or(only_narrow), ..engine.options() },
    )?;
    let moved = |values: Vec<f64>, seed: u64| match rounding {
        Some(StochasticRounding { bits, seed: stream }) => {
            let by = crate::values(seed ^ (stream + 1).wrapping_mul(0x5851_F42D), values.len());
            let ulp = 2f64.powi(1 - bits as i32);
            values.iter().zip(by).map(|(v, r)| v * (1.0 + r / 1.5 * ulp)).collect()
        }
        None => values,
    };

    for v in session.graph().variables().iter().filter(|v| v.trainable) {
        let seed = crate::seed_of(&v.name);
        let values = crate::values(seed, v.sizes.iter().product()).iter().map(|v| v * 0.5).collect();
        // Moving a number of 16 bits would round it the other way.
        let values = if v.dtype.is_narrow_float() { values } else { moved(values, seed) };
        session.write(&v.name, &HostTensor::from_f64(v.dtype, v.sizes.clone(), &values)?)?;
    }
    let mut feeds = Vec::new();
    for input in &inputs {
        let Source::Input { class, sizes, known, elements } = &program.nodes[input.node].source else {
            unreachable!("a placeholder is made for an input");
        };
        let sizes = program.sizes_in(input.tower, sizes, known);
        let mut values = elements.in_tower(input.tower).draw(sizes.iter().product());
        if *class == Class::Float {
            values = moved(values, crate::seed_of(&input.name));
        }
        feeds.push((input.name.as_str(), HostTensor::from_f64(class.dtype(floats), sizes, &values)?));
    }
    let feeds: Vec<(&str, &HostTensor)> = feeds.iter().map(|(name, value)| (*name, value)).collect();

    let mut found = Vec::new();
    let keep = |found: &mut Vec<Found>, name: &str, value: &HostTensor| {
        let is_float = value.dtype().is_float();
        found.push(Found { name: name.to_string(), is_float, values: value.to_f64_vec() });
    };
    let all: Vec<&(String, Tensor)> = forward.iter().chain(&gradients).chain(&second).collect();
    // XLA compiles for seconds: one program for everything. To the reference it makes no
    // difference.
    let together = program.together || exact || matches!(engine, Engine::Xla(_));
    let groups: Vec<Vec<&(String, Tensor)>> = match together && train.is_some() {
        true => vec![],
        false if together => vec![all.clone()],
        false => vec![forward.iter().collect(), gradients.iter().collect(), second.iter().collect()],
    };
    for group in groups.iter().filter(|g| !g.is_empty()) {
        session.set_run_index(0)?;
        let fetches: Vec<&dyn IntoFetch> = group.iter().map(|(_, t)| t as _).collect();
        for ((name, _), value) in group.iter().zip(session.run(&fetches, &feeds)?) {
            keep(&mut found, name, &value);
        }
    }
    if let Some(train) = train {
        let along: Vec<&(String, Tensor)> = if together { all } else { vec![] };
        let mut fetches: Vec<&dyn IntoFetch> = vec![&train];
        fetches.extend(costs.iter().map(|cost| cost as &dyn IntoFetch));
        fetches.extend(along.iter().map(|(_, t)| t as &dyn IntoFetch));
        let mut spent = Vec::new();
        for step in 0..program.steps {
            session.set_run_index(step as u64)?;
            let values = session.run(&fetches, &feeds)?;
            spent.push(values[..costs.len()].to_vec());
            if step == 0 {
                for ((name, _), value) in along.iter().zip(&values[costs.len()..]) {
                    keep(&mut found, name, value);
                }
            }
        }
        for (step, values) in spent.iter().enumerate() {
            for (tower, cost) in values.iter().enumerate() {
                keep(&mut found, &format!("the cost of tower {tower} in step {}", step + 1), cost);
            }
        }
        for v in session.graph().variables() {
            let name = format!("{VARIABLE} {} after {} steps", v.name, program.steps);
            keep(&mut found, &name, &session.read(&v.name)?);
        }
    } else {
        let fetches: Vec<&dyn IntoFetch> = costs.iter().map(|cost| cost as _).collect();
        for (tower, cost) in session.run(&fetches, &feeds)?.iter().enumerate() {
            keep(&mut found, &format!("the cost of tower {tower}"), cost);
        }
    }
    Ok(found)
}
