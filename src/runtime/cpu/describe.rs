//! The text of a plan: one line for each kernel, then the fetches and the commit.

use super::compiled_kernel::CompiledKernel;
use super::memory::padded;
use super::pipeline::Compilation;
use super::placement::Placement;
use crate::kir::{BufferKind, KernelNode, Program, View};
use std::fmt::Write;

/// Returns the text of a program whose kernels are compiled and placed.
pub(super) fn describe(
    compilation: &Compilation,
    kernels: &[CompiledKernel],
    placement: &Placement,
) -> String {
    let Compilation { program, commit, .. } = compilation;
    let mut text = String::new();
    for (node, kernel) in program.kernels.iter().zip(kernels) {
        let sharing = match kernel.shared_bytes() {
            0 => String::new(),
            bytes => format!(" sharing {} bytes", padded(bytes)),
        };
        let _ = writeln!(text, "{}{}{sharing}", line(program, node, placement), kernel.summary());
    }
    if !program.fetches.is_empty() {
        let _ = writeln!(text, "fetch {}", names(program, &program.fetches));
    }
    for update in &commit.fused {
        let variables: Vec<String> = update.members.iter().map(|m| format!("{:?}", m.variables)).collect();
        let read = update.members.iter().flat_map(|m| &m.body.operands);
        let read = names(program, read.filter(|v| program.is_temp(v.buffer)));
        let _ = writeln!(text, "commit map({read}) over variables {}", variables.join(" "));
    }
    for copy in &commit.copies {
        let read = names(program, [&copy.value]);
        let _ = writeln!(text, "commit copy({read}) to variable {}", copy.variable);
    }
    text
}

fn line(program: &Program, node: &KernelNode, placement: &Placement) -> String {
    let outputs: Vec<String> = node
        .outputs
        .iter()
        .map(|&b| {
            let reused = match placement.in_place_of(b) {
                Some(other) => format!(" in place of %{}", other.0),
                None => String::new(),
            };
            format!("%{} {}{:?}{reused}", b.0, program.buffer(b).dtype, program.buffer(b).sizes)
        })
        .collect();
    let reads = names(program, node.kernel.reads());
    format!("{} = {}({reads}) // {}", outputs.join(", "), node.kernel.name(), node.origin.name)
}

/// Returns the names of the buffers that views read, each once.
fn names<'v>(program: &Program, views: impl IntoIterator<Item = &'v View>) -> String {
    let mut names: Vec<String> = Vec::new();
    for v in views {
        let name = match &program.buffer(v.buffer).kind {
            BufferKind::Temp => format!("%{}", v.buffer.0),
            BufferKind::Feed(i) => format!("feed{i}"),
            BufferKind::Variable(i) => format!("var{i}"),
            BufferKind::Snapshot(i) => format!("snap{i}"),
            BufferKind::Constant(_) => "const".into(),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}
