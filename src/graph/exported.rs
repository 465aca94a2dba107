//! How operations are written to files and read back. Each says so itself, in one line; no list names them all.

use super::OpDef;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::any::{Any, TypeId};
use std::ops::RangeInclusive;
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// Writes an operation's attributes, and puts the tensors among them aside.
type Save = fn(&dyn Any, &mut Vec<HostTensor>) -> Result<Value>;
/// Makes an operation of its attributes, and of the tensors put aside.
type Load = fn(Value, Vec<HostTensor>) -> Result<Arc<dyn OpDef>>;

/// A type of operations that an exported model can hold: see [`exported!`](crate::exported).
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
    /// What [`exported!`](crate::exported) makes.
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

    /// How an operation is written.
    pub(crate) fn of(op: &dyn OpDef) -> Result<&'static Exported> {
        let any: &dyn Any = op;
        inventory::iter::<Exported>().find(|e| (e.type_id)() == any.type_id()).ok_or_else(|| {
            let why = format!("the operation {} cannot be exported", op.name());
            Error::new(ErrorKind::Graph, why)
                .note("register its type with tensorpack::exported!(Type, how_many_inputs)")
        })
    }

    /// How operations written under `name` are read.
    pub(crate) fn named(name: &str) -> Result<&'static Exported> {
        let mut found = inventory::iter::<Exported>().filter(|e| e.name() == name);
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => Err(Error::new(ErrorKind::Graph, format!("there is no operation named {name:?}"))
                .note("an operation of one's own must be part of the program that loads the model")),
            _ => Err(Error::new(ErrorKind::Graph, format!("several operations are named {name:?}"))),
        }
    }

    /// What it is called in files: its type, for those of other crates behind the crate's name.
    pub(crate) fn name(&self) -> String {
        match self.module.split("::").next() {
            Some(other) if other != env!("CARGO_CRATE_NAME") => format!("{other}::{}", self.type_name),
            _ => self.type_name.into(),
        }
    }

    /// An operation's attributes, and the tensors that go beside them.
    pub(crate) fn save(&self, op: &dyn OpDef) -> Result<(Value, Vec<HostTensor>)> {
        let mut tensors = Vec::new();
        Ok(((self.save)(op, &mut tensors)?, tensors))
    }

    /// The operation of these attributes and tensors, for this many inputs.
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

    /// Attributes as they are written.
    pub fn attributes(of: &impl Serialize) -> Result<Value> {
        serde_json::to_value(of).map_err(|e| Error::argument(format!("attributes cannot be written: {e}")))
    }

    /// Attributes as they are read.
    pub fn from_attributes<T: DeserializeOwned>(value: Value) -> Result<T> {
        serde_json::from_value(value).map_err(|e| Error::argument(format!("attributes cannot be read: {e}")))
    }
}

/// Lets operations of a type be part of exported models: `exported!(Type, inputs)`, where `inputs` is the range of
/// how many inputs they take. The type's attributes are written with serde: derive `Serialize` and `Deserialize`.
///
/// A type that serde cannot write says how, with two functions: `exported!(Type, inputs, save, load)`, where `save` is
/// a `fn(&Type, &mut Vec<HostTensor>) -> Result<serde_json::Value>` and `load` a
/// `fn(serde_json::Value, Vec<HostTensor>) -> Result<Type>`. Large values go into the list of tensors.
///
/// Files are not trusted: the operation's `infer` must refuse attributes that do not fit the inputs.
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
                    save(op.downcast_ref::<$op>().expect("it was found by its type"), tensors)
                },
                |value, tensors| {
                    let load: fn(_, Vec<$crate::HostTensor>) -> $crate::Result<$op> = $load;
                    Ok(::std::sync::Arc::new(load(value, tensors)?))
                },
            )
        }
    };
}
