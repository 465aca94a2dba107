//! Coordination of the programs of several towers: all-reduces, random streams and updated
//! variables.

use crate::graph::split_tower;
use crate::kir::{Kernel, KernelNode, Origin, Program};
use std::collections::HashMap;
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// An all-reduce of one tower: key, type and sizes, with the node it was lowered from.
type AllReduce<'a> = (&'a str, DType, &'a [usize], &'a Origin);

/// Checks that the kernels of all towers have the same all-reduces, of the same types and sizes and
/// in the same order. Otherwise some would wait for the others forever, or add tensors of different
/// sizes.
pub(super) fn check_all_reduces(towers: &[&[KernelNode]]) -> Result<()> {
    let Some((first, others)) = towers.split_first() else { return Ok(()) };
    let first = all_reduces(first);
    for other in others.iter().map(|kernels| all_reduces(kernels)) {
        for (a, b) in first.iter().zip(&other) {
            if (a.0, a.1, a.2) != (b.0, b.1, b.2) {
                let why = format!("towers sum {} of {}{:?} and {} of {}{:?}", a.0, a.1, a.2, b.0, b.1, b.2);
                return Err(Error::shape(why).within(&b.3.name).at(b.3.site));
            }
        }
        if first.len() != other.len() {
            let more = if first.len() > other.len() { first[other.len()] } else { other[first.len()] };
            let why = format!("not every tower sums {}", more.0);
            return Err(Error::new(ErrorKind::Graph, why).within(&more.3.name).at(more.3.site));
        }
    }
    Ok(())
}

fn all_reduces(kernels: &[KernelNode]) -> Vec<AllReduce<'_>> {
    let found = kernels.iter().filter_map(|node| match &node.kernel {
        Kernel::AllReduce { key, input, .. } | Kernel::ReduceScatter { key, input, .. } => {
            Some((&key[..], input.dtype, &input.sizes[..], &node.origin))
        }
        _ => None,
    });
    found.collect()
}

/// Numbers the elements of random tensors across towers, so that several towers draw together what
/// one would draw for all their examples. A tensor that was built outside of the towers is computed
/// in the program of each tower that reads it, and is the same tensor in all of them.
///
/// The towers before `first_tower`, which are in other processes, draw as many elements each as the
/// first one here. None of them draws the elements of a tensor outside of the towers.
pub(super) fn number_random_elements(programs: &mut [Program], first_tower: usize) {
    let mut drawn: HashMap<String, usize> = HashMap::new();
    let mut first_of: HashMap<String, usize> = HashMap::new();
    for program in programs {
        for i in 0..program.kernels.len() {
            let outputs = program.kernels[i].outputs.iter();
            let len = outputs.fold(0usize, |n, &b| n.saturating_add(program.buffer(b).len()));
            let node = &mut program.kernels[i];
            if let Kernel::Random { stream, first, continued: true } = &mut node.kernel {
                *first = *first_of.entry(node.origin.name.clone()).or_insert_with(|| {
                    let in_tower = !split_tower(&node.origin.name).0.is_empty();
                    let elsewhere = if in_tower { first_tower } else { 0 };
                    let drawn = drawn.entry(stream.clone()).or_insert_with(|| len.saturating_mul(elsewhere));
                    let before = *drawn;
                    *drawn = drawn.saturating_add(len);
                    before
                });
            }
        }
    }
}

/// Tells each program which variables the other towers update.
pub(super) fn set_updated_elsewhere(programs: &mut [Program]) {
    let updated: Vec<Vec<usize>> =
        programs.iter().map(|p| p.updates.iter().map(|u| u.variable).collect()).collect();
    for (i, program) in programs.iter_mut().enumerate() {
        let others = updated.iter().enumerate().filter(|(j, _)| *j != i);
        program.updated_elsewhere = others.flat_map(|(_, v)| v).copied().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Fetch, Graph, TensorSpec};
    use crate::runtime::Source;
    use crate::runtime::session::request;
    use crate::runtime::snapshot::Reading;
    use crate::tower::TowerContext;
    use std::sync::Arc;
    use tensorpack_tensor::HostTensor;

    /// The towers 2 and 3 of 4, which are in the second of two processes, continue the random numbers
    /// of the first process. Tensors outside of the towers are the same in both.
    #[test]
    fn random_elements_are_numbered_across_processes() {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::new("x", DType::F32, [None, Some(3)]));
        let outside = x.random_uniform_like(DType::F32);
        let in_towers = [2, 3].map(|index| {
            let t = TowerContext::in_process(&graph, index, 4, 2..4);
            t.build(|_| &x.dropout(0.5) + &outside)
        });
        let fetches = in_towers.map(|tensor| Fetch::from(&tensor));
        let (graph, value) = (Arc::new(graph.freeze().unwrap()), HostTensor::new([5, 3], vec![0f32; 15]));
        assert_eq!((graph.first_tower(), graph.towers()), (2, 2));
        let request = request(&fetches, &[("x", &value.unwrap())]);
        let lowered = Source::new(&graph, &request, Reading::InPlace).lower().unwrap();
        let offsets = |program: &Program| {
            let random = program.kernels.iter().filter_map(|node| match node.kernel {
                Kernel::Random { first, .. } => Some((node.origin.name.contains("Dropout"), first)),
                _ => None,
            });
            let mut offsets: Vec<(bool, usize)> = random.collect();
            offsets.sort_unstable();
            offsets
        };
        let found: Vec<_> = lowered.programs().iter().map(offsets).collect();
        assert_eq!(found, [[(false, 0), (true, 30)], [(false, 0), (true, 45)]]);
    }
}
