//! Initialization of a session's variables from files and tensors.

use super::matching::Matching;
use super::safetensors::Named;
use super::{Source, WeightLayout, WeightMap, tensor_file};
use crate::graph::{MODEL_VARIABLES, NamePattern, TRAINABLE_VARIABLES};
use crate::runtime::Session;
use std::path::{Path, PathBuf};
use tensorpack_tensor::{Error, HostTensor, Result};

/// Sets the variables of a new session. Without it, they have the values of their initializers.
pub trait SessionInit: Send {
    /// Writes the variables.
    fn init(&self, session: &Session) -> Result<()>;
}

/// Changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct JustCurrentSession;

impl SessionInit for JustCurrentSession {
    fn init(&self, _: &Session) -> Result<()> {
        Ok(())
    }
}

/// Loads a checkpoint (its folder, the file of a tag, or a log directory for the latest one) or a
/// file of tensors: `.safetensors`, `.npz`, or PyTorch's `.pt` and `.pth` (see
/// [`pytorch`](super::pytorch)).
///
/// The source must contain exactly the variables that inference needs, with the same shapes.
/// Otherwise nothing is loaded, and the error lists what is missing, what is unexpected and which
/// shapes differ. Variables that only training needs, such as optimizer slots, are loaded if both
/// sides have them.
#[derive(Clone, Debug)]
pub struct SaverRestore {
    path: PathBuf,
    key: Option<String>,
    tag: Option<String>,
    matching: Matching,
}

impl SaverRestore {
    /// Loads from `path`.
    pub fn new(path: impl Into<PathBuf>) -> SaverRestore {
        SaverRestore { path: path.into(), key: None, tag: None, matching: Matching::default() }
    }

    /// Loads the dictionary under `key` of a PyTorch file, such as `model_ema`. Without a key, the
    /// state dict is [found](super::pytorch::read).
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> SaverRestore {
        SaverRestore { key: Some(key.into()), ..self }
    }

    /// Loads the checkpoint with this tag, such as `min-validation_cost`, which a `MinSaver` writes.
    /// The path must be a log directory.
    #[must_use]
    pub fn tag(self, tag: impl Into<String>) -> SaverRestore {
        SaverRestore { tag: Some(tag.into()), ..self }
    }
}

impl SessionInit for SaverRestore {
    fn init(&self, session: &Session) -> Result<()> {
        let source = match &self.tag {
            Some(tag) => tensor_file::open_tagged(&self.path, tag)?,
            None => tensor_file::open(&self.path, self.key.as_deref())?,
        };
        self.matching.load(&source, session)
    }
}

/// Loads tensors by name. The rules are those of [`SaverRestore`].
///
/// For weights of other frameworks, read the file with [`read_tensors`](super::read_tensors), and
/// translate names and layouts with a [`WeightMap`].
#[derive(Clone, Debug)]
pub struct DictRestore {
    tensors: Named,
    matching: Matching,
}

impl DictRestore {
    /// Loads these tensors.
    pub fn new<N: Into<String>>(tensors: impl IntoIterator<Item = (N, HostTensor)>) -> DictRestore {
        let tensors = tensors.into_iter().map(|(name, t)| (name.into(), t)).collect();
        DictRestore { tensors, matching: Matching::default() }
    }
}

impl SessionInit for DictRestore {
    fn init(&self, session: &Session) -> Result<()> {
        self.matching.load(&Source::new("DictRestore", self.tensors.iter().cloned()), session)
    }
}

/// The options of both.
macro_rules! matching_setters {
    ($($restore:ident),*) => {$(impl $restore {
        /// Loads only variables under `prefix/`. The saved names do not have the prefix.
        #[must_use]
        pub fn prefix(mut self, prefix: impl Into<String>) -> $restore {
            self.matching.prefix = Some(prefix.into());
            self
        }

        /// Loads only the names that match one of these [patterns](NamePattern) as a whole. All
        /// other variables keep their values, and all other tensors are left out. May be repeated.
        #[must_use]
        #[track_caller]
        pub fn only<'a>(mut self, patterns: impl IntoIterator<Item = &'a str>) -> $restore {
            self.matching.only.extend(NamePattern::list(patterns));
            self
        }

        /// Loads the moving average of every variable that has one (see
        /// [`Ema`](crate::optim::Ema)) in place of the variable. Returns an error if there is none.
        #[must_use]
        pub fn on_ema(mut self) -> $restore {
            self.matching.on_ema = true;
            self
        }

        /// Skips the names that match one of these [patterns](NamePattern) as a whole.
        #[must_use]
        #[track_caller]
        pub fn ignore<'a>(mut self, patterns: impl IntoIterator<Item = &'a str>) -> $restore {
            self.matching.ignore.extend(NamePattern::list(patterns));
            self
        }

        /// Loads what matches, and warns about the rest.
        #[must_use]
        pub fn ignore_mismatch(mut self) -> $restore {
            self.matching.ignore_mismatch = true;
            self
        }

        /// Applies `layout` to tensors whose whole saved name matches the regular expression
        /// `pattern` (see [`NamePattern`]). The first match wins.
        #[must_use]
        #[track_caller]
        pub fn map_layout(mut self, pattern: &str, layout: WeightLayout) -> $restore {
            self.matching.layouts.push((NamePattern::new(pattern), layout));
            self
        }

        /// Translates the names and layouts of another framework.
        #[must_use]
        pub fn map(mut self, map: WeightMap) -> $restore {
            self.matching.map = Some(map);
            self
        }
    })*};
}
matching_setters!(SaverRestore, DictRestore);

/// Runs several initializations in order. Later ones overwrite the values of earlier ones.
#[derive(Default)]
pub struct ChainInit {
    inits: Vec<Box<dyn SessionInit>>,
}

impl ChainInit {
    /// Runs `inits` in order.
    pub fn new(inits: impl IntoIterator<Item = Box<dyn SessionInit>>) -> ChainInit {
        ChainInit { inits: inits.into_iter().collect() }
    }
}

impl SessionInit for ChainInit {
    fn init(&self, session: &Session) -> Result<()> {
        self.inits.iter().try_for_each(|init| init.init(session))
    }
}

/// Returns the initialization for a path on a command line: [`JustCurrentSession`] if it is empty,
/// otherwise a [`SaverRestore`]. Expands `~` to the home directory.
#[doc(alias = "SmartInit")]
#[doc(alias = "get_model_loader")]
pub fn smart_init(path: impl AsRef<Path>) -> Result<Box<dyn SessionInit>> {
    let path = path.as_ref();
    if path.as_os_str().is_empty() {
        return Ok(Box::new(JustCurrentSession));
    }
    let path = match path.strip_prefix("~") {
        Ok(inside) => std::env::home_dir()
            .ok_or_else(|| Error::argument("cannot expand ~: the home directory is unknown"))?
            .join(inside),
        Err(_) => path.to_path_buf(),
    };
    if !path.exists() {
        return Err(Error::argument(format!("cannot load {}: no such file or directory", path.display())));
    }
    Ok(Box::new(SaverRestore::new(path)))
}

/// Writes the variables that inference needs to a `.safetensors` or `.npz` file, replacing an
/// existing one.
#[doc(alias = "dump_session_params")]
pub fn dump_model_variables(session: &Session, path: impl AsRef<Path>) -> Result<()> {
    tensor_file::write(path.as_ref(), &model_variables(session)?)
}

/// Writes the variables that inference needs to a `.safetensors` or `.npz` file, with the names and
/// layouts of another framework. PyTorch reads it with `safetensors.torch.load_file`.
pub fn export_variables(session: &Session, map: &WeightMap, path: impl AsRef<Path>) -> Result<()> {
    tensor_file::write(path.as_ref(), &map.export(model_variables(session)?)?)
}

/// Returns the variables that inference needs.
fn model_variables(session: &Session) -> Result<Named> {
    let graph = session.graph();
    let mut ids = graph.collection(TRAINABLE_VARIABLES).variables;
    ids.extend(graph.collection(MODEL_VARIABLES).variables);
    ids.sort();
    ids.dedup();
    let read = |id: &crate::graph::VariableId| {
        let name = &graph.variables()[id.0 as usize].name;
        Ok((name.clone(), session.read(name)?))
    };
    ids.iter().map(read).collect()
}
