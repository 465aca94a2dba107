//! The graph of a run, reduced to what fits on a page: the parts of one name scope and how they are
//! connected.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tensorpack_protobuf::{Fields, Malformed};

/// The most nodes that are read.
const MAX_NODES: usize = 100_000;

/// A node of a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    name: String,
    op: String,
    inputs: Vec<String>,
    shape: Option<Vec<i64>>,
}

/// Reads a `GraphDef` message.
pub(crate) fn nodes(message: &[u8]) -> Result<Vec<Node>, Malformed> {
    let mut nodes = Vec::new();
    for field in Fields::new(message).take(MAX_NODES) {
        if let (1, def) = field? {
            nodes.push(node(def.bytes()?)?);
        }
    }
    Ok(nodes)
}

fn node(message: &[u8]) -> Result<Node, Malformed> {
    let mut node = Node::default();
    for field in Fields::new(message) {
        match field? {
            (1, name) => node.name = name.string()?.to_string(),
            (2, op) => node.op = op.string()?.to_string(),
            (3, input) => {
                let input = input.string()?;
                // The output of a node with several is after a colon. Control inputs are left out.
                if !input.starts_with('^') {
                    node.inputs.push(input.split(':').next().unwrap_or(input).to_string());
                }
            }
            (5, attribute) => node.shape = node.shape.or(output_shape(attribute.bytes()?)?),
            _ => {}
        }
    }
    Ok(node)
}

/// Reads the first shape of the attribute `_output_shapes`.
fn output_shape(attribute: &[u8]) -> Result<Option<Vec<i64>>, Malformed> {
    let (mut name, mut value) = ("", &[][..]);
    for field in Fields::new(attribute) {
        match field? {
            (1, key) => name = key.string()?,
            (2, bytes) => value = bytes.bytes()?,
            _ => {}
        }
    }
    if name != "_output_shapes" {
        return Ok(None);
    }
    let first = |message, number| -> Result<Option<&[u8]>, Malformed> {
        for field in Fields::new(message) {
            match field? {
                (n, value) if n == number => return value.bytes().map(Some),
                _ => {}
            }
        }
        Ok(None)
    };
    let Some(list) = first(value, 1)? else { return Ok(None) };
    let Some(shape) = first(list, 7)? else { return Ok(None) };
    let mut sizes = Vec::new();
    for dim in Fields::new(shape) {
        if let (2, dim) = dim? {
            let mut size = 0;
            for field in Fields::new(dim.bytes()?) {
                if let (1, value) = field? {
                    size = value.int64()?;
                }
            }
            sizes.push(size);
        }
    }
    Ok(Some(sizes))
}

/// Part of a scope: a node, or all nodes of a scope below.
#[derive(Default)]
struct Part {
    label: String,
    op: String,
    count: usize,
    shape: Option<Vec<i64>>,
    is_scope: bool,
    inputs: BTreeSet<usize>,
}

/// Returns the parts of a scope and their connections. The top level has only the forward
/// computation: gradients, optimizers and the towers of inference have as many nodes again.
pub(crate) fn scope(nodes: &[Node], scope: &str) -> Value {
    let gradients = nodes.iter().position(|n| n.name.starts_with("gradients/")).unwrap_or(nodes.len());
    let prefix = if scope.is_empty() { String::new() } else { format!("{scope}/") };
    let forward = if scope.is_empty() { &nodes[..gradients] } else { nodes };
    let mut part_of: HashMap<&str, usize> = HashMap::new();
    let mut by_key: BTreeMap<String, usize> = BTreeMap::new();
    let mut parts: Vec<Part> = Vec::new();
    let inside = |n: &&Node| n.name.starts_with(&prefix) && n.op != "Constant";
    for node in forward.iter().filter(inside) {
        let below = &node.name[prefix.len()..];
        let (label, is_scope) = below.split_once('/').map_or((below, false), |(first, _)| (first, true));
        let key = format!("{label}{}", if is_scope { "/" } else { "" });
        let at = *by_key.entry(key).or_insert_with(|| {
            parts.push(Part { label: label.to_string(), is_scope, ..Part::default() });
            parts.len() - 1
        });
        part_of.insert(&node.name, at);
        let part = &mut parts[at];
        part.count += 1;
        if node.op != "Read" || !is_scope {
            // The last operation of a scope is its output.
            part.op = node.op.clone();
            part.shape = node.shape.clone().or(part.shape.take());
        }
    }
    let mut outside: BTreeMap<&str, usize> = BTreeMap::new();
    for node in forward.iter().filter(inside) {
        let Some(&to) = part_of.get(node.name.as_str()) else { continue };
        for input in &node.inputs {
            let from = match part_of.get(input.as_str()) {
                Some(&from) => from,
                // What enters the scope.
                None if !prefix.is_empty() && !input.starts_with(&prefix) => {
                    *outside.entry(input).or_insert_with(|| {
                        parts.push(Part {
                            label: input.clone(),
                            op: "input".into(),
                            count: 1,
                            ..Part::default()
                        });
                        parts.len() - 1
                    })
                }
                None => continue,
            };
            if from != to {
                parts[to].inputs.insert(from);
            }
        }
    }
    let shown = parts.iter().map(|p| {
        json!({"label": p.label, "op": p.op, "count": p.count, "shape": p.shape, "scope": p.is_scope,
               "inputs": p.inputs})
    });
    json!({"scope": scope, "nodes": nodes.len(), "parts": shown.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack_protobuf::Message;

    fn def(name: &str, op: &str, inputs: &[&str]) -> Message {
        let shape =
            Message::new().message(2, &Message::new().int64(1, -1)).message(2, &Message::new().int64(1, 3));
        let shapes = Message::new().message(7, &shape);
        let attribute =
            Message::new().string(1, "_output_shapes").message(2, &Message::new().message(1, &shapes));
        let def = Message::new().string(1, name).string(2, op);
        inputs.iter().fold(def, |d, i| d.string(3, i)).message(5, &attribute)
    }

    #[test]
    fn a_scope_shows_its_parts() {
        let graph = [
            def("input", "Placeholder", &[]),
            def("conv0/W", "Read", &[]),
            def("conv0/Conv2d", "Conv2d", &["input", "conv0/W"]),
            def("conv0/Relu", "Relu", &["conv0/Conv2d:0"]),
            def("cost", "Mean", &["conv0/Relu", "^input"]),
            def("gradients/Mul", "Mul", &["cost"]),
        ];
        let message = graph.iter().fold(Message::new(), |g, n| g.message(1, n)).into_bytes();
        let nodes = nodes(&message).unwrap();
        let top = scope(&nodes, "");
        let part = |i: usize| &top["parts"][i];
        assert_eq!(top["parts"].as_array().unwrap().len(), 3);
        assert_eq!((&part(1)["label"], &part(1)["count"]), (&json!("conv0"), &json!(3)));
        assert_eq!((&part(1)["inputs"], &part(2)["inputs"]), (&json!([0]), &json!([1])));
        assert_eq!(part(0)["shape"], json!([-1, 3]));
        let conv = scope(&nodes, "conv0");
        let labels: Vec<_> = conv["parts"].as_array().unwrap().iter().map(|p| p["label"].clone()).collect();
        assert_eq!(labels, ["W", "Conv2d", "Relu", "input"]);
        assert!(super::nodes(&message[..message.len() - 1]).is_err());
    }
}
