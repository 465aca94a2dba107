//! Counters of the server, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The upper bounds of the buckets of times, in seconds.
const SECONDS: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// The upper bounds of the buckets of batch sizes.
const EXAMPLES: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

/// What the server counts.
pub(super) struct Metrics {
    /// Inference requests by the status of their response.
    requests: Mutex<BTreeMap<u16, u64>>,
    request_seconds: Histogram<13>,
    batch_seconds: Histogram<13>,
    batch_examples: Histogram<8>,
    in_flight: AtomicI64,
}

/// Counts of observations in buckets, each up to a bound.
struct Histogram<const N: usize> {
    bounds: [f64; N],
    /// Not cumulative.
    buckets: [AtomicU64; N],
    count: AtomicU64,
    /// In millionths, which atomics can add.
    sum: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    fn new(bounds: [f64; N]) -> Histogram<N> {
        let buckets = std::array::from_fn(|_| AtomicU64::new(0));
        Histogram { bounds, buckets, count: AtomicU64::new(0), sum: AtomicU64::new(0) }
    }

    fn observe(&self, value: f64) {
        if let Some(i) = self.bounds.iter().position(|bound| value <= *bound) {
            self.buckets[i].fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add((value * 1e6) as u64, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn write(&self, text: &mut String, name: &str, help: &str, model: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut below = 0;
        // Read first: a bucket must not have more observations than there are.
        let count = self.count.load(Ordering::Relaxed);
        for (bound, bucket) in self.bounds.iter().zip(&self.buckets) {
            below += bucket.load(Ordering::Relaxed);
            let _ = writeln!(text, "{name}_bucket{{model=\"{model}\",le=\"{bound}\"}} {}", below.min(count));
        }
        let _ = writeln!(text, "{name}_bucket{{model=\"{model}\",le=\"+Inf\"}} {count}");
        let _ = writeln!(
            text,
            "{name}_sum{{model=\"{model}\"}} {}",
            self.sum.load(Ordering::Relaxed) as f64 / 1e6
        );
        let _ = writeln!(text, "{name}_count{{model=\"{model}\"}} {count}");
    }
}

impl Metrics {
    pub(super) fn new() -> Metrics {
        Metrics {
            requests: Mutex::default(),
            request_seconds: Histogram::new(SECONDS),
            batch_seconds: Histogram::new(SECONDS),
            batch_examples: Histogram::new(EXAMPLES),
            in_flight: AtomicI64::new(0),
        }
    }

    /// Counts the beginning of an inference request.
    pub(super) fn begin_request(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of an inference request.
    pub(super) fn end_request(&self, status: u16, took: Duration) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry(status).or_default() += 1;
        self.request_seconds.observe(took.as_secs_f64());
    }

    /// Counts a run of the model.
    pub(super) fn add_batch(&self, examples: usize, took: Duration) {
        self.batch_examples.observe(examples as f64);
        self.batch_seconds.observe(took.as_secs_f64());
    }

    /// Returns all metrics in the text format.
    pub(super) fn text(&self, model: &str) -> String {
        let mut text = String::new();
        let name = "tensorpack_requests_total";
        let _ = writeln!(text, "# HELP {name} Inference requests, by status.\n# TYPE {name} counter");
        for (status, count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(text, "{name}{{model=\"{model}\",code=\"{status}\"}} {count}");
        }
        let name = "tensorpack_requests_in_flight";
        let _ = writeln!(text, "# HELP {name} Inference requests that are not answered yet.");
        let count = self.in_flight.load(Ordering::Relaxed);
        let _ = writeln!(text, "# TYPE {name} gauge\n{name}{{model=\"{model}\"}} {count}");
        let help = "Seconds from the head of a request to its response.";
        self.request_seconds.write(&mut text, "tensorpack_request_duration_seconds", help, model);
        let help = "Seconds of one run of the model.";
        self.batch_seconds.write(&mut text, "tensorpack_batch_duration_seconds", help, model);
        let help = "Examples in one run of the model.";
        self.batch_examples.write(&mut text, "tensorpack_batch_examples", help, model);
        text
    }
}
