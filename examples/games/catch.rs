//! Catch: a ball falls from the top of a small screen, and a paddle at the bottom must be below it
//! when it arrives (Mnih et al., "Recurrent models of visual attention", 2014).

use super::game::Game;

/// The state of the game. A caught ball gives a reward of 1, a missed one of -1; either ends it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Catch {
    row: usize,
    column: usize,
    paddle: usize,
}

impl Catch {
    /// The height and the width of the screen in pixels.
    pub(crate) const SIZE: usize = 10;
}

impl Game for Catch {
    fn reset(&mut self, uniform: &dyn Fn(u64) -> f64) {
        let column = (uniform(0) * Catch::SIZE as f64) as usize;
        *self = Catch { row: 0, column, paddle: Catch::SIZE / 2 };
    }

    /// Moves the paddle to the left (0), not at all (1) or to the right (2).
    fn step(&mut self, action: usize) -> (f64, bool) {
        self.paddle = (self.paddle + action).saturating_sub(1).min(Catch::SIZE - 1);
        self.row += 1;
        match self.row + 1 == Catch::SIZE {
            true if self.column == self.paddle => (1.0, true),
            true => (-1.0, true),
            false => (0.0, false),
        }
    }

    fn observation(&self) -> Vec<f32> {
        let mut pixels = vec![0.0; Catch::SIZE * Catch::SIZE];
        pixels[self.row * Catch::SIZE + self.column] = 1.0;
        pixels[(Catch::SIZE - 1) * Catch::SIZE + self.paddle] = 1.0;
        pixels
    }

    fn state(&self) -> Vec<f64> {
        [self.row, self.column, self.paddle].map(|x| x as f64).to_vec()
    }

    fn set_state(&mut self, state: &[f64]) {
        let [row, column, paddle] = std::array::from_fn(|i| state[i] as usize);
        *self = Catch { row, column, paddle };
    }
}
