//! Scopes: where in names, variables, towers and the user's lines what is built belongs.

use super::{Graph, NodeId, name};
use std::panic::Location;
use tensorpack_tensor::Site;

impl Graph {
    /// Runs `build` with a scope opened for names, and one for variables too if `variables` says so.
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

    /// Runs `build` outside of all scopes: what is made there has the name it is given.
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

    /// Runs `build` as the inside of a layer that was called from `caller`: errors point there.
    pub(crate) fn called_from<R>(&self, caller: &'static Location<'static>, build: impl FnOnce() -> R) -> R {
        self.sites().push(caller);
        let _guard = OnDrop(|| self.sites().pop());
        build()
    }

    /// Runs `build` with every new node on this line.
    pub(crate) fn on_line<R>(&self, site: Site, build: impl FnOnce() -> R) -> R {
        let outer = self.sites().inherited.replace(site);
        let _guard = OnDrop(|| self.sites().inherited = outer);
        build()
    }

    /// Runs `build` with every new node on the line and under the name of `node`: gradients belong to what they are
    /// the gradient of.
    pub(crate) fn on_behalf_of<R>(&self, node: NodeId, build: impl FnOnce() -> R) -> R {
        let Some((site, scope, tower)) = self.built().map(|b| {
            let n = &b.nodes[node.0 as usize];
            let (prefix, own) = name::split_tower(&n.name);
            (n.site, format!("{prefix}gradients/{own}"), n.tower)
        }) else {
            return build();
        };
        let outer = self.building().map(|mut b| {
            let scope = std::mem::replace(&mut b.name_scope, vec![scope]);
            let tower = std::mem::replace(&mut b.tower, tower);
            (self.sites().inherited.replace(site), scope, tower)
        });
        let _guard = OnDrop(|| {
            if let (Some(mut b), Some((site, scope, tower))) = (self.building(), outer.clone()) {
                self.sites().inherited = site;
                b.name_scope = scope;
                b.tower = tower;
            }
        });
        build()
    }

    /// Runs `build` with every new node belonging to tower `index`, and named after it if there are several.
    pub(crate) fn in_tower<R>(&self, index: usize, several: bool, build: impl FnOnce() -> R) -> R {
        let outer = self.building().map(|mut b| std::mem::replace(&mut b.tower, index));
        let _guard = OnDrop(|| {
            if let (Some(mut b), Some(tower)) = (self.building(), outer) {
                b.tower = tower;
            }
        });
        if several { self.scope(&format!("tower{index}"), false, true, build) } else { build() }
    }

    /// What `part` is called in the current scope of every tower: its full name without the tower's.
    pub(crate) fn name_in_towers(&self, part: &str) -> String {
        let scope = self.built().map_or_else(String::new, |b| b.name_scope.join("/"));
        name::split_tower(&name::join(&scope, part)).1.to_string()
    }
}

/// Runs a closure when it goes out of scope, so that scopes close on every way out.
pub(super) struct OnDrop<F: FnMut()>(pub(super) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
