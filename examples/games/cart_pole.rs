//! CartPole: a pole stands on a cart, which is pushed left or right to keep the pole upright
//! (Barto, Sutton and Anderson, 1983), with the constants of Gym.

use super::game::Game;

const GRAVITY: f64 = 9.8;
const CART_MASS: f64 = 1.0;
const POLE_MASS: f64 = 0.1;
/// Half the length of the pole.
const HALF_LENGTH: f64 = 0.5;
const FORCE: f64 = 10.0;
/// Seconds per step.
const STEP: f64 = 0.02;
const MAX_POSITION: f64 = 2.4;
const MAX_ANGLE: f64 = 12.0 * std::f64::consts::PI / 180.0;

/// The state of the game. Every step that is reached gives a reward of 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CartPole {
    position: f64,
    velocity: f64,
    angle: f64,
    angular_velocity: f64,
}

impl Game for CartPole {
    fn reset(&mut self, uniform: &dyn Fn(u64) -> f64) {
        let small: [f64; 4] = std::array::from_fn(|i| 0.1 * uniform(i as u64) - 0.05);
        self.set_state(&small);
    }

    /// Pushes the cart to the left (0) or to the right (1), and integrates with Euler's method.
    fn step(&mut self, action: usize) -> (f64, bool) {
        let force = if action == 1 { FORCE } else { -FORCE };
        let mass = CART_MASS + POLE_MASS;
        let (sin, cos) = self.angle.sin_cos();
        let pull = (force + POLE_MASS * HALF_LENGTH * self.angular_velocity.powi(2) * sin) / mass;
        let angular_acceleration =
            (GRAVITY * sin - cos * pull) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cos * cos / mass));
        let acceleration = pull - POLE_MASS * HALF_LENGTH * angular_acceleration * cos / mass;
        self.position += STEP * self.velocity;
        self.velocity += STEP * acceleration;
        self.angle += STEP * self.angular_velocity;
        self.angular_velocity += STEP * angular_acceleration;
        (1.0, self.position.abs() > MAX_POSITION || self.angle.abs() > MAX_ANGLE)
    }

    fn observation(&self) -> Vec<f32> {
        self.state().iter().map(|&x| x as f32).collect()
    }

    fn state(&self) -> Vec<f64> {
        vec![self.position, self.velocity, self.angle, self.angular_velocity]
    }

    fn set_state(&mut self, state: &[f64]) {
        [self.position, self.velocity, self.angle, self.angular_velocity] = std::array::from_fn(|i| state[i]);
    }
}
