//! Control flow: `scan` and `while_loop`. The body of a loop is a graph of its own.

mod body;
mod body_file;
mod scan;
mod while_loop;

pub use scan::Scan;
pub use while_loop::while_loop;
