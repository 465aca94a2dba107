//! Several steps in one module: a loop over the batches of a launch that carries the variables.

use super::module::{Argument, Module, ModuleWriter, StepResults};
use super::stablehlo::{Element, Value, array};
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// How many steps a launch runs, and what it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepsPerLaunch {
    /// The largest number of steps.
    pub(super) most: usize,
    /// The i64 variable that holds the number of the step, if the graph has one. The loop advances
    /// it.
    pub(super) counter: Option<usize>,
}

/// What the loop carries from step to step.
struct Carried {
    /// The index of the step within the launch.
    index: Value,
    /// Whether steps still change variables.
    active: Value,
    /// The number of steps in a row that were skipped.
    skipped: Value,
    /// The number of the step in the graph, if it is counted there.
    counter: Option<Value>,
    variables: Vec<Value>,
    /// The fetches of all steps that are no scalars.
    tensors: Vec<Value>,
    report: Value,
}

impl Carried {
    fn list(&self) -> Vec<Value> {
        let scalars = [&self.index, &self.active, &self.skipped].into_iter().chain(&self.counter);
        scalars.chain(&self.variables).chain(&self.tensors).chain([&self.report]).cloned().collect()
    }
}

impl ModuleWriter<'_> {
    /// Declares a feed of every step. Returns them stacked: each batch is uploaded by itself, so
    /// that a launch can begin and end at any of them, and the device stacks them.
    pub(super) fn step_feeds(&mut self, feed: usize, most: usize, dtype: DType, sizes: &[usize]) -> Value {
        let one: Vec<usize> = std::iter::once(1).chain(sizes.iter().copied()).collect();
        let all: Vec<usize> = std::iter::once(most).chain(sizes.iter().copied()).collect();
        let fed: Vec<Value> = (0..most)
            .map(|step| {
                let value = self.argument(Argument::StepFeed(step, feed), dtype, sizes);
                self.w.reshape(&value, &one)
            })
            .collect();
        let stacked =
            self.w.op("concatenate", &fed.iter().collect::<Vec<_>>(), "dimension = 0 : i64", dtype, &all);
        self.feeds.push((feed, stacked.clone()));
        stacked
    }

    /// Finishes with a loop over the steps. The results are those of one step, with fetches and
    /// report stacked.
    ///
    /// The loop always makes the largest number of iterations, because on a GPU XLA would otherwise wait
    /// on the host for the condition of each. In a launch of fewer steps the last ones change nothing.
    ///
    /// A step whose check fails changes nothing. As long as no more steps in a row fail than may be
    /// skipped, the following ones run on; then, and after a bad index, no step changes anything. A step
    /// that overflows and has rules for it does not count.
    pub(super) fn run_steps(mut self, steps: StepsPerLaunch) -> Result<Module> {
        let most = steps.most;
        let mut updated = self.updated();
        let Some(prior) = self.prior_steps_ok.clone().filter(|_| !updated.is_empty()) else {
            let why = "several steps in one launch update no variable";
            return Err(Error::new(ErrorKind::Unsupported, why));
        };
        let counter = steps.counter.filter(|v| !updated.contains(v));
        let count = self.argument(Argument::Steps, DType::I64, &[]);
        let limit = self.argument(Argument::SkipLimit, DType::I64, &[]);
        let skipped_before = self.argument(Argument::SkippedBefore, DType::I64, &[]);
        let first_count = counter.map(|v| match self.variables.get(&v) {
            Some(value) => value.clone(),
            None => self.argument(Argument::Variable(v), DType::I64, &[]),
        });
        let before: Vec<Value> = updated.iter().map(|v| self.variables[v].clone()).collect();

        // The body first: the sizes of what it returns are not known before.
        let outer = self.w.begin_region();
        let index = self.w.argument(DType::I64, &[]);
        let active = self.w.argument(DType::Bool, &[]);
        let skipped = self.w.argument(DType::I64, &[]);
        let counted = first_count.as_ref().map(|_| self.w.argument(DType::I64, &[]));
        let mut variables = Vec::new();
        for value in &before {
            variables.push(self.w.argument(value.element, &value.sizes));
        }
        for (v, current) in updated.iter().zip(&variables).chain(counter.iter().zip(&counted)) {
            let Some(old) = self.variables.insert(*v, current.clone()) else { continue };
            self.values
                .values_mut()
                .filter(|value| **value == old)
                .for_each(|value| *value = current.clone());
        }
        self.take_batch(&index);
        if let (Some(draw), Some(key)) = (&self.draw, &mut self.key) {
            let draw = self.w.like("add", &[draw, &index]);
            key.draw = self.w.op("bitcast_convert", &[&draw], "", Element::U64, &[]);
        }
        self.kernels()?;
        let StepResults { ok, indices_ok, next, fetches, tensors: fetched, reported, scalars } =
            self.step_results();
        // Beyond the steps of this launch nothing is changed, and so nothing is checked.
        let runs = self.w.compare("LT", &index, &count);
        let counts = self.w.like("and", &[&runs, &active]);
        let skips = self.skips(&ok, &[&indices_ok, &counts]);
        let row = self.report(&reported, skips.as_ref(), scalars);
        let stack = |value: &Value| -> Vec<usize> {
            std::iter::once(most).chain(value.sizes.iter().copied()).collect()
        };
        let stacks: Vec<Value> =
            fetched.iter().map(|value| self.w.argument(value.element, &stack(value))).collect();
        let reports = self.w.argument(row.element, &stack(&row));

        let one = self.w.integer(1, DType::I64, &[]);
        let zero = self.w.integer(0, DType::I64, &[]);
        let take = self.w.like("and", &[&ok, &counts]);
        let more = self.w.like("add", &[&skipped, &one]);
        let mut now_skipped = self.w.select(&ok, &zero, &more);
        if let Some(skips) = &skips {
            // A step that overflows and is skipped is no failure.
            now_skipped = self.w.select(skips, &skipped, &now_skipped);
        }
        let now_skipped = self.w.select(&runs, &now_skipped, &skipped);
        let few = self.w.compare("LE", &now_skipped, &limit);
        let goes_on = self.w.like("and", &[&few, &indices_ok]);
        let yes = self.w.splat(1.0, DType::Bool, &[]);
        let goes_on = self.w.select(&runs, &goes_on, &yes);
        let still_active = self.w.like("and", &[&active, &goes_on]);
        let counter_next = counted.as_ref().map(|counted| {
            let next = self.w.like("add", &[counted, &one]);
            let advances = self.w.like("and", &[&still_active, &runs]);
            self.w.select(&advances, &next, counted)
        });
        let after = Carried {
            index: self.w.like("add", &[&index, &one]),
            active: still_active,
            skipped: now_skipped,
            counter: counter_next,
            variables: self.commit(&next, &take, skips.as_ref()),
            tensors: stacks.iter().zip(&fetched).map(|(all, row)| self.store_row(all, row, &index)).collect(),
            report: self.store_row(&reports, &row, &index),
        };
        let carried = Carried {
            index,
            active,
            skipped,
            counter: counted,
            variables,
            tensors: stacks.clone(),
            report: reports.clone(),
        };
        let body = self.w.end_region(outer, &carried.list(), &after.list());

        let outer = self.w.begin_region();
        let arguments: Vec<Value> =
            carried.list().iter().map(|value| self.w.argument(value.element, &value.sizes)).collect();
        let all = self.w.integer(most as i128, DType::I64, &[]);
        let more = self.w.compare("LT", &arguments[0], &all);
        let condition = self.w.end_region(outer, &arguments, &[more]);

        let initial = Carried {
            index: self.w.integer(0, DType::I64, &[]),
            active: prior,
            skipped: skipped_before,
            counter: first_count,
            variables: before,
            tensors: stacks.iter().map(|all| self.w.splat(0.0, all.element, &all.sizes)).collect(),
            report: self.w.splat(0.0, reports.element, &reports.sizes),
        };
        let initial = initial.list();
        let types: Vec<(Element, Vec<usize>)> =
            initial.iter().map(|value| (value.element, value.sizes.clone())).collect();
        let operands: Vec<&Value> = initial.iter().collect();
        let mut last =
            self.w.with_region("while", &operands, "", &format!("{condition}, {body}"), &types).into_iter();
        let (_, active, _) = (last.next(), last.next(), last.next());
        let counter_last: Option<Value> = counter.and_then(|_| last.next());
        let mut results: Vec<Value> = last.by_ref().take(updated.len()).collect();
        updated.extend(counter);
        results.extend(counter_last);
        results.extend(last);
        results.extend(active);
        let next_draw = self.draw.clone().map(|draw| self.w.like("add", &[&draw, &count]));
        let draws = next_draw.is_some();
        results.extend(next_draw);
        let module = self.finish(updated, fetches, stacks.len(), results, Vec::new());
        Ok(Module { draws, ..module })
    }

    /// Makes the values of feeds those of the step with this index.
    fn take_batch(&mut self, index: &Value) {
        for at in 0..self.feeds.len() {
            let stacked = self.feeds[at].1.clone();
            let sizes = stacked.sizes[1..].to_vec();
            let zero = self.w.integer(0, DType::I64, &[]);
            let operands: Vec<&Value> =
                [&stacked, index].into_iter().chain(std::iter::repeat_n(&zero, sizes.len())).collect();
            let one: Vec<usize> = std::iter::once(1).chain(sizes.iter().copied()).collect();
            let attribute = format!("slice_sizes = {}", array(&one));
            let row = self.w.op("dynamic_slice", &operands, &attribute, stacked.element, &one);
            let value = self.w.reshape(&row, &sizes);
            self.values.values_mut().filter(|v| **v == stacked).for_each(|v| *v = value.clone());
            self.feeds[at].1 = value;
        }
    }

    /// Returns `all` with the row of this step replaced.
    fn store_row(&mut self, all: &Value, row: &Value, index: &Value) -> Value {
        let one: Vec<usize> = std::iter::once(1).chain(row.sizes.iter().copied()).collect();
        let row = self.w.reshape(row, &one);
        let zero = self.w.integer(0, DType::I64, &[]);
        let operands: Vec<&Value> =
            [all, &row, index].into_iter().chain(std::iter::repeat_n(&zero, one.len() - 1)).collect();
        self.w.op("dynamic_update_slice", &operands, "", all.element, &all.sizes)
    }
}
