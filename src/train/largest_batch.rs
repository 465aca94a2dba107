//! The largest batch that fits into memory.

use super::launch::set_up;
use super::{SingleCostTrainer, TrainConfig};
use crate::runtime::{Session, SessionOptions, available_memory};
use std::cell::RefCell;
use std::collections::HashMap;
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// No plan is asked for more examples than this.
const MOST: usize = 1 << 24;
/// The first batch that a model takes is sought up to this one. Batch normalization of features needs
/// two examples, and a model may divide its batch into groups.
const MOST_FIRST: usize = 256;
/// The search ends after this many powers of two in a row that do not fit. One is not enough: kernels
/// divide their work by sizes, so the scratch memory of a larger batch may be smaller.
const MISSES: usize = 3;

/// Returns the largest number of examples for each tower with which a training step of this
/// configuration fits into its memory limit, or else into the available memory. The next larger batch
/// that the model takes does not fit: one more example, or one more group where it needs whole groups
/// ([`virtual_batch_size`](crate::nn::BatchNorm::virtual_batch_size)).
///
/// Asks the engine's plans; nothing is trained, and nothing but the variables is allocated. With a
/// limit ([`TrainConfig::memory_limit`]), parts of the forward pass may be computed again for it, as
/// they are in training. Every batch that is tried is a compilation on XLA devices.
///
/// The first dim of every input is taken for the batch. Inputs with other unknown dims are errors, and
/// so are devices that do not plan memory and asynchronous trainers.
pub fn largest_batch(config: TrainConfig, trainer: impl Into<SingleCostTrainer>) -> Result<usize> {
    let (trainer, run) = set_up(config, trainer)?;
    trainer.largest_batch(run)
}

/// An input of a step: its name, its dtype, and its sizes, `None` for the batch.
pub(super) type Input = (String, DType, Vec<Option<usize>>);

/// Finds the largest batch with which the fetches of a step fit.
pub(super) fn search(
    session: &Session,
    fetches: &[&dyn crate::runtime::IntoFetch],
    inputs: &[Input],
    limit: usize,
) -> Result<usize> {
    let fits = |batch: usize| {
        let sizes: Vec<Vec<usize>> =
            inputs.iter().map(|(_, _, sizes)| sizes.iter().map(|n| n.unwrap_or(batch)).collect()).collect();
        let feeds: Vec<(&str, DType, &[usize])> =
            inputs.iter().zip(&sizes).map(|((name, dtype, _), n)| (&name[..], *dtype, &n[..])).collect();
        session.fits(fetches, &feeds, limit)
    };
    largest(fits)
}

/// Returns the largest batch that `plan` says fits. Asks for each batch once: it may be a compilation.
fn largest(plan: impl Fn(usize) -> Result<bool>) -> Result<usize> {
    let answers = RefCell::new(HashMap::new());
    let fits = |batch: usize| {
        if let Some(&fits) = answers.borrow().get(&batch) {
            return Ok(fits);
        }
        let fits = plan(batch)?;
        answers.borrow_mut().insert(batch, fits);
        Ok(fits)
    };
    let Batches { first, step } = Batches::new(&fits)?;
    let fits = |n: usize| fits(first + n * step);
    if !fits(0)? {
        let examples = if first == 1 { "one example".to_string() } else { format!("{first} examples") };
        return Err(Error::new(ErrorKind::Memory, format!("a batch of {examples} does not fit into memory"))
            .note("use a smaller model, a larger limit, or another device"));
    }
    // The first 2, 4, 8, .. batches that the model takes.
    let (mut fit, mut too_large) = (0, Vec::new());
    for n in (1..).map(|k| (1 << k) - 1).take_while(|n| first + n * step <= MOST) {
        if fits(n)? {
            (fit, too_large) = (n, Vec::new());
        } else {
            too_large.push(n);
        }
        if too_large.len() == MISSES {
            break;
        }
    }
    let Some(&(mut exceeds)) = too_large.first() else {
        let why = format!("{} examples fit into memory", first + fit * step);
        return Err(Error::argument(why).note("no input depends on the batch, or there is no limit"));
    };
    while exceeds - fit > 1 {
        let middle = fit + (exceeds - fit) / 2;
        if fits(middle)? {
            fit = middle;
        } else {
            exceeds = middle;
        }
    }
    Ok(first + fit * step)
}

/// The batches that a model takes: the smallest one, and the distance to the next.
struct Batches {
    first: usize,
    step: usize,
}

impl Batches {
    /// Finds them with `fits`, whose shape errors are batches that the model does not take. If it takes
    /// none, returns the error of one example.
    fn new(fits: &impl Fn(usize) -> Result<bool>) -> Result<Batches> {
        let takes = |batch: usize| match fits(batch) {
            Err(e) if e.kind() == ErrorKind::Shape => Ok(Err(e)),
            fits => fits.map(|_| Ok(())),
        };
        let Err(e) = takes(1)? else { return Ok(Batches { first: 1, step: 1 }) };
        let mut first = 2;
        while takes(first)?.is_err() {
            if first == MOST_FIRST {
                return Err(e);
            }
            first += 1;
        }
        let mut step = 1;
        while step < first && takes(first + step)?.is_err() {
            step += 1;
        }
        Ok(Batches { first, step })
    }
}

/// Returns the limit of a session that is about to be created: that of its options, or the available
/// memory. XLA devices compare with their own free memory.
pub(super) fn limit(options: &SessionOptions) -> usize {
    let on_host = || match options.device {
        crate::runtime::Device::Cpu(_) => available_memory(),
        _ => None,
    };
    options.memory_limit.or_else(on_host).unwrap_or(usize::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the result for a model that takes multiples of `group`, and that no batch is planned twice.
    fn check(group: usize, limit: usize) {
        let asked = RefCell::new(Vec::new());
        let plan = |batch: usize| {
            asked.borrow_mut().push(batch);
            if batch.is_multiple_of(group) { Ok(batch <= limit) } else { Err(Error::shape("groups")) }
        };
        assert_eq!(largest(plan).unwrap(), limit / group * group);
        let mut asked = asked.into_inner();
        let all = asked.len();
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked.len(), all, "groups of {group}, limit {limit}");
    }

    #[test]
    fn every_batch_is_planned_once() {
        check(1, 1);
        check(1, 1000);
        check(4, 4);
        check(4, 101);
    }
}
