//! Digits for examples: those of MNIST, or generated ones if it is unavailable.

use tensorpack::dataflow::dataset::{digits, mnist};
use tensorpack::dataflow::{RandomAccess, Sample};
use tensorpack::prelude::*;

/// Digits, each an image `[28, 28]` with values in 0..1 and its class.
#[derive(Clone)]
pub(crate) enum Digits {
    Mnist(mnist::Mnist),
    Generated(digits::Digits),
}

impl RandomAccess for Digits {
    fn len(&self) -> u64 {
        match self {
            Digits::Mnist(digits) => digits.len(),
            Digits::Generated(digits) => digits.len(),
        }
    }

    fn get(&self, index: u64) -> Result<Sample> {
        match self {
            Digits::Mnist(digits) => digits.get(index),
            Digits::Generated(digits) => digits.get(index),
        }
    }
}

/// Returns digits for training and for tests: of MNIST, or generated ones if it is unavailable and not
/// `needed`.
pub(crate) fn load(needed: bool) -> Result<[Digits; 2]> {
    match (mnist::train(), mnist::test()) {
        (Ok(train), Ok(test)) => Ok([Digits::Mnist(train), Digits::Mnist(test)]),
        (Err(e), _) | (_, Err(e)) if needed => Err(e),
        (Err(e), _) | (_, Err(e)) => {
            tensorpack::logger::init();
            log::warn!("MNIST is unavailable; training on generated digits: {e}");
            Ok([Digits::Generated(digits::train()?), Digits::Generated(digits::test()?)])
        }
    }
}
