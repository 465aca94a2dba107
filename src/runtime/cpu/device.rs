//! The CPU engine's entry in the registry: thread teams of this process, `cpu:N`.

use super::engine::{CpuOptions, cpu_executor};
use crate::graph::Frozen;
use crate::runtime::engine::{Engine, parse_index};
use crate::runtime::executor::Executor;
use crate::runtime::{Device, SessionOptions, Turns, available_memory};
use std::thread::available_parallelism;
use tensorpack_kernels::{Bf16Isa, Isa};
use tensorpack_tensor::{Error, Result};

/// Maximum number of threads per tower, more than any machine has cores.
const MAX_THREADS: usize = 4096;

/// The CPU engine.
pub(in crate::runtime) struct CpuEngine;

impl Engine for CpuEngine {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn description(&self) -> String {
        let cores = available_parallelism().map_or(1, usize::from);
        let memory = available_memory()
            .map_or_else(String::new, |bytes| format!(", {:.1} GB of memory available", bytes as f64 / 1e9));
        let cores = if cores == 1 { "1 core".to_string() } else { format!("{cores} cores") };
        let bf16 = Bf16Isa::detect().map_or_else(String::new, |isa| format!(" and {isa}"));
        format!("{cores}, {}{bf16} instructions{memory}", Isa::detect())
    }

    fn parse_device(&self, parts: &[&str]) -> Option<Device> {
        parse_index(parts).map(Device::Cpu)
    }

    fn supports_forks(&self) -> bool {
        true
    }

    fn supports_process_groups(&self) -> bool {
        true
    }

    fn check_towers(&self, devices: &[Device]) -> Result<()> {
        match devices.iter().enumerate().find(|(i, device)| devices[..*i].contains(device)) {
            Some((_, device)) => Err(Error::argument(format!(
                "every tower needs its own device, but {device} is listed twice"
            ))),
            None => Ok(()),
        }
    }

    fn create(&self, _: &Frozen, options: &SessionOptions, turns: &Turns) -> Result<Box<dyn Executor>> {
        if let Some(threads) = options.threads.filter(|&n| n > MAX_THREADS) {
            let why = format!("{threads} threads per tower: expected at most {MAX_THREADS}");
            return Err(Error::argument(why).note("leave it out to use the cores of the machine"));
        }
        let options = CpuOptions {
            threads: options.threads,
            isa: options.isa,
            memory_limit: options.memory_limit,
            deadline: options.deadline,
            profile: options.profile,
            full_precision: options.full_precision,
            dump_passes: options.dump_passes,
            process_group: options.process_group.clone(),
        };
        Ok(cpu_executor(&options, turns))
    }
}
