//! Draws programs. Program `i` of a seed depends only on (seed, i, attempt).

use crate::build::{Change, Scratch, build};
use crate::optimizers::Training;
use crate::program::{Class, Elements, Node, Port, Program, Source, Towers, Value};
use crate::rows::{Draft, Kind, Row};
use crate::table::{cost_rows, find, op_rows};
use tensorpack::ErrorKind;
use tensorpack::prelude::*;

/// Above this estimated magnitude a tensor is squashed before it is used again.
const LARGE: f64 = 5.0;

/// Shapes of the inputs of a graph, chosen so that most operations find matching operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Vectors,
    Sequences,
    Images,
    Mixed,
}

/// What is special about a program. It depends on the seed and the program's number, so programs
/// that are drawn again keep their share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Nothing,
    SeveralTowers,
    Narrow,
}

impl Special {
    /// Returns what is special about program `index`.
    pub(crate) fn of(seed: u64, index: u64) -> Special {
        match state(&[seed, index]) % 6 {
            0 => Special::SeveralTowers,
            1 => Special::Narrow,
            _ => Special::Nothing,
        }
    }
}

/// What the generator knows about a tensor.
#[derive(Clone, Debug)]
pub(crate) struct Info {
    pub(crate) class: Class,
    pub(crate) sizes: Vec<usize>,
    /// Which of the sizes are known while the graph is built.
    pub(crate) known: Vec<bool>,
    /// The estimated magnitude of its elements.
    pub(crate) scale: f64,
    /// Number of nodes that use it.
    pub(crate) uses: usize,
}

impl Info {
    pub(crate) fn rank(&self) -> usize {
        self.sizes.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.sizes.iter().product()
    }

    pub(crate) fn all_known(&self) -> bool {
        self.known.iter().all(|&k| k)
    }

    /// Returns whether the last dimension, of at least `low` elements, is known.
    pub(crate) fn known_last(&self, low: usize) -> bool {
        self.known.last() == Some(&true) && self.sizes.last().is_some_and(|&n| n >= low)
    }
}

/// A program that is being drawn.
pub(crate) struct Draw {
    state: u64,
    pub(crate) program: Program,
    infos: Vec<Vec<Info>>,
    /// Two graphs: one with all sizes known, to get the sizes, and one as it will be built, to
    /// reject operations that do not support unknown sizes.
    scratch: [Scratch; 2],
    /// Maximum number of elements of a tensor.
    limit: usize,
    form: Form,
    /// The class of the floats that rows draw.
    pub(crate) class: Class,
    /// The batch size, if its last tower has another.
    batch: Option<usize>,
}

/// Draws attempt `attempt` of program `index`.
pub(crate) fn draw_program(seed: u64, index: u64, attempt: u64) -> Program {
    let mut draw = Draw::new(seed, index, attempt);
    let target = match (draw.limit > 1000, draw.program.narrow.is_some() || draw.program.towers.count > 1) {
        (true, _) => draw.between(6, 16),
        (_, true) => draw.between(4, 24),
        (false, false) => draw.between(10, 60),
    };
    draw.sources();
    for _ in 0..target * 20 {
        if draw.program.rows() >= target {
            break;
        }
        let row = draw.of(op_rows());
        if draw.program.narrow.is_some() {
            draw.class = if draw.chance(0.6) { Class::Narrow } else { Class::Float };
        }
        draw.add(row);
        if draw.chance(0.06) {
            draw.tie();
        }
    }
    draw.finish();
    draw.blocks();
    draw.program
}

impl Draw {
    fn new(seed: u64, index: u64, attempt: u64) -> Draw {
        let state = state(&[seed, index, attempt]);
        let program = Program {
            origin: [seed, index, attempt],
            float: DType::F32,
            narrow: None,
            autocast: false,
            towers: Towers { count: 1, last_batch: None },
            nodes: Vec::new(),
            blocks: Vec::new(),
            recompute: true,
            cost: Vec::new(),
            regularized: false,
            fetches: Vec::new(),
            gradients: true,
            second: true,
            together: false,
            training: Training::plain(),
            steps: 5,
        };
        let scratch = [Scratch::new(true), Scratch::new(false)];
        let mut draw = Draw {
            state,
            program,
            infos: Vec::new(),
            scratch,
            limit: 300,
            form: Form::Mixed,
            class: Class::Float,
            batch: None,
        };
        draw.program.float = if draw.chance(0.65) { DType::F32 } else { DType::F64 };
        match Special::of(seed, index) {
            Special::SeveralTowers => draw.program.towers.count = draw.between(2, 3),
            Special::Narrow => {
                let narrow = draw.of(&[DType::Bf16, DType::F16]);
                (draw.program.narrow, draw.program.float) = (Some(narrow), DType::F32);
                draw.program.autocast = draw.chance(0.5);
            }
            Special::Nothing => {}
        }
        draw.program.together = draw.chance(0.5);
        if draw.chance(0.08) {
            draw.limit = 6000;
        }
        draw.form = draw.of(&[Form::Vectors, Form::Sequences, Form::Images, Form::Mixed, Form::Images]);
        draw
    }

    // Random numbers.

    pub(crate) fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.state)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.word() % n.max(1) as u64) as usize
    }

    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high + 1 - low)
    }

    pub(crate) fn chance(&mut self, p: f64) -> bool {
        ((self.word() >> 40) as f64) < p * (1u64 << 24) as f64
    }

    pub(crate) fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// Returns a number between the two with two digits.
    pub(crate) fn real(&mut self, low: f64, high: f64) -> f64 {
        let share = (self.word() >> 40) as f64 / (1u64 << 24) as f64;
        ((low + (high - low) * share) * 100.0).round() / 100.0
    }

    /// Returns a permutation of 0..n.
    pub(crate) fn order(&mut self, n: usize) -> Vec<i64> {
        let mut order: Vec<i64> = (0..n as i64).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }

    /// Returns at least one axis of a tensor of rank `rank`, some counted from the end.
    pub(crate) fn axes(&mut self, rank: usize) -> Vec<i64> {
        let count = if rank == 0 { 0 } else { self.between(1, rank) };
        let mut axes: Vec<i64> = self.order(rank).into_iter().take(count).collect();
        axes.sort_unstable();
        if self.chance(0.3) {
            axes.iter_mut().for_each(|a| *a -= rank as i64);
        }
        axes
    }

    /// Returns a size: mostly small and odd, often 1.
    pub(crate) fn size(&mut self) -> usize {
        let large = self.limit > 1000;
        match self.below(10) {
            0 | 1 => 1,
            2..=7 => self.of(&[2, 3, 3, 4, 5]),
            8 if large => self.of(&[8, 16, 17, 32, 33]),
            9 if large => self.between(6, 40),
            _ => self.of(&[6, 7, 8, 9]),
        }
    }

    // Tensors.

    pub(crate) fn info(&self, port: Port) -> &Info {
        &self.infos[port.node][port.output]
    }

    pub(crate) fn sizes(&self, port: Port) -> Vec<usize> {
        self.info(port).sizes.clone()
    }

    pub(crate) fn scale(&self, port: Port) -> f64 {
        self.info(port).scale
    }

    /// Returns all ports so far.
    fn ports(&self) -> impl Iterator<Item = Port> {
        let of = |(node, outputs): (usize, &Vec<Info>)| {
            (0..outputs.len()).map(move |output| Port { node, output }).collect::<Vec<_>>()
        };
        self.infos.iter().enumerate().flat_map(of)
    }

    /// Returns one of the ports that fit, preferring late ones and those not used yet.
    pub(crate) fn pick(&mut self, fits: impl Fn(&Info) -> bool) -> Option<Port> {
        let fitting: Vec<Port> = self.ports().filter(|&p| fits(self.info(p))).collect();
        let unused: Vec<Port> = fitting.iter().copied().filter(|&p| self.info(p).uses == 0).collect();
        if !unused.is_empty() && self.chance(0.6) {
            return Some(self.of(&unused));
        }
        if fitting.is_empty() {
            return None;
        }
        let late = fitting.len().saturating_sub(12);
        let from = if self.chance(0.7) { late } else { 0 };
        Some(self.of(&fitting[from..]))
    }

    /// Returns a float tensor that fits.
    pub(crate) fn float(&mut self, fits: impl Fn(&Info) -> bool) -> Option<Port> {
        let class = self.class;
        self.pick(|i| i.class == class && i.scale <= LARGE && fits(i))
    }

    /// Returns a float tensor of the other precision.
    pub(crate) fn other_float(&mut self) -> Option<Port> {
        let class = self.class;
        self.pick(|i| i.class.is_float() && i.class != class && i.scale <= LARGE)
    }

    /// Returns a float tensor of this rank, reshaping one if there is none or from time to time.
    pub(crate) fn ranked(&mut self, rank: usize, fits: impl Fn(&Info) -> bool) -> Option<Port> {
        if let Some(port) = self.float(|i| i.rank() == rank && fits(i))
            && self.chance(0.9)
        {
            return Some(port);
        }
        let port = self.float(|i| i.all_known() && i.len() > 0 && i.len() <= 2000)?;
        let mut rest = self.info(port).len();
        let mut sizes = Vec::new();
        for _ in 1..rank {
            let divisors: Vec<usize> = (1..=rest).filter(|d| rest.is_multiple_of(*d)).collect();
            let n = self.of(&divisors);
            sizes.push(n as i64);
            rest /= n;
        }
        sizes.push(rest as i64);
        let at = self.below(rank);
        sizes.swap(at, rank - 1);
        let draft = Draft { inputs: vec![port], values: vec![Value::Ints(sizes)], scale: None };
        let made = self.push(find("reshape"), draft, None)?;
        Some(made).filter(|&p| fits(self.info(p)))
    }

    /// Returns a tensor that fits and can be broadcast together with `with`.
    pub(crate) fn partner(&mut self, with: Port) -> Port {
        let sizes = self.sizes(with);
        let fits = |i: &Info| {
            let pairs = i.sizes.iter().rev().zip(sizes.iter().rev());
            pairs.into_iter().all(|(a, b)| a == b || *a == 1 || *b == 1)
        };
        let class = self.info(with).class;
        match self.pick(|i| i.class == class && i.scale <= LARGE && fits(i)) {
            Some(port) => port,
            None => with,
        }
    }

    /// Returns a tensor of exactly the sizes of `like`: one that exists, or a new input.
    pub(crate) fn same(&mut self, like: Port) -> Port {
        let sizes = self.sizes(like);
        match self.float(|i| i.sizes == sizes) {
            Some(port) if self.chance(0.7) => port,
            _ if self.chance(0.5) => self.variable(&sizes),
            _ => self.input(self.class, &sizes, None),
        }
    }

    /// Adds an input; integers are below `below`.
    pub(crate) fn input(&mut self, class: Class, sizes: &[usize], below: Option<usize>) -> Port {
        let seed = self.word() >> 32;
        let elements = match (class, below) {
            (Class::Float | Class::Narrow, _) => Elements::Reals { seed },
            (Class::Bool, _) => Elements::Indices { seed, below: 2 },
            (_, below) => Elements::Indices { seed, below: below.unwrap_or(7) },
        };
        let mut known = vec![true; sizes.len()];
        if sizes.first().is_some_and(|n| Some(*n) == self.batch) {
            known[0] = false;
        }
        self.source(Source::Input { class, sizes: sizes.to_vec(), known, elements })
    }

    /// Adds an index input of a random integer type.
    pub(crate) fn index_input(&mut self, sizes: &[usize], below: usize) -> Port {
        let dtype = self.of(&[DType::I32, DType::I64, DType::U8]);
        self.input(Class::Int(dtype), sizes, Some(below))
    }

    /// Adds a variable.
    pub(crate) fn variable(&mut self, sizes: &[usize]) -> Port {
        self.source(Source::Variable { class: self.class, sizes: sizes.to_vec() })
    }

    fn source(&mut self, source: Source) -> Port {
        let (letter, class, sizes, known) = match &source {
            Source::Input { class, sizes, known, .. } => ("x", *class, sizes.clone(), known.clone()),
            Source::Variable { class, sizes } => ("w", *class, sizes.clone(), vec![true; sizes.len()]),
            Source::Row { .. } => unreachable!("a row is pushed"),
        };
        let node = Node { name: format!("{letter}{}", self.program.nodes.len()), source, outputs: None };
        self.program.nodes.push(node);
        self.infos.push(vec![Info { class, sizes, known, scale: 1.5, uses: 0 }]);
        for scratch in &mut self.scratch {
            scratch.extend(&self.program);
        }
        Port { node: self.program.nodes.len() - 1, output: 0 }
    }

    /// Draws the first inputs and variables.
    fn sources(&mut self) {
        let empty = self.chance(0.04);
        let batch = if empty { 0 } else { self.size() };
        let unknown = self.chance(0.35);
        if unknown && self.program.towers.count > 1 && self.chance(0.6) {
            let last = self.of(&[1, 1, 2, 3]);
            (self.batch, self.program.towers.last_batch) = (Some(batch), Some(last));
        }
        for _ in 0..self.between(1, 3) {
            let rank = match self.form {
                Form::Vectors => 2,
                Form::Sequences => 3,
                Form::Images => 4,
                Form::Mixed => self.between(0, 4),
            };
            let mut sizes: Vec<usize> = (0..rank).map(|_| self.size()).collect();
            if rank > 0 && self.chance(0.8) {
                sizes[0] = batch;
            }
            while sizes.iter().product::<usize>() > self.limit {
                let at = self.below(rank);
                sizes[at] = sizes[at].div_ceil(2);
            }
            let known = (0..rank).map(|i| !(unknown && (i == 0 || self.chance(0.1)))).collect();
            let elements = Elements::Reals { seed: self.word() >> 32 };
            let class = self.float_class();
            self.source(Source::Input { class, sizes, known, elements });
        }
        if self.chance(0.3) {
            let sizes: Vec<usize> = (0..self.below(3)).map(|_| self.size()).collect();
            let class = self.of(&[
                Class::Bool,
                Class::Int(DType::I32),
                Class::Int(DType::I64),
                Class::Int(DType::U8),
            ]);
            self.input(class, &sizes, None);
        }
        // Adjacent variables of one element are a special case of the update passes.
        let few = self.chance(0.3);
        for _ in 0..self.between(1, 3) {
            let rank = if few { self.below(2) } else { self.below(4) };
            let sizes: Vec<usize> = (0..rank).map(|_| if few { 1 } else { self.size() }).collect();
            self.class = self.float_class();
            self.variable(&sizes);
        }
    }

    /// Returns the class of an input or a variable.
    fn float_class(&mut self) -> Class {
        if self.program.narrow.is_some() && self.chance(0.5) { Class::Narrow } else { Class::Float }
    }

    /// Draws operands of a row and adds it.
    fn add(&mut self, row: &'static Row) {
        let before = (self.program.nodes.len(), self.state);
        let made = (row.draw)(self).and_then(|draft| self.push(row, draft, None));
        if made.is_none() && self.program.nodes.len() > before.0 {
            // Remove the operands that were added for it.
            self.program.nodes.truncate(before.0);
            self.infos.truncate(before.0);
            self.recount();
            self.rebuild();
        }
    }

    /// Applies an earlier layer once more, with the same variables, to a tensor of the same sizes.
    fn tie(&mut self) {
        let layers: Vec<usize> = (0..self.program.nodes.len())
            .filter(|&i| matches!(&self.program.nodes[i].source, Source::Row { row, .. } if row.kind == Kind::Layer))
            .collect();
        if layers.is_empty() {
            return;
        }
        let at = self.of(&layers);
        let node = self.program.nodes[at].clone();
        let Source::Row { row, class, mut inputs, values, .. } = node.source else { return };
        let like = self.info(inputs[0]).clone();
        let Some(x) = self.pick(|i| i.class == like.class && i.scale <= LARGE && i.sizes == like.sizes)
        else {
            return;
        };
        inputs[0] = x;
        self.class = class;
        self.push(row, Draft { inputs, values, scale: Some(1.5) }, Some(node.name));
    }

    /// Adds a row, if the graph accepts it.
    pub(crate) fn push(&mut self, row: &'static Row, draft: Draft, tied: Option<String>) -> Option<Port> {
        let Draft { inputs, values, scale } = draft;
        let scale = scale.unwrap_or_else(|| inputs.iter().map(|&p| self.scale(p)).fold(0.5, f64::max));
        inputs.iter().for_each(|p| self.infos[p.node][p.output].uses += 1);
        let at = self.program.nodes.len();
        let name = tied.clone().unwrap_or_else(|| format!("n{at}"));
        let source = Source::Row { row, class: self.class, inputs, values, tied: tied.is_some() };
        self.program.nodes.push(Node { name, source, outputs: None });
        let built = self.scratch.each_mut().map(|s| s.extend(&self.program));
        let [sized, spec] = match built {
            [Some(a), Some(b)] => [a, b],
            _ => return self.undo(),
        };
        let info = |(sized, spec): (&Tensor, &Tensor)| Info {
            class: Class::of(sized.dtype()),
            sizes: sized.shape().known().expect("all sizes are known"),
            known: spec.shape().iter().map(|d| d.known().is_some()).collect(),
            scale,
            uses: 0,
        };
        let infos: Vec<Info> = sized.tensors.iter().zip(&spec.tensors).map(info).collect();
        if infos.iter().any(|i| i.len() > self.limit || i.rank() > 6) {
            return self.undo();
        }
        self.program.nodes[at].outputs = sized.many.then_some(infos.len());
        let first = infos.first().cloned();
        self.infos.push(infos);
        let port = Port { node: at, output: 0 };
        if first?.class.is_float() && scale > LARGE {
            self.squash(at);
        }
        Some(port)
    }

    /// Brings every output of a node back to a magnitude of about 1.
    fn squash(&mut self, node: usize) {
        let class = self.class;
        for output in 0..self.infos[node].len() {
            let port = Port { node, output };
            self.class = self.info(port).class;
            if self.class.is_float() {
                let factor = Value::Real(self.of(&[0.5f64, 0.25, 0.125]).min(1.0 / self.scale(port)));
                let (row, values) = match self.chance(0.5) {
                    true => (find("tanh"), vec![]),
                    false => (find("times a constant"), vec![factor]),
                };
                self.push(row, Draft { inputs: vec![port], values, scale: Some(1.0) }, None);
            }
        }
        self.class = class;
    }

    fn undo(&mut self) -> Option<Port> {
        self.program.nodes.pop();
        self.recount();
        self.rebuild();
        None
    }

    fn recount(&mut self) {
        self.infos.iter_mut().flatten().for_each(|i| i.uses = 0);
        for node in &self.program.nodes {
            node.inputs().iter().for_each(|p| self.infos[p.node][p.output].uses += 1);
        }
    }

    fn rebuild(&mut self) {
        for scratch in &mut self.scratch {
            scratch.rebuild(&self.program);
        }
    }

    /// Draws the cost, the fetches and the training settings.
    fn finish(&mut self) {
        let unused: Vec<Port> =
            self.ports().filter(|&p| self.info(p).uses == 0 && self.info(p).class.is_float()).collect();
        let mut terms = Vec::new();
        for port in unused {
            let empty = self.info(port).len() == 0;
            self.class = self.info(port).class;
            let row = if empty { find("cost sum") } else { self.of(cost_rows()) };
            let draft = Draft { inputs: vec![port], values: vec![], scale: Some(1.0) };
            terms.extend(self.push(row, draft, None));
        }
        self.program.cost = terms;
        let all: Vec<Port> = self
            .ports()
            .filter(|&p| matches!(self.program.nodes[p.node].source, Source::Row { .. }))
            .collect();
        for _ in 0..self.below(5) {
            if !all.is_empty() {
                let port = self.of(&all);
                self.program.fetches.push(port);
            }
        }
        self.program.fetches.sort_unstable();
        self.program.fetches.dedup();
        self.program.regularized = self.chance(0.3);
        self.program.second = self.chance(0.5);
        self.program.training = Training::draw(self);
        // Every variable needs a gradient, from the rows or from the penalty.
        let floats = self.program.reference_floats();
        let built = build(&self.program, floats, &Change { known: true, ..Change::default() });
        self.program.regularized |= built.is_err_and(|e| e.kind() == ErrorKind::Gradient);
    }

    /// Draws recompute blocks. Layers that share variables must be in the same scope, so they are in
    /// none.
    fn blocks(&mut self) {
        if !self.chance(0.5) {
            return;
        }
        let names: Vec<String> = self.program.nodes.iter().map(|n| n.name.clone()).collect();
        let shared = |name: &String| names.iter().filter(|other| *other == name).count() > 1;
        let mut from = 0;
        while from < names.len() {
            let mut to = (from + self.between(1, 12)).min(names.len());
            if let Some(at) = names[from..to].iter().position(shared) {
                to = from + at;
            }
            if from < to && self.chance(0.6) {
                self.program.blocks.push(from..to);
                let inner = self.between(from, to - 1)..to;
                if self.chance(0.4) && inner != (from..to) {
                    self.program.blocks.push(inner);
                }
            }
            from = to.max(from + 1);
        }
    }
}

/// Returns the first state of the random numbers for a key.
fn state(key: &[u64]) -> u64 {
    key.iter().fold(0x243F_6A88_85A3_08D3, |state, part| {
        mixed(state ^ part.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(*part))
    })
}

fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
