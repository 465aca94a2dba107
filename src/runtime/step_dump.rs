//! All tensors of a step, to look at one that went wrong.

use super::executor::{Feed, Outcome, RunInfo};
use super::lowering::Source;
use super::reference;
use super::session::{Session, is_finite, request};
use crate::graph::{Fetch, NodeKind, TensorId};
use std::collections::{BTreeSet, HashMap};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result, Site};

/// The tensors that a step computes before its first update of a variable.
pub(crate) struct StepDump {
    /// The tensors by name, in the order in which they were built. Further outputs of an operation are
    /// called `NAME:1` and so on.
    pub(crate) tensors: Vec<(String, HostTensor)>,
    /// The first tensor that is not finite although what it is computed from is, and its line.
    pub(crate) first_not_finite: Option<(String, Site)>,
}

impl Session {
    /// Computes every tensor that `what` depends on, with the random numbers of the next step. No
    /// variable changes, and nothing is checked. In f64, the reference engine computes them from the
    /// variables of this session.
    pub(crate) fn dump_step(
        &self,
        what: &Fetch,
        feeds: &[(&str, &HostTensor)],
        in_f64: bool,
    ) -> Result<StepDump> {
        let tensors = self.tensors_behind(what);
        let fetches: Vec<Fetch> = tensors.iter().map(|&t| self.fetch_of(t)).collect();
        let mut state = self.lock()?;
        let run = RunInfo { seed: self.options().seed, draw: state.run_index };
        let fed: Vec<Feed<'_>> = feeds.iter().map(|(_, value)| *value).collect();
        let mut values = Vec::new();
        if in_f64 {
            let variables = (0..self.graph().variables().len()).map(|i| state.executor.read(i));
            let variables: Vec<HostTensor> = variables.collect::<Result<_>>()?;
            let request = request(&fetches, feeds);
            let source = Source::new(&self.graph, &request, self.reading);
            values = reference::evaluate_in_f64(&source, &variables, &run, &fed)?;
        } else {
            let at = state.program(self, &fetches, feeds)?;
            if let Outcome::NotFinite = state.programs[at].executable.run(&run, &fed, &mut values)? {
                let why = "an input of the step is not finite, and this device computes nothing from it";
                return Err(Error::new(ErrorKind::NotFinite, why).note("use --f64"));
            }
        }
        let first_not_finite = self.first_not_finite(&tensors, &values);
        let tensors = fetches.into_iter().map(|fetch| fetch.name).zip(values).collect();
        Ok(StepDump { tensors, first_not_finite })
    }

    /// Returns the tensors that a fetch depends on, in the order in which they were built, without
    /// those that are computed from updated variables: nothing is updated.
    fn tensors_behind(&self, what: &Fetch) -> Vec<TensorId> {
        let graph = self.graph();
        let mut seen = BTreeSet::new();
        let mut stack = vec![what.node];
        while let Some(id) = stack.pop() {
            if seen.insert(id) {
                let node = graph.node(id);
                let others = node.runs.iter().chain(&node.costs).copied();
                stack.extend(node.inputs.iter().map(|t| t.node).chain(others));
            }
        }
        let mut updated = BTreeSet::new();
        let mut tensors = Vec::new();
        // Nodes are numbered in the order in which they were built, so inputs come first.
        for node in seen {
            let about = graph.node(node);
            let reads_updated = about.inputs.iter().any(|t| updated.contains(&t.node));
            match about.kind {
                NodeKind::Current(_) => drop(updated.insert(node)),
                _ if reads_updated => drop(updated.insert(node)),
                NodeKind::Assign { .. } | NodeKind::Group => {}
                _ => tensors.extend((0..about.outputs.len() as u32).map(|output| TensorId { node, output })),
            }
        }
        tensors
    }

    fn fetch_of(&self, t: TensorId) -> Fetch {
        let name = &self.graph().node(t.node).name;
        let name = if t.output == 0 { name.clone() } else { format!("{name}:{}", t.output) };
        Fetch { graph: self.graph().uid(), node: t.node, output: Some(t.output), name }
    }

    /// Constants may be infinite on purpose, so a tensor that is computed from nothing is not named.
    fn first_not_finite(&self, tensors: &[TensorId], values: &[HostTensor]) -> Option<(String, Site)> {
        let finite: HashMap<TensorId, bool> = tensors
            .iter()
            .zip(values)
            .map(|(&t, value)| (t, !value.dtype().is_float() || is_finite(value)))
            .collect();
        let node = |t: &TensorId| self.graph().node(t.node);
        let is_bad = |t: &&TensorId| {
            !finite[*t] && (!node(t).inputs.is_empty() || matches!(node(t).kind, NodeKind::Placeholder))
        };
        let starts = |t: &&TensorId| node(t).inputs.iter().all(|input| finite.get(input) != Some(&false));
        let first = tensors.iter().filter(is_bad).find(starts).or_else(|| tensors.iter().find(is_bad))?;
        Some((self.fetch_of(*first).name, node(first).site))
    }
}
