//! Profiles the kernels of a step.

use super::{Callback, GraphCx, TrainCx};
use crate::io::failed;
use crate::runtime::KernelTime;
use serde_json::{Value, json};
use tensorpack_tensor::{Error, Result};

/// Writes the kernel times at every trigger to `chrome-trace-STEP.json` in the log directory. Open
/// the file in `chrome://tracing` or Perfetto.
///
/// Each kernel's duration is the mean of its runs so far. Kernels are laid out one after the other
/// in program order: the trace shows how long each takes, not when it ran. Requires
/// [`SessionOptions::profile`](crate::runtime::SessionOptions::profile).
#[derive(Clone, Copy, Debug, Default)]
#[doc(alias = "GraphProfiler")]
pub struct Profiler {}

impl Profiler {
    /// Creates the callback.
    pub fn new() -> Profiler {
        Profiler::default()
    }
}

/// Returns the trace in Chrome's format, with times in microseconds.
fn trace(kernels: &[KernelTime]) -> Value {
    let mut begin = 0.0;
    let ran = kernels.iter().filter(|k| k.runs > 0);
    let events: Vec<Value> = ran
        .map(|k| {
            let (mean, best) = (k.seconds / k.runs as f64 * 1e6, k.best_seconds * 1e6);
            let about = json!({
                "runs": k.runs,
                "best (us)": best,
                "GFLOP/s": k.flops / mean / 1e3,
                "GB/s": k.bytes / mean / 1e3,
            });
            let event = json!({
                "name": k.name, "cat": "kernel", "ph": "X", "pid": 0, "tid": 0,
                "ts": begin, "dur": mean, "args": about,
            });
            begin += mean;
            event
        })
        .collect();
    json!({
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"layout": "kernels one after the other, each as long as its mean run"},
    })
}

impl Callback for Profiler {
    fn chief_only(&self) -> bool {
        true
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        g.need_logdir("Profiler").map(|_| ())
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let kernels = cx.session().profile()?;
        if kernels.iter().all(|k| k.runs == 0) {
            return Err(Error::argument("the session has no kernel times")
                .note("create it with SessionOptions { profile: true, ..Default::default() }"));
        }
        let Some(dir) = cx.logdir() else { return Ok(()) };
        let path = dir.join(format!("chrome-trace-{}.json", cx.global_step));
        std::fs::write(&path, trace(&kernels).to_string()).map_err(failed("write", &path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_laid_out_in_sequence() {
        let kernel = |name: &str, runs, seconds| KernelTime {
            name: name.into(),
            runs,
            seconds,
            best_seconds: 1e-6,
            flops: 4000.0,
            bytes: 8000.0,
        };
        let all = [kernel("a", 2, 8e-6), kernel("never", 0, 0.0), kernel("b", 1, 2e-6)];
        let file = trace(&all);
        let events = file["traceEvents"].as_array().unwrap();
        let times = |e: &Value| [&e["ts"], &e["dur"]].map(|v| v.as_f64().unwrap().round());
        assert_eq!(events.iter().map(times).collect::<Vec<_>>(), [[0.0, 4.0], [4.0, 2.0]]);
        assert_eq!(events[1]["name"], "b");
        assert!((events[0]["args"]["GFLOP/s"].as_f64().unwrap() - 1.0).abs() < 1e-9);
    }
}
