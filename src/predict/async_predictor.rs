//! Dynamic batching of single examples from many callers.

use super::Predictor;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tensorpack_dataflow::Sample;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result, Site};

/// The queue capacity in requests. Callers of `predict` block while the queue is full.
const QUEUE: usize = 100;
/// The time after which a wait is logged.
const LOG_AFTER: Duration = Duration::from_secs(5);
/// The interval at which a wait for outputs checks the predictor's progress.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The pause between two attempts to add to a full queue.
const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(1);

/// Predicts examples of many callers on a background thread with dynamic batching.
///
/// All examples that are queued when the thread becomes free form one batch (one per tower if the
/// predictor has several), which costs little more than a single example. Each caller gets the
/// outputs, or the error, of its own example.
///
/// No wait for the thread is endless: see [`AsyncPredictor::deadline`].
///
/// Dropping the predictor stops the thread after it has processed the queue.
#[doc(alias = "MultiThreadAsyncPredictor")]
pub struct AsyncPredictor {
    requests: Option<SyncSender<Request>>,
    worker: Option<JoinHandle<()>>,
    progress: Progress,
    deadline: Duration,
}

/// When the thread last finished a batch. Clones share the time.
#[derive(Clone)]
struct Progress(Arc<Mutex<Instant>>);

impl Progress {
    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns the time without progress, counted from `start` at the earliest.
    fn quiet_since(&self, start: Instant) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).max(start).elapsed()
    }
}

/// A wait for the thread.
struct Wait {
    what: &'static str,
    start: Instant,
    logged: bool,
    progress: Progress,
    deadline: Duration,
}

impl Wait {
    fn new(what: &'static str, progress: &Progress, deadline: Duration) -> Wait {
        Wait { what, start: Instant::now(), logged: false, progress: progress.clone(), deadline }
    }

    /// Logs the wait when it becomes long. Returns an error if the thread has made no progress
    /// within the deadline.
    fn check(&mut self) -> Result<()> {
        let Wait { what, deadline, .. } = self;
        if self.progress.quiet_since(self.start) >= *deadline {
            let why =
                format!("the predictor finished no batch in {:.1} s, while {what}", deadline.as_secs_f64());
            return Err(Error::new(ErrorKind::Deadline, why)
                .note("if a batch may take that long, set AsyncPredictor::deadline(..)"));
        }
        if self.start.elapsed() >= LOG_AFTER && !std::mem::replace(&mut self.logged, true) {
            log::warn!("{what} for {:.0} s so far", self.start.elapsed().as_secs_f64());
        }
        Ok(())
    }
}

/// An example or a batch of examples, and where its outputs go.
struct Request {
    inputs: Vec<HostTensor>,
    /// The number of examples in `inputs`, if they have a batch dimension.
    batch: Option<usize>,
    respond: Respond,
}

/// Receives the outputs of a request. If the predictor panics, it is dropped without a call.
type Respond = Box<dyn FnOnce(Result<Vec<HostTensor>>) + Send>;

impl Request {
    fn rows(&self) -> usize {
        self.batch.unwrap_or(1)
    }

    /// Returns the sizes of one example of an input.
    fn example_sizes<'a>(&self, input: &'a HostTensor) -> &'a [usize] {
        match self.batch {
            Some(_) => input.sizes().get(1..).unwrap_or_default(),
            None => input.sizes(),
        }
    }
}

/// A handle to the outputs of an example that may not be computed yet.
#[must_use = "call `wait` to get the outputs"]
pub struct Pending {
    outputs: Receiver<Result<Vec<HostTensor>>>,
    progress: Progress,
    deadline: Duration,
    /// Where the user asked for the outputs.
    site: Site,
}

impl Pending {
    /// Waits for the outputs. Like the inputs, they have no batch dimension. Returns an error of
    /// kind [`ErrorKind::Deadline`] if the predictor is stuck.
    pub fn wait(self) -> Result<Vec<HostTensor>> {
        let mut wait = Wait::new("waiting for the outputs of an example", &self.progress, self.deadline);
        loop {
            match self.outputs.recv_timeout(CHECK_INTERVAL.min(self.deadline)) {
                Ok(outputs) => return outputs.map_err(|e| e.at(self.site)),
                Err(RecvTimeoutError::Disconnected) => return Err(thread_ended()),
                Err(RecvTimeoutError::Timeout) => wait.check()?,
            }
        }
    }
}

impl AsyncPredictor {
    /// Starts a thread that runs batches of up to `batch` examples. The first dimension of the
    /// predictor's inputs and outputs must be the batch.
    pub fn new(predictor: impl Predictor + 'static, batch: usize) -> Result<AsyncPredictor> {
        AsyncPredictor::with_queue(predictor, batch, QUEUE)
    }

    /// Like [`AsyncPredictor::new`], with a queue of this capacity in requests (default: 100).
    pub fn with_queue(
        predictor: impl Predictor + 'static,
        batch: usize,
        queue: usize,
    ) -> Result<AsyncPredictor> {
        if batch == 0 {
            return Err(Error::argument("the batch size must be at least 1, got 0"));
        }
        let (requests, queue) = sync_channel(queue);
        let progress = Progress(Arc::new(Mutex::new(Instant::now())));
        let noted = progress.clone();
        let worker = std::thread::Builder::new()
            .name("predictor".into())
            .spawn(move || serve(&predictor, batch, &queue, &noted))?;
        let deadline = Duration::from_secs(300);
        Ok(AsyncPredictor { requests: Some(requests), worker: Some(worker), progress, deadline })
    }

    /// Sets the longest time that one batch may take. Defaults to 300 s. After it, waits of callers
    /// end with an error, and dropping the predictor leaves the thread behind.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> AsyncPredictor {
        self.deadline = deadline;
        self
    }

    /// Queues one example without a batch dimension. Blocks only while the queue is full, and
    /// returns an error of kind [`ErrorKind::Deadline`] if the predictor is stuck. The error of an
    /// example that does not match the model, which [`Pending::wait`] returns, has the line of the
    /// caller.
    #[doc(alias = "put_task")]
    #[track_caller]
    pub fn predict(&self, inputs: Vec<HostTensor>) -> Result<Pending> {
        let (response, pending) = channel();
        let requests = self.requests.as_ref().ok_or_else(thread_ended)?;
        // The receiver may be gone; ignore the send error.
        let respond = Box::new(move |outputs| drop(response.send(outputs)));
        let mut request = Request { inputs, batch: None, respond };
        let mut wait =
            Wait::new("waiting for space in the queue of a predictor", &self.progress, self.deadline);
        loop {
            match requests.try_send(request) {
                Ok(()) => break,
                Err(TrySendError::Disconnected(_)) => return Err(thread_ended()),
                Err(TrySendError::Full(back)) => request = back,
            }
            wait.check()?;
            std::thread::sleep(FULL_QUEUE_PAUSE);
        }
        let (progress, deadline) = (self.progress.clone(), self.deadline);
        Ok(Pending { outputs: pending, progress, deadline, site: Site::caller() })
    }

    /// Queues a batch of examples, stacked along the first dimension, and calls `then` on the
    /// predictor's thread with their outputs or error. Batches of several callers run together if
    /// they have at most as many examples as one run may take. A larger batch runs alone, and so do
    /// inputs with different first dimensions.
    ///
    /// Never blocks, so that it can be called by asynchronous code: returns an error of kind
    /// [`ErrorKind::Deadline`] if the queue is full. `then` must be quick. It is dropped without a
    /// call if the predictor panics.
    pub fn predict_batch_then(
        &self,
        inputs: Vec<HostTensor>,
        then: impl FnOnce(Result<Vec<HostTensor>>) + Send + 'static,
    ) -> Result<()> {
        let rows = |t: &HostTensor| t.sizes().first().copied().unwrap_or(1);
        let batch = inputs.first().map_or(1, rows);
        // More than any run may take, so that nothing is added to it.
        let batch = if inputs.iter().all(|t| rows(t) == batch) { batch } else { usize::MAX };
        let request = Request { inputs, batch: Some(batch), respond: Box::new(then) };
        match self.requests.as_ref().ok_or_else(thread_ended)?.try_send(request) {
            Ok(()) => Ok(()),
            Err(TrySendError::Disconnected(_)) => Err(thread_ended()),
            Err(TrySendError::Full(_)) => {
                Err(Error::new(ErrorKind::Deadline, "the queue of the predictor is full"))
            }
        }
    }
}

impl Drop for AsyncPredictor {
    fn drop(&mut self) {
        self.requests = None;
        let Some(worker) = self.worker.take() else { return };
        let mut wait =
            Wait::new("waiting for a predictor to finish its queue", &self.progress, self.deadline);
        while !worker.is_finished() {
            if let Err(e) = wait.check() {
                log::error!("{e}; leaving its thread running");
                return;
            }
            std::thread::sleep(FULL_QUEUE_PAUSE);
        }
        // If the thread panicked, the waiting callers have received an error.
        let _ = worker.join();
    }
}

fn thread_ended() -> Error {
    Error::new(ErrorKind::Engine, "the predictor's thread has ended")
}

/// Processes requests until all senders are gone.
fn serve(predictor: &dyn Predictor, batch: usize, queue: &Receiver<Request>, progress: &Progress) {
    let capacity = batch.saturating_mul(predictor.towers().max(1));
    let mut next = queue.recv().ok();
    while let Some(first) = next.take() {
        let mut rows = first.rows();
        let mut requests = vec![first];
        while rows < capacity
            && let Ok(request) = queue.try_recv()
        {
            let fits = rows.saturating_add(request.rows()) <= capacity;
            if !fits || dtypes_and_sizes(&request) != dtypes_and_sizes(&requests[0]) {
                // It starts the next batch.
                next = Some(request);
                break;
            }
            rows += request.rows();
            requests.push(request);
        }
        respond(predictor, requests, progress);
        next = next.or_else(|| queue.recv().ok());
    }
}

/// Returns the data types and sizes of one example, which must be equal for all of a batch.
fn dtypes_and_sizes(request: &Request) -> impl PartialEq {
    let one = |t: &HostTensor| (t.dtype(), request.example_sizes(t).to_vec());
    request.inputs.iter().map(one).collect::<Vec<_>>()
}

/// Runs the requests and gives each its outputs or error.
fn respond(predictor: &dyn Predictor, requests: Vec<Request>, progress: &Progress) {
    let ran = run(predictor, &requests);
    progress.note();
    match ran {
        Ok(outputs) => {
            for (request, outputs) in requests.into_iter().zip(outputs) {
                (request.respond)(Ok(outputs));
            }
        }
        // Run the requests one by one, so that one bad example does not fail the others.
        Err(_) if requests.len() > 1 => {
            requests.into_iter().for_each(|request| respond(predictor, vec![request], progress));
        }
        Err(e) => requests.into_iter().for_each(|request| (request.respond)(Err(e.clone()))),
    }
}

/// Returns the outputs of each request. All requests run at once, divided evenly among the towers.
fn run(predictor: &dyn Predictor, requests: &[Request]) -> Result<Vec<Vec<HostTensor>>> {
    // A batch that is alone need not be copied, and its outputs need not have one row per example.
    if let [Request { inputs, batch: Some(_), .. }] = requests {
        return predictor.predict_batches(std::slice::from_ref(inputs));
    }
    let share = requests.len().div_ceil(predictor.towers().max(1));
    let batches = requests.chunks(share).map(batch_of).collect::<Result<Vec<Sample>>>()?;
    let outputs = predictor.predict_batches(&batches)?;
    requests.chunks(share).zip(&outputs).flat_map(|(requests, outputs)| split(requests, outputs)).collect()
}

/// Returns the outputs of each of the requests that ran together.
fn split(requests: &[Request], outputs: &[HostTensor]) -> Vec<Result<Vec<HostTensor>>> {
    let total = requests.iter().map(Request::rows).sum();
    let mut start = 0;
    let of_request = |request: &Request| {
        let first = start;
        start += request.rows();
        outputs.iter().map(|y| rows(y, first, request, total)).collect()
    };
    requests.iter().map(of_request).collect()
}

/// Stacks the examples of these requests into one batch.
fn batch_of(requests: &[Request]) -> Result<Sample> {
    (0..requests[0].inputs.len()).map(|i| stack(requests, i)).collect()
}

/// Stacks input `i` of requests for examples of the same type and shape.
fn stack(requests: &[Request], i: usize) -> Result<HostTensor> {
    let first = &requests[0].inputs[i];
    let total: usize = requests.iter().map(Request::rows).sum();
    let sizes = [&[total], requests[0].example_sizes(first)].concat();
    let mut batch = HostTensor::zeros(first.dtype(), sizes)?;
    let bytes: Vec<&[u8]> = requests.iter().map(|r| r.inputs[i].as_bytes()).collect();
    batch.copy_from_bytes(&bytes.concat())?;
    Ok(batch)
}

/// Returns the rows of a request, which start at `first`, of an output that must have `total` rows.
fn rows(y: &HostTensor, first: usize, request: &Request, total: usize) -> Result<HostTensor> {
    let Some((_, sizes)) = y.sizes().split_first().filter(|&(&rows, _)| rows == total) else {
        let (dtype, sizes) = (y.dtype(), y.sizes());
        let why =
            format!("an output is {dtype}{sizes:?}, but must have one row for each of {total} examples");
        return Err(Error::shape(why));
    };
    let own = match request.batch {
        Some(rows) => [&[rows], sizes].concat(),
        None => sizes.to_vec(),
    };
    let mut part = HostTensor::zeros(y.dtype(), own)?;
    let bytes = y.as_bytes().len() / total.max(1);
    part.copy_from_bytes(&y.as_bytes()[first * bytes..][..request.rows() * bytes])?;
    Ok(part)
}
