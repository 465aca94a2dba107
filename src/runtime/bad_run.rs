//! What was wrong with a run in which something was not finite.

use super::binding::variables_read;
use super::executor::{Feed, RunInfo};
use super::lowering::Source;
use super::session::{Session, State, check_finite_feeds, is_finite, request};
use crate::graph::Fetch;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tensorpack_tensor::{Error, ErrorKind, HostTensor};

impl Session {
    /// The error of a run in which something was not finite.
    pub(super) fn bad_run(
        &self,
        state: &mut State,
        fetches: &[Fetch],
        feeds: &[(&str, &HostTensor)],
        run: &RunInfo,
    ) -> Error {
        if let Err(fed) = check_finite_feeds(feeds) {
            return fed;
        }
        // What searches is a run as well, and users' kernels may do anything in it.
        let named = catch_unwind(AssertUnwindSafe(|| self.name_the_bad(state, fetches, feeds, run)));
        let named = named.unwrap_or_else(|panic| state.poison(&*panic));
        state.end_if_lost(named)
    }

    /// Runs again, result by result, to say which one is the first that is not finite. Variables are untouched, and
    /// random operations draw the same again.
    fn name_the_bad(
        &self,
        state: &mut State,
        fetches: &[Fetch],
        feeds: &[(&str, &HostTensor)],
        run: &RunInfo,
    ) -> Error {
        let values: Vec<Feed<'_>> = feeds.iter().map(|(_, value)| *value).collect();
        let bad = |what: &str| Error::new(ErrorKind::NotFinite, what);
        let mut search = || {
            let request = request(fetches, feeds);
            // Only variables that the run reads: others may be infinite for a reason.
            for i in variables_read(self.graph(), &request)? {
                let v = &self.graph().variables()[i];
                if v.dtype.is_float() && !is_finite(&state.executor.read(i)?) {
                    return Ok(Some(bad(&format!("the variable {} is not finite", v.name)).at(v.site)));
                }
            }
            state.executor.find_bad(&Source::new(&self.graph, &request, self.reading), run, &values)
        };
        let e = match search() {
            Ok(found) => {
                found.unwrap_or_else(|| bad("a gradient or cost is not finite, though each result alone is"))
            }
            // Searching takes more memory than running. That is not what went wrong.
            Err(e) => bad("a gradient or cost is not finite").note(format!("which one was not found: {e}")),
        };
        e.note("no variable was changed by this run")
    }
}
