//! Sends statistics to an MLflow tracking server (cargo feature `mlflow`).

use super::remote_queue::{Patience, RemoteQueue};
use super::{Class, CurvePoints, Moment, Monitor, RunEnd, Start};
use serde_json::{Map, Value, json};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tensorpack_tensor::{Error, ErrorKind, Result};
use ureq::Agent;

/// The limits of one request, which the server sets.
const MAX_METRICS: usize = 1000;
const MAX_PARAMS: usize = 100;
/// The longest name and the longest value of a parameter.
const MAX_NAME: usize = 250;
const MAX_VALUE: usize = 5000;
/// Requests that may wait, each of at most [`MAX_METRICS`] metrics.
const QUEUE: usize = 64;
/// The longest time that metrics wait for others of the same request.
const COLLECT: Duration = Duration::from_secs(5);
/// The tag with the mark of a run.
const MARK: &str = "tensorpack_run";
/// The pauses before another attempt after a server's failure.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];

/// Sends the statistics of a run to an MLflow tracking server: options and settings as parameters,
/// scalars and curves over steps as metrics, and how the run ended. A resumed run continues the run
/// of its checkpoint.
///
/// Requests are sent by a thread, from a queue of limited size, and each has a deadline. If the
/// server is slow or fails, statistics are dropped, and their number is logged at the end: training
/// neither waits nor fails. After a crash, steps since the last checkpoint are sent again; MLflow
/// keeps both.
///
/// ```no_run
/// # use tensorpack::monitor::Mlflow;
/// # use tensorpack::train::default_monitors;
/// # let logdir = std::path::Path::new("train_log/mnist");
/// let mut monitors = default_monitors(Some(logdir));
/// monitors.push(Box::new(Mlflow::new("http://127.0.0.1:5000").experiment("mnist")));
/// ```
#[doc(alias = "MLFlowLogger")]
pub struct Mlflow {
    settings: Settings,
    /// The run on the server, once it exists.
    run: Arc<Mutex<Option<String>>>,
    /// A mark by which the run is found on the server: a checkpoint may be written before the server
    /// has created the run.
    mark: String,
    queue: Option<RemoteQueue<Message>>,
    /// Metrics that wait for others.
    pending: Vec<Value>,
    sent: Instant,
    end: RunEnd,
    /// Values that were lost before this start.
    lost_before: u64,
}

#[derive(Clone)]
struct Settings {
    uri: String,
    token: Option<String>,
    experiment: String,
    run_name: Option<String>,
    tags: BTreeMap<String, String>,
    deadline: Duration,
}

/// What is sent to the server.
enum Message {
    /// The run of a checkpoint goes on.
    Resume,
    Params(Vec<Value>),
    Tags(Vec<Value>),
    Metrics(Vec<Value>),
    End {
        status: &'static str,
        time: u64,
    },
}

impl Mlflow {
    /// Sends to the server at this address, such as `http://127.0.0.1:5000`.
    pub fn new(uri: impl Into<String>) -> Mlflow {
        let settings = Settings {
            uri: uri.into().trim_end_matches('/').to_string(),
            token: std::env::var("MLFLOW_TRACKING_TOKEN").ok(),
            experiment: std::env::var("MLFLOW_EXPERIMENT_NAME").unwrap_or_else(|_| "Default".into()),
            run_name: None,
            tags: BTreeMap::new(),
            deadline: Duration::from_secs(10),
        };
        Mlflow {
            settings,
            run: Arc::default(),
            mark: String::new(),
            queue: None,
            pending: Vec::new(),
            sent: Instant::now(),
            end: RunEnd::Failed,
            lost_before: 0,
        }
    }

    /// Sends to the server that the environment variable `MLFLOW_TRACKING_URI` names; returns an
    /// error if it is not set.
    pub fn from_env() -> Result<Mlflow> {
        let unset = |_| Error::argument("MLFLOW_TRACKING_URI is not set").note("or use Mlflow::new(..)");
        Ok(Mlflow::new(std::env::var("MLFLOW_TRACKING_URI").map_err(unset)?))
    }

    /// Sets the experiment, which is created if it does not exist. Defaults to the environment
    /// variable `MLFLOW_EXPERIMENT_NAME`, and that to `Default`.
    #[must_use]
    pub fn experiment(mut self, name: impl Into<String>) -> Mlflow {
        self.settings.experiment = name.into();
        self
    }

    /// Sets the name of the run. Defaults to that of the log directory.
    #[must_use]
    pub fn run_name(mut self, name: impl Into<String>) -> Mlflow {
        self.settings.run_name = Some(name.into());
        self
    }

    /// Adds a tag to the run.
    #[must_use]
    pub fn tag(mut self, name: impl Into<String>, value: impl Into<String>) -> Mlflow {
        self.settings.tags.insert(name.into(), value.into());
        self
    }

    /// Sets the bearer token of requests. Defaults to the environment variable
    /// `MLFLOW_TRACKING_TOKEN`.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Mlflow {
        self.settings.token = Some(token.into());
        self
    }

    /// Sets the longest time of a request, from connecting to the end of the answer. Defaults to
    /// 10 s. The end of training waits for the server for at most twice as long.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Mlflow {
        self.settings.deadline = deadline;
        self
    }

    fn push(&self, message: Message, values: usize) {
        if let Some(queue) = &self.queue {
            queue.push(message, values as u64);
        }
    }

    /// Adds a metric to those that wait.
    fn metric(&mut self, name: &str, value: f64, at: Moment) {
        let metric =
            json!({"key": key(name), "value": number(value), "timestamp": now(), "step": at.global_step});
        self.pending.push(metric);
        if self.pending.len() >= MAX_METRICS {
            self.flush();
        }
    }

    /// Queues the metrics that wait.
    fn flush(&mut self) {
        self.sent = Instant::now();
        if !self.pending.is_empty() {
            let metrics = std::mem::take(&mut self.pending);
            let count = metrics.len();
            self.push(Message::Metrics(metrics), count);
        }
    }

    /// Returns the number of values that are lost.
    fn lost(&self) -> u64 {
        self.lost_before + self.queue.as_ref().map_or(0, RemoteQueue::lost)
    }

    fn end(&mut self) {
        self.flush();
        let status = match self.end {
            RunEnd::Finished => "FINISHED",
            RunEnd::Interrupted => "KILLED",
            RunEnd::Failed => "FAILED",
        };
        let end = Message::End { status, time: now() };
        if let Some(queue) = &mut self.queue {
            queue.finish(end, self.settings.deadline.saturating_mul(2));
        }
    }
}

impl Drop for Mlflow {
    /// Ends the run on the server if training has failed before its first step.
    fn drop(&mut self) {
        self.end();
    }
}

impl Monitor for Mlflow {
    fn name(&self) -> String {
        "Mlflow".into()
    }

    fn start(&mut self, start: &Start<'_>) -> Result<()> {
        let of_directory = start.logdir.and_then(|dir| dir.file_name()).map(|n| n.to_string_lossy().into());
        let resumed = start.resumed.and_then(|state| state["run_id"].as_str());
        self.lost_before = start.resumed.and_then(|state| state["dropped"].as_u64()).unwrap_or(0);
        self.run = Arc::new(Mutex::new(resumed.map(str::to_string)));
        let settings =
            Settings { run_name: self.settings.run_name.clone().or(of_directory), ..self.settings.clone() };
        let marked = start.resumed.and_then(|state| state["mark"].as_str());
        self.mark = marked.map_or_else(new_mark, str::to_string);
        let is_resumed = marked.is_some();
        let mut client = Client::new(settings, self.run.clone(), self.mark.clone(), is_resumed);
        let send = move |message: Message, patience: &Patience<'_>| client.send(message, patience);
        self.queue = Some(RemoteQueue::start("Mlflow", QUEUE, send)?);
        if is_resumed {
            self.push(Message::Resume, 0);
        }
        Ok(())
    }

    fn manifest(&mut self, manifest: &Value) -> Result<()> {
        let mut tags = BTreeMap::new();
        let mut tag = |name: &str, value: &Value| {
            if let Some(text) = text(value) {
                tags.insert(name.to_string(), text);
            }
        };
        tag("mlflow.source.name", &manifest["program"]);
        tag("mlflow.source.git.commit", &manifest["git"]["commit"]);
        tag("tensorpack.version", &manifest["versions"]["tensorpack"]);
        tag("tensorpack.platform", &manifest["versions"]["platform"]);
        tag("tensorpack.host", &manifest["host"]["name"]);
        tag("tensorpack.resumed_at", &manifest["resumed_at"]);
        let tags = pairs(&tags);
        let count = tags.len();
        self.push(Message::Tags(tags), count);
        // Parameters cannot change, and those of a resumed run are there.
        if manifest["resumed_at"].is_null() {
            let mut params = BTreeMap::new();
            for part in ["settings", "options"] {
                flatten("", &manifest[part], &mut params);
            }
            for params in pairs(&params).chunks(MAX_PARAMS) {
                self.push(Message::Params(params.to_vec()), params.len());
            }
        }
        Ok(())
    }

    fn scalar(&mut self, name: &str, value: f64, _: Class, at: Moment) -> Result<()> {
        self.metric(name, value, at);
        Ok(())
    }

    fn curve_points(&mut self, points: &CurvePoints<'_>) -> Result<()> {
        let names: Vec<String> = points.names().iter().map(|name| format!("steps/{name}")).collect();
        for (at, values) in points.iter() {
            names.iter().zip(values).for_each(|(name, value)| self.metric(name, *value, at));
        }
        Ok(())
    }

    fn end_step(&mut self, _: Moment) -> Result<()> {
        if self.sent.elapsed() >= COLLECT {
            self.flush();
        }
        Ok(())
    }

    fn end_epoch(&mut self, _: Moment) -> Result<()> {
        self.flush();
        Ok(())
    }

    fn state(&self) -> Value {
        let run = self.run.lock().unwrap_or_else(PoisonError::into_inner).clone();
        json!({"run_id": run, "mark": self.mark, "dropped": self.lost()})
    }

    fn set_end(&mut self, end: RunEnd) {
        self.end = end;
    }

    fn finish(&mut self) -> Result<()> {
        self.end();
        let (lost, uri) = (self.lost(), &self.settings.uri);
        if lost > 0 {
            log::warn!("{lost} values of this run were dropped: the MLflow server {uri} does not have them");
        }
        Ok(())
    }
}

/// The HTTP client adds deadlines to the time, which must not overflow.
const LONGEST_REQUEST: Duration = Duration::from_secs(24 * 3600);

/// Talks to the server, on the thread of the queue.
struct Client {
    settings: Settings,
    agent: Agent,
    run: Arc<Mutex<Option<String>>>,
    mark: String,
    /// Whether the server may have the run: it is resumed, or a request to create it was not answered.
    may_exist: Cell<bool>,
    started: u64,
}

/// How a request failed.
enum Failure {
    /// The server cannot be reached, or failed: another attempt may succeed.
    Temporary(String),
    /// The server rejected it with this error code.
    Rejected(String, String),
}

impl Failure {
    fn into_error(self) -> Error {
        match self {
            Failure::Temporary(why) => Error::new(ErrorKind::Io, why),
            Failure::Rejected(code, why) => Error::new(ErrorKind::Io, format!("{code}: {why}")),
        }
    }
}

impl Client {
    fn new(settings: Settings, run: Arc<Mutex<Option<String>>>, mark: String, is_resumed: bool) -> Client {
        let config = Agent::config_builder()
            .timeout_global(Some(settings.deadline.min(LONGEST_REQUEST)))
            .http_status_as_error(false)
            .build();
        Client { settings, agent: config.into(), run, mark, may_exist: Cell::new(is_resumed), started: now() }
    }

    fn send(&mut self, message: Message, patience: &Patience<'_>) -> Result<()> {
        let run = self.run_id(patience)?;
        match message {
            Message::Resume => {
                let update = json!({"run_id": run, "status": "RUNNING"});
                match self.post("runs/update", &update, patience) {
                    Err(Failure::Rejected(code, _)) if code == "RESOURCE_DOES_NOT_EXIST" => {
                        log::warn!("the server has no run {run} any more: the rest goes to a new one");
                        *self.run.lock().unwrap_or_else(PoisonError::into_inner) = None;
                        self.may_exist.set(false);
                        self.run_id(patience).map(|_| ())
                    }
                    done => done.map(|_| ()).map_err(Failure::into_error),
                }
            }
            Message::Params(params) => self.log_batch(json!({"run_id": run, "params": params}), patience),
            Message::Tags(tags) => self.log_batch(json!({"run_id": run, "tags": tags}), patience),
            Message::Metrics(metrics) => self.log_batch(json!({"run_id": run, "metrics": metrics}), patience),
            Message::End { status, time } => {
                let update = json!({"run_id": run, "status": status, "end_time": time});
                self.post("runs/update", &update, patience).map(|_| ()).map_err(Failure::into_error)
            }
        }
    }

    fn log_batch(&self, batch: Value, patience: &Patience<'_>) -> Result<()> {
        self.post("runs/log-batch", &batch, patience).map(|_| ()).map_err(Failure::into_error)
    }

    /// Returns the run, which is looked for if it is resumed, and created if there is none.
    fn run_id(&self, patience: &Patience<'_>) -> Result<String> {
        if let Some(run) = self.run.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            return Ok(run);
        }
        let create = || {
            let experiment = self.experiment(patience)?;
            if self.may_exist.get() {
                let filter = format!("tags.{MARK} = '{}'", self.mark);
                let search = json!({"experiment_ids": [experiment], "filter": filter, "max_results": 1});
                let found = self.post("runs/search", &search, patience)?;
                if let Some(run) = found["runs"].get(0) {
                    return Ok(json!({"run": run}));
                }
            }
            let mut tags = self.settings.tags.clone();
            tags.insert(MARK.into(), self.mark.clone());
            let body = json!({
                "experiment_id": experiment,
                "run_name": self.settings.run_name,
                "start_time": self.started,
                "tags": pairs(&tags),
            });
            // Once: a server that is slow to answer may have created it.
            self.may_exist.set(true);
            self.post_once("runs/create", &body)
        };
        let created = create().map_err(Failure::into_error)?;
        let run = created["run"]["info"]["run_id"].as_str().map(str::to_string);
        let run = run.ok_or_else(|| Error::new(ErrorKind::Io, "the server created no run"))?;
        *self.run.lock().unwrap_or_else(PoisonError::into_inner) = Some(run.clone());
        Ok(run)
    }

    /// Returns the experiment, which is created if there is none.
    fn experiment(&self, patience: &Patience<'_>) -> std::result::Result<String, Failure> {
        let name = &self.settings.experiment;
        let get = || self.agent.get(self.url("experiments/get-by-name")).query("experiment_name", name);
        let found = self.retry(patience, || self.answer(self.authorized(get()).call()));
        let id = match found {
            Ok(found) => found["experiment"]["experiment_id"].clone(),
            Err(Failure::Rejected(code, _)) if code == "RESOURCE_DOES_NOT_EXIST" => {
                self.post("experiments/create", &json!({"name": name}), patience)?["experiment_id"].clone()
            }
            Err(e) => return Err(e),
        };
        let no_id = || Failure::Rejected("INVALID_ANSWER".into(), format!("{name} has no number"));
        id.as_str().map(str::to_string).ok_or_else(no_id)
    }

    fn url(&self, call: &str) -> String {
        format!("{}/api/2.0/mlflow/{call}", self.settings.uri)
    }

    fn authorized<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.settings.token {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    fn post(&self, call: &str, body: &Value, patience: &Patience<'_>) -> std::result::Result<Value, Failure> {
        self.retry(patience, || self.post_once(call, body))
    }

    fn post_once(&self, call: &str, body: &Value) -> std::result::Result<Value, Failure> {
        let request = self.agent.post(self.url(call)).header("Content-Type", "application/json");
        self.answer(self.authorized(request).send(&body.to_string()))
    }

    /// Makes a request, again if the server failed.
    fn retry(
        &self,
        patience: &Patience<'_>,
        request: impl Fn() -> std::result::Result<Value, Failure>,
    ) -> std::result::Result<Value, Failure> {
        let mut pauses = PAUSES.into_iter();
        loop {
            match (request(), pauses.next()) {
                (Err(Failure::Temporary(_)), Some(pause)) if patience.wait(pause) => {}
                (answer, _) => return answer,
            }
        }
    }

    fn answer(
        &self,
        answer: std::result::Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> std::result::Result<Value, Failure> {
        let uri = &self.settings.uri;
        let failed = |e: ureq::Error| Failure::Temporary(format!("{uri}: {e}"));
        let mut answer = answer.map_err(failed)?;
        let text = answer.body_mut().read_to_string().map_err(failed)?;
        let body: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        match answer.status().as_u16() {
            200..300 if body.is_object() => Ok(body),
            200..300 => Err(Failure::Temporary(format!("{uri} answers, but not as MLflow does"))),
            status @ (429 | 500..) => Err(Failure::Temporary(format!("{uri} answers with status {status}"))),
            status => {
                let field = |name: &str| body[name].as_str().map(str::to_string);
                let code = field("error_code").unwrap_or_else(|| format!("status {status}"));
                Err(Failure::Rejected(code, field("message").unwrap_or_default()))
            }
        }
    }
}

/// Returns a mark that no other run has.
fn new_mark() -> String {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}", time.as_nanos(), std::process::id())
}

/// Returns names and values as the server wants them.
fn pairs(all: &BTreeMap<String, String>) -> Vec<Value> {
    let cut = |text: &str, most: usize| text.chars().take(most).collect::<String>();
    all.iter().map(|(k, v)| json!({"key": cut(k, MAX_NAME), "value": cut(v, MAX_VALUE)})).collect()
}

/// Returns a value as text; `None` for null.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// Adds the leaves of an object, with dots between the names. Names that are there stay.
fn flatten(prefix: &str, value: &Value, all: &mut BTreeMap<String, String>) {
    match value.as_object() {
        Some(object) => flatten_object(prefix, object, all),
        None => {
            if let Some(text) = text(value) {
                all.entry(key(prefix)).or_insert(text);
            }
        }
    }
}

fn flatten_object(prefix: &str, object: &Map<String, Value>, all: &mut BTreeMap<String, String>) {
    for (name, value) in object {
        let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        flatten(&name, value, all);
    }
}

/// Returns a name that the server accepts: letters, digits and some signs, and no empty parts of
/// paths.
fn key(name: &str) -> String {
    let accepted = |c: char| if c.is_ascii_alphanumeric() || "_-. /".contains(c) { c } else { '_' };
    let parts = name.split('/').filter(|part| !matches!(*part, "" | "." | ".."));
    let key = parts.collect::<Vec<_>>().join("/").chars().map(accepted).take(MAX_NAME).collect::<String>();
    if key.is_empty() { "_".into() } else { key }
}

/// Returns a number in protobuf's JSON, which has names for those that JSON lacks.
fn number(value: f64) -> Value {
    match value {
        v if v.is_nan() => json!("NaN"),
        f64::INFINITY => json!("Infinity"),
        f64::NEG_INFINITY => json!("-Infinity"),
        v => json!(v),
    }
}

/// Returns the time in milliseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
