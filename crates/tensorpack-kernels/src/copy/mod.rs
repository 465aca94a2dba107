//! Data movement: strided copies, transposition, concatenation and padding.

mod concat;
mod strided_copy;
mod pad;
mod transpose;

pub use concat::Concat;
pub use pad::Pad;
pub use strided_copy::Copy;
