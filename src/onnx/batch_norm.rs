//! Recognizes batch normalization in written nodes. It is arithmetic in a graph, and one operation in
//! ONNX, which runtimes merge with the convolution before it.

use super::{Attribute, Node, OnnxGraph};
use std::collections::{HashMap, HashSet};
use tensorpack_tensor::HostTensor;

/// Replaces `(x - mean) * (1 / sqrt(variance + epsilon) * gamma) + beta` of images by
/// `BatchNormalization`.
pub(crate) fn fuse_batch_norm(graph: &mut OnnxGraph) {
    loop {
        let Some((first, fused, removed, weights)) = Pattern::new(graph).find() else { return };
        graph.nodes[first] = fused;
        let mut i = 0;
        graph.nodes.retain(|_| {
            i += 1;
            !removed.contains(&(i - 1))
        });
        for (name, tensor) in weights {
            match graph.initializers.iter_mut().find(|(have, _)| *have == name) {
                Some(old) => old.1 = tensor,
                None => graph.initializers.push((name, tensor)),
            }
        }
    }
}

type Found = (usize, Node, HashSet<usize>, Vec<(String, HostTensor)>);

struct Pattern<'a> {
    graph: &'a OnnxGraph,
    /// The node that computes each tensor.
    made: HashMap<&'a str, usize>,
    /// The number of nodes and graph outputs that read each tensor.
    readers: HashMap<&'a str, usize>,
    initializers: HashMap<&'a str, &'a HostTensor>,
}

impl<'a> Pattern<'a> {
    fn new(graph: &'a OnnxGraph) -> Pattern<'a> {
        let (mut made, mut readers) = (HashMap::new(), HashMap::new());
        for (i, node) in graph.nodes.iter().enumerate() {
            made.extend(node.outputs.iter().map(|name| (name.as_str(), i)));
            node.inputs.iter().for_each(|name| *readers.entry(name.as_str()).or_default() += 1);
        }
        graph.outputs.iter().for_each(|output| *readers.entry(output.name.as_str()).or_default() += 1);
        let initializers = graph.initializers.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        Pattern { graph, made, readers, initializers }
    }

    fn find(&self) -> Option<Found> {
        (0..self.graph.nodes.len()).find_map(|i| self.at(i))
    }

    /// Returns the node of this kind that computes a tensor for one reader only.
    fn node(&self, name: &str, op_type: &str) -> Option<(usize, &'a Node)> {
        let &i = self.made.get(name)?;
        let node = &self.graph.nodes[i];
        (node.op_type == op_type && self.readers.get(name) == Some(&1)).then_some((i, node))
    }

    /// Returns the other input of a node.
    fn other<'n>(node: &'n Node, name: &str) -> Option<&'n str> {
        match &node.inputs[..] {
            [a, b] if a == name => Some(b),
            [a, b] if b == name => Some(a),
            _ => None,
        }
    }

    /// Returns a vector of `channels` that is stored as `[1, channels, 1, 1]` for images, or as it is.
    fn vector(&self, name: &str, channels: Option<usize>) -> Option<HostTensor> {
        let &tensor = self.initializers.get(name)?;
        let n = match (tensor.sizes(), channels) {
            (&[1, n, 1, 1], None) => n,
            (&[n] | &[1, n, 1, 1], Some(channels)) if n == channels => n,
            _ => return None,
        };
        if self.readers.get(name) != Some(&1) {
            return None;
        }
        let mut vector = HostTensor::zeros(tensor.dtype(), [n]).ok()?;
        vector.copy_from_bytes(tensor.as_bytes()).ok()?;
        Some(vector)
    }

    /// Returns what replaces the multiplication at node `i` and the nodes around it.
    fn at(&self, i: usize) -> Option<Found> {
        let product = self.graph.nodes.get(i).filter(|node| node.op_type == "Mul")?;
        let [a, b] = &product.inputs[..] else { return None };
        let ((sub_at, sub), scale) = match (self.node(a, "Sub"), self.node(b, "Sub")) {
            (Some(sub), _) => (sub, b),
            (_, Some(sub)) => (sub, a),
            _ => return None,
        };
        let [x, mean_name] = &sub.inputs[..] else { return None };
        let mean = self.vector(mean_name, None)?;
        let channels = mean.len();
        let mut removed = HashSet::from([sub_at]);

        let (spread_at, spread) = self.node(scale, "Unsqueeze")?;
        removed.insert(spread_at);
        let mut inner = spread.inputs.first()?;
        let mut weights = vec![(mean_name.clone(), mean)];
        let mut gamma = None;
        if let Some((at, with_gamma)) = self.node(inner, "Mul") {
            let (root, name) = with_gamma.inputs.iter().find_map(|input| {
                self.node(input, "Reciprocal").and(Some((input, Pattern::other(with_gamma, input)?)))
            })?;
            weights.push((name.to_string(), self.vector(name, Some(channels))?));
            gamma = Some(name.to_string());
            removed.insert(at);
            inner = root;
        }
        let (reciprocal_at, reciprocal) = self.node(inner, "Reciprocal")?;
        let (root_at, root) = self.node(reciprocal.inputs.first()?, "Sqrt")?;
        let (sum_at, sum) = self.node(root.inputs.first()?, "Add")?;
        removed.extend([reciprocal_at, root_at, sum_at]);
        let [variance_name, epsilon] = &sum.inputs[..] else { return None };
        weights.push((variance_name.clone(), self.vector(variance_name, Some(channels))?));
        let epsilon = self.initializers.get(epsilon.as_str()).filter(|e| e.len() == 1)?.to_scalar().ok()?;

        let product_name = product.outputs.first()?;
        let shift = self.graph.nodes.iter().enumerate().find_map(|(at, node)| {
            let name = Pattern::other(node, product_name).filter(|_| node.op_type == "Add")?;
            let is_only = self.readers.get(product_name.as_str()) == Some(&1);
            Some((at, node, name, self.vector(name, Some(channels)).filter(|_| is_only)?))
        });
        let dtype = weights[0].1.dtype();
        let constant = |value: f64| HostTensor::from_f64(dtype, [channels], &vec![value; channels]).ok();
        let gamma = match gamma {
            Some(name) => name,
            None => {
                let name = format!("{product_name}/gamma");
                weights.push((name.clone(), constant(1.0)?));
                name
            }
        };
        let (first, output, beta) = match shift {
            Some((at, node, name, beta)) => {
                weights.push((name.to_string(), beta));
                removed.insert(i);
                (at, node.outputs.first()?.clone(), name.to_string())
            }
            None => {
                let name = format!("{product_name}/beta");
                weights.push((name.clone(), constant(0.0)?));
                (i, product_name.clone(), name)
            }
        };
        let fused = Node {
            name: output.clone(),
            op_type: "BatchNormalization".into(),
            inputs: vec![x.clone(), gamma, beta, mean_name.clone(), variance_name.clone()],
            outputs: vec![output],
            attributes: vec![("epsilon".into(), Attribute::Float(epsilon as f32))],
            ..Node::default()
        };
        Some((first, fused, removed, weights))
    }
}
