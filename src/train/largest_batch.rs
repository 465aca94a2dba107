//! The largest batch that fits into memory.

use super::launch::set_up;
use super::{SingleCostTrainer, TrainConfig};
use crate::runtime::{Session, SessionOptions, available_memory};
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// No plan is asked for more examples than this.
const MOST: usize = 1 << 24;
/// The search ends after this many powers of two in a row that do not fit. One is not enough: kernels
/// divide their work by sizes, so the scratch memory of a larger batch may be smaller.
const MISSES: usize = 3;

/// Returns the largest number of examples for each tower with which a training step of this
/// configuration fits into its memory limit, or else into the available memory. One more does not
/// fit.
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
    if !fits(1)? {
        return Err(Error::new(ErrorKind::Memory, "a batch of one example does not fit into memory")
            .note("use a smaller model, a larger limit, or another device"));
    }
    let (mut fit, mut too_large) = (1, Vec::new());
    for batch in (1..).map(|n| 1 << n).take_while(|n| *n <= MOST) {
        if fits(batch)? {
            (fit, too_large) = (batch, Vec::new());
        } else {
            too_large.push(batch);
        }
        if too_large.len() == MISSES {
            break;
        }
    }
    let Some(&(mut exceeds)) = too_large.first() else {
        let why = format!("{MOST} examples fit into memory");
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
    Ok(fit)
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
