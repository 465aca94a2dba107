//! Collectives across the towers of a program, as StableHLO.

use super::spmd::SpmdProgram;
use super::stablehlo::{Element, Value, Writer};
use crate::kir::{BufferId, BufferKind, Kernel};
use std::collections::HashSet;
use tensorpack_tensor::DType;

/// Reduces the values of all replicas with a binary operation. With one replica, returns its value.
pub(super) fn all_reduce(w: &mut Writer, name: &str, x: &Value, replicas: usize) -> Value {
    if replicas == 1 {
        return x.clone();
    }
    let group: Vec<String> = (0..replicas).map(|r| r.to_string()).collect();
    let attributes = format!("replica_groups = dense<[[{}]]> : tensor<1x{replicas}xi64>", group.join(", "));
    let region = w.binary_region(name, x.element);
    w.with_region("all_reduce", &[x], &attributes, &region, &[(x.element, x.sizes.clone())]).swap_remove(0)
}

/// Returns whether a boolean is true in all replicas.
pub(super) fn all_reduce_and(w: &mut Writer, flag: &Value, replicas: usize) -> Value {
    if replicas == 1 {
        return flag.clone();
    }
    let number = w.convert(flag, DType::I32);
    let least = all_reduce(w, "minimum", &number, replicas);
    let zero = w.integer(0, DType::I32, &[]);
    w.compare("NE", &least, &zero)
}

/// Broadcasts the value of the run's first tower to all replicas.
pub(super) fn from_first_tower(w: &mut Writer, x: &Value, spmd: &SpmdProgram) -> Value {
    let is_bool = x.element == DType::Bool.into();
    let number = if is_bool { w.convert(x, DType::I32) } else { x.clone() };
    let replica = w.op("replica_id", &[], "", Element::U32, &[]);
    let first = w.integer(spmd.first_replica() as i128, Element::U32, &[]);
    let is_first = w.compare("EQ", &replica, &first);
    let nothing = w.splat(0.0, number.element, &x.sizes);
    let part = w.select(&is_first, &number, &nothing);
    let sum = all_reduce(w, "add", &part, spmd.replica_count());
    if !is_bool {
        return sum;
    }
    let none = w.splat(0.0, sum.element, &x.sizes);
    w.compare("NE", &sum, &none)
}

/// Returns the buffers whose values differ between towers: those computed from feeds or random
/// numbers that differ, except through all-reduces.
pub(super) fn varying(spmd: &SpmdProgram) -> HashSet<BufferId> {
    let program = &spmd.program;
    let mut varying = HashSet::new();
    if spmd.replica_count() == 1 {
        return varying;
    }
    let fed = |b: &BufferId| matches!(program.buffer(*b).kind, BufferKind::Feed(i) if spmd.differs(i));
    varying.extend((0..program.buffers.len() as u32).map(BufferId).filter(fed));
    for node in &program.kernels {
        let differs = match &node.kernel {
            Kernel::AllReduce { .. } => false,
            Kernel::Random { continued, .. } => *continued,
            kernel => kernel.reads().iter().any(|v| varying.contains(&v.buffer)),
        };
        if differs {
            varying.extend(&node.outputs);
        }
    }
    varying
}
