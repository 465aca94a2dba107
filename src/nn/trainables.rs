//! A table of a model's trainable variables.

use crate::graph::{Graph, TRAINABLE_VARIABLES, VariableInfo};
use std::fmt::Write;

/// Returns a table of the trainable variables: the name, type, shape and number of elements of
/// each, and the totals.
///
/// ```text
/// name   type  shape         elements
/// fc0/W  f32   [784, 10]         7840
/// fc0/b  f32   [10]                10
/// 2 trainable variables, 7850 elements, 0.03 MB
/// ```
#[doc(alias = "describe_trainable_vars")]
pub fn describe_trainables(graph: &Graph) -> String {
    let ids = graph.collection(TRAINABLE_VARIABLES).variables;
    let infos: Vec<VariableInfo> = ids.iter().filter_map(|&id| graph.variable_info(id)).collect();
    let elements = |v: &VariableInfo| v.sizes.iter().fold(1, |n: usize, &s| n.saturating_mul(s));
    let mut rows = vec![["name", "type", "shape", "elements"].map(String::from)];
    rows.extend(
        infos.iter().map(|v| {
            [v.name.clone(), v.dtype.to_string(), format!("{:?}", v.sizes), elements(v).to_string()]
        }),
    );
    let width = |i: usize| rows.iter().map(|r| r[i].len()).max().unwrap_or(0);
    let [names, types, shapes, counts] = [0, 1, 2, 3].map(width);
    let mut text = String::new();
    for [name, dtype, shape, n] in &rows {
        let _ = writeln!(text, "{name:names$}  {dtype:types$}  {shape:shapes$}  {n:>counts$}");
    }
    let total: usize = infos.iter().map(elements).sum();
    let bytes: usize = infos.iter().map(|v| elements(v) * v.dtype.size()).sum();
    let _ = writeln!(
        text,
        "{} trainable variables, {total} elements, {:.2} MB",
        infos.len(),
        bytes as f64 / (1024.0 * 1024.0)
    );
    text
}
