//! Inference with a trained model.

use super::Part;
use super::feed_errors::explain_feeds;
use crate::graph::{Fetch, Graph, Precision, nearest_names};
use crate::io::SessionInit;
use crate::runtime::{IntoFetch, Prepared, Session, SessionOptions};
use crate::tower::{ModelDesc, TowerContext, TowerFunc, TowerHandle};
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
        let input = |name: &String| {
            let found = tower.inputs().iter().find(|(have, _)| have == name);
            let missing = || {
                let known = tower.inputs().iter().map(|(name, _)| name.as_str());
                Error::argument(format!("the model has no input named {name:?}"))
                    .note(nearest_names("inputs", name, known))
            };
            found.map(|(_, tensor)| tensor.name()).ok_or_else(missing)
        };
        let inputs = match &self.inputs {
            Some(names) => names.iter().map(input).collect::<Result<_>>()?,
            None => tower.inputs().iter().map(|(_, tensor)| tensor.name()).collect(),
        };
        let fetch = |name: &String| tower.get_tensor(name).map(|tensor| Fetch::from(&tensor));
        Ok(Part { inputs, fetches: self.outputs.iter().map(fetch).collect::<Result<_>>()? })
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
        Ok(OfflinePredictor { session, inputs, outputs, prepared })
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
}
