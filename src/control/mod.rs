//! Control flow: `Scan`, `while_loop` and `cond`. The body of a loop and a branch are graphs of their own.

mod body;
mod body_file;
mod cond;
mod scan;
mod while_loop;

pub use cond::cond;
pub use scan::Scan;
pub use while_loop::while_loop;
