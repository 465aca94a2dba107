//! All monitors of a run, and the history of what was put.

use super::number::{from_json, to_json};
use super::{Class, Histogram, Image, Moment, Monitor, Start};
use crate::graph::Frozen;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::path::Path;
use tensorpack_tensor::{HostTensor, Result};

/// Hands what is put to every monitor, and remembers scalars.
///
/// The loop tells it the time by [`Monitors::set_moment`], and where steps and epochs end; callbacks put and read.
#[derive(Default)]
pub struct Monitors {
    slots: Vec<Slot>,
    history: HashMap<String, Series>,
    now: Moment,
    /// Whether something was put since the last step or epoch ended.
    put: bool,
}

struct Slot {
    name: String,
    monitor: Box<dyn Monitor>,
    /// The state at the time it failed; such a monitor is never called again.
    failed: Option<Value>,
}

/// The last values of one name.
struct Series {
    class: Class,
    values: Vec<(u64, f64)>,
}

/// How many values of each name are remembered at least; twice as many at most.
const REMEMBERED: usize = 1024;

impl Monitors {
    /// No monitors: what is put is remembered alone.
    pub fn new() -> Monitors {
        Monitors::default()
    }

    /// Adds a monitor. Two of one name are told apart by a number.
    pub fn add(&mut self, monitor: impl Monitor + 'static) {
        self.add_boxed(Box::new(monitor));
    }

    /// [`Monitors::add`] for one of a kind chosen at run time.
    pub fn add_boxed(&mut self, monitor: Box<dyn Monitor>) {
        let same = self.slots.iter().filter(|s| s.monitor.name() == monitor.name()).count();
        let name = if same == 0 { monitor.name() } else { format!("{}.{same}", monitor.name()) };
        self.slots.push(Slot { name, monitor, failed: None });
    }

    /// Begins: `resumed` is the [`Monitors::state`] that was saved, in a run that goes on.
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

    /// Says which moment all that is put from now on belongs to.
    pub fn set_moment(&mut self, at: Moment) {
        self.now = at;
    }

    /// The moment that was set last.
    pub fn moment(&self) -> Moment {
        self.now
    }

    /// Puts a scalar that the program and its seed determine.
    pub fn put_scalar(&mut self, name: &str, value: f64) {
        self.remember_and_put(name, value, Class::Deterministic);
    }

    /// Puts a scalar that depends on the machine and its clock.
    pub fn put_timing(&mut self, name: &str, value: f64) {
        self.remember_and_put(name, value, Class::WallClock);
    }

    fn remember_and_put(&mut self, name: &str, value: f64, class: Class) {
        let at = self.now;
        if !self.history.contains_key(name) {
            self.history.insert(name.to_string(), Series { class, values: Vec::new() });
        }
        if let Some(series) = self.history.get_mut(name) {
            series.class = class;
            if series.values.len() == 2 * REMEMBERED {
                series.values.drain(..REMEMBERED);
            }
            series.values.push((at.global_step, value));
        }
        self.put_to_each("write a scalar", |m| m.scalar(name, value, class, at));
    }

    /// Puts pictures with values from 0 to 255: `[height, width]`, `[height, width, channels]` or
    /// `[batch, height, width, channels]`. Several are called `name/0`, `name/1` and so on.
    pub fn put_image(&mut self, name: &str, images: &HostTensor) -> Result<()> {
        let images = Image::from_tensor(images).map_err(|e| e.within(name))?;
        let at = self.now;
        for (i, image) in images.iter().enumerate() {
            let name = if images.len() == 1 { name.to_string() } else { format!("{name}/{i}") };
            self.put_to_each("write a picture", |m| m.image(&name, image, at));
        }
        Ok(())
    }

    /// Puts how the finite values of a tensor are spread.
    pub fn put_histogram(&mut self, name: &str, values: &HostTensor) {
        let (at, histogram) = (self.now, Histogram::of(values));
        self.put_to_each("write a histogram", |m| m.histogram(name, &histogram, at));
    }

    /// Puts the graph.
    pub fn put_graph(&mut self, graph: &Frozen) {
        self.each("write the graph", |m| m.graph(graph));
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

    /// Makes all that was put safe, before a checkpoint is written.
    pub fn sync(&mut self) {
        self.each("make its files safe", |m| m.sync());
    }

    /// Ends the run.
    pub fn finish(&mut self) {
        self.each("finish", |m| m.finish());
    }

    /// The last value put under a name.
    #[doc(alias = "get_latest")]
    pub fn latest(&self, name: &str) -> Option<f64> {
        self.history(name).last().map(|&(_, value)| value)
    }

    /// What was put under a name: steps and values, oldest first. At least the last thousand are there.
    #[doc(alias = "get_history")]
    pub fn history(&self, name: &str) -> &[(u64, f64)] {
        self.history.get(name).map_or(&[], |s| &s.values)
    }

    /// What a run that goes on needs: the history, wall-clock scalars excepted, and each monitor's own state.
    pub fn state(&self) -> Value {
        let lasting = self.history.iter().filter(|(_, s)| s.class == Class::Deterministic);
        let pairs = |s: &Series| s.values.iter().map(|&(step, v)| json!([step, to_json(v)])).collect();
        let history: Map<String, Value> = lasting.map(|(n, s)| (n.clone(), Value::Array(pairs(s)))).collect();
        let state = |s: &Slot| s.failed.clone().unwrap_or_else(|| s.monitor.state());
        let monitors: Map<String, Value> = self.slots.iter().map(|s| (s.name.clone(), state(s))).collect();
        // A checkpoint may come between what a step put and its end.
        json!({"history": history, "monitors": monitors, "put": self.put})
    }

    /// Hands something to every monitor, which the end of the step is due to follow.
    fn put_to_each(&mut self, what: &str, call: impl FnMut(&mut dyn Monitor) -> Result<()>) {
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
                "the monitor {} failed to {what} and is switched off; training goes on: {e}",
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

    /// Notes its calls, and fails at one of them.
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

    #[test]
    fn a_monitor_that_fails_is_switched_off_and_the_others_go_on() {
        let (mut m, calls) = with(&[("bad", "scalar"), ("good", "")]);
        m.start(None, None, step(0));
        m.put_scalar("cost", 1.0);
        m.put_scalar("cost", f64::NAN);
        m.end_epoch();
        let all = calls();
        assert_eq!(all.iter().filter(|c| c.starts_with("bad")).count(), 2);
        assert_eq!(all.iter().filter(|c| c.starts_with("good")).count(), 4);
        assert!(m.latest("cost").unwrap().is_nan());
        // The state at the time of the failure, not what became of it later.
        assert_eq!(m.state()["monitors"], json!({"recorder": 3, "recorder.1": 0}));
    }

    #[test]
    fn history_comes_back_with_the_state() {
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
    fn a_step_in_which_something_was_put_ends_after_a_resume_too() {
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
            assert!(m.history("x").len() <= 2 * REMEMBERED);
        }
        assert_eq!(m.history("x"), whole.history("x"));
        assert!(m.history("x").len() >= REMEMBERED);
    }
}
