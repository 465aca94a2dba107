//! Serialization of operations. Each operation registers itself with one line; no central list
//! exists.

use super::OpDef;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::any::{Any, TypeId};
use std::ops::RangeInclusive;
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// Serializes an operation's attributes, and moves large tensors into a separate list.
type Save = fn(&dyn Any, &mut Vec<HostTensor>) -> Result<Value>;
/// Deserializes an operation from its attributes and its separate tensors.
type Load = fn(Value, Vec<HostTensor>) -> Result<Arc<dyn OpDef>>;

/// An operation type that exported models can contain: see [`exported!`](crate::exported).
#[derive(Debug)]
pub struct Exported {
    type_id: fn() -> TypeId,
    module: &'static str,
    type_name: &'static str,
    inputs: RangeInclusive<usize>,
    save: Save,
    load: Load,
}
inventory::collect!(Exported);

impl Exported {
    /// The constructor that [`exported!`](crate::exported) calls.
    #[doc(hidden)]
    pub const fn new(
        type_id: fn() -> TypeId,
        module: &'static str,
        type_name: &'static str,
        inputs: RangeInclusive<usize>,
        save: Save,
        load: Load,
    ) -> Exported {
        Exported { type_id, module, type_name, inputs, save, load }
    }

    /// Returns the registration of an operation's type.
    pub(crate) fn find(op: &dyn OpDef) -> Result<&'static Exported> {
        let any: &dyn Any = op;
        inventory::iter::<Exported>().find(|e| (e.type_id)() == any.type_id()).ok_or_else(|| {
            let why = format!("the operation {} cannot be exported: its type is not registered", op.name());
            Error::new(ErrorKind::Graph, why)
                .note("register its type with tensorpack::exported!(Type, inputs)")
        })
    }

    /// Returns the registration of the operation type written as `name`.
    pub(crate) fn named(name: &str) -> Result<&'static Exported> {
        let mut found = inventory::iter::<Exported>().filter(|e| e.name() == name);
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => {
                Err(Error::new(ErrorKind::Graph, format!("no operation named {name:?} is registered"))
                    .note("a custom operation must be compiled into the program that loads the model"))
            }
            _ => Err(Error::new(ErrorKind::Graph, format!("several operations are named {name:?}"))),
        }
    }

    /// Returns the name in files: the type's name, prefixed with the crate's name for types of
    /// other crates.
    pub(crate) fn name(&self) -> String {
        match self.module.split("::").next() {
            Some(other) if other != env!("CARGO_CRATE_NAME") => format!("{other}::{}", self.type_name),
            _ => self.type_name.into(),
        }
    }

    /// Returns an operation's attributes and its separate tensors.
    pub(crate) fn save(&self, op: &dyn OpDef) -> Result<(Value, Vec<HostTensor>)> {
        let mut tensors = Vec::new();
        Ok(((self.save)(op, &mut tensors)?, tensors))
    }

    /// Creates an operation from its attributes and tensors, for this many inputs.
    pub(crate) fn load(
        &self,
        attributes: Value,
        tensors: Vec<HostTensor>,
        inputs: usize,
    ) -> Result<Arc<dyn OpDef>> {
        if !self.inputs.contains(&inputs) {
            return Err(Error::argument(format!("{} does not take {inputs} inputs", self.type_name)));
        }
        (self.load)(attributes, tensors)
    }

    /// Serializes attributes.
    pub fn attributes(of: &impl Serialize) -> Result<Value> {
        serde_json::to_value(of).map_err(|e| Error::argument(format!("cannot serialize the attributes: {e}")))
    }

    /// Deserializes attributes.
    pub fn from_attributes<T: DeserializeOwned>(value: Value) -> Result<T> {
        serde_json::from_value(value)
            .map_err(|e| Error::argument(format!("cannot deserialize the attributes: {e}")))
    }
}

/// Registers an operation type for exported models: `exported!(Type, inputs)`, where `inputs` is
/// the range of input counts it accepts. The attributes are serialized with serde: derive
/// `Serialize` and `Deserialize`.
///
/// For a type that serde cannot serialize, pass two functions:
/// `exported!(Type, inputs, save, load)`, where `save` is a
/// `fn(&Type, &mut Vec<HostTensor>) -> Result<serde_json::Value>` and `load` a
/// `fn(serde_json::Value, Vec<HostTensor>) -> Result<Type>`. Put large values in the list of
/// tensors.
///
/// Files are not trusted: the operation's `infer` must reject attributes that do not fit the
/// inputs.
#[macro_export]
macro_rules! exported {
    ($op:ident, $inputs:expr) => {
        $crate::exported!($op, $inputs, |op: &$op, _| $crate::graph::Exported::attributes(op), |value, _| {
            $crate::graph::Exported::from_attributes::<$op>(value)
        });
    };
    ($op:ident, $inputs:expr, $save:expr, $load:expr) => {
        $crate::inventory::submit! {
            $crate::graph::Exported::new(
                ::std::any::TypeId::of::<$op>,
                module_path!(),
                stringify!($op),
                $inputs,
                |op, tensors| {
                    let save: fn(&$op, &mut Vec<$crate::HostTensor>) -> _ = $save;
                    save(op.downcast_ref::<$op>().expect("looked up by its TypeId"), tensors)
                },
                |value, tensors| {
                    let load: fn(_, Vec<$crate::HostTensor>) -> $crate::Result<$op> = $load;
                    Ok(::std::sync::Arc::new(load(value, tensors)?))
                },
            )
        }
    };
}
