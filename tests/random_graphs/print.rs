//! Prints a program as Rust source that reproduces a failure.

use crate::build::{node_name, port_name};
use crate::compare::Failure;
use crate::optimizers::Setting;
use crate::program::{Class, Elements, Program, Source, Value};
use crate::rows::substitute;
use crate::run::Engine;
use std::fmt::Write;
use tensorpack::prelude::*;

/// Returns a whole Rust program that runs this one on the reference and on the engine, and prints
/// what differs.
pub(crate) fn print(program: &Program, failure: &Failure) -> String {
    let mut out = String::new();
    let [seed, index, attempt] = program.origin;
    let mut line = |text: &str| {
        out.push_str(text);
        out.push('\n');
    };
    line(&format!("//! Graph {index} of seed {seed}, attempt {attempt}, on {}:", failure.engine));
    failure.what.lines().for_each(|text| line(&format!("//! {text}")));
    line("#![allow(dead_code, unused_imports)]");
    line("use tensorpack::graph::{TRAINABLE_VARIABLES, UPDATE_OPS};");
    line("use tensorpack::prelude::*;");
    line("use tensorpack::runtime::IntoFetch;\n");
    line(include_str!("values.rs"));
    line("fn run(float: DType, options: SessionOptions) -> Result<Vec<(String, HostTensor)>> {");
    line("    let graph = Graph::new();");
    line("    let t = &TowerContext::training(&graph);");
    for at in 0..program.nodes.len() {
        line(&format!("    {}", statement(program, at)));
    }
    let terms: Vec<String> = program.cost.iter().map(|p| port(program, p)).collect();
    line(&match terms.len() {
        0 => "    let cost = graph.constant(HostTensor::from_f64(float, [], &[0.0])?);".to_string(),
        1 => format!("    let cost = {}.clone();", terms[0]),
        _ => format!("    let cost = {};", terms.join(" + ")),
    });
    if program.regularized {
        line("    let cost = cost + regularize_cost(t, \".*\", l2_regularizer(0.05));");
    }
    asked(program, &mut line);
    ran(program, &mut line, matches!(failure.engine, Engine::Xla(_)));
    line("}\n");
    line("fn main() {");
    line(
        "    let reference = SessionOptions { device: \"reference\".parse().unwrap(), ..SessionOptions::default() };",
    );
    line("    let right = run(DType::F64, reference).unwrap();");
    line(&format!("    let found = run(DType::{:?}, {}).unwrap();", program.float, options(failure.engine)));
    line("    for ((name, right), (_, found)) in right.iter().zip(&found) {");
    line("        let (right, found) = (right.to_f64_vec(), found.to_f64_vec());");
    line("        let far = right.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);");
    line("        println!(\"{name}: {found:?}, not {right:?}: {far:e} apart\");");
    line("    }");
    line("}");
    out
}

fn options(engine: Engine) -> String {
    let device = match engine {
        Engine::Reference | Engine::Faulty(_) => "device: \"reference\".parse().unwrap(), ".to_string(),
        Engine::Cpu { isa, threads, full_precision } => {
            let isa = format!("isa: Some(tensorpack::runtime::cpu::Isa::{isa:?}), ");
            format!("threads: Some({threads}), {isa}full_precision: {full_precision}, ")
        }
        Engine::Xla(device) => format!("device: \"{device}\".parse().unwrap(), full_precision: true, "),
    };
    format!("SessionOptions {{ {device}..SessionOptions::default() }}")
}

/// Returns a port as an expression of type `&Tensor`.
fn port(program: &Program, port: &crate::program::Port) -> String {
    match program.nodes[port.node].outputs {
        Some(_) => format!("(&{})", port_name(program, port)),
        None => port_name(program, port),
    }
}

/// Returns the statement that builds a node. Every name is bound to a reference.
fn statement(program: &Program, at: usize) -> String {
    let node = &program.nodes[at];
    let name = node_name(program, at);
    match &node.source {
        Source::Input { class, sizes, known, .. } => {
            let dtype = match class {
                Class::Float => "float".to_string(),
                other => format!("DType::{:?}", other.dtype(DType::F32)),
            };
            let sizes: Vec<Option<usize>> = sizes.iter().zip(known).map(|(&n, &k)| k.then_some(n)).collect();
            format!("let {name} = &graph.placeholder(&TensorSpec::new(\"{name}\", {dtype}, {sizes:?}));")
        }
        Source::Variable { sizes } => {
            let spec = format!("VariableSpec::new(\"{name}\", {sizes:?}).dtype(float).init(Init::zeros())");
            format!("let {name} = &t.variable({spec}).value().clone();")
        }
        Source::Row { row, inputs, values, tied } => {
            let names = |word: &str| {
                let input = row.inputs.iter().position(|&i| i == word).map(|i| port(program, &inputs[i]));
                let value = || row.arguments.iter().position(|&a| a == word).map(|a| values[a].to_string());
                let layer = || (word == "name").then(|| format!("{:?}", node.name));
                input.or_else(value).or_else(layer)
            };
            let text = substitute(&one_line(row.text), &names);
            match tied {
                true => format!("let {name} = &t.reuse(|t| {text});"),
                // An operator would take the reference for its operand.
                false => format!("let {name} = &({text});"),
            }
        }
    }
}

fn setting<F>((setting, values): &(&'static Setting<F>, Vec<Value>)) -> String {
    let value = |word: &str| setting.arguments.iter().position(|&a| a == word).map(|a| values[a].to_string());
    substitute(&one_line(setting.text), &value)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Writes what is fetched, and the training step.
fn asked(program: &Program, line: &mut dyn FnMut(&str)) {
    let mut out = String::new();
    for p in &program.fetches {
        let _ = write!(
            out,
            "(\"the value of {0}\".to_string(), {1}.clone()), ",
            port_name(program, p),
            port(program, p)
        );
    }
    line(&format!("    let forward: Vec<(String, Tensor)> = vec![{}];", out.trim_end_matches(", ")));
    if program.gradients || program.second {
        let floats =
            program.nodes.iter().filter(|n| matches!(n.source, Source::Input { class: Class::Float, .. }));
        let inputs: Vec<String> =
            floats.map(|n| format!("(\"{0}\".to_string(), {0}.clone())", n.name)).collect();
        line(&format!("    let mut wanted: Vec<(String, Tensor)> = vec![{}];", inputs.join(", ")));
        line("    for id in graph.collection(TRAINABLE_VARIABLES).variables {");
        line("        let variable = graph.variable_handle(id);");
        line("        wanted.push((variable.name().to_string(), variable.value().clone()));");
        line("    }");
        line("    let xs: Vec<&Tensor> = wanted.iter().map(|(_, x)| x).collect();");
        line(
            "    let named = |(x, g): (&(String, Tensor), Option<Tensor>)| Some((format!(\"by {}\", x.0), g?));",
        );
        line("    let first: Vec<(String, Tensor)> =");
        line("        wanted.iter().zip(gradients(&cost, &xs)?).filter_map(named).collect();");
    } else {
        line("    let first: Vec<(String, Tensor)> = vec![];");
    }
    if program.second {
        line("    let penalty = first.iter().map(|(_, g)| g.square().sum()).reduce(|a, b| a + b).unwrap();");
        line("    let second: Vec<(String, Tensor)> =");
        line("        wanted.iter().zip(gradients(&penalty, &xs)?).filter_map(named).collect();");
    } else {
        line("    let second: Vec<(String, Tensor)> = vec![];");
    }
    if !program.gradients {
        line("    let first: Vec<(String, Tensor)> = first.into_iter().take(0).collect();");
    }
    if program.steps > 0 {
        line(&format!("    let rate = {};", setting(&program.training.rate)));
        line(&format!("    let inner = {};", setting(&program.training.rule)));
        for wrapper in &program.training.wrappers {
            line(&format!("    let inner = {};", setting(wrapper)));
        }
        line("    let mut ops = vec![minimize(&cost, &*inner)?, graph.count_step()];");
        line("    ops.extend(graph.collection_ops(UPDATE_OPS));");
        line("    let train = graph.group(&ops.iter().collect::<Vec<_>>());");
    }
}

/// Writes what runs.
fn ran(program: &Program, line: &mut dyn FnMut(&str), xla: bool) {
    line("    let session = Session::with(graph.freeze()?, options)?;");
    line("    for v in session.graph().variables().iter().filter(|v| v.trainable) {");
    line("        let len = v.sizes.iter().product();");
    line("        let first: Vec<f64> = values(seed_of(&v.name), len).iter().map(|v| v * 0.5).collect();");
    line("        session.write(&v.name, &HostTensor::from_f64(v.dtype, v.sizes.clone(), &first)?)?;");
    line("    }");
    let mut feeds = Vec::new();
    for node in &program.nodes {
        if let Source::Input { class, sizes, elements, .. } = &node.source {
            let len: usize = sizes.iter().product();
            let values = match elements {
                Elements::Reals { seed } => format!("values({seed}, {len})"),
                Elements::Indices { seed, below } => format!("indices({seed}, {below}, {len})"),
            };
            let dtype = match class {
                Class::Float => "float".to_string(),
                other => format!("DType::{:?}", other.dtype(DType::F32)),
            };
            line(&format!(
                "    let {}_value = HostTensor::from_f64({dtype}, {sizes:?}, &{values})?;",
                node.name
            ));
            feeds.push(format!("(\"{0}\", &{0}_value)", node.name));
        }
    }
    line(&format!("    let feeds: Vec<(&str, &HostTensor)> = vec![{}];", feeds.join(", ")));
    line("    let mut results: Vec<(String, HostTensor)> = vec![];");
    let together = program.together || xla;
    let groups = match (together, program.steps > 0) {
        (true, true) => "vec![]",
        (true, false) => "vec![forward.iter().chain(&first).chain(&second).collect()]",
        (false, _) => "vec![forward.iter().collect(), first.iter().collect(), second.iter().collect()]",
    };
    line(&format!("    let groups: Vec<Vec<&(String, Tensor)>> = {groups};"));
    line("    for group in groups.iter().filter(|g| !g.is_empty()) {");
    line("        session.set_run_index(0)?;");
    line("        let fetches: Vec<&dyn IntoFetch> = group.iter().map(|(_, t)| t as _).collect();");
    line("        let found = session.run(&fetches, &feeds)?;");
    line("        results.extend(group.iter().zip(found).map(|((name, _), value)| (name.clone(), value)));");
    line("    }");
    if program.steps > 0 {
        line("    let mut fetches: Vec<&dyn IntoFetch> = vec![&train, &cost];");
        if together {
            line(
                "    let along: Vec<&(String, Tensor)> = forward.iter().chain(&first).chain(&second).collect();",
            );
            line("    fetches.extend(along.iter().map(|(_, t)| t as &dyn IntoFetch));");
        }
        line(&format!("    for step in 0..{} {{", program.steps));
        line("        session.set_run_index(step)?;");
        line("        let mut found = session.run(&fetches, &feeds)?.into_iter();");
        line("        results.push((format!(\"the cost in step {}\", step + 1), found.next().unwrap()));");
        if together {
            line("        if step == 0 {");
            line(
                "            results.extend(along.iter().zip(found).map(|((name, _), value)| (name.clone(), value)));",
            );
            line("        }");
        }
        line("    }");
        line("    for v in session.graph().variables() {");
        line("        results.push((v.name.clone(), session.read(&v.name)?));");
        line("    }");
    } else {
        line("    results.push((\"the cost\".to_string(), session.run(&[&cost], &feeds)?.remove(0)));");
    }
    line("    Ok(results)");
}
