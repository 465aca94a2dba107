//! One dimension of a shape: a known size, or a symbol for a size that is known only when the graph is run.

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

/// The identity of an unknown size. Two dims with the same symbol are equal whatever they will be; two with
/// different symbols may still turn out equal, which is checked once they are concrete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Symbol(u64);

impl Symbol {
    /// The symbol numbered `n`, as a graph hands them out.
    #[doc(alias = "numbered")]
    pub fn new(n: u32) -> Symbol {
        Symbol(u64::from(n))
    }
}

impl Dim {
    /// The size, if it is known.
    pub fn known(self) -> Option<usize> {
        match self {
            Dim::Known(n) => Some(n),
            Dim::Unknown(_) => None,
        }
    }

    /// The unknown size that `rule` makes of `from`: the same rule of the same sizes is the same symbol, so that
    /// two convolutions alike agree in shape before any size is known.
    pub fn derived(rule: &str, from: &[Dim], parameters: &[usize]) -> Dim {
        let mut h = DefaultHasher::new();
        (rule, from, parameters).hash(&mut h);
        // The top bit keeps derived symbols apart from numbered ones.
        Dim::Unknown(Symbol(h.finish() | 1 << 63))
    }

    /// The product of some dims.
    pub fn product(dims: &[Dim]) -> Dim {
        let unknown: Vec<Dim> = dims.iter().copied().filter(|d| d.known().is_none()).collect();
        let known = dims.iter().filter_map(|d| d.known()).try_fold(1usize, usize::checked_mul);
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
