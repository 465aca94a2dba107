//! Finds the user's source line that created a node, rather than a line of this library.
//!
//! `#[track_caller]` gives the caller's line, but a layer calls its inner operations from the
//! layer's own file. So a layer pushes the line that called *it*, and an operation called from this
//! crate uses the line on top of the stack. An operation called from a user's file, even in a
//! closure passed to this crate, keeps its own line.

use std::panic::Location;
use tensorpack_tensor::Site;

/// The call sites of the enclosing layers, outermost first.
#[derive(Debug, Default)]
pub(super) struct CallSites {
    stack: Vec<Site>,
    /// While gradients are built: the line of the forward node they belong to.
    pub(super) inherited: Option<Site>,
    /// The last line of the user that created a node or called a layer.
    last: Option<Site>,
}

impl CallSites {
    pub(super) fn push(&mut self, caller: &'static Location<'static>) {
        let site = self.resolve(caller);
        self.stack.push(site);
    }

    pub(super) fn pop(&mut self) {
        self.stack.pop();
    }

    /// Returns the user's line for a call from `caller`.
    ///
    /// A function pointer, such as `Tensor::relu` in `map(Tensor::relu)`, has no caller's line: Rust
    /// gives the line of its definition. Such a call gets the user's previous line.
    pub(super) fn resolve(&mut self, caller: &'static Location<'static>) -> Site {
        if let Some(site) = self.inherited {
            return site;
        }
        if !is_ours(caller.file()) {
            return *self.last.insert(Site::from(caller));
        }
        self.stack.last().copied().or(self.last).unwrap_or(Site::from(caller))
    }
}

/// Returns whether a source file belongs to this crate.
fn is_ours(file: &str) -> bool {
    let root = file!().strip_suffix(concat!("graph/", "call_site.rs")).unwrap_or(file!());
    file.starts_with(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_ours_accepts_only_files_of_this_crate() {
        assert!(is_ours(file!()));
        assert!(is_ours(&file!().replace("call_site", "graph")));
        assert!(!is_ours("examples/mnist_convnet.rs"));
    }
}
