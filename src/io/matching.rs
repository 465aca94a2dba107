//! How tensors that were saved find the variables of a graph.

use super::{Checkpoint, Layout};
use crate::graph::{GLOBAL_VARIABLES, MODEL_VARIABLES, TRAINABLE_VARIABLES};
use crate::runtime::Session;
use regex_lite::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// Tensors to load, and what they are called in errors.
pub(super) struct Source {
    from: String,
    tensors: BTreeMap<String, HostTensor>,
    /// Those that only training needs; none where it is not known which are.
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
}

/// What may differ between the names and shapes of a source and those of the graph.
#[derive(Clone, Debug, Default)]
pub(super) struct Matching {
    pub(super) prefix: Option<String>,
    pub(super) ignore: BTreeSet<String>,
    pub(super) ignore_mismatch: bool,
    pub(super) layouts: Vec<(String, Layout)>,
}

/// All that does not fit, each as a sentence for users.
#[derive(Default)]
struct Misfits {
    missing: Vec<String>,
    unexpected: Vec<String>,
    misshaped: Vec<String>,
}

impl Matching {
    /// Gives the session's variables the values of their namesakes: all of them or, if something does not fit and that
    /// was not allowed, none.
    pub(super) fn load(&self, source: &Source, session: &Session) -> Result<()> {
        let (fitting, misfits) = self.compare(source, session)?;
        if !misfits.is_empty() {
            let error = misfits.error(source);
            if !self.ignore_mismatch {
                return Err(error.note("to load what fits and leave the rest, use ignore_mismatch"));
            }
            log::warn!("{error}");
        }
        if fitting.is_empty() && !source.tensors.is_empty() {
            let why = format!("nothing in {} fits a variable of the graph", source.from);
            return Err(Error::new(ErrorKind::Name, why));
        }
        for (name, value) in &fitting {
            session.write(name, value)?;
        }
        log::info!("{} variables were loaded from {}", fitting.len(), source.from);
        Ok(())
    }

    fn compare(&self, source: &Source, session: &Session) -> Result<(Vec<(String, HostTensor)>, Misfits)> {
        let graph = session.graph();
        let of =
            |key: &str| -> BTreeSet<u32> { graph.collection(key).variables.iter().map(|v| v.0).collect() };
        let model = &of(MODEL_VARIABLES) | &of(TRAINABLE_VARIABLES);
        let layouts = self.compiled_layouts()?;
        let mut fitting = Vec::new();
        let mut misfits = Misfits::default();
        let mut looked_up = BTreeSet::new();
        for id in of(GLOBAL_VARIABLES) {
            let variable = &graph.variables()[id as usize];
            let Some(name) = self.name_in_source(&variable.name) else { continue };
            if self.ignore.contains(name) {
                continue;
            }
            let Some(value) = source.tensors.get(name) else {
                if model.contains(&id) {
                    let sizes = &variable.sizes;
                    misfits.missing.push(format!("{} {}{sizes:?}", variable.name, variable.dtype));
                }
                continue;
            };
            looked_up.insert(name);
            let layout = layouts.iter().find(|(pattern, _)| pattern.is_match(name));
            let value =
                layout.map_or(Ok(value.clone()), |(_, l)| l.apply(value)).map_err(|e| e.within(name))?;
            if value.sizes() == variable.sizes
                && let Some(value) = cast(name, &value, variable.dtype)?
            {
                fitting.push((variable.name.clone(), value));
            } else {
                let (there, here) = ((value.dtype(), value.sizes()), (variable.dtype, &variable.sizes));
                misfits.misshaped.push(format!(
                    "{} is {}{:?} there, but {}{:?} in the graph",
                    variable.name, there.0, there.1, here.0, here.1
                ));
            }
        }
        let training_only = |name| source.training_only.as_ref().is_none_or(|names| names.contains(name));
        let left = source.tensors.iter().filter(|(name, _)| {
            !looked_up.contains(name.as_str()) && !self.ignore.contains(*name) && !training_only(*name)
        });
        misfits.unexpected = left.map(|(n, t)| format!("{n} {}{:?}", t.dtype(), t.sizes())).collect();
        misfits.missing.sort();
        misfits.misshaped.sort();
        Ok((fitting, misfits))
    }

    /// What a variable is called in the source; none if the prefix says that it is not in there.
    fn name_in_source<'a>(&self, name: &'a str) -> Option<&'a str> {
        match &self.prefix {
            Some(prefix) => name.strip_prefix(prefix.trim_end_matches('/'))?.strip_prefix('/'),
            None => Some(name),
        }
    }

    fn compiled_layouts(&self) -> Result<Vec<(Regex, Layout)>> {
        let compile = |(pattern, layout): &(String, Layout)| match Regex::new(&format!("^(?:{pattern})$")) {
            Ok(compiled) => Ok((compiled, *layout)),
            Err(e) => Err(Error::argument(format!("{pattern:?} is no regular expression: {e}"))),
        };
        self.layouts.iter().map(compile).collect()
    }
}

impl Misfits {
    fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.misshaped.is_empty()
    }

    fn error(&self, source: &Source) -> Error {
        let lists = [
            ("in the graph, but not there", &self.missing),
            ("there, but not in the graph", &self.unexpected),
            ("of another shape or type", &self.misshaped),
        ];
        let error = Error::new(ErrorKind::Name, format!("{} does not fit the graph", source.from));
        lists.iter().filter(|(_, list)| !list.is_empty()).fold(error, |error, (what, list)| {
            let error = error.note(format!("{what} ({}):", list.len()));
            list.iter().fold(error, |error, line| error.note(format!("  {line}")))
        })
    }
}

/// The tensor as `dtype`: floats become other floats, with a warning; integers only larger ones; none if neither.
fn cast(name: &str, value: &HostTensor, dtype: DType) -> Result<Option<HostTensor>> {
    let from = value.dtype();
    if from == dtype {
        return Ok(Some(value.clone()));
    }
    let widens = from.is_int() && dtype.is_int() && from.size() < dtype.size();
    let rounds = from.is_float() && dtype.is_float();
    if !widens && !rounds {
        return Ok(None);
    }
    if rounds {
        log::warn!("{name} is {from} where it is loaded from, and becomes {dtype}");
    }
    // Every integer that can be widened is an f64 as well.
    HostTensor::from_f64(dtype, value.sizes(), &value.to_f64_vec()).map(Some)
}
