//! Callbacks that do something in one rank alone.

use crate::launch::{Installation, Outcome, Run, Turn, last_checkpoint, undisturbed};
use crate::models::validation_data;
use crate::program::rank;
use crate::task::{Net, OneSided, Task};
use std::time::{Duration, Instant};
use tensorpack::callback::{GraphCx, TrainCx};
use tensorpack::prelude::*;
use tensorpack_testing::assert_mentions;

const RANKS: usize = 2;
/// The step after which it happens: in the middle of the second of three epochs.
const STEP: u64 = 7;

/// Adds the callback to the configuration of a rank.
pub(crate) fn add_callback(config: TrainConfig, task: &Task, what: OneSided) -> TrainConfig {
    let validation = InferenceRunner::new(validation_data(task), [ScalarStats::new("cost").prefix("again")]);
    let validation = validation.tower_name("Again");
    config.callback(OneSidedCallback { what, state: None, validation })
}

struct OneSidedCallback {
    what: OneSided,
    /// The state of the optimizer.
    state: Option<Tensor>,
    validation: InferenceRunner,
}

impl Callback for OneSidedCallback {
    fn chief_only(&self) -> bool {
        matches!(self.what, OneSided::ChiefStops | OneSided::ChiefSaves | OneSided::ChiefSavesAtTheEnd)
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        self.state = g.graph().variable_named("fc0/W/adam_m").map(|v| v.value().clone());
        self.validation.setup_graph(g)
    }

    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if cx.global_step != STEP {
            return Ok(());
        }
        match (self.what, rank()) {
            (OneSided::ChiefStops, _) => cx.stop("enough"),
            (OneSided::ChiefSaves, _) => cx.tag_save("chief"),
            (OneSided::LastSaves, 1) => cx.request_save(),
            (OneSided::FirstFetches, 0) => {
                let state = self.state.as_ref().expect("Adam has state");
                cx.session().run(&[state], &[])?;
            }
            (OneSided::FirstValidates, 0) => self.validation.trigger(cx)?,
            _ => {}
        }
        Ok(())
    }

    fn trigger_epoch(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        Ok(())
    }

    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if self.what == OneSided::ChiefSavesAtTheEnd {
            cx.tag_save("end");
        }
        Ok(())
    }
}

fn start(installation: &Installation, task: &Task) -> Run {
    let mut run = installation.start(RANKS, task);
    let statuses = run.statuses(0..RANKS);
    assert!(run.report(0).is_some() && run.report(1).is_some(), "{statuses:?}: {}", run.output());
    run
}

/// What rank 0 decides alone holds for all ranks at the end of the epoch.
#[test]
fn requests_of_chief_only_callbacks_wait_for_the_end_of_the_epoch() {
    let _turn = Turn::Waiting.take();
    let whole = undisturbed(&Task { plain: true, ..Task::new(Net::Dense, 1, "unused") }, RANKS);
    for what in [OneSided::ChiefStops, OneSided::ChiefSaves, OneSided::ChiefSavesAtTheEnd] {
        for installation in Installation::sample(&format!("{what:?}")) {
            let dir = tempfile::tempdir().unwrap();
            let one_sided = Some(what);
            let task = Task { plain: true, one_sided, ..Task::new(Net::Dense, 1, dir.path()) };
            let run = start(&installation, &task);
            let reports = [0, 1].map(|rank| run.report(rank).unwrap());
            assert!(reports.iter().all(|r| r.kind == "Ok"), "{what:?}: {}", run.output());
            assert_eq!(reports[0].text, reports[1].text, "{what:?}");
            if what == OneSided::ChiefStops {
                assert_mentions(&reports[0].text, &["Stopped", "enough"]);
                assert_eq!(last_checkpoint(dir.path()).unwrap().global_step, 10);
                continue;
            }
            let (tag, step) = if what == OneSided::ChiefSaves { ("chief", 10) } else { ("end", 15) };
            let tagged = std::fs::read_to_string(dir.path().join("checkpoints").join(tag)).unwrap();
            assert!(tagged.starts_with(&format!("step-{step:010}")), "{what:?}: {tagged}");
            Outcome::read(&task).assert_same(&whole, &format!("{what:?}"));
        }
    }
}

/// A rank that goes on with training without the others is an error that names both, and soon: the
/// deadline is a minute.
#[test]
fn what_one_rank_does_alone_in_the_middle_of_an_epoch_is_an_error() {
    let _turn = Turn::Waiting.take();
    for what in [OneSided::LastSaves, OneSided::FirstFetches, OneSided::FirstValidates] {
        for installation in Installation::sample(&format!("{what:?}")) {
            let dir = tempfile::tempdir().unwrap();
            let one_sided = Some(what);
            let task = Task { plain: true, sharded: true, one_sided, ..Task::new(Net::Dense, 1, dir.path()) };
            let begun = Instant::now();
            let run = start(&installation, &task);
            assert!(begun.elapsed() < Duration::from_secs(20), "{what:?}: {}", run.output());
            let (own, other) = if what == OneSided::LastSaves { (1, 0) } else { (0, 1) };
            let text = run.report(own).unwrap().text;
            let place = match what {
                OneSided::LastSaves => "saves",
                OneSided::FirstFetches => "adam_m",
                _ => "Again",
            };
            assert_mentions(&text, &[&format!("rank {other} on "), "step 8", place, "chief_only"]);
            assert_mentions(run.report(other).unwrap().text, &[&format!("rank {own} on "), place]);
        }
    }
}
