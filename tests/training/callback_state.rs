//! The state of callbacks: a resumed run is identical to an uninterrupted one.

use crate::models::{Knobs, line};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use tensorpack::callback::{
    HyperParam, HyperParamSetterWithFunc, SimpleMovingAverage, StatMonitorParamSetter, TrainCx,
};
use tensorpack::io::Keep;
use tensorpack::prelude::*;
use tensorpack::train::Ended;

/// Reports the knobs after each epoch.
struct PutKnobs(Rc<Cell<f64>>);

impl Callback for PutKnobs {
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        for name in ["knob", "other", "count"] {
            let value = cx.session().read(name)?.to_scalar()?;
            cx.put_scalar(name, value);
        }
        cx.put_scalar("attribute", self.0.get());
        Ok(())
    }
}

/// Trains up to an epoch, with every callback that has state.
fn train(dir: &Path, max_epoch: u64) -> Ended {
    let attribute = Rc::new(Cell::new(1.0));
    let (get, set) = (attribute.clone(), attribute.clone());
    let param = HyperParam::attribute("attribute", move || get.get(), move |v| set.set(v));
    let config = TrainConfig::new(Knobs, line(3))
        .callback(ModelSaver::new())
        .callback(SimpleMovingAverage::new(["cost"], 4))
        .callback(InferenceRunner::new(line(2), [ScalarStats::new("cost")]))
        .callback(MinSaver::new("cost").best(3))
        .callback(MaxSaver::new("cost/SMA").tag("costly"))
        // Never improves by this much: the first change comes after 3 values.
        .callback(StatMonitorParamSetter::new("knob", "validation_cost", |x| x / 2.0, 1e9, 3))
        .callback(StatMonitorParamSetter::new(param, "cost", |x| x + 0.3, 1e9, 2))
        .callback(HyperParamSetterWithFunc::new("other", |epoch, x| 0.5 * x + epoch as f64))
        .callback(ScheduledHyperParamSetter::new("count", [(0, 5.0), (4, 9.0)]))
        .callback(PutKnobs(attribute))
        .callback(
            PeriodicTrigger::new(EarlyStopping::min("validation_cost").min_delta(1e9).patience(3))
                .every_k_epochs(1),
        )
        .keep(Keep::last(100))
        .max_epoch(max_epoch)
        .logdir(dir);
    launch_train_with_config(config, SimpleTrainer::new()).unwrap().ended
}

/// Returns the statistics, and the checkpoint of each tag.
fn results(dir: &Path) -> (String, BTreeMap<String, String>) {
    let mut tags = BTreeMap::new();
    for entry in std::fs::read_dir(dir.join("checkpoints")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            tags.insert(name, std::fs::read_to_string(path).unwrap());
        }
    }
    (std::fs::read_to_string(dir.join("stats.jsonl")).unwrap(), tags)
}

#[test]
fn a_resumed_run_is_identical_to_an_uninterrupted_one() {
    let whole = tempfile::tempdir().unwrap();
    let ended = train(whole.path(), 8);
    assert!(matches!(&ended, Ended::Stopped(why) if why.contains("validation_cost")), "{ended:?}");
    let (stats, tags) = results(whole.path());
    // The run produces everything that is compared.
    assert!(tags.keys().any(|t| t.contains("min-cost-3")) && tags.contains_key("latest"), "{tags:?}");
    for part in [r#""cost/SMA":"#, r#""knob":0.5"#, r#""attribute":1.6"#, r#""count":9.0"#, r#""other":"#] {
        assert!(stats.contains(part), "{part} in {stats}");
    }
    assert_eq!(stats.lines().last().unwrap().split(',').next(), Some(r#"{"epoch_num":5"#));
    for first in 1..5 {
        let parts = tempfile::tempdir().unwrap();
        assert_eq!(train(parts.path(), first), Ended::Finished);
        assert_eq!(train(parts.path(), 8), ended, "after {first}");
        let (in_parts, tags_in_parts) = results(parts.path());
        assert_eq!(in_parts, stats, "after {first}");
        assert_eq!(tags_in_parts, tags, "after {first}");
    }
}

#[test]
fn a_resumed_run_keeps_the_value_of_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let train = |setter: ScheduledHyperParamSetter, max_epoch| {
        let config = TrainConfig::new(Knobs, line(1)).logdir(dir.path()).max_epoch(max_epoch);
        let config = config.callback(ModelSaver::new()).callback(setter);
        let trained = launch_train_with_config(config, NoOpTrainer::new()).unwrap();
        trained.session.read("knob").unwrap().to_scalar().unwrap()
    };
    assert_eq!(train(ScheduledHyperParamSetter::new("knob", [(0, 5.0)]), 1), 5.0);
    // Point 1 has passed: a new value for it has no effect.
    assert_eq!(train(ScheduledHyperParamSetter::new("knob", [(0, 6.0), (1, 7.0)]), 2), 5.0);
    assert_eq!(train(ScheduledHyperParamSetter::new("knob", [(0, 6.0), (3, 8.0)]), 3), 8.0);
}
