//! Defaults for the layers in a scope.

use crate::tower::TowerContext;
use std::rc::Rc;
use tensorpack_tensor::Error;

/// A layer whose settings can have [defaults in a scope](TowerContext::argscope).
pub trait ScopedLayer: Clone + 'static {
    /// Returns a layer with no setting set.
    #[doc(hidden)]
    fn blank() -> Self;

    /// Returns what was set on a blank layer although layers always have their own.
    #[doc(hidden)]
    fn without_default(&self) -> Option<&'static str> {
        None
    }

    /// Returns the layer, with the settings of `scope` where its own were not set.
    #[doc(hidden)]
    #[must_use]
    fn or(&self, scope: &Self) -> Self;
}

impl TowerContext {
    /// Runs `build` with defaults for one type of layer: `defaults` sets them with the layer's own
    /// methods. They hold for every layer of that type that is applied with the context that `build`
    /// gets, also in functions it calls. A layer's own settings win over a scope's, and an inner
    /// scope's over an outer one's.
    ///
    /// ```
    /// use tensorpack::prelude::*;
    ///
    /// # let graph = Graph::new();
    /// # let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(8), Some(8), Some(3)]));
    /// # let t = &TowerContext::training(&graph);
    /// let logits = t.argscope(|conv: Conv2d| conv.relu().no_bias().init(Init::xavier()), |t| {
    ///     t.argscope(|norm: BatchNorm| norm.momentum(0.99), |t| {
    ///         let x = Conv2d::new(16, 3).apply(t, "conv0", &x);
    ///         let x = BatchNorm::new().apply(t, "bn0", &x);
    ///         // What the layer sets itself wins.
    ///         let x = Conv2d::new(16, 3).activation(Activation::Tanh).apply(t, "conv1", &x);
    ///         Linear::new(10).apply(t, "fc", &x)
    ///     })
    /// });
    /// # assert!(graph.variable_named("conv0/b").is_none() && graph.variable_named("fc/b").is_some());
    /// # graph.freeze().unwrap();
    /// ```
    #[track_caller]
    pub fn argscope<L: ScopedLayer, R>(
        &self,
        defaults: impl FnOnce(L) -> L,
        build: impl FnOnce(&TowerContext) -> R,
    ) -> R {
        let defaults = defaults(L::blank());
        if let Some(what) = defaults.without_default() {
            let e = Error::argument(format!("{what} of a layer has no default in a scope"));
            self.graph().record("argscope", &[], e.note("set it where the layer is created"));
        }
        build(&self.with_layer_defaults(Rc::new(defaults)))
    }

    /// Returns the layer with the defaults of the current scopes.
    pub(super) fn with_scope_defaults<L: ScopedLayer>(&self, layer: &L) -> L {
        let scopes = self.layer_defaults().iter().rev().filter_map(|defaults| defaults.downcast_ref::<L>());
        scopes.fold(layer.clone(), |layer, scope| layer.or(scope))
    }
}
