//! Copies of variables from one part of a model to another.

use super::{Graph, MODEL_VARIABLES, Op, TRAINABLE_VARIABLES, VariableInfo};
use std::collections::BTreeMap;
use tensorpack_tensor::{Error, ErrorKind, Result};

impl Graph {
    /// Returns an operation that copies every variable under `from/` to the variable of the same
    /// name under `to/`, such as the weights of an online network to its target network. It copies
    /// the values that the variables have at the start of the run.
    ///
    /// Both parts must have the same variables (those that inference needs), with the same dtypes
    /// and sizes; otherwise the error lists all differences.
    ///
    /// ```
    /// use tensorpack::callback::RunOp;
    /// use tensorpack::prelude::*;
    ///
    /// // Once before training, and again at every trigger.
    /// let update = RunOp::new(|g| Ok(g.graph().copy_variables("online", "target")));
    /// # let _ = update;
    /// ```
    #[track_caller]
    pub fn copy_variables(&self, from: &str, to: &str) -> Op {
        match self.pairs_to_copy(from, to) {
            Ok(pairs) => {
                let mut copies = Vec::new();
                // A closure would not pass on the caller's line.
                for (from, to) in &pairs {
                    if let (Some(from), Some(to)) = (self.variable_named(from), self.variable_named(to)) {
                        copies.push(to.assign(from.value()));
                    }
                }
                self.group(&copies.iter().collect::<Vec<_>>())
            }
            Err(e) => {
                self.record("copy_variables", &[], e);
                Op::poison(self)
            }
        }
    }

    /// Returns the names of the variables to copy, and where to.
    fn pairs_to_copy(&self, from: &str, to: &str) -> Result<Vec<(String, String)>> {
        let [from, to] = [from, to].map(|scope| scope.trim_end_matches('/'));
        if from == to {
            return Err(Error::argument(format!("cannot copy the variables of {from:?} to themselves")));
        }
        let [sources, targets] = [from, to].map(|scope| self.model_variables_under(scope));
        for (scope, found) in [(from, &sources), (to, &targets)] {
            if found.is_empty() {
                let why = format!("there are no variables under {scope:?} to copy");
                return Err(Error::new(ErrorKind::Name, why)
                    .note("build both parts of the model before copy_variables, each in its scope"));
            }
        }
        let mut differences = Vec::new();
        for (name, v) in &sources {
            match targets.get(name) {
                None => differences.push(format!("{to}/{name} does not exist")),
                Some(t) if (t.dtype, &t.sizes) != (v.dtype, &v.sizes) => {
                    let (there, here) =
                        (format!("{}{:?}", t.dtype, t.sizes), format!("{}{:?}", v.dtype, v.sizes));
                    differences.push(format!("{to}/{name} is {there}, but {from}/{name} is {here}"));
                }
                Some(_) => {}
            }
        }
        let unmatched = targets.keys().filter(|name| !sources.contains_key(*name));
        differences.extend(unmatched.map(|name| format!("{from}/{name} does not exist")));
        if !differences.is_empty() {
            let why = format!("the variables under {from:?} and {to:?} differ");
            return Err(differences.into_iter().fold(Error::new(ErrorKind::Name, why), Error::note));
        }
        Ok(sources.keys().map(|name| (format!("{from}/{name}"), format!("{to}/{name}"))).collect())
    }

    /// Returns the variables under `scope/` that inference needs, by their names inside the scope.
    fn model_variables_under(&self, scope: &str) -> BTreeMap<String, VariableInfo> {
        let mut ids = self.collection(TRAINABLE_VARIABLES).variables;
        ids.extend(self.collection(MODEL_VARIABLES).variables);
        let inside = |v: VariableInfo| {
            let name = v.name.strip_prefix(scope)?.strip_prefix('/')?.to_string();
            Some((name, v))
        };
        ids.into_iter().filter_map(|id| self.variable_info(id)).filter_map(inside).collect()
    }
}
