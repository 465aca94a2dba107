//! Evaluation: episodes in which the player always takes the action it finds best.

use super::{Episodes, Rules, batch_of_observations, best_actions};
use tensorpack::callback::{Statistic, TrainCx, When};
use tensorpack::graph::Fetch;
use tensorpack::monitor::StatCounter;
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;

/// Plays episodes after every epoch, all at the same time, and reports the mean of their scores as
/// `mean_score` and the best one as `max_score`. Stops training when the game is solved.
pub(crate) struct Evaluation {
    pub(crate) rules: Rules,
    pub(crate) episodes: u64,
    /// The mean score at which the game is solved.
    pub(crate) solved_at: f64,
    /// A value for every action, in the inference tower `actor`: the player takes the action with the
    /// highest.
    pub(crate) action_values: Fetch,
}

/// The statistics of [`Evaluation`].
pub(crate) const MEAN_SCORE: &str = "mean_score";
const MAX_SCORE: &str = "max_score";

impl Callback for Evaluation {
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        // Other episodes in every epoch, and none that is trained on.
        let start = |i| CounterRng::new(cx.seed(), &format!("evaluation {} {i}", cx.epoch_num));
        let mut games: Vec<_> = (0..self.episodes).map(|i| Episodes::new(self.rules, start(i))).collect();
        let mut scores = vec![None; games.len()];
        while scores.contains(&None) {
            cx.check_interrupt()?;
            let observations = batch_of_observations(self.rules, games.iter())?;
            let values = cx.session().run(&[&self.action_values], &[("actor/observation", &observations)])?;
            // A game whose episode has ended plays on, so that all batches have the same size.
            for ((game, action), score) in games.iter_mut().zip(best_actions(&values[0])?).zip(&mut scores) {
                let ended = game.step(action).score;
                *score = score.or(ended);
            }
        }
        let mut counter = StatCounter::default();
        scores.into_iter().flatten().for_each(|score| counter.feed(score));
        let (mean, max) = (counter.mean().unwrap_or(0.0), counter.max().unwrap_or(0.0));
        cx.put_scalar(MEAN_SCORE, mean);
        cx.put_scalar(MAX_SCORE, max);
        if mean >= self.solved_at {
            cx.stop(format!("the game is solved: a mean score of {mean}"));
        }
        Ok(())
    }

    fn stop_criterion(&self) -> Option<String> {
        Some(format!("{MEAN_SCORE} >= {}", self.solved_at))
    }

    fn produces(&self) -> Vec<Statistic> {
        [MEAN_SCORE, MAX_SCORE].map(|name| Statistic::new(name, When::Epoch)).to_vec()
    }
}
