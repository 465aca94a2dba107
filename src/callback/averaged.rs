//! Moving averages in the place of variables, for a while.

use crate::graph::Frozen;
use crate::runtime::Session;
use std::collections::HashSet;
use tensorpack_tensor::{HostTensor, Result};

/// While it lives, the variables of a session that have a moving average hold it. Then they are put back as they were,
/// whatever happened in between.
pub(super) struct Averaged<'a> {
    session: &'a Session,
    kept: Vec<(String, HostTensor)>,
}

/// The average of `NAME` is the variable `EMA/NAME`.
pub(super) const PREFIX: &str = "EMA/";
/// What is left of the first values in the averages; 1 as long as there are none.
const POWER: &str = "ema_decay_power";

impl Averaged<'_> {
    /// Puts the averages in place. Before the first update there are none, and variables stay.
    pub(super) fn begin(session: &Session) -> Result<Averaged<'_>> {
        let mut averaged = Averaged { session, kept: Vec::new() };
        let variables = session.graph().variables();
        if variables.iter().any(|v| v.name == POWER) && session.read(POWER)?.to_scalar()? == 1.0 {
            return Ok(averaged);
        }
        for name in names(session.graph()) {
            let average = session.read(&format!("{PREFIX}{name}"))?;
            averaged.kept.push((name.to_string(), session.read(name)?));
            session.write(name, &average)?;
        }
        Ok(averaged)
    }

    /// Puts the variables back.
    pub(super) fn end(mut self) -> Result<()> {
        self.put_back()
    }

    /// All of them, even if one fails; the first error is returned.
    fn put_back(&mut self) -> Result<()> {
        let mut first = Ok(());
        for (name, value) in self.kept.drain(..) {
            first = first.and(self.session.write(&name, &value));
        }
        first
    }
}

impl Drop for Averaged<'_> {
    fn drop(&mut self) {
        // There is an error already, or nothing left to do.
        if let Err(e) = self.put_back() {
            log::error!("variables could not be put back: {e}");
        }
    }
}

/// The variables that have an average.
fn names(graph: &Frozen) -> Vec<&str> {
    let all: HashSet<&str> = graph.variables().iter().map(|v| v.name.as_str()).collect();
    all.iter().filter_map(|n| n.strip_prefix(PREFIX)).filter(|n| all.contains(n)).collect()
}
