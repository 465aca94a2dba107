//! Inference towers that run at the same time, each on a batch of its own.

use crate::graph::Fetch;
use crate::runtime::{IntoFetch, MAX_FEEDS, Prepared, Session};
use std::sync::OnceLock;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// What one of the towers is fed with, by name, and what is wanted of it.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) inputs: Vec<String>,
    pub(crate) fetches: Vec<Fetch>,
}

/// The towers. They are alike, and know nothing of each other: a run may leave the last ones out.
#[derive(Debug, Default)]
pub(crate) struct ParallelTowers {
    parts: Vec<Part>,
    /// What the first tower fetches, what the first two do, and so on: checked when the first run brings a session.
    prepared: OnceLock<Vec<Prepared>>,
}

impl ParallelTowers {
    /// Too many for one run are an error.
    pub(crate) fn new(parts: Vec<Part>) -> Result<ParallelTowers> {
        let inputs: usize = parts.iter().map(|part| part.inputs.len()).sum();
        if inputs > MAX_FEEDS {
            let why = format!("{} towers have {inputs} inputs together, but a run takes", parts.len());
            return Err(Error::argument(format!("{why} at most {MAX_FEEDS}")).note("use fewer towers"));
        }
        Ok(ParallelTowers { parts, prepared: OnceLock::new() })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.parts.len()
    }

    /// Runs the first towers on these batches, one each. The values of all go to `outputs`, tower after tower.
    pub(crate) fn run(
        &self,
        session: &Session,
        batches: &[&[HostTensor]],
        outputs: &mut Vec<HostTensor>,
    ) -> Result<()> {
        let mut feeds: Vec<(&str, &HostTensor)> = Vec::new();
        for (i, (part, &batch)) in self.parts.iter().zip(batches).enumerate() {
            let (has, takes) = (batch.len(), part.inputs.len());
            if has != takes {
                let why = format!("a sample has {has} components, but the model takes {takes} inputs");
                let e = Error::new(ErrorKind::Data, why);
                return Err(if batches.len() == 1 { e } else { e.within(format!("tower {i}")) });
            }
            feeds.extend(part.inputs.iter().map(String::as_str).zip(batch));
        }
        session.run_prepared(&self.prepared(session)?[batches.len() - 1], &feeds, outputs)
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
