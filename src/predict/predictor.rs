//! Inference with a trained model.

use super::Part;
use super::feed_errors::explain_feeds;
use crate::graph::{Fetch, Graph, Precision};
use crate::io::SessionInit;
use crate::io::safetensors::Metadata;
use crate::runtime::{IntoFetch, Prepared, Session, SessionOptions};
use crate::tower::{ModelDesc, TowerContext, TowerFunc, TowerHandle};
use serde::Serialize;
use std::rc::Rc;
use tensorpack_dataflow::Sample;
use tensorpack_tensor::{Error, HostTensor, Result, Site};

/// The configuration of a predictor: the model, its inputs and outputs, and the source of its
/// variables' values.
pub struct PredictConfig {
    tower: TowerFunc,
    inputs: Option<Vec<String>>,
    outputs: Vec<String>,
    session: SessionOptions,
    session_init: Option<Box<dyn SessionInit>>,
    precision: Precision,
}

impl PredictConfig {
    /// Creates a configuration that predicts the named tensors of a model.
    pub fn new<S: Into<String>>(
        model: impl ModelDesc + 'static,
        outputs: impl IntoIterator<Item = S>,
    ) -> Result<PredictConfig> {
        let model: Rc<dyn ModelDesc> = Rc::new(model);
        let tower = TowerFunc::new(model.inputs(), move |t, inputs| vec![model.build_graph(t, inputs)])?;
        Ok(PredictConfig::from_tower(tower, outputs))
    }

    /// Creates a configuration that predicts the named tensors of a tower function.
    #[doc(alias = "of")]
    pub fn from_tower<S: Into<String>>(
        tower: TowerFunc,
        outputs: impl IntoIterator<Item = S>,
    ) -> PredictConfig {
        PredictConfig {
            tower,
            inputs: None,
            outputs: outputs.into_iter().map(Into::into).collect(),
            session: SessionOptions::default(),
            session_init: None,
            precision: Precision::default(),
        }
    }

    /// Sets the inputs to feed, in this order (default: all inputs of the model). Every input that
    /// the outputs depend on must be among them.
    #[must_use]
    pub fn inputs<S: Into<String>>(self, names: impl IntoIterator<Item = S>) -> PredictConfig {
        PredictConfig { inputs: Some(names.into_iter().map(Into::into).collect()), ..self }
    }

    /// Sets the source of the variables' values.
    #[must_use]
    pub fn session_init(self, init: impl SessionInit + 'static) -> PredictConfig {
        PredictConfig { session_init: Some(Box::new(init)), ..self }
    }

    /// Sets the session options, such as device, threads and memory.
    #[must_use]
    pub fn session(self, session: SessionOptions) -> PredictConfig {
        PredictConfig { session, ..self }
    }

    /// Sets the precision in which the model computes. Defaults to [`Precision::Tf32`], whatever
    /// precision it was trained in.
    #[must_use]
    pub fn precision(self, precision: Precision) -> PredictConfig {
        PredictConfig { precision, ..self }
    }

    /// Builds this many towers of the model under `scope` and initializes its variables.
    pub(super) fn open(mut self, scope: &str, towers: usize) -> Result<(Session, Vec<Part>)> {
        if self.outputs.is_empty() {
            return Err(Error::argument("a predictor needs at least one output"));
        }
        let graph = Graph::new();
        graph.set_precision(self.precision);
        let towers = self.tower.infer_towers(&TowerContext::inference(&graph), scope, towers)?;
        let parts = towers.iter().map(|tower| self.part(tower)).collect::<Result<_>>()?;
        let session = Session::with(graph.freeze()?, self.session.in_precision(self.precision))?;
        if let Some(init) = &self.session_init {
            init.init(&session)?;
        }
        Ok((session, parts))
    }

    /// Returns the feeds and fetches of a tower.
    fn part(&self, tower: &TowerHandle) -> Result<Part> {
        Part::of_tower(tower, self.inputs.as_deref(), &self.outputs)
    }
}

/// A function from input tensors to output tensors.
#[doc(alias = "PredictorBase")]
pub trait Predictor: Send {
    /// Returns the outputs for these inputs, both in the order that the predictor defines.
    fn predict(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>>;

    /// Returns the number of batches it predicts concurrently.
    fn towers(&self) -> usize {
        1
    }

    /// Returns the outputs for each of these batches, predicting [`towers`](Predictor::towers)
    /// batches concurrently.
    fn predict_batches(&self, batches: &[Sample]) -> Result<Vec<Vec<HostTensor>>> {
        batches.iter().map(|batch| self.predict(&batch.iter().collect::<Vec<_>>())).collect()
    }
}

impl Predictor for OfflinePredictor {
    fn predict(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
        self.run(inputs)
    }
}

/// A model in inference mode, with its own graph and session.
pub struct OfflinePredictor {
    pub(super) session: Session,
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<(String, Fetch)>,
    pub(super) metadata: Metadata,
    prepared: Prepared,
}

impl OfflinePredictor {
    /// Builds the model and initializes its variables.
    pub fn new(config: PredictConfig) -> Result<OfflinePredictor> {
        let names = config.outputs.clone();
        let (session, mut towers) = config.open("", 1)?;
        let Part { inputs, fetches } = towers.remove(0);
        OfflinePredictor::from_session(session, inputs, names.into_iter().zip(fetches).collect())
    }

    /// Creates a predictor from the inputs and named outputs of a session's graph.
    pub(crate) fn from_session(
        session: Session,
        inputs: Vec<String>,
        outputs: Vec<(String, Fetch)>,
    ) -> Result<OfflinePredictor> {
        let fetches: Vec<&dyn IntoFetch> = outputs.iter().map(|(_, f)| f as &dyn IntoFetch).collect();
        let prepared = session.prepare(&fetches)?;
        Ok(OfflinePredictor { session, inputs, outputs, metadata: Metadata::new(), prepared })
    }

    /// Returns the outputs for these inputs, both in the order of the configuration. The error of
    /// an input that does not match the model has the line of the caller.
    #[track_caller]
    pub fn predict(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
        let caller = Site::caller();
        self.run(inputs).map_err(|e| e.at(caller))
    }

    fn run(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
        if inputs.len() != self.inputs.len() {
            let names = self.inputs.join(", ");
            return Err(Error::argument(format!(
                "the predictor takes {} inputs ({names}), but {} were given",
                self.inputs.len(),
                inputs.len()
            )));
        }
        let feeds: Vec<(&str, &HostTensor)> =
            self.inputs.iter().map(String::as_str).zip(inputs.iter().copied()).collect();
        let mut outputs = Vec::new();
        let ran = self.session.run_prepared(&self.prepared, &feeds, &mut outputs);
        ran.map_err(|e| explain_feeds(&self.session, &feeds, e))?;
        Ok(outputs)
    }

    /// Returns the session, to read and write variables.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Adds an entry to the metadata of the model, which exported files contain. It replaces an
    /// entry with the same key. Keys that start with `tensorpack.` are reserved.
    ///
    /// ```
    /// # use tensorpack::prelude::*;
    /// # fn export(predictor: OfflinePredictor) -> Result<()> {
    /// let predictor = predictor
    ///     .with_metadata("license", "CC-BY-4.0")?
    ///     .with_json_metadata("labels", &["cat", "dog"])?;
    /// predictor.export("pets.safetensors")?;
    /// let labels: Vec<String> = ExportedModel::load("pets.safetensors")?.json_metadata("labels")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_metadata(
        mut self,
        key: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<OfflinePredictor> {
        let key = key.into();
        if key.is_empty() || key.starts_with(RESERVED) {
            let why = format!("{key:?} cannot be a key of metadata: it is empty or reserved");
            return Err(Error::argument(why).note(format!("keys that start with {RESERVED:?} are reserved")));
        }
        self.metadata.insert(key, value.into());
        Ok(self)
    }

    /// Like [`OfflinePredictor::with_metadata`], with a value that is written as JSON.
    pub fn with_json_metadata(
        self,
        key: impl Into<String>,
        value: &(impl Serialize + ?Sized),
    ) -> Result<OfflinePredictor> {
        let key = key.into();
        let text = serde_json::to_string(value)
            .map_err(|e| Error::argument(format!("the metadata {key:?} cannot be written as JSON: {e}")))?;
        self.with_metadata(key, text)
    }

    /// Returns the metadata of the model.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// The prefix of the keys of metadata that are not the user's.
pub(super) const RESERVED: &str = "tensorpack.";
