//! A training program as data: what is drawn, run, shrunk and printed.

use crate::optimizers::Training;
use crate::rows::Row;
use std::fmt;
use std::ops::Range;
use tensorpack::graph::Fan;
use tensorpack::prelude::*;

/// One output of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Port {
    pub(crate) node: usize,
    pub(crate) output: usize,
}

/// The kind of elements a tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// f32 or f64, as the whole program says.
    Float,
    /// bf16 or f16, as the whole program says.
    Narrow,
    Int(DType),
    Bool,
}

impl Class {
    pub(crate) fn of(dtype: DType) -> Class {
        match dtype {
            DType::Bool => Class::Bool,
            d if d.is_narrow_float() => Class::Narrow,
            d if d.is_float() => Class::Float,
            d => Class::Int(d),
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Class::Float | Class::Narrow)
    }

    pub(crate) fn dtype(self, floats: Floats) -> DType {
        match self {
            Class::Float => floats.wide,
            Class::Narrow => floats.narrow,
            Class::Int(dtype) => dtype,
            Class::Bool => DType::Bool,
        }
    }
}

/// The types of the two classes of floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Floats {
    pub(crate) wide: DType,
    pub(crate) narrow: DType,
}

/// How the elements of an input or a variable are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Elements {
    Reals { seed: u64 },
    Indices { seed: u64, below: usize },
}

impl Elements {
    pub(crate) fn draw(self, len: usize) -> Vec<f64> {
        match self {
            Elements::Reals { seed } => crate::values(seed, len),
            Elements::Indices { seed, below } => crate::indices(seed, below, len),
        }
    }

    /// Returns how the elements of tower `tower` are drawn.
    pub(crate) fn in_tower(self, tower: usize) -> Elements {
        let tower = tower as u64;
        match self {
            Elements::Reals { seed } => Elements::Reals { seed: seed + tower },
            Elements::Indices { seed, below } => Elements::Indices { seed: seed + tower, below },
        }
    }
}

/// Where a node's value comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// An input. A dimension is unknown while the graph is built where `known` is false.
    Input { class: Class, sizes: Vec<usize>, known: Vec<bool>, elements: Elements },
    /// A trainable variable.
    Variable { class: Class, sizes: Vec<usize> },
    /// A row of the table, applied to earlier ports. `class` is the type it calls `float`.
    Row { row: &'static Row, class: Class, inputs: Vec<Port>, values: Vec<Value>, tied: bool },
}

/// A node. Inputs, variables and layers go by its name.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) source: Source,
    /// Whether the row returns several tensors, and how many.
    pub(crate) outputs: Option<usize>,
}

impl Node {
    pub(crate) fn inputs(&self) -> &[Port] {
        match &self.source {
            Source::Row { inputs, .. } => inputs,
            _ => &[],
        }
    }
}

/// An argument of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Int(i64),
    Ints(Vec<i64>),
    Ends(Vec<Option<usize>>),
    Real(f64),
    Flag(bool),
    Text(String),
    DType(DType),
    Layout(Layout),
    Padding(Padding),
    Activation(Activation),
    Init(Init),
}

impl fmt::Display for Value {
    /// Writes the value as a Rust expression.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Int(v) => write!(f, "{v}"),
            Value::Ints(v) => write!(f, "{v:?}"),
            Value::Ends(v) => write!(f, "{v:?}"),
            Value::Real(v) if *v < 0.0 => write!(f, "({v:?})"),
            Value::Real(v) => write!(f, "{v:?}"),
            Value::Flag(v) => write!(f, "{v}"),
            Value::Text(v) => write!(f, "{v:?}"),
            Value::DType(v) => write!(f, "DType::{v:?}"),
            Value::Layout(v) => write!(f, "Layout::{v:?}"),
            Value::Padding(v) => write!(f, "Padding::{v:?}"),
            Value::Activation(v) => write!(f, "Activation::{v:?}"),
            Value::Init(Init::VarianceScaling { scale, fan }) => {
                write!(
                    f,
                    "Init::VarianceScaling {{ scale: {scale:?}, fan: tensorpack::graph::Fan::{fan:?} }}"
                )
            }
            Value::Init(v) => write!(f, "Init::{v:?}"),
        }
    }
}

impl Value {
    pub(crate) fn he() -> Value {
        Value::Init(Init::VarianceScaling { scale: 2.0, fan: Fan::In })
    }
}

macro_rules! conversions {
    ($($pattern:pat => $value:expr, $t:ty;)*) => {$(
        impl From<&Value> for $t {
            fn from(value: &Value) -> $t {
                match value {
                    $pattern => $value,
                    other => panic!("{other} is no {}", stringify!($t)),
                }
            }
        }
    )*};
}
conversions! {
    Value::Int(v) => *v as usize, usize;
    Value::Int(v) => *v as isize, isize;
    Value::Int(v) => *v as u64, u64;
    Value::Ints(v) => v.iter().map(|&i| i as usize).collect(), Vec<usize>;
    Value::Ints(v) => v.iter().map(|&i| i as isize).collect(), Vec<isize>;
    Value::Ends(v) => v.clone(), Vec<Option<usize>>;
    Value::Real(v) => *v, f64;
    Value::Flag(v) => *v, bool;
    Value::Text(v) => v.clone(), String;
    Value::DType(v) => *v, DType;
    Value::Layout(v) => *v, Layout;
    Value::Padding(v) => *v, Padding;
    Value::Activation(v) => *v, Activation;
    Value::Init(v) => v.clone(), Init;
}

/// The towers of a program. They share variables, and a step averages their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Towers {
    pub(crate) count: usize,
    /// The batch size of the last tower, if it is not that of the others. It replaces the first
    /// size of every input where that is unknown while the graph is built.
    pub(crate) last_batch: Option<usize>,
}

/// A whole program: a graph, its cost, how it is trained and what is fetched.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Which draw this is, for reports: seed, number and attempt.
    pub(crate) origin: [u64; 3],
    pub(crate) float: DType,
    /// The type of tensors of the class [`Class::Narrow`]. Without one they are like other floats.
    pub(crate) narrow: Option<DType>,
    /// Whether contractions of f32 narrow their inputs to that type.
    pub(crate) autocast: bool,
    pub(crate) towers: Towers,
    pub(crate) nodes: Vec<Node>,
    /// Ranges of nodes that are built as blocks, some inside others.
    pub(crate) blocks: Vec<Range<usize>>,
    /// Whether the blocks are recompute blocks; otherwise they are scopes.
    pub(crate) recompute: bool,
    /// Scalars that the cost is the sum of.
    pub(crate) cost: Vec<Port>,
    /// Whether the cost has an L2 penalty on all variables.
    pub(crate) regularized: bool,
    /// Intermediate results to fetch.
    pub(crate) fetches: Vec<Port>,
    /// Whether gradients, and gradients of gradients, are fetched.
    pub(crate) gradients: bool,
    pub(crate) second: bool,
    /// Whether the first training step fetches all of that along, or runs of their own do.
    pub(crate) together: bool,
    pub(crate) training: Training,
    pub(crate) steps: usize,
}

impl Program {
    /// Sets the precision of the program's graph.
    pub(crate) fn set_precision(&self, graph: &Graph) {
        graph.set_precision(self.precision());
        // Overflows are rejected like others, not skipped.
        graph.set_loss_scale(LossScale::new().initial(4.0).smallest(4.0));
    }

    pub(crate) fn precision(&self) -> Precision {
        match self.narrow.filter(|_| self.autocast) {
            Some(DType::F16) => Precision::F16,
            Some(_) => Precision::Bf16,
            None => Precision::Tf32,
        }
    }

    /// Returns the float types of an engine.
    pub(crate) fn floats(&self) -> Floats {
        Floats { wide: self.float, narrow: self.narrow.unwrap_or(self.float) }
    }

    /// Returns the float types of the reference. With f64 feeds and fetches are not rounded, but
    /// losses of bf16 and f16 are always f32.
    pub(crate) fn reference_floats(&self) -> Floats {
        if self.narrow.is_some() { self.floats() } else { Floats { wide: DType::F64, narrow: DType::F64 } }
    }

    /// Returns the sizes of an input in a tower.
    pub(crate) fn sizes_in(&self, tower: usize, sizes: &[usize], known: &[bool]) -> Vec<usize> {
        let mut sizes = sizes.to_vec();
        if let (Some(batch), Some(false)) = (self.towers.last_batch, known.first())
            && tower + 1 == self.towers.count
        {
            sizes[0] = batch;
        }
        sizes
    }

    /// Returns the outermost block inside `range` that starts at node `at`, with its name.
    pub(crate) fn block_at(&self, at: usize, range: &Range<usize>) -> Option<(String, Range<usize>)> {
        let inside = |b: &&Range<usize>| b.start == at && b.end <= range.end && *b != range && !b.is_empty();
        let block = self.blocks.iter().filter(inside).max_by_key(|b| b.end)?;
        Some((format!("block{}_{}", block.start, block.end), block.clone()))
    }

    /// Removes the nodes that nothing needs.
    pub(crate) fn prune(&mut self) {
        let mut needed = vec![false; self.nodes.len()];
        for port in self.cost.iter().chain(&self.fetches) {
            needed[port.node] = true;
        }
        for i in (0..self.nodes.len()).rev() {
            if needed[i] {
                self.nodes[i].inputs().iter().for_each(|p| needed[p.node] = true);
            }
        }
        let mut moved = vec![0; self.nodes.len()];
        let mut next = 0;
        for (i, &keep) in needed.iter().enumerate() {
            moved[i] = next;
            next += usize::from(keep);
        }
        let ends: Vec<usize> = moved.iter().copied().chain([next]).collect();
        for block in &mut self.blocks {
            *block = ends[block.start]..ends[block.end];
        }
        self.blocks.retain(|block| !block.is_empty());
        self.blocks.dedup();
        let at = |p: &mut Port| p.node = moved[p.node];
        let mut keep = needed.iter();
        self.nodes.retain(|_| keep.next() == Some(&true));
        for node in &mut self.nodes {
            if let Source::Row { inputs, .. } = &mut node.source {
                inputs.iter_mut().for_each(at);
            }
        }
        self.cost.iter_mut().chain(&mut self.fetches).for_each(at);
    }

    /// Returns the number of rows: what the size of a program is measured in.
    pub(crate) fn rows(&self) -> usize {
        self.nodes.iter().filter(|n| matches!(n.source, Source::Row { .. })).count()
    }
}
