//! Inference towers that run concurrently, each on its own batch.

use super::feed_errors::{explain_feeds, wrong_component_count};
use crate::graph::{Fetch, nearest_names};
use crate::runtime::{IntoFetch, MAX_FEEDS, Prepared, Session};
use crate::tower::TowerHandle;
use std::sync::OnceLock;
use tensorpack_tensor::{Error, HostTensor, Result};

/// The feeds of one tower, by name, and its fetches.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) inputs: Vec<String>,
    pub(crate) fetches: Vec<Fetch>,
}

impl Part {
    /// Returns the feeds and fetches of a tower: these inputs (all of them by default) and outputs.
    pub(crate) fn of_tower(
        tower: &TowerHandle,
        inputs: Option<&[String]>,
        outputs: &[String],
    ) -> Result<Part> {
        let input = |name: &String| {
            let found = tower.inputs().iter().find(|(have, _)| have == name);
            let missing = || {
                let known = tower.inputs().iter().map(|(name, _)| name.as_str());
                Error::argument(format!("the model has no input named {name:?}"))
                    .note(nearest_names("inputs", name, known))
            };
            found.map(|(_, tensor)| tensor.name()).ok_or_else(missing)
        };
        let inputs = match inputs {
            Some(names) => names.iter().map(input).collect::<Result<_>>()?,
            None => tower.inputs().iter().map(|(_, tensor)| tensor.name()).collect(),
        };
        let fetch = |name: &String| tower.get_tensor(name).map(|tensor| Fetch::from(&tensor));
        Ok(Part { inputs, fetches: outputs.iter().map(fetch).collect::<Result<_>>()? })
    }
}

/// Identical, independent towers. A run may use only the first few.
#[derive(Debug, Default)]
pub(crate) struct ParallelTowers {
    parts: Vec<Part>,
    /// The prepared fetches of the first tower, of the first two, and so on. The first run creates
    /// them, because it supplies the session.
    prepared: OnceLock<Vec<Prepared>>,
}

impl ParallelTowers {
    /// Creates the towers. Returns an error if one run cannot feed all their inputs.
    pub(crate) fn new(parts: Vec<Part>) -> Result<ParallelTowers> {
        let inputs: usize = parts.iter().map(|part| part.inputs.len()).sum();
        if inputs > MAX_FEEDS {
            let why = format!("{} towers have {inputs} inputs in total, but a run takes", parts.len());
            return Err(Error::argument(format!("{why} at most {MAX_FEEDS}")).note("use fewer towers"));
        }
        Ok(ParallelTowers { parts, prepared: OnceLock::new() })
    }

    /// Returns the number of towers.
    pub(crate) fn count(&self) -> usize {
        self.parts.len()
    }

    /// Runs the first towers on these batches, one each, and appends all values to `outputs`, in
    /// tower order.
    pub(crate) fn run(
        &self,
        session: &Session,
        batches: &[&[HostTensor]],
        outputs: &mut Vec<HostTensor>,
    ) -> Result<()> {
        let mut feeds: Vec<(&str, &HostTensor)> = Vec::new();
        for (i, (part, &batch)) in self.parts.iter().zip(batches).enumerate() {
            if batch.len() != part.inputs.len() {
                let inputs: Vec<&str> = part.inputs.iter().map(String::as_str).collect();
                let e = wrong_component_count("a sample", batch.len(), &inputs);
                return Err(if batches.len() == 1 { e } else { e.within(format!("tower {i}")) });
            }
            feeds.extend(part.inputs.iter().map(String::as_str).zip(batch));
        }
        session
            .run_prepared(&self.prepared(session)?[batches.len() - 1], &feeds, outputs)
            .map_err(|e| explain_feeds(session, &feeds, e))
    }

    fn prepared(&self, session: &Session) -> Result<&[Prepared]> {
        if let Some(prepared) = self.prepared.get() {
            return Ok(prepared);
        }
        let first = |count: usize| {
            let fetches = self.parts[..count].iter().flat_map(|part| &part.fetches);
            session.prepare(&fetches.map(|f| f as &dyn IntoFetch).collect::<Vec<_>>())
        };
        let prepared = (1..=self.count()).map(first).collect::<Result<_>>()?;
        Ok(self.prepared.get_or_init(|| prepared))
    }
}
