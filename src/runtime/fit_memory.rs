//! Compilation within a memory limit: if a program does not fit, parts of its forward pass are
//! computed again.

use super::executor::Executor;
use super::lowering::Source;
use super::memory_limit::{human, human_pair};
use super::segments::{Segment, Segments};
use std::collections::HashMap;
use tensorpack_tensor::{ErrorKind, Result};

/// A way to save memory.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) choice: Segments,
    /// The segments of the first tower that are computed again.
    pub(super) segments: Vec<Segment>,
    /// The estimated memory; the engine's plan decides.
    pub(super) peak: usize,
}

impl Candidate {
    pub(super) fn multiply_adds(&self) -> usize {
        self.segments.iter().fold(0, |n, segment| n.saturating_add(segment.multiply_adds))
    }
}

/// Compiles a program. If it does not fit into an explicit limit, compiles the one with the fewest
/// multiply-adds that fits and computes results again. The error, if none fits, has the smallest.
pub(super) fn compile_within<T>(
    executor: &mut dyn Executor,
    source: &Source<'_>,
    limit: Option<usize>,
    compile: impl Fn(&mut dyn Executor, &Source<'_>) -> Result<T>,
) -> Result<T> {
    let compiled = compile(executor, source);
    let (Some(limit), Err(e)) = (limit, &compiled) else { return compiled };
    if e.kind() != ErrorKind::Memory {
        return compiled;
    }
    let candidates = frontier(source.recompute_candidates()?);
    let Some(found) = cheapest_fitting(executor, source, limit, &candidates)? else { return compiled };
    match found {
        Found::Fits(at) => {
            let Candidate { choice, segments, .. } = &candidates[at];
            report(segments, limit);
            compile(executor, &source.recomputing(*choice))
        }
        Found::Smallest(bytes, at) => {
            let count = candidates[at].segments.len();
            let [bytes, _] = human_pair(bytes, limit);
            compiled.map_err(|e| {
                e.note(format!(
                    "the smallest plan, which computes {count} segments of the forward pass again, takes {bytes}"
                ))
            })
        }
    }
}

/// Returns the planned bytes of a program within a limit: those of the program itself if it fits,
/// otherwise of the one that computes results again. `None` if nothing fits.
pub(super) fn planned_within(
    executor: &mut dyn Executor,
    source: &Source<'_>,
    limit: usize,
) -> Result<Option<usize>> {
    let bytes = planned(executor, source)?;
    if bytes <= limit {
        return Ok(Some(bytes));
    }
    let candidates = frontier(source.recompute_candidates()?);
    match cheapest_fitting(executor, source, limit, &candidates)? {
        Some(Found::Fits(at)) => executor.planned_bytes(&source.recomputing(candidates[at].choice)).map(Some),
        _ => Ok(None),
    }
}

/// Returns the planned bytes of a program, `usize::MAX` if the engine finds that it cannot fit.
pub(super) fn planned(executor: &mut dyn Executor, source: &Source<'_>) -> Result<usize> {
    match executor.planned_bytes(source) {
        Err(e) if e.kind() == ErrorKind::Memory => Ok(usize::MAX),
        planned => planned,
    }
}

/// The number of candidates with the smallest estimates that are planned before an error: on XLA each
/// is a compilation.
const LAST: usize = 6;

enum Found {
    /// The index of the candidate that fits.
    Fits(usize),
    /// The planned bytes of the smallest candidate, none of which fits, and its index.
    Smallest(usize, usize),
}

/// Returns the candidates that no other one beats in both multiply-adds and memory, cheapest first.
fn frontier(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    candidates.sort_by_key(|c| (c.multiply_adds(), c.peak));
    let mut best = usize::MAX;
    candidates.retain(|c| {
        let better = c.peak < best;
        best = best.min(c.peak);
        better
    });
    candidates
}

/// Searches for the cheapest candidate that fits, or returns the smallest. `None` if there are no
/// candidates.
fn cheapest_fitting(
    executor: &mut dyn Executor,
    source: &Source<'_>,
    limit: usize,
    candidates: &[Candidate],
) -> Result<Option<Found>> {
    let mut known: HashMap<usize, usize> = HashMap::new();
    let mut planned = |at: usize| -> Result<usize> {
        if let Some(&bytes) = known.get(&at) {
            return Ok(bytes);
        }
        let bytes = planned(executor, &source.recomputing(candidates[at].choice))?;
        known.insert(at, bytes);
        Ok(bytes)
    };
    // Estimates fall along the frontier, and so does the planned memory as a rule: bisect.
    let (mut low, mut high) = (0, candidates.len());
    while low < high {
        let middle = (low + high) / 2;
        if planned(middle)? <= limit {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    if low < candidates.len() {
        return Ok(Some(Found::Fits(low)));
    }
    let mut smallest: Option<(usize, usize)> = None;
    for at in candidates.len().saturating_sub(LAST)..candidates.len() {
        let bytes = planned(at)?;
        if bytes <= limit {
            return Ok(Some(Found::Fits(at)));
        }
        smallest = smallest.into_iter().chain([(bytes, at)]).min();
    }
    Ok(smallest.map(|(bytes, at)| Found::Smallest(bytes, at)))
}

/// Logs what is computed again.
fn report(segments: &[Segment], limit: usize) {
    let saved = segments.iter().fold(0usize, |n, s| n.saturating_add(s.saved));
    let multiply_adds = segments.iter().fold(0usize, |n, s| n.saturating_add(s.multiply_adds));
    log::info!(
        "memory limit of {}: {} segments of the forward pass are computed again: {}, {multiply_adds} multiply-adds",
        human(limit),
        segments.len(),
        human(saved)
    );
    for Segment { saved, multiply_adds, names: [first, last], .. } in segments {
        log::info!("  {first} to {last}: {}, {multiply_adds} multiply-adds", human(*saved));
    }
}
