//! Games, and episodes of them.

use super::cart_pole::CartPole;
use super::catch::Catch;
use clap::ValueEnum;
use tensorpack::tensor::CounterRng;

/// A game for one player, who chooses one of a few actions in every step.
pub(crate) trait Game: Send {
    /// Starts a new episode. `uniform(i)` is the `i`-th of its random numbers in `[0, 1)`.
    fn reset(&mut self, uniform: &dyn Fn(u64) -> f64);

    /// Takes an action. Returns the reward, and whether this ended the game.
    fn step(&mut self, action: usize) -> (f64, bool);

    /// Returns what the player sees.
    fn observation(&self) -> Vec<f32>;

    /// Returns the state as numbers, for a checkpoint.
    fn state(&self) -> Vec<f64>;

    /// Restores a state that [`Game::state`] returned.
    fn set_state(&mut self, state: &[f64]);
}

/// The games that can be learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rules {
    /// Balance a pole on a cart.
    CartPole,
    /// Catch a falling ball; the player sees pixels.
    Catch,
}

impl Rules {
    pub(crate) fn new_game(self) -> Box<dyn Game> {
        match self {
            Rules::CartPole => Box::new(CartPole::default()),
            Rules::Catch => Box::new(Catch::default()),
        }
    }

    /// Returns the dims of an observation.
    pub(crate) fn observation_sizes(self) -> &'static [usize] {
        match self {
            Rules::CartPole => &[4],
            Rules::Catch => &[Catch::SIZE, Catch::SIZE, 1],
        }
    }

    /// Returns the number of elements of an observation.
    pub(crate) fn observation_len(self) -> usize {
        self.observation_sizes().iter().product()
    }

    /// Returns the number of actions.
    pub(crate) fn actions(self) -> usize {
        match self {
            Rules::CartPole => 2,
            Rules::Catch => 3,
        }
    }

    /// Returns the number of steps after which an episode is cut off.
    fn time_limit(self) -> u64 {
        match self {
            Rules::CartPole => 200,
            Rules::Catch => u64::MAX,
        }
    }

    /// Returns the factor of rewards for training. It keeps the values of actions at about 1 to 5.
    fn reward_scale(self) -> f64 {
        match self {
            Rules::CartPole => 0.05,
            Rules::Catch => 1.0,
        }
    }

    /// Returns the mean score of 100 episodes at which the game counts as solved.
    pub(crate) fn solved_at(self) -> f64 {
        match self {
            Rules::CartPole => 195.0,
            Rules::Catch => 0.95,
        }
    }

    /// Returns the name of the game on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Rules::CartPole => "cart-pole",
            Rules::Catch => "catch",
        }
    }
}

/// One step of an episode, as it is stored for training.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Transition {
    pub(crate) observation: Vec<f32>,
    pub(crate) action: usize,
    pub(crate) reward: f32,
    pub(crate) next: Vec<f32>,
    /// Whether the game ended here. An episode that is cut off at the time limit has a future.
    pub(crate) terminal: bool,
    /// The score of the episode, if this was its last step.
    pub(crate) score: Option<f64>,
}

/// A game that starts a new episode whenever one ends.
pub(crate) struct Episodes {
    rules: Rules,
    game: Box<dyn Game>,
    rng: CounterRng,
    /// Episodes finished so far.
    finished: u64,
    /// Steps of the current episode.
    steps: u64,
    /// Rewards of the current episode.
    score: f64,
}

impl Episodes {
    /// Starts the first episode. Where episodes start is a function of `rng` and their number.
    pub(crate) fn new(rules: Rules, rng: CounterRng) -> Episodes {
        let mut episodes = Episodes { rules, game: rules.new_game(), rng, finished: 0, steps: 0, score: 0.0 };
        episodes.reset();
        episodes
    }

    fn reset(&mut self) {
        let (rng, episode) = (self.rng, self.finished);
        self.game.reset(&|i| rng.uniform(episode, i));
        (self.steps, self.score) = (0, 0.0);
    }

    pub(crate) fn observation(&self) -> Vec<f32> {
        self.game.observation()
    }

    /// Takes an action, and starts the next episode if this one ended.
    pub(crate) fn step(&mut self, action: usize) -> Transition {
        let observation = self.game.observation();
        let (reward, terminal) = self.game.step(action);
        let next = self.game.observation();
        self.steps += 1;
        self.score += reward;
        let ended = terminal || self.steps == self.rules.time_limit();
        let score = ended.then_some(self.score);
        if ended {
            self.finished += 1;
            self.reset();
        }
        let reward = (reward * self.rules.reward_scale()) as f32;
        Transition { observation, action, reward, next, terminal, score }
    }

    /// Returns the state as numbers.
    pub(crate) fn state(&self) -> Vec<f64> {
        let mut state = vec![self.finished as f64, self.steps as f64, self.score];
        state.extend(self.game.state());
        state
    }

    /// Restores a state that [`Episodes::state`] returned.
    pub(crate) fn set_state(&mut self, state: &[f64]) {
        (self.finished, self.steps, self.score) = (state[0] as u64, state[1] as u64, state[2]);
        self.game.set_state(&state[3..]);
    }
}
