//! Scopes: the names, variable names, tower and source line given to new nodes.

use super::{Graph, NodeId, name};
use std::panic::Location;
use tensorpack_tensor::Site;

impl Graph {
    /// Runs `build` in a name scope, and also in a variable scope if `variables` is true.
    #[track_caller]
    pub(crate) fn scope<R>(
        &self,
        part: &str,
        variables: bool,
        reserved: bool,
        build: impl FnOnce() -> R,
    ) -> R {
        let checked =
            name::check(part).and_then(|()| if reserved { Ok(()) } else { name::check_not_reserved(part) });
        if let Err(e) = checked {
            self.record("scope", &[], e);
        }
        if let Some(mut b) = self.building() {
            b.name_scope.push(part.to_string());
            if variables {
                b.variable_scope.push(part.to_string());
            }
        }
        let _guard = OnDrop(|| {
            if let Some(mut b) = self.building() {
                b.name_scope.pop();
                if variables {
                    b.variable_scope.pop();
                }
            }
        });
        build()
    }

    /// Runs `build` at the root, outside all scopes.
    pub(crate) fn at_root<R>(&self, build: impl FnOnce() -> R) -> R {
        let outer = self
            .building()
            .map(|mut b| (std::mem::take(&mut b.name_scope), std::mem::take(&mut b.variable_scope)));
        let _guard = OnDrop(|| {
            if let (Some(mut b), Some((names, variables))) = (self.building(), outer.clone()) {
                (b.name_scope, b.variable_scope) = (names, variables);
            }
        });
        build()
    }

    /// Runs `build` as the body of a layer called from `caller`: errors point there.
    pub(crate) fn called_from<R>(&self, caller: &'static Location<'static>, build: impl FnOnce() -> R) -> R {
        self.sites().push(caller);
        let _guard = OnDrop(|| self.sites().pop());
        build()
    }

    /// Runs `build` and attributes every new node to this source line.
    pub(crate) fn on_line<R>(&self, site: Site, build: impl FnOnce() -> R) -> R {
        let outer = self.sites().inherited.replace(site);
        let _guard = OnDrop(|| self.sites().inherited = outer);
        build()
    }

    /// Runs `build` and attributes every new node to the source line, name, tower and recompute
    /// blocks of `node`, so that gradients belong to their forward node.
    pub(crate) fn on_behalf_of<R>(&self, node: NodeId, build: impl FnOnce() -> R) -> R {
        let Some((site, scope, tower, blocks, order)) = self.built().map(|b| {
            let n = &b.nodes[node.0 as usize];
            let (prefix, own) = name::split_tower(&n.name);
            (n.site, format!("{prefix}gradients/{own}"), n.tower, n.blocks.clone(), n.order.saturating_add(1))
        }) else {
            return build();
        };
        let outer = self.building().map(|mut b| {
            let scope = std::mem::replace(&mut b.name_scope, vec![scope]);
            let tower = std::mem::replace(&mut b.tower, tower);
            let blocks = std::mem::replace(&mut b.blocks, blocks);
            let order = std::mem::replace(&mut b.order, order);
            (self.sites().inherited.replace(site), scope, tower, blocks, order)
        });
        let _guard = OnDrop(|| {
            if let (Some(mut b), Some((site, scope, tower, blocks, order))) = (self.building(), outer.clone())
            {
                self.sites().inherited = site;
                (b.name_scope, b.tower, b.blocks, b.order) = (scope, tower, blocks, order);
            }
        });
        build()
    }

    /// Runs `build` as a recompute block: its gradients compute the results of its nodes again.
    pub(crate) fn recompute<R>(&self, build: impl FnOnce() -> R) -> R {
        if let Some(mut b) = self.building() {
            let block = b.block_count;
            b.block_count += 1;
            b.blocks.push(block);
        }
        let _guard = OnDrop(|| {
            if let Some(mut b) = self.building() {
                b.blocks.pop();
            }
        });
        build()
    }

    /// Runs `build` and assigns every new node to tower `index` of this graph, in the name scope
    /// `scope` if there is one.
    pub(crate) fn in_tower<R>(&self, index: usize, scope: Option<&str>, build: impl FnOnce() -> R) -> R {
        let outer = self.building().map(|mut b| std::mem::replace(&mut b.tower, index));
        let _guard = OnDrop(|| {
            if let (Some(mut b), Some(tower)) = (self.building(), outer) {
                b.tower = tower;
            }
        });
        match scope {
            Some(scope) => self.scope(scope, false, true, build),
            None => build(),
        }
    }

    /// Records that the towers before `first` are in the graphs of other processes.
    pub(crate) fn set_first_tower(&self, first: usize) {
        if let Some(mut b) = self.building() {
            b.first_tower = first;
        }
    }

    /// Returns the name scope that nodes are created in; empty at the root.
    pub(crate) fn current_name_scope(&self) -> String {
        self.built().map_or_else(String::new, |b| b.name_scope.join("/"))
    }

    /// Returns the variable scope that variables are created in; empty at the root.
    pub(crate) fn current_variable_scope(&self) -> String {
        self.built().map_or_else(String::new, |b| b.variable_scope.join("/"))
    }

    /// Returns the full name of `part` in the current scope, without the tower prefix.
    pub(crate) fn name_in_towers(&self, part: &str) -> String {
        name::split_tower(&name::join(&self.current_name_scope(), part)).1.to_string()
    }
}

/// Runs a closure when dropped, so that scopes close on every exit path.
pub(super) struct OnDrop<F: FnMut()>(pub(super) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
