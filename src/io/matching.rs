//! Matches saved tensors with the variables of a graph.

use super::weight_map::with_lists;
use super::{Checkpoint, WeightLayout, WeightMap};
use crate::graph::{GLOBAL_VARIABLES, MODEL_VARIABLES, NamePattern, TRAINABLE_VARIABLES};
use crate::optim::EMA_PREFIX;
use crate::runtime::Session;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// Tensors to load, and the name of their source in errors.
pub(super) struct Source {
    from: String,
    tensors: BTreeMap<String, HostTensor>,
    /// The tensors that only training needs, or `None` if unknown.
    training_only: Option<BTreeSet<String>>,
}

impl Source {
    pub(super) fn new(from: impl Display, tensors: impl IntoIterator<Item = (String, HostTensor)>) -> Source {
        Source {
            from: from.to_string(),
            tensors: tensors.into_iter().collect(),
            training_only: Some(BTreeSet::new()),
        }
    }

    pub(super) fn checkpoint(folder: &Path, checkpoint: Checkpoint) -> Source {
        let training_only = checkpoint.training_only();
        Source { training_only, ..Source::new(folder.display(), checkpoint.tensors) }
    }

    /// Replaces each tensor that has a moving average by the average.
    fn averaged(&self) -> Result<Source> {
        let mut tensors = BTreeMap::new();
        let mut count = 0;
        for (name, value) in self.tensors.iter().filter(|(name, _)| !name.starts_with(EMA_PREFIX)) {
            let average = self.tensors.get(&format!("{EMA_PREFIX}{name}"));
            count += usize::from(average.is_some());
            tensors.insert(name.clone(), average.unwrap_or(value).clone());
        }
        if count == 0 {
            let why = format!("{} has no moving averages of variables", self.from);
            return Err(Error::new(ErrorKind::Name, why)
                .note("train with Ema::new(optimizer, decay), or remove on_ema()"));
        }
        let training_only = self.training_only.clone();
        Ok(Source { from: self.from.clone(), tensors, training_only })
    }
}

/// Allowed differences between the names and shapes of a source and those of the graph.
#[derive(Clone, Debug, Default)]
pub(super) struct Matching {
    pub(super) prefix: Option<String>,
    /// If there are any, only names that match one of them are loaded.
    pub(super) only: Vec<NamePattern>,
    pub(super) ignore: Vec<NamePattern>,
    pub(super) ignore_mismatch: bool,
    pub(super) layouts: Vec<(NamePattern, WeightLayout)>,
    pub(super) map: Option<WeightMap>,
    /// Whether moving averages are loaded in place of the variables.
    pub(super) on_ema: bool,
}

/// All mismatches between source and graph, as messages.
#[derive(Default)]
struct Mismatches {
    missing: Vec<String>,
    unexpected: Vec<String>,
    shape_or_dtype: Vec<String>,
    /// What the weight map could not convert: headings and lines.
    unmapped: Vec<(&'static str, Vec<String>)>,
}

impl Matching {
    /// Writes the tensors to the variables of the same name. Writes nothing if there is a mismatch,
    /// unless `ignore_mismatch` is set.
    pub(super) fn load(&self, source: &Source, session: &Session) -> Result<()> {
        let mut unmapped = Vec::new();
        let (averaged, mapped);
        let source = if self.on_ema {
            averaged = source.averaged()?;
            &averaged
        } else {
            source
        };
        let source = match &self.map {
            Some(map) => {
                let theirs: Vec<_> = source.tensors.iter().map(|(n, t)| (n.clone(), t.clone())).collect();
                let converted = map.convert(&theirs).map_err(|e| e.within(&source.from))?;
                let variables = session.graph().variables().iter();
                let variables = variables.filter_map(|v| self.name_in_source(&v.name));
                map.check_selections(converted.names.iter().map(String::as_str).chain(variables))?;
                unmapped = converted.problems;
                mapped = Source::new(&source.from, converted.tensors);
                &mapped
            }
            None => source,
        };
        let (matching, mut mismatches) = self.compare(source, session)?;
        mismatches.unmapped = unmapped;
        if !mismatches.is_empty() {
            let error = mismatches.error(source);
            if !self.ignore_mismatch {
                return Err(error.note(
                    "to load only what matches, call `ignore_mismatch` on the initializer in the program",
                ));
            }
            log::warn!("{error}");
        }
        if matching.is_empty() && !source.tensors.is_empty() {
            let why = format!("no tensor in {} matches a variable of the graph", source.from);
            return Err(Error::new(ErrorKind::Name, why));
        }
        for (name, value) in &matching {
            session.write(name, value)?;
        }
        log::info!("loaded {} variables from {}", matching.len(), source.from);
        Ok(())
    }

    fn compare(&self, source: &Source, session: &Session) -> Result<(Vec<(String, HostTensor)>, Mismatches)> {
        let graph = session.graph();
        let ids =
            |key: &str| -> BTreeSet<u32> { graph.collection(key).variables.iter().map(|v| v.0).collect() };
        let model = &ids(MODEL_VARIABLES) | &ids(TRAINABLE_VARIABLES);
        self.check_patterns(source, session)?;
        let mut matching = Vec::new();
        let mut mismatches = Mismatches::default();
        let mut looked_up = BTreeSet::new();
        for id in ids(GLOBAL_VARIABLES) {
            let variable = &graph.variables()[id as usize];
            let Some(name) = self.name_in_source(&variable.name) else { continue };
            if !self.selects(name) || self.map.as_ref().is_some_and(|map| !map.selects(name)) {
                continue;
            }
            let Some(value) = source.tensors.get(name) else {
                if model.contains(&id) {
                    let sizes = &variable.sizes;
                    mismatches.missing.push(format!("{} {}{sizes:?}", variable.name, variable.dtype));
                }
                continue;
            };
            looked_up.insert(name);
            let layout = self.layouts.iter().find(|(pattern, _)| pattern.matches(name));
            let value =
                layout.map_or(Ok(value.clone()), |(_, l)| l.apply(value)).map_err(|e| e.within(name))?;
            if value.sizes() == variable.sizes
                && let Some(value) = cast(name, &value, variable.dtype)?
            {
                matching.push((variable.name.clone(), value));
            } else {
                let (found, expected) = ((value.dtype(), value.sizes()), (variable.dtype, &variable.sizes));
                mismatches.shape_or_dtype.push(format!(
                    "{} is {}{:?} in the source, but {}{:?} in the graph",
                    variable.name, found.0, found.1, expected.0, expected.1
                ));
            }
        }
        let training_only = |name| source.training_only.as_ref().is_none_or(|names| names.contains(name));
        let unused = source.tensors.iter().filter(|(name, _)| {
            !looked_up.contains(name.as_str()) && self.selects(name) && !training_only(*name)
        });
        mismatches.unexpected = unused.map(|(n, t)| format!("{n} {}{:?}", t.dtype(), t.sizes())).collect();
        mismatches.missing.sort();
        mismatches.shape_or_dtype.sort();
        Ok((matching, mismatches))
    }

    /// Returns the name of a variable in the source, or `None` if it does not have the prefix.
    fn name_in_source<'a>(&self, name: &'a str) -> Option<&'a str> {
        match &self.prefix {
            Some(prefix) => name.strip_prefix(prefix.trim_end_matches('/'))?.strip_prefix('/'),
            None => Some(name),
        }
    }

    /// Returns whether the tensor of this name is to be loaded.
    fn selects(&self, name: &str) -> bool {
        let any = |patterns: &[NamePattern]| patterns.iter().any(|pattern| pattern.matches(name));
        (self.only.is_empty() || any(&self.only)) && !any(&self.ignore)
    }

    /// Checks that every layout pattern matches a saved tensor, and every other pattern a saved
    /// tensor or a variable.
    fn check_patterns(&self, source: &Source, session: &Session) -> Result<()> {
        let saved = || source.tensors.keys().map(String::as_str);
        for (pattern, _) in &self.layouts {
            pattern.check_among("saved tensor", saved())?;
        }
        let variables = session.graph().variables().iter().filter_map(|v| self.name_in_source(&v.name));
        let either: Vec<&str> = saved().chain(variables).collect();
        for pattern in self.only.iter().chain(&self.ignore) {
            pattern.check_among("name", either.iter().copied())?;
        }
        Ok(())
    }
}

impl Mismatches {
    fn is_empty(&self) -> bool {
        self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.shape_or_dtype.is_empty()
            && self.unmapped.is_empty()
    }

    fn error(&self, source: &Source) -> Error {
        let lists = [
            ("missing in the source", self.missing.clone()),
            ("unexpected in the source", self.unexpected.clone()),
            ("different shape or dtype", self.shape_or_dtype.clone()),
        ];
        let error = Error::new(ErrorKind::Name, format!("{} does not match the graph", source.from));
        with_lists(with_lists(error, &self.unmapped), &lists)
    }
}

/// Casts a tensor to `dtype`: floats to any float, with a warning if that rounds; integers
/// only to wider integers.
/// Returns `None` for other casts.
fn cast(name: &str, value: &HostTensor, dtype: DType) -> Result<Option<HostTensor>> {
    let from = value.dtype();
    if from == dtype {
        return Ok(Some(value.clone()));
    }
    let floats = from.is_float() && dtype.is_float();
    let widens = (floats || from.is_int() && dtype.is_int()) && from.size() < dtype.size();
    if !widens && !floats {
        return Ok(None);
    }
    if !widens {
        log::warn!("casting {name} from {from} to {dtype}");
    }
    // Widened integers have at most 32 bits, so f64 represents them exactly.
    HostTensor::from_f64(dtype, value.sizes(), &value.to_f64_vec()).map(Some)
}
