//! One dimension of a shape: a known size, or a symbol for a size that is only known at run time.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The size of one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A size known while the graph is built.
    Known(usize),
    /// A size that becomes concrete when the graph is run.
    Unknown(Symbol),
}

/// The identity of an unknown size.
///
/// Dimensions with the same symbol are equal at run time. Dimensions with different symbols may
/// still turn out to be equal; that is checked once both are concrete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Symbol(u64);

impl Symbol {
    /// Creates the `n`-th symbol. A graph numbers its symbols consecutively.
    #[doc(alias = "numbered")]
    pub fn new(n: u32) -> Symbol {
        Symbol(u64::from(n))
    }
}

impl Dim {
    /// Returns the size if it is known.
    pub fn known(self) -> Option<usize> {
        match self {
            Dim::Known(n) => Some(n),
            Dim::Unknown(_) => None,
        }
    }

    /// Derives the size that `rule` computes from `from`.
    ///
    /// The same rule applied to the same sizes yields the same symbol, so two identical
    /// convolutions have equal output shapes before any size is known.
    pub fn derived(rule: &str, from: &[Dim], parameters: &[usize]) -> Dim {
        let mut h = DefaultHasher::new();
        (rule, from, parameters).hash(&mut h);
        // The top bit separates derived symbols from numbered ones.
        Dim::Unknown(Symbol(h.finish() | 1 << 63))
    }

    /// Returns the product of `dims`.
    pub fn product(dims: &[Dim]) -> Dim {
        let unknown: Vec<Dim> = dims.iter().copied().filter(|d| d.known().is_none()).collect();
        let mut known = dims.iter().filter_map(|d| d.known());
        // Nothing is nothing, whatever the others multiply to.
        let known = match dims.contains(&Dim::Known(0)) {
            true => Some(0),
            false => known.try_fold(1usize, usize::checked_mul),
        };
        match (known, unknown.as_slice()) {
            (Some(n), []) => Dim::Known(n),
            (Some(1), [one]) => *one,
            (known, _) => Dim::derived("product", &unknown, &[known.unwrap_or(usize::MAX)]),
        }
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Dim {
        Dim::Known(n)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Known(n) => write!(f, "{n}"),
            Dim::Unknown(_) => f.write_str("?"),
        }
    }
}
