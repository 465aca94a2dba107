//! Text dump of a graph, and export to Graphviz.

use super::{Frozen, Node, NodeKind, TensorId};
use std::fmt::Write;

impl Frozen {
    /// Returns a text dump with one line per node: name, kind, inputs, type and shape. Nodes that
    /// read or change a variable include its name.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for v in self.variables() {
            let _ = writeln!(text, "variable {} {}{:?}", v.name, v.dtype, v.sizes);
        }
        for node in self.nodes() {
            let variable = self.variable_of(node).map(str::to_string);
            let inputs = node.inputs.iter().map(|&t| self.label(t));
            let runs = node.runs.iter().map(|&n| self.node(n).name.clone());
            let reads: Vec<String> = variable.into_iter().chain(inputs).chain(runs).collect();
            let outputs: Vec<String> =
                node.outputs.iter().map(|s| format!("{}{}", s.dtype, s.shape)).collect();
            let _ = write!(text, "{} = {}({})", node.name, node.kind.name(), reads.join(", "));
            let arrow = if outputs.is_empty() { "" } else { " -> " };
            let _ = writeln!(text, "{arrow}{}", outputs.join(", "));
        }
        text
    }

    /// Returns the graph in Graphviz format; render it with `dot -Tsvg`.
    pub fn to_dot(&self) -> String {
        let mut text = String::from("digraph graph_ {\n  node [shape=box, fontsize=10];\n");
        for (i, node) in self.nodes().iter().enumerate() {
            let shape =
                node.outputs.first().map_or_else(String::new, |s| format!("\\n{}{}", s.dtype, s.shape));
            let variable = self.variable_of(node).map_or_else(String::new, |v| format!(" of {v}"));
            let _ =
                writeln!(text, "  n{i} [label=\"{}\\n{}{variable}{shape}\"];", node.name, node.kind.name());
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

    fn variable_of(&self, node: &Node) -> Option<&str> {
        match node.kind {
            NodeKind::Read(variable) | NodeKind::Current(variable) | NodeKind::Assign { variable, .. } => {
                Some(&self.variables()[variable.0 as usize].name)
            }
            NodeKind::Op(_) | NodeKind::Placeholder | NodeKind::Group => None,
        }
    }

    fn label(&self, t: TensorId) -> String {
        let name = &self.node(t.node).name;
        if t.output == 0 { name.clone() } else { format!("{name}:{}", t.output) }
    }
}
