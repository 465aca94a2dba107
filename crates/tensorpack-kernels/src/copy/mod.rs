//! Moving elements without computing: strided copies, transposition, concatenation and padding.

mod concat;
mod copy;
mod pad;
mod transpose;

pub use concat::Concat;
pub use copy::Copy;
pub use pad::Pad;
