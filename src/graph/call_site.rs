//! Whose line made a node: the user's, not this library's.
//!
//! `#[track_caller]` gives the caller's line, but a layer's inner operations are called from the layer's own file.
//! So a layer pushes the line that called *it*, and an operation called from this crate takes the line on top. An
//! operation called from a user's file, be it in a closure handed to this crate, keeps its own line.

use std::panic::Location;
use tensorpack_tensor::Site;

/// The lines that called layers, outermost first.
#[derive(Debug, Default)]
pub(super) struct CallSites {
    stack: Vec<Site>,
    /// While gradients are built: the line of the forward node they belong to.
    pub(super) inherited: Option<Site>,
}

impl CallSites {
    pub(super) fn push(&mut self, caller: &'static Location<'static>) {
        let site = self.resolve(caller);
        self.stack.push(site);
    }

    pub(super) fn pop(&mut self) {
        self.stack.pop();
    }

    /// The user's line behind a call from `caller`.
    pub(super) fn resolve(&self, caller: &'static Location<'static>) -> Site {
        if let Some(site) = self.inherited {
            return site;
        }
        match self.stack.last() {
            Some(&user) if is_ours(caller.file()) => user,
            _ => Site::from(caller),
        }
    }
}

/// Whether a source file belongs to this crate.
fn is_ours(file: &str) -> bool {
    let root = file!().strip_suffix(concat!("graph/", "call_site.rs")).unwrap_or(file!());
    file.starts_with(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_crates_files_are_ours() {
        assert!(is_ours(file!()));
        assert!(is_ours(&file!().replace("call_site", "graph")));
        assert!(!is_ours("examples/mnist_convnet.rs"));
    }
}
