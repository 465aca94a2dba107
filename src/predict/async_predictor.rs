//! One predictor for many callers: single examples, gathered into batches.

use super::Predictor;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use tensorpack_dataflow::Sample;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// How many examples may wait; then callers do.
const QUEUE: usize = 100;

/// Predicts single examples on a thread of its own. Whatever waits when the thread is free becomes one batch, which
/// costs little more than one example; for a predictor with several towers, a batch for each. Each caller gets the
/// outputs, or the error, of its own example.
///
/// Dropping it ends the thread, once all that waits has its answer.
#[doc(alias = "MultiThreadAsyncPredictor")]
pub struct AsyncPredictor {
    requests: Option<SyncSender<Request>>,
    worker: Option<JoinHandle<()>>,
}

/// An example, and where its outputs go.
struct Request {
    inputs: Vec<HostTensor>,
    answer: Sender<Result<Vec<HostTensor>>>,
}

/// The outputs of an example, once they are there.
#[must_use = "the outputs come from `wait`"]
pub struct Pending(Receiver<Result<Vec<HostTensor>>>);

impl Pending {
    /// Waits for the outputs, without a batch dim, as the inputs were.
    pub fn wait(self) -> Result<Vec<HostTensor>> {
        self.0.recv().unwrap_or_else(|_| Err(ended()))
    }
}

impl AsyncPredictor {
    /// Batches of up to `batch` examples for a predictor whose inputs and outputs begin with the batch.
    pub fn new(predictor: impl Predictor + 'static, batch: usize) -> Result<AsyncPredictor> {
        if batch == 0 {
            return Err(Error::argument("batches of 0 examples predict nothing"));
        }
        let (requests, waiting) = sync_channel(QUEUE);
        let worker = std::thread::Builder::new()
            .name("predictor".into())
            .spawn(move || answer_all(&predictor, batch, &waiting))?;
        Ok(AsyncPredictor { requests: Some(requests), worker: Some(worker) })
    }

    /// Puts one example, without a batch dim, in the queue. Waits only while the queue is full.
    #[doc(alias = "put_task")]
    pub fn predict(&self, inputs: Vec<HostTensor>) -> Result<Pending> {
        let (answer, pending) = channel();
        let requests = self.requests.as_ref().ok_or_else(ended)?;
        requests.send(Request { inputs, answer }).map_err(|_| ended())?;
        Ok(Pending(pending))
    }
}

impl Drop for AsyncPredictor {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(worker) = self.worker.take() {
            // If it panicked, those who waited know.
            let _ = worker.join();
        }
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Engine, "the predictor's thread has ended")
}

/// Answers until nobody can ask any more.
fn answer_all(predictor: &dyn Predictor, batch: usize, waiting: &Receiver<Request>) {
    let most = batch.saturating_mul(predictor.towers().max(1));
    let mut next = waiting.recv().ok();
    while let Some(first) = next.take() {
        let mut gathered = vec![first];
        while gathered.len() < most
            && let Ok(request) = waiting.try_recv()
        {
            if form(&request.inputs) != form(&gathered[0].inputs) {
                // It begins the next batch.
                next = Some(request);
                break;
            }
            gathered.push(request);
        }
        answer(predictor, &gathered);
        next = next.or_else(|| waiting.recv().ok());
    }
}

/// What examples of one batch have in common.
fn form(inputs: &[HostTensor]) -> impl PartialEq {
    inputs.iter().map(|t| (t.dtype(), t.sizes().to_vec())).collect::<Vec<_>>()
}

fn answer(predictor: &dyn Predictor, requests: &[Request]) {
    match run(predictor, requests) {
        Ok(outputs) => {
            for (request, outputs) in requests.iter().zip(outputs) {
                // Who no longer waits does not mind.
                let _ = request.answer.send(Ok(outputs));
            }
        }
        // The error of one is not that of the others.
        Err(_) if requests.len() > 1 => {
            requests.iter().for_each(|r| answer(predictor, std::slice::from_ref(r)));
        }
        Err(e) => requests.iter().for_each(|r| drop(r.answer.send(Err(e.clone())))),
    }
}

/// The outputs of each request, all run at once: an equal share of them on each tower.
fn run(predictor: &dyn Predictor, requests: &[Request]) -> Result<Vec<Vec<HostTensor>>> {
    let share = requests.len().div_ceil(predictor.towers().max(1));
    let batches = requests.chunks(share).map(batch_of).collect::<Result<Vec<Sample>>>()?;
    let outputs = predictor.predict_batches(&batches)?;
    let rows = |(requests, outputs): (&[Request], &Vec<HostTensor>)| -> Vec<Result<Vec<HostTensor>>> {
        let n = requests.len();
        (0..n).map(|k| outputs.iter().map(|y| row(y, k, n)).collect()).collect()
    };
    requests.chunks(share).zip(&outputs).flat_map(rows).collect()
}

/// The examples of these requests, input by input.
fn batch_of(requests: &[Request]) -> Result<Sample> {
    let input = |i: usize| stacked(&requests.iter().map(|r| &r.inputs[i]).collect::<Vec<_>>());
    (0..requests[0].inputs.len()).map(input).collect()
}

/// Tensors of one form, one below the other.
fn stacked(rows: &[&HostTensor]) -> Result<HostTensor> {
    let sizes = [&[rows.len()], rows[0].sizes()].concat();
    let mut batch = HostTensor::zeros(rows[0].dtype(), sizes)?;
    batch.copy_from_bytes(&rows.iter().flat_map(|r| r.as_bytes()).copied().collect::<Vec<u8>>())?;
    Ok(batch)
}

/// Row `k` of a tensor that has `n`.
fn row(y: &HostTensor, k: usize, n: usize) -> Result<HostTensor> {
    let Some((_, sizes)) = y.sizes().split_first().filter(|&(&first, _)| first == n) else {
        let why =
            format!("an output is {}{:?}: it has not a row for each of {n} examples", y.dtype(), y.sizes());
        return Err(Error::shape(why));
    };
    let mut row = HostTensor::zeros(y.dtype(), sizes)?;
    let bytes = y.as_bytes().len() / n;
    row.copy_from_bytes(&y.as_bytes()[k * bytes..][..bytes])?;
    Ok(row)
}
