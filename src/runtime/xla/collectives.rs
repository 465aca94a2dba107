//! Collectives across the towers of a program, as StableHLO.

use super::spmd::SpmdProgram;
use super::stablehlo::{Element, Value, Writer};
use crate::kir::{BufferId, BufferKind, Kernel, Shards};
use std::collections::HashSet;
use tensorpack_tensor::DType;

/// Reduces the values of all replicas with a binary operation. With one replica, returns its value.
pub(super) fn all_reduce(w: &mut Writer, name: &str, x: &Value, replicas: usize) -> Value {
    if replicas == 1 {
        return x.clone();
    }
    let region = w.binary_region(name, x.element);
    let result = (x.element, x.sizes.clone());
    w.with_region("all_reduce", &[x], &all_replicas(replicas), &region, &[result]).swap_remove(0)
}

/// Returns the attribute of a collective in which all replicas take part, in their order.
fn all_replicas(replicas: usize) -> String {
    let group: Vec<String> = (0..replicas).map(|r| r.to_string()).collect();
    format!("replica_groups = dense<[[{}]]> : tensor<1x{replicas}xi64>", group.join(", "))
}

/// Returns the shard of a tensor that belongs to the replica.
pub(super) fn shard(w: &mut Writer, x: &Value, shards: &Shards) -> Value {
    let elements = x.len();
    let flat = w.reshape(x, &[elements]);
    let replica = w.op("replica_id", &[], "", Element::U32, &[]);
    let replica = w.convert(&replica, DType::I64);
    let [elements, count] = [elements, shards.count].map(|n| w.integer(n as i128, DType::I64, &[]));
    let start = w.like("multiply", &[&replica, &elements]);
    let start = w.like("divide", &[&start, &count]);
    let len = shards.len(x.len());
    w.op("dynamic_slice", &[&flat, &start], &format!("slice_sizes = array<i64: {len}>"), x.element, &[len])
}

/// Returns the replica's shard of the sum over all replicas.
pub(super) fn reduce_scatter(w: &mut Writer, x: &Value, shards: &Shards) -> Value {
    let elements = x.len();
    if !elements.is_multiple_of(shards.count) {
        let sum = all_reduce(w, "add", x, shards.count);
        return shard(w, &sum, shards);
    }
    let flat = w.reshape(x, &[elements]);
    let attributes = format!("scatter_dimension = 0 : i64, {}", all_replicas(shards.count));
    let region = w.binary_region("add", x.element);
    let result = (x.element, vec![elements / shards.count]);
    w.with_region("reduce_scatter", &[&flat], &attributes, &region, &[result]).swap_remove(0)
}

/// Returns the tensor of these sizes whose shards the replicas have.
pub(super) fn all_gather(w: &mut Writer, x: &Value, shards: &Shards, sizes: &[usize]) -> Value {
    let (elements, len) = (sizes.iter().product::<usize>(), x.len());
    let attributes = format!("all_gather_dim = 0 : i64, {}", all_replicas(shards.count));
    let mut all = w.op("all_gather", &[x], &attributes, x.element, &[len * shards.count]);
    if !elements.is_multiple_of(shards.count) {
        // Neighboring shards overlap.
        let part = |replica: usize| {
            let len_of_part = shards.part(elements, replica).len();
            w.slice(&all, &[replica * len], &[1], &[len_of_part])
        };
        let parts: Vec<Value> = (0..shards.count).map(part).collect();
        let parts: Vec<&Value> = parts.iter().collect();
        all = w.op("concatenate", &parts, "dimension = 0 : i64", x.element, &[elements]);
    }
    w.reshape(&all, sizes)
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
            // A shard of a value that varies is one of the first tower's value.
            Kernel::AllReduce { .. }
            | Kernel::ReduceScatter { .. }
            | Kernel::Shard { .. }
            | Kernel::AllGather { .. } => false,
            Kernel::Random { continued, .. } => *continued,
            kernel => kernel.reads().iter().any(|v| varying.contains(&v.buffer)),
        };
        if differs {
            varying.extend(&node.outputs);
        }
    }
    varying
}
