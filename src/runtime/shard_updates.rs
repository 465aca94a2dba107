//! Divides updates of variables over the processes or devices that train together, as a parameter
//! server or ZeRO does: each computes its shard of the next values and keeps only its shard of the
//! optimizer's state, and the next values of the other variables are gathered.
//!
//! What an update computes element by element is computed for the elements of the shard alone, with
//! the same arithmetic, so the bits are those of an undivided update. Everything else (norms, clipping
//! factors) is computed by all, from whole tensors.

use super::finiteness;
use crate::graph::{Sharding, VariableInfo};
use crate::kir::{
    self, BufferId, BufferKind, Kernel, KernelNode, MapBody, Origin, Program, Shards, Step, Update, View,
};
use std::collections::{HashMap, HashSet};

/// Returns how variables are stored: the shards of those that are divided.
pub(super) fn stored_shards(v: &VariableInfo, shards: Option<Shards>) -> Option<Shards> {
    let divided = |shards: &Shards| v.sharding == Sharding::State && shards.divide(kir::elements(&v.sizes));
    shards.filter(divided)
}

/// Returns whether a program reads or updates a variable that is divided.
pub(super) fn uses_shards(program: &Program, variables: &[VariableInfo], shards: Shards) -> bool {
    let divided = |v: usize| stored_shards(&variables[v], Some(shards)).is_some();
    program.updates.iter().any(|u| divided(u.variable))
        || program.buffers.iter().any(|b| matches!(b.kind, BufferKind::Variable(v) if divided(v)))
}

/// Divides the updates of the programs of all towers of a process. The first one has the updates.
/// `varying` are buffers that are not the same for all that divide the updates: what is computed
/// from them is not divided.
pub(super) fn shard_updates(
    programs: &mut [Program],
    variables: &[VariableInfo],
    shards: Shards,
    varying: &HashSet<BufferId>,
) {
    if shards.count < 2 || variables.iter().all(|v| v.sharding == Sharding::None) {
        return;
    }
    let mut scattered = HashSet::new();
    for program in programs.iter_mut() {
        let mut pass = Pass::new(std::mem::take(program), variables, shards, varying);
        pass.shard_next_values();
        pass.drop_unused_kernels();
        pass.gather_whole_reads();
        scattered.extend(pass.scatter_sums());
        pass.view_shards();
        *program = pass.program;
    }
    // All towers take part in the sums that the first uses a shard of.
    for program in programs.iter_mut() {
        scatter_unused_sums(program, &scattered, shards);
        finiteness::find(program);
    }
}

struct Pass<'a> {
    program: Program,
    variables: &'a [VariableInfo],
    shards: Shards,
    varying: &'a HashSet<BufferId>,
    /// The kernel that writes each buffer.
    writers: HashMap<BufferId, usize>,
    /// The shard of each whole buffer, where it is known.
    of_buffers: HashMap<BufferId, View>,
    /// The shard of each other dense view: its buffer, offset and number of elements.
    of_views: HashMap<(BufferId, usize, usize), View>,
}

impl<'a> Pass<'a> {
    fn new(
        mut program: Program,
        variables: &'a [VariableInfo],
        shards: Shards,
        varying: &'a HashSet<BufferId>,
    ) -> Pass<'a> {
        let nodes = program.kernels.iter().enumerate();
        let writers = nodes.flat_map(|(i, node)| node.outputs.iter().map(move |&b| (b, i))).collect();
        let mut of_buffers = HashMap::new();
        for i in 0..program.buffers.len() {
            let BufferKind::Variable(v) = program.buffers[i].kind else { continue };
            if stored_shards(&variables[v], Some(shards)).is_some() {
                let (dtype, len) = (program.buffers[i].dtype, shards.len(program.buffers[i].len()));
                let stored = program.add_buffer(dtype, &[len], BufferKind::Variable(v));
                of_buffers.insert(BufferId(i as u32), View::dense(stored, dtype, &[len]));
            }
        }
        Pass { program, variables, shards, varying, writers, of_buffers, of_views: HashMap::new() }
    }

    /// Computes next values in shards, and gathers those of variables that all have whole.
    fn shard_next_values(&mut self) {
        let mut gathered: Vec<(usize, View)> = Vec::new();
        for i in 0..self.program.updates.len() {
            let Update { variable, value, origin, .. } = self.program.updates[i].clone();
            let info = &self.variables[variable];
            if stored_shards(info, Some(self.shards)).is_some() {
                self.program.updates[i].value = self.shard(&value, &origin);
            } else if info.sharding == Sharding::Update
                && self.shards.divide(value.len())
                && self.elementwise(&value).is_some()
            {
                gathered.push((i, self.shard(&value, &origin)));
            }
        }
        let Some(&(first, _)) = gathered.first() else { return };
        let origin = self.program.updates[first].origin.clone();
        let mut outputs = Vec::new();
        for (i, shard) in &gathered {
            let update = &mut self.program.updates[*i];
            let (dtype, sizes) = (update.value.dtype, update.value.sizes.clone());
            debug_assert_eq!(shard.len(), self.shards.len(update.value.len()));
            let whole = self.program.add_buffer(dtype, &sizes, BufferKind::Temp);
            self.program.updates[*i].value = View::dense(whole, dtype, &sizes);
            outputs.push(whole);
        }
        let inputs = gathered.into_iter().map(|(_, shard)| shard).collect();
        let kernel = Kernel::AllGather { inputs, shards: self.shards };
        self.program.kernels.push(KernelNode { kernel, outputs, origin });
    }

    /// Returns the kernel that computes all elements of a view, if it is a map that computes each
    /// from the elements of its operands in the same position.
    fn elementwise(&self, view: &View) -> Option<usize> {
        let buffer = self.program.buffer(view.buffer);
        if self.varying.contains(&view.buffer) {
            return None;
        }
        let whole = view.is_dense() && view.offset == 0 && view.len() == buffer.len();
        let &writer = self.writers.get(&view.buffer).filter(|_| whole)?;
        let Kernel::Map(body) = &self.program.kernels[writer].kernel else { return None };
        let len = kir::elements(&body.sizes);
        let fits = |v: &View| v.is_scalar() || v.is_dense() && v.len() == len;
        let has_index = body.expr.steps.iter().any(|s| matches!(s, Step::Index { .. }));
        (len == view.len() && !has_index && body.operands.iter().all(fits)).then_some(writer)
    }

    /// Returns the shard of a tensor, and adds the kernels that compute it.
    fn shard(&mut self, view: &View, origin: &Origin) -> View {
        let whole = view.is_dense() && view.offset == 0;
        let whole = whole && view.len() == self.program.buffer(view.buffer).len();
        if let Some(known) = self.of_buffers.get(&view.buffer).filter(|_| whole) {
            return known.clone();
        }
        if let Some(writer) = self.elementwise(view) {
            self.shard_map(writer);
            return self.of_buffers[&view.buffer].clone();
        }
        let elements = view.len();
        let dense = match view.is_dense() {
            true => View { sizes: vec![elements], strides: vec![1], ..view.clone() },
            false => {
                let copy = self.program.add_buffer(view.dtype, &view.sizes, BufferKind::Temp);
                self.add(Kernel::Copy(view.clone()), vec![copy], origin);
                View::dense(copy, view.dtype, &[elements])
            }
        };
        let key = (dense.buffer, dense.offset, elements);
        if let Some(known) = self.of_views.get(&key) {
            return known.clone();
        }
        let len = self.shards.len(elements);
        let output = self.program.add_buffer(view.dtype, &[len], BufferKind::Temp);
        self.add(Kernel::Shard { input: dense, shards: self.shards }, vec![output], origin);
        let shard = View::dense(output, view.dtype, &[len]);
        self.of_views.insert(key, shard.clone());
        shard
    }

    /// Adds a map that computes the shards of the outputs of an elementwise map.
    fn shard_map(&mut self, writer: usize) {
        let KernelNode { kernel, outputs, origin } = self.program.kernels[writer].clone();
        let Kernel::Map(MapBody { sizes, operands, expr }) = kernel else { return };
        let len = self.shards.len(kir::elements(&sizes));
        let operand = |v: &View| match v.is_scalar() {
            true => View { sizes: vec![len], strides: vec![0], ..v.clone() },
            false => self.shard(v, &origin),
        };
        let operands = operands.iter().map(operand).collect();
        let mut shards = Vec::new();
        for &output in &outputs {
            let dtype = self.program.buffer(output).dtype;
            let shard = self.program.add_buffer(dtype, &[len], BufferKind::Temp);
            self.of_buffers.insert(output, View::dense(shard, dtype, &[len]));
            shards.push(shard);
        }
        self.add(Kernel::Map(MapBody { sizes: vec![len], operands, expr }), shards, &origin);
    }

    fn add(&mut self, kernel: Kernel, outputs: Vec<BufferId>, origin: &Origin) {
        self.program.kernels.push(KernelNode { kernel, outputs, origin: origin.clone() });
    }

    /// Returns what the program is run for, which it reads after all kernels.
    fn results(&self) -> impl Iterator<Item = &View> {
        let Program { fetches, costs, kept, updates, .. } = &self.program;
        fetches.iter().chain(costs).chain(kept).chain(updates.iter().map(|u| &u.value))
    }

    /// Drops kernels whose results nothing reads any more.
    fn drop_unused_kernels(&mut self) {
        let mut read: HashSet<BufferId> = self.results().map(|v| v.buffer).collect();
        let mut used = vec![true; self.program.kernels.len()];
        for (node, used) in self.program.kernels.iter().zip(&mut used).rev() {
            let has_effect = node.kernel.is_collective() || matches!(node.kernel, Kernel::Custom { .. });
            *used = has_effect || node.outputs.iter().any(|b| read.contains(b));
            if *used {
                read.extend(node.kernel.reads().iter().map(|v| v.buffer));
            }
        }
        let mut used = used.into_iter();
        self.program.kernels.retain(|_| used.next().unwrap_or(true));
        self.program.materialized.retain(|b| read.contains(b));
    }

    /// Gathers divided variables that something reads as a whole.
    fn gather_whole_reads(&mut self) {
        let mut read: HashSet<BufferId> = self.results().map(|v| v.buffer).collect();
        read.extend(self.program.kernels.iter().flat_map(|n| n.kernel.reads()).map(|v| v.buffer));
        let ids = (0..self.program.buffers.len() as u32).map(BufferId);
        let is_variable = |b: &BufferId| matches!(self.program.buffer(*b).kind, BufferKind::Variable(_));
        let divided: Vec<BufferId> =
            ids.filter(|b| self.of_buffers.contains_key(b) && is_variable(b)).collect();
        let (mut inputs, mut outputs, mut site) = (Vec::new(), Vec::new(), None);
        for whole in divided {
            if let BufferKind::Variable(v) = self.program.buffer(whole).kind
                && read.contains(&whole)
            {
                let info = &self.variables[v];
                site.get_or_insert_with(|| Origin { name: info.name.clone(), site: info.site });
                inputs.push(self.of_buffers[&whole].clone());
                outputs.push(whole);
            }
            self.program.buffers[whole.0 as usize].kind = BufferKind::Temp;
        }
        if let Some(origin) = site {
            let kernel = Kernel::AllGather { inputs, shards: self.shards };
            self.program.kernels.insert(0, KernelNode { kernel, outputs, origin });
        }
    }

    /// Turns sums of which only the shard is used into reduce-scatters. Returns their keys.
    fn scatter_sums(&mut self) -> Vec<String> {
        let mut readers: HashMap<BufferId, usize> = HashMap::new();
        let read = self.program.kernels.iter().flat_map(|n| n.kernel.reads()).chain(self.results());
        read.for_each(|v| *readers.entry(v.buffer).or_default() += 1);
        let shard_of: HashMap<BufferId, (usize, BufferId)> = self
            .program
            .kernels
            .iter()
            .enumerate()
            .filter_map(|(i, node)| match &node.kernel {
                Kernel::Shard { input, .. } => Some((input.buffer, (i, node.outputs[0]))),
                _ => None,
            })
            .collect();
        let (mut keys, mut replaced) = (Vec::new(), HashSet::new());
        for i in 0..self.program.kernels.len() {
            let node = &self.program.kernels[i];
            let Kernel::AllReduce { key, input, deferred: true, wire } = &node.kernel else { continue };
            let Some(&(shard, output)) = shard_of.get(&node.outputs[0]) else { continue };
            let is_whole = matches!(&self.program.kernels[shard].kernel, Kernel::Shard { input: of, .. }
                if of.len() == input.len());
            if readers.get(&node.outputs[0]) == Some(&1) && is_whole {
                keys.push(key.clone());
                replaced.insert(shard);
                let (key, input, wire) = (key.clone(), input.clone(), *wire);
                let kernel = Kernel::ReduceScatter { key, input, wire, shards: self.shards };
                let node = &mut self.program.kernels[i];
                (node.kernel, node.outputs) = (kernel, vec![output]);
            }
        }
        let mut index = 0..;
        self.program.kernels.retain(|_| !index.next().is_some_and(|i| replaced.contains(&i)));
        keys
    }

    /// Replaces shards by views of the whole tensors, if it is known which shard is this program's.
    fn view_shards(&mut self) {
        let Some(own) = self.shards.own else { return };
        let mut views: HashMap<BufferId, View> = HashMap::new();
        self.program.kernels.retain(|node| match &node.kernel {
            Kernel::Shard { input, shards } => {
                let start = shards.start(input.len(), own);
                let sizes = vec![shards.len(input.len())];
                let view = View { offset: input.offset + start, sizes, strides: vec![1], ..input.clone() };
                views.insert(node.outputs[0], view);
                false
            }
            _ => true,
        });
        // The shard of a shard's copy is taken of the copy, so views do not chain.
        let reads = self.program.kernels.iter_mut().flat_map(|n| n.kernel.reads_mut());
        for view in reads.chain(self.program.updates.iter_mut().map(|u| &mut u.value)) {
            if let Some(of) = views.get(&view.buffer) {
                *view = of.clone();
            }
        }
    }
}

/// Turns the sums with these keys, of which this tower uses nothing, into reduce-scatters.
fn scatter_unused_sums(program: &mut Program, keys: &HashSet<String>, shards: Shards) {
    for i in 0..program.kernels.len() {
        let Kernel::AllReduce { key, input, wire, .. } = &program.kernels[i].kernel else { continue };
        if !keys.contains(key) {
            continue;
        }
        let (key, input, wire) = (key.clone(), input.clone(), *wire);
        let len = shards.len(input.len());
        let output = program.add_buffer(input.dtype, &[len], BufferKind::Temp);
        let node = &mut program.kernels[i];
        (node.kernel, node.outputs) = (Kernel::ReduceScatter { key, input, wire, shards }, vec![output]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Fetch, Graph, TensorSpec, VariableSpec};
    use crate::optim::{Adam, Lamb, Optimizer, apply_gradients, compute_gradients};
    use crate::runtime::Source;
    use crate::runtime::session::request;
    use crate::runtime::snapshot::Reading;
    use crate::tower::TowerContext;
    use std::sync::Arc;
    use tensorpack_tensor::{DType, HostTensor};

    /// Lowers a step of the first of two towers, each in its own process, with a large and a small
    /// variable, and divides its update.
    fn step(optimizer: &dyn Optimizer, fetch: Option<&str>) -> Program {
        let graph = Graph::new();
        let t = TowerContext::in_process(&graph, 0, 2, 0..1);
        let x = graph.placeholder(&TensorSpec::new("x", DType::F32, [None, Some(25)]));
        let gradients = t.build(|t| {
            let large = t.variable(VariableSpec::new("large", [25, 13]));
            let small = t.variable(VariableSpec::new("small", [13]));
            let cost = (x.matmul(large.value()) + small.value()).square().mean();
            let average = |g: crate::optim::Gradient| {
                let mean = t.mean_gradient(&format!("average/{}", g.variable.name()), &g.value);
                g.with_value(mean)
            };
            compute_gradients(&cost).unwrap().into_iter().map(average).collect::<Vec<_>>()
        });
        let step = apply_gradients(optimizer, &graph, &gradients).unwrap();
        graph.shard_updates();
        let mut fetches = vec![Fetch::from(&step)];
        fetches.extend(fetch.map(|name| Fetch::from(graph.variable_named(name).unwrap().value())));
        let graph = Arc::new(graph.freeze().unwrap());
        let fed = HostTensor::zeros(DType::F32, [2, 25]).unwrap();
        let request = request(&fetches, &[("x", &fed)]);
        let lowered = Source::new(&graph, &request, Reading::InPlace).lower().unwrap();
        let shards = Shards { count: 2, own: Some(1) };
        let programs = lowered.shard_updates(graph.variables(), shards).into_programs();
        let program = programs.into_iter().next().unwrap();
        kir::validate(&program).unwrap();
        program
    }

    fn count(program: &Program, name: &str) -> usize {
        program.kernels.iter().filter(|n| n.kernel.name() == name).count()
    }

    fn sizes_of_updates(program: &Program) -> Vec<Vec<usize>> {
        let mut sizes: Vec<_> = program.updates.iter().map(|u| u.value.sizes.clone()).collect();
        sizes.sort();
        sizes
    }

    #[test]
    fn a_shard_is_summed_and_updated_and_the_variable_gathered() {
        let program = step(&Adam::new(0.1), None);
        let counts =
            ["reduce-scatter", "all-reduce", "all-gather", "shard"].map(|name| count(&program, name));
        assert_eq!(counts, [1, 1, 1, 0]);
        // Two powers of beta, the small variable with its moments, and 163 of 325 moments.
        let (powers, small, moments) = (vec![], vec![13], vec![163]);
        let expected = [&powers, &powers, &small, &small, &small, &vec![25, 13], &moments, &moments];
        assert_eq!(sizes_of_updates(&program), expected.map(Clone::clone));
        // Nothing but the gradient, its sum and the gathered variable is whole.
        let whole = |node: &&KernelNode| node.outputs.iter().any(|&b| program.buffer(b).len() == 325);
        let last = program.kernels.iter().rposition(|n| n.kernel.name() == "reduce-scatter").unwrap();
        let later: Vec<&str> =
            program.kernels[last..].iter().filter(whole).map(|n| n.kernel.name()).collect();
        assert_eq!(later, ["all-gather"]);
    }

    /// LAMB's step length is a norm of the whole direction, for which the moments are gathered; the
    /// update itself is divided.
    #[test]
    fn norms_are_computed_from_whole_tensors() {
        let program = step(&Lamb::new(0.1), None);
        assert_eq!(count(&program, "all-gather"), 2);
        assert_eq!(count(&program, "reduce-scatter"), 0);
        assert!(sizes_of_updates(&program).contains(&vec![163]));
    }

    #[test]
    fn a_divided_variable_that_is_fetched_is_gathered() {
        let program = step(&Adam::new(0.1), Some("large/adam_m"));
        assert_eq!(program.fetches[0].sizes, [25, 13]);
        let Kernel::AllGather { inputs, .. } = &program.kernels[0].kernel else {
            panic!("{}", program.dump());
        };
        assert_eq!(inputs[0].sizes, [163]);
    }
}
