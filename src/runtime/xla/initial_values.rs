//! Computes the initial values of variables on several threads, because a GPU would wait for them
//! longer than for a cached program.

use crate::graph::VariableInfo;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result, element_count};

/// Fewer elements are computed faster than threads start.
const MIN_ELEMENTS: usize = 1 << 18;
const MAX_THREADS: usize = 16;

/// Returns what `take` makes of the initial value of each variable, given its index, in order. It is
/// called on this thread, as soon as a value is there, so that only a few values are in memory at once. Values depend
/// on the seed and the variable's name alone, not on the threads.
pub(super) fn initial_values<T>(
    variables: &[VariableInfo],
    seed: u64,
    mut take: impl FnMut(usize, HostTensor) -> Result<T>,
) -> Result<Vec<T>> {
    let value = |v: &VariableInfo| v.init.value(seed, &v.name, v.dtype, &v.sizes);
    let elements = variables.iter().map(|v| element_count(&v.sizes).unwrap_or(usize::MAX));
    let cores = thread::available_parallelism().map_or(1, |n| n.get());
    let threads = cores.min(MAX_THREADS).min(variables.len());
    if threads < 2 || elements.fold(0, usize::saturating_add) < MIN_ELEMENTS {
        return variables.iter().enumerate().map(|(i, v)| take(i, value(v)?)).collect();
    }
    let next = AtomicUsize::new(0);
    let mut taken: Vec<Option<T>> = variables.iter().map(|_| None).collect();
    thread::scope(|s| -> Result<()> {
        let (send, values) = sync_channel(threads);
        for _ in 0..threads {
            let (send, next, value) = (send.clone(), &next, &value);
            s.spawn(move || {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(v) = variables.get(i) else { return };
                    // The receiver is gone after an error.
                    if send.send((i, value(v))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for (i, value) in values {
            taken[i] = Some(take(i, value?)?);
        }
        Ok(())
    })?;
    let all: Option<Vec<T>> = taken.into_iter().collect();
    all.ok_or_else(|| Error::new(ErrorKind::Engine, "an initial value is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, Init, VariableSpec};
    use crate::tower::TowerContext;

    fn variables(sizes: &[usize]) -> Vec<VariableInfo> {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        for (i, &size) in sizes.iter().enumerate() {
            t.variable(VariableSpec::new(format!("v{i}"), [size]).init(Init::Normal(0.0, 1.0)));
        }
        graph.freeze().unwrap().variables().to_vec()
    }

    #[test]
    fn threads_change_neither_values_nor_their_order() {
        for sizes in [&[3, 4][..], &[1, 200_000, 7, 150_000, 20, 3, 100_000, 9]] {
            let variables = variables(sizes);
            let expected: Vec<HostTensor> =
                variables.iter().map(|v| v.init.value(7, &v.name, v.dtype, &v.sizes).unwrap()).collect();
            assert!(initial_values(&variables, 7, |_, value| Ok(value)).unwrap() == expected);
        }
    }

    #[test]
    fn the_first_error_ends_the_threads() {
        let variables = variables(&[200_000; 20]);
        let mut taken = 0;
        let e = initial_values(&variables, 7, |_, _| {
            taken += 1;
            if taken == 3 { Err(Error::argument("no room")) } else { Ok(()) }
        });
        assert_eq!(e.unwrap_err().message(), "no room");
        assert_eq!(taken, 3);
    }
}
