//! A graph as text, and as a drawing for Graphviz.

use super::{Frozen, TensorId};
use std::fmt::Write;

impl Frozen {
    /// One node a line: name, kind, inputs, type and shape.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for v in self.variables() {
            let _ = writeln!(text, "variable {} {}{:?}", v.name, v.dtype, v.sizes);
        }
        for node in self.nodes() {
            let inputs: Vec<String> = node.inputs.iter().map(|&t| self.label(t)).collect();
            let outputs: Vec<String> = node.outputs.iter().map(|s| format!("{}{}", s.dtype, s.shape)).collect();
            let _ = writeln!(
                text,
                "{} = {}({}) -> {}",
                node.name,
                node.kind.name(),
                inputs.join(", "),
                outputs.join(", ")
            );
        }
        text
    }

    /// A drawing: `dot -Tsvg`.
    pub fn to_dot(&self) -> String {
        let mut text = String::from("digraph graph_ {\n  node [shape=box, fontsize=10];\n");
        for (i, node) in self.nodes().iter().enumerate() {
            let shape = node.outputs.first().map_or_else(String::new, |s| format!("\\n{}{}", s.dtype, s.shape));
            let _ = writeln!(text, "  n{i} [label=\"{}\\n{}{shape}\"];", node.name, node.kind.name());
            for input in &node.inputs {
                let _ = writeln!(text, "  n{} -> n{i};", input.node.0);
            }
            for run in &node.runs {
                let _ = writeln!(text, "  n{} -> n{i} [style=dashed];", run.0);
            }
        }
        text.push_str("}\n");
        text
    }

    fn label(&self, t: TensorId) -> String {
        let name = &self.node(t.node).name;
        if t.output == 0 { name.clone() } else { format!("{name}:{}", t.output) }
    }
}
