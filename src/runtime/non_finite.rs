//! Finds the first result that was not finite in a failed run.

use super::binding::variables_read;
use super::executor::{Feed, RunInfo};
use super::lowering::{Lowered, Source};
use super::session::{Session, State, check_finite_feeds, is_finite, request};
use super::value_errors::next_value_not_finite;
use crate::distributed::ProcessGroup;
use crate::graph::{Fetch, VariableInfo};
use crate::kir::BufferKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tensorpack_tensor::{Error, ErrorKind, HostTensor};

impl Session {
    /// Returns the error of a run in which a value was not finite.
    pub(super) fn explain_non_finite(
        &self,
        state: &mut State,
        fetches: &[Fetch],
        feeds: &[(&str, &HostTensor)],
        run: &RunInfo,
    ) -> Error {
        let fed = check_finite_feeds(self.graph(), feeds).err();
        if let Some(fed) = &fed
            && !self.has_other_processes()
        {
            return fed.clone();
        }
        // The search is a run as well, and custom kernels may panic in it.
        let named = catch_unwind(AssertUnwindSafe(|| self.find_first_non_finite(state, fetches, feeds, run)));
        let named = named.unwrap_or_else(|panic| state.poison(&*panic));
        let named = state.end_if_lost(named);
        fed.filter(|_| named.kind() == ErrorKind::NotFinite).unwrap_or(named)
    }

    /// Returns whether other processes train together with this one. They search, too, and the
    /// search contains the all-reduces of the run: either all processes search or none.
    fn has_other_processes(&self) -> bool {
        self.other_processes().is_some()
    }

    fn other_processes(&self) -> Option<&ProcessGroup> {
        self.options.process_group.as_deref().filter(|group| group.size() > 1)
    }

    /// Runs the program again, result by result, and returns an error that names the first result
    /// that is not finite. Variables do not change, and random operations draw the same numbers.
    fn find_first_non_finite(
        &self,
        state: &mut State,
        fetches: &[Fetch],
        feeds: &[(&str, &HostTensor)],
        run: &RunInfo,
    ) -> Error {
        let values: Vec<Feed<'_>> = feeds.iter().map(|(_, value)| *value).collect();
        let bad = |what: &str| Error::new(ErrorKind::NotFinite, what);
        let group = self.other_processes();
        let several = group.is_some();
        let mut search = || {
            let request = request(fetches, feeds);
            let source = Source::new(&self.graph, &request, self.reading);
            // Only variables that the run reads and that are initialized finite: others may be
            // infinite intentionally.
            let mut variable = None;
            for i in variables_read(self.graph(), &request)? {
                let v = &self.graph().variables()[i];
                if v.dtype.is_float() && v.init.is_finite(v.dtype) && !is_finite(&state.executor.read(i)?) {
                    variable = Some(bad(&format!("the variable {} is not finite", v.name)).at(v.site));
                    break;
                }
            }
            let lowered = source.lower()?;
            let constant = || assigned_constant(&lowered, self.graph().variables());
            let known = variable.or_else(|| constant().map(|v| next_value_not_finite(&v.name).at(v.site)));
            if known.is_some() && !several {
                return Ok(known);
            }
            let found = state.executor.find_non_finite(&source, run, &values)?;
            Ok(known.or(found))
        };
        let found = search();
        if let (Ok(_), Some(group)) = (&found, group) {
            // A process that fails ends the search of the others, which may know the result. If one
            // of them does not come, what this one found is still right.
            let _ = group.barrier("search", self.deadline());
        }
        let e = match found {
            Ok(Some(found)) => found,
            Ok(None) if several => match group.and_then(ProcessGroup::wait_for_cause) {
                Some(cause) => return cause,
                None => bad("a gradient or cost is not finite in another process")
                    .note("the error of that process names the result"),
            },
            Ok(None) => bad("a gradient or cost is not finite, but no result of the search is"),
            // The others may have searched: this process must not go on without them.
            Err(e) if several => return e,
            // The search needs more memory than the run; its failure is not the cause.
            Err(e) => {
                bad("a gradient or cost is not finite").note(format!("the search for the result failed: {e}"))
            }
        };
        let request = request(fetches, feeds);
        let updates = Source::new(&self.graph, &request, self.reading).updates().unwrap_or_default();
        let e = match updates.iter().any(|&v| self.graph().variables()[v].on_overflow.is_some()) {
            true => e.note("the loss scale of f16 is at its smallest value, so scaling is not the cause"),
            false => e,
        };
        e.note("no variable was changed by this run")
    }
}

/// Returns the variable that is assigned a non-finite constant, which no kernel computes.
fn assigned_constant<'a>(lowered: &Lowered, variables: &'a [VariableInfo]) -> Option<&'a VariableInfo> {
    lowered.programs().iter().find_map(|program| {
        let bad = program.updates.iter().filter(|u| u.finite).find(
            |u| matches!(&program.buffer(u.value.buffer).kind, BufferKind::Constant(t) if !is_finite(t)),
        );
        bad.map(|u| &variables[u.variable])
    })
}
