//! All monitors of a run, and the history of scalars.

use super::number::{from_json, to_json};
use super::{Class, CurvePoints, Histogram, Image, Moment, Monitor, RunEnd, Start};
use crate::graph::Frozen;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::path::Path;
use tensorpack_tensor::{HostTensor, Result};

/// Passes statistics to all monitors, and keeps a history of scalars.
///
/// The training loop sets the current moment with [`Monitors::set_moment`] and signals the end of
/// steps and epochs. Callbacks report and read statistics.
#[derive(Default)]
pub struct Monitors {
    slots: Vec<Slot>,
    history: HashMap<String, Series>,
    now: Moment,
    /// Whether there are statistics since the end of the last step or epoch.
    put: bool,
    /// Whether a statistic with a reserved name was reported.
    reserved: bool,
}

struct Slot {
    name: String,
    monitor: Box<dyn Monitor>,
    /// The state at the time of failure. A failed monitor is never called again.
    failed: Option<Value>,
}

/// The latest values of a scalar.
struct Series {
    class: Class,
    values: Vec<(u64, f64)>,
}

/// The names of the fields that say when a statistic was reported.
const RESERVED: [&str; 2] = ["epoch_num", "global_step"];

/// The minimum number of values of each scalar in the history. The maximum is twice as many.
const HISTORY: usize = 1024;

impl Monitors {
    /// Creates an empty list, which only keeps the history.
    pub fn new() -> Monitors {
        Monitors::default()
    }

    /// Adds a monitor. Monitors of the same name are numbered.
    pub fn add(&mut self, monitor: impl Monitor + 'static) {
        self.add_boxed(Box::new(monitor));
    }

    /// Like [`Monitors::add`], for a boxed monitor.
    pub fn add_boxed(&mut self, monitor: Box<dyn Monitor>) {
        let same = self.slots.iter().filter(|s| s.monitor.name() == monitor.name()).count();
        let name = if same == 0 { monitor.name() } else { format!("{}.{same}", monitor.name()) };
        self.slots.push(Slot { name, monitor, failed: None });
    }

    /// Starts all monitors. In a resumed run, `resumed` is the saved [`Monitors::state`].
    pub fn start(&mut self, logdir: Option<&Path>, resumed: Option<&Value>, at: Moment) {
        self.now = at;
        let saved = resumed.and_then(|r| r["history"].as_object());
        for (name, values) in saved.into_iter().flatten() {
            let pair = |v: &Value| Some((v[0].as_u64()?, from_json(&v[1])?));
            let values = values.as_array().into_iter().flatten().filter_map(pair).collect();
            self.history.insert(name.clone(), Series { class: Class::Deterministic, values });
        }
        for slot in &mut self.slots {
            let resumed = resumed.and_then(|r| r["monitors"].get(&slot.name));
            slot.call("start", |m| m.start(&Start { logdir, resumed, at }));
        }
        self.put = resumed.is_some_and(|r| r["put"] == true);
    }

    /// Sets the moment of the statistics that follow.
    pub fn set_moment(&mut self, at: Moment) {
        self.now = at;
    }

    /// Returns the current moment.
    pub fn moment(&self) -> Moment {
        self.now
    }

    /// Reports a deterministic scalar: one that depends on the program and its seed only.
    pub fn put_scalar(&mut self, name: &str, value: f64) {
        self.record_scalar(name, value, Class::Deterministic);
    }

    /// Reports a scalar that depends on the machine and its clock.
    pub fn put_timing(&mut self, name: &str, value: f64) {
        self.record_scalar(name, value, Class::WallClock);
    }

    fn record_scalar(&mut self, name: &str, value: f64, class: Class) {
        let at = self.now;
        if RESERVED.contains(&name) {
            if !std::mem::replace(&mut self.reserved, true) {
                log::warn!(
                    "the statistic {name} is left out: all lines have a field of that name; choose another"
                );
            }
            return;
        }
        if !self.history.contains_key(name) {
            self.history.insert(name.to_string(), Series { class, values: Vec::new() });
        }
        if let Some(series) = self.history.get_mut(name) {
            series.class = class;
            if series.values.len() == 2 * HISTORY {
                series.values.drain(..HISTORY);
            }
            series.values.push((at.global_step, value));
        }
        self.report_to_each("write a scalar", |m| m.scalar(name, value, class, at));
    }

    /// Reports points of the curves of scalars over steps. They are not part of the history.
    pub(crate) fn put_curve_points(&mut self, points: &CurvePoints<'_>) {
        self.each("write the points of curves", |m| m.curve_points(points));
    }

    /// Reports images: a tensor of shape `[height, width]`, `[height, width, channels]` or
    /// `[batch, height, width, channels]` with values from 0 to 255. Several images are called
    /// `name/0`, `name/1` and so on.
    pub fn put_image(&mut self, name: &str, images: &HostTensor) -> Result<()> {
        let images = Image::from_tensor(images).map_err(|e| e.within(name))?;
        let at = self.now;
        for (i, image) in images.iter().enumerate() {
            let name = if images.len() == 1 { name.to_string() } else { format!("{name}/{i}") };
            self.report_to_each("write an image", |m| m.image(&name, image, at));
        }
        Ok(())
    }

    /// Reports a histogram of the finite values of a tensor.
    pub fn put_histogram(&mut self, name: &str, values: &HostTensor) {
        let (at, histogram) = (self.now, Histogram::new(values));
        self.report_to_each("write a histogram", |m| m.histogram(name, &histogram, at));
    }

    /// Reports the graph.
    pub fn put_graph(&mut self, graph: &Frozen) {
        self.each("write the graph", |m| m.graph(graph));
    }

    /// Reports what the manifest says about this start.
    pub(crate) fn put_manifest(&mut self, manifest: &Value) {
        self.each("write the manifest", |m| m.manifest(manifest));
    }

    /// Ends a step that is not the last of its epoch.
    pub fn end_step(&mut self) {
        if std::mem::take(&mut self.put) {
            let at = self.now;
            self.each("end a step", |m| m.end_step(at));
        }
    }

    /// Ends an epoch, and its last step.
    pub fn end_epoch(&mut self) {
        let at = self.now;
        self.each("end an epoch", |m| m.end_epoch(at));
        self.put = false;
    }

    /// Makes all statistics durable before a checkpoint is written.
    pub fn sync(&mut self) {
        self.each("sync its files", |m| m.sync());
    }

    /// Says how the run ended, before [`Monitors::finish`].
    pub(crate) fn set_end(&mut self, end: RunEnd) {
        self.each("end", |m| {
            m.set_end(end);
            Ok(())
        });
    }

    /// Ends the run.
    pub fn finish(&mut self) {
        self.each("finish", |m| m.finish());
    }

    /// Returns the latest value of a scalar.
    #[doc(alias = "get_latest")]
    pub fn latest(&self, name: &str) -> Option<f64> {
        self.history(name).last().map(|&(_, value)| value)
    }

    /// Returns the steps and values of a scalar, oldest first. Keeps at least the last 1024.
    #[doc(alias = "get_history")]
    pub fn history(&self, name: &str) -> &[(u64, f64)] {
        self.history.get(name).map_or(&[], |s| &s.values)
    }

    /// Returns the state needed to resume: the history of deterministic scalars, and the state of
    /// every monitor.
    pub fn state(&self) -> Value {
        let deterministic = self.history.iter().filter(|(_, s)| s.class == Class::Deterministic);
        let pairs = |s: &Series| s.values.iter().map(|&(step, v)| json!([step, to_json(v)])).collect();
        let history: Map<String, Value> =
            deterministic.map(|(n, s)| (n.clone(), Value::Array(pairs(s)))).collect();
        let state = |s: &Slot| s.failed.clone().unwrap_or_else(|| s.monitor.state());
        let monitors: Map<String, Value> = self.slots.iter().map(|s| (s.name.clone(), state(s))).collect();
        // A checkpoint may come between the statistics of a step and its end.
        json!({"history": history, "monitors": monitors, "put": self.put})
    }

    /// Passes a statistic to every monitor. `end_step` or `end_epoch` must follow.
    fn report_to_each(&mut self, what: &str, call: impl FnMut(&mut dyn Monitor) -> Result<()>) {
        self.put = true;
        self.each(what, call);
    }

    fn each(&mut self, what: &str, mut call: impl FnMut(&mut dyn Monitor) -> Result<()>) {
        self.slots.iter_mut().for_each(|slot| slot.call(what, &mut call));
    }
}

impl Slot {
    fn call(&mut self, what: &str, call: impl FnOnce(&mut dyn Monitor) -> Result<()>) {
        if self.failed.is_some() {
            return;
        }
        if let Err(e) = call(&mut *self.monitor) {
            log::error!(
                "disabling the monitor {}, which failed to {what}; training continues: {e}",
                self.name
            );
            self.failed = Some(self.monitor.state());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tensorpack_tensor::Error;

    /// Records its calls, and fails at one of them.
    struct Recorder {
        name: &'static str,
        calls: Arc<Mutex<Vec<String>>>,
        fails_at: &'static str,
    }

    impl Recorder {
        fn note(&mut self, call: String) -> Result<()> {
            let fails = !self.fails_at.is_empty() && call.starts_with(self.fails_at);
            self.calls.lock().unwrap().push(format!("{} {call}", self.name));
            if fails { Err(Error::argument("no room")) } else { Ok(()) }
        }
    }

    impl Monitor for Recorder {
        fn name(&self) -> String {
            "recorder".into()
        }
        fn start(&mut self, s: &Start<'_>) -> Result<()> {
            self.note(format!("start {:?} {:?}", s.resumed.map(|v| v.to_string()), s.at.global_step))
        }
        fn scalar(&mut self, name: &str, value: f64, class: Class, at: Moment) -> Result<()> {
            self.note(format!("scalar {name} {value} {class:?} {}", at.global_step))
        }
        fn image(&mut self, name: &str, image: &Image, _: Moment) -> Result<()> {
            self.note(format!("image {name} {:?}", image.pixels))
        }
        fn histogram(&mut self, name: &str, h: &Histogram, _: Moment) -> Result<()> {
            self.note(format!("histogram {name} {}", h.count))
        }
        fn end_step(&mut self, at: Moment) -> Result<()> {
            self.note(format!("end_step {}", at.global_step))
        }
        fn end_epoch(&mut self, at: Moment) -> Result<()> {
            self.note(format!("end_epoch {}", at.epoch_num))
        }
        fn sync(&mut self) -> Result<()> {
            self.note("sync".into())
        }
        fn state(&self) -> Value {
            self.calls.lock().unwrap().len().into()
        }
        fn finish(&mut self) -> Result<()> {
            self.note("finish".into())
        }
    }

    fn with(recorders: &[(&'static str, &'static str)]) -> (Monitors, impl Fn() -> Vec<String>) {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let mut monitors = Monitors::new();
        for &(name, fails_at) in recorders {
            monitors.add(Recorder { name, calls: calls.clone(), fails_at });
        }
        (monitors, move || std::mem::take(&mut *calls.lock().unwrap()))
    }

    fn step(global_step: u64) -> Moment {
        Moment { epoch_num: 1, global_step }
    }

    #[test]
    fn everything_reaches_every_monitor() {
        let (mut m, calls) = with(&[("a", ""), ("b", "")]);
        m.start(None, None, step(3));
        m.put_scalar("cost", 0.5);
        m.end_step();
        m.set_moment(step(4));
        m.end_step();
        m.put_timing("speed", 2.0);
        m.put_image("x", &HostTensor::new([2, 1, 1, 1], vec![7u8, 8]).unwrap()).unwrap();
        m.put_histogram("w", &HostTensor::new([3], vec![1.0f32, 2.0, 3.0]).unwrap());
        m.end_epoch();
        m.sync();
        m.finish();
        let expected = [
            "start None 3",
            "scalar cost 0.5 Deterministic 3",
            "end_step 3",
            "scalar speed 2 WallClock 4",
            "image x/0 [7]",
            "image x/1 [8]",
            "histogram w 3",
            "end_epoch 1",
            "sync",
            "finish",
        ];
        let both = expected.iter().flat_map(|e| [format!("a {e}"), format!("b {e}")]);
        assert_eq!(calls(), both.collect::<Vec<_>>());
        assert!(m.put_image("x", &HostTensor::scalar(1u8)).unwrap_err().message().starts_with("x: "));
    }

    /// Readers would take it for the moment of all other statistics.
    #[test]
    fn a_statistic_cannot_have_the_name_of_a_moment() {
        let (mut m, calls) = with(&[("a", "")]);
        m.put_scalar("epoch_num", 9.0);
        m.put_scalar("cost", 1.0);
        m.put_scalar("global_step", 9.0);
        assert_eq!(calls(), ["a scalar cost 1 Deterministic 0"]);
        assert_eq!(m.latest("epoch_num"), None);
    }

    #[test]
    fn a_failing_monitor_is_disabled_and_the_others_continue() {
        let (mut m, calls) = with(&[("bad", "scalar"), ("good", "")]);
        m.start(None, None, step(0));
        m.put_scalar("cost", 1.0);
        m.put_scalar("cost", f64::NAN);
        m.end_epoch();
        let all = calls();
        assert_eq!(all.iter().filter(|c| c.starts_with("bad")).count(), 2);
        assert_eq!(all.iter().filter(|c| c.starts_with("good")).count(), 4);
        assert!(m.latest("cost").unwrap().is_nan());
        // The state at the time of the failure, not a later one.
        assert_eq!(m.state()["monitors"], json!({"recorder": 3, "recorder.1": 0}));
    }

    #[test]
    fn history_is_restored_from_the_state() {
        let (mut m, _) = with(&[("a", "")]);
        for i in 0..5 {
            m.set_moment(step(i));
            m.put_scalar("loss", if i == 2 { f64::NEG_INFINITY } else { 0.1 * i as f64 });
            m.put_timing("speed", 1.0);
            m.end_step();
        }
        let state: Value = serde_json::from_str(&m.state().to_string()).unwrap();
        let (mut again, calls) = with(&[("a", "")]);
        again.start(None, Some(&state), step(5));
        assert_eq!(again.history("loss"), m.history("loss"));
        assert_eq!(again.history("loss")[2], (2, f64::NEG_INFINITY));
        assert_eq!(again.history("speed"), []);
        assert_eq!(again.latest("none"), None);
        assert_eq!(calls(), [r#"a start Some("15") 5"#]);
    }

    #[test]
    fn a_step_with_statistics_ends_after_a_resume() {
        for put in [false, true] {
            let (mut m, _) = with(&[("a", "")]);
            m.put_scalar("early", 1.0);
            m.end_step();
            if put {
                m.put_scalar("late", 2.0);
            }
            let state = m.state();
            let (mut again, calls) = with(&[("a", "")]);
            again.start(None, Some(&state), step(5));
            again.end_step();
            assert_eq!(calls()[1..], ["a end_step 5"][..usize::from(put)]);
        }
    }

    #[test]
    fn history_is_bounded_and_the_same_after_a_resume() {
        let (mut whole, mut m) = (Monitors::new(), Monitors::new());
        for i in 0..5000 {
            if i % 700 == 0 {
                let mut next = Monitors::new();
                next.start(None, Some(&m.state()), step(i));
                m = next;
            }
            for monitors in [&mut whole, &mut m] {
                monitors.set_moment(step(i));
                monitors.put_scalar("x", i as f64);
            }
            assert!(m.history("x").len() <= 2 * HISTORY);
        }
        assert_eq!(m.history("x"), whole.history("x"));
        assert!(m.history("x").len() >= HISTORY);
    }
}
