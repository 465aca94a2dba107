//! Prints a program as Rust source that reproduces a failure.

use crate::build::{node_name, port_name};
use crate::compare::Failure;
use crate::optimizers::Setting;
use crate::program::{Class, Elements, Program, Source, Value};
use crate::rows::substitute;
use crate::run::Engine;
use std::ops::Range;

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
    line("use tensorpack::runtime::{IntoFetch, StochasticRounding};");
    line("use tensorpack::tower::Mode;");
    line("use tensorpack::train::average_gradients;\n");
    line(include_str!("values.rs"));
    line("fn run(float: DType, options: SessionOptions) -> Result<Vec<(String, HostTensor)>> {");
    line("    let graph = Graph::new();");
    if program.autocast {
        line(&format!("    graph.set_precision(Precision::{:?});", program.precision()));
        line("    graph.set_loss_scale(LossScale::new().initial(4.0).smallest(4.0));");
    }
    line(
        "    let (mut towers, mut costs, mut feeds) = (vec![], vec![], Vec::<(String, HostTensor)>::new());",
    );
    line("    let [mut forward, mut first, mut second] = [const { Vec::<(String, Tensor)>::new() }; 3];");
    let count = program.towers.count;
    line(&format!("    for tower in 0..{count} {{"));
    line(&format!("        let t = TowerContext::new(&graph, Mode::Training, tower, {count});"));
    line("        costs.push(t.build(|t| -> Result<Tensor> {");
    tower(program, &mut |text| line(&format!("            {text}")));
    line("            Ok(cost)");
    line("        })?);");
    line("        towers.push(t);");
    line("    }");
    step(program, &mut line);
    ran(program, &mut line, matches!(failure.engine, Engine::Xla(_)));
    line("}\n");
    line("fn main() {");
    // Rounds nothing but results of 16 bits.
    let rounding = match program.narrow.is_some() {
        true => "stochastic_rounding: Some(StochasticRounding { bits: 53, seed: 0 }), ",
        false => "",
    };
    line(&format!(
        "    let reference = SessionOptions {{ device: \"reference\".parse().unwrap(), {rounding}..SessionOptions::default() }};",
    ));
    line(&format!("    let right = run(DType::{:?}, reference).unwrap();", program.reference_floats().wide));
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
        Engine::Reference | Engine::ReferenceInF32 | Engine::Faulty(_) => {
            "device: \"reference\".parse().unwrap(), ".to_string()
        }
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

/// Returns the element type of a class as an expression.
fn dtype(program: &Program, class: Class) -> String {
    match class {
        Class::Float => "float".to_string(),
        Class::Narrow if program.narrow.is_none() => "float".to_string(),
        other => format!("DType::{:?}", other.dtype(program.floats())),
    }
}

/// Returns the statement that builds a node. Every name is bound to a reference.
fn statement(program: &Program, at: usize) -> String {
    let node = &program.nodes[at];
    let name = node_name(program, at);
    match &node.source {
        Source::Input { class, sizes, known, .. } => {
            let dtype = dtype(program, *class);
            let sizes: Vec<Option<usize>> = sizes.iter().zip(known).map(|(&n, &k)| k.then_some(n)).collect();
            let key = match program.towers.count {
                1 => format!("\"{name}\""),
                _ => format!("format!(\"{name}_{{tower}}\")"),
            };
            format!("let {name} = &graph.placeholder(&TensorSpec::new({key}, {dtype}, {sizes:?}));")
        }
        Source::Variable { class, sizes } => {
            let dtype = dtype(program, *class);
            let spec = format!("VariableSpec::new(\"{name}\", {sizes:?}).dtype({dtype}).init(Init::zeros())");
            format!("let {name} = &t.variable({spec}).value().clone();")
        }
        Source::Row { row, class, inputs, values, tied } => {
            let names = |word: &str| {
                let input = row.inputs.iter().position(|&i| i == word).map(|i| port(program, &inputs[i]));
                let value = || row.arguments.iter().position(|&a| a == word).map(|a| values[a].to_string());
                let layer = || (word == "name").then(|| format!("{:?}", node.name));
                let float = || (word == "float").then(|| dtype(program, *class));
                input.or_else(value).or_else(layer).or_else(float)
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

/// Writes a range of nodes with its blocks.
fn nodes(program: &Program, range: Range<usize>, wanted: &mut Vec<String>, line: &mut dyn FnMut(&str)) {
    let mut at = range.start;
    while at < range.end {
        let Some((name, block)) = program.block_at(at, &range) else {
            node(program, at, wanted, line);
            at += 1;
            continue;
        };
        at = block.end;
        let names: Vec<String> = block.clone().map(|at| node_name(program, at)).collect();
        let clones: Vec<String> = names.iter().map(|name| format!("{name}.clone()")).collect();
        line(&format!("let ({},) = &t.recompute(\"{name}\", |t| -> Result<_> {{", names.join(", ")));
        nodes(program, block, wanted, &mut |text| line(&format!("    {text}")));
        line(&format!("    Ok(({},))", clones.join(", ")));
        line("})?;");
    }
}

/// Writes a node and its feed.
fn node(program: &Program, at: usize, wanted: &mut Vec<String>, line: &mut dyn FnMut(&str)) {
    let node = &program.nodes[at];
    line(&statement(program, at));
    let Source::Input { class, sizes, known, elements } = &node.source else { return };
    let name = &node.name;
    let mut sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    if let (Some(batch), Some(false)) = (program.towers.last_batch, known.first()) {
        sizes[0] = format!("if tower + 1 == {} {{ {batch} }} else {{ {} }}", program.towers.count, sizes[0]);
    }
    let values = match elements {
        Elements::Reals { seed } => format!("values({seed} + tower as u64, len)"),
        Elements::Indices { seed, below } => format!("indices({seed} + tower as u64, {below}, len)"),
    };
    line(&format!("let sizes: Vec<usize> = vec![{}];", sizes.join(", ")));
    line("let len = sizes.iter().product();");
    let value = format!("HostTensor::from_f64({}, sizes, &{values})?", dtype(program, *class));
    line(&format!("feeds.push(({name}.name(), {value}));"));
    if class.is_float() {
        wanted.push(format!("(\"{name}\".to_string(), {name}.clone())"));
    }
}

/// Writes the function that builds a tower: its nodes, feeds, fetches and cost.
fn tower(program: &Program, line: &mut dyn FnMut(&str)) {
    let mut wanted = Vec::new();
    nodes(program, 0..program.nodes.len(), &mut wanted, line);
    let terms: Vec<String> =
        program.cost.iter().map(|p| format!("{}.cast(float)", port(program, p))).collect();
    line(&match terms.is_empty() {
        true => "let cost = graph.constant(HostTensor::from_f64(float, [], &[0.0])?);".to_string(),
        false => format!("let cost = {};", terms.join(" + ")),
    });
    if program.regularized {
        line("let cost = cost + regularize_cost(t, \".*\", l2_regularizer(0.05)).cast(float);");
    }
    for p in &program.fetches {
        let (name, port) = (port_name(program, p), port(program, p));
        line(&format!(
            "forward.push((format!(\"the value of {name} in tower {{tower}}\"), {port}.clone()));"
        ));
    }
    if program.gradients || program.second {
        line(&format!("let mut wanted: Vec<(String, Tensor)> = vec![{}];", wanted.join(", ")));
        line("for id in graph.collection(TRAINABLE_VARIABLES).variables {");
        line("    let variable = graph.variable_handle(id);");
        line("    wanted.push((variable.name().to_string(), variable.value().clone()));");
        line("}");
        line("let xs: Vec<&Tensor> = wanted.iter().map(|(_, x)| x).collect();");
        line(
            "let named = |(x, g): (&(String, Tensor), Option<Tensor>)| Some((format!(\"by {} in tower {tower}\", x.0), g?));",
        );
        line("let by: Vec<(String, Tensor)> =");
        line("    wanted.iter().zip(gradients(&cost, &xs)?).filter_map(named).collect();");
    }
    if program.second {
        line(
            "let penalty = by.iter().map(|(_, g)| g.square().sum().cast(float)).reduce(|a, b| a + b).unwrap();",
        );
        line("second.extend(wanted.iter().zip(gradients(&penalty, &xs)?).filter_map(named));");
    }
    if program.gradients {
        line("first.extend(by);");
    }
}

/// Writes the training step.
fn step(program: &Program, line: &mut dyn FnMut(&str)) {
    if program.steps == 0 {
        return;
    }
    line(
        "    let computed = towers.iter().zip(&costs).map(|(t, cost)| Ok((t.clone(), compute_gradients(cost)?)));",
    );
    line("    let averages = average_gradients(computed.collect::<Result<Vec<_>>>()?)?;");
    line("    let t = &towers[0];");
    line(&format!("    let rate = {};", setting(&program.training.rate)));
    line(&format!("    let inner = {};", setting(&program.training.rule)));
    for wrapper in &program.training.wrappers {
        line(&format!("    let inner = {};", setting(wrapper)));
    }
    line("    let mut ops = vec![apply_gradients(&*inner, &graph, &averages)?, graph.count_step()];");
    line("    ops.extend(graph.collection_ops(UPDATE_OPS));");
    line("    let train = graph.group(&ops.iter().collect::<Vec<_>>());");
}

/// Writes what runs.
fn ran(program: &Program, line: &mut dyn FnMut(&str), xla: bool) {
    line("    let session = Session::with(graph.freeze()?, options)?;");
    line("    for v in session.graph().variables().iter().filter(|v| v.trainable) {");
    line("        let len = v.sizes.iter().product();");
    line("        let first: Vec<f64> = values(seed_of(&v.name), len).iter().map(|v| v * 0.5).collect();");
    line("        session.write(&v.name, &HostTensor::from_f64(v.dtype, v.sizes.clone(), &first)?)?;");
    line("    }");
    line(
        "    let feeds: Vec<(&str, &HostTensor)> = feeds.iter().map(|(name, value)| (name.as_str(), value)).collect();",
    );
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
        line("    let mut fetches: Vec<&dyn IntoFetch> = vec![&train];");
        line("    fetches.extend(costs.iter().map(|cost| cost as &dyn IntoFetch));");
        if together {
            line(
                "    let along: Vec<&(String, Tensor)> = forward.iter().chain(&first).chain(&second).collect();",
            );
            line("    fetches.extend(along.iter().map(|(_, t)| t as &dyn IntoFetch));");
        }
        line(&format!("    for step in 0..{} {{", program.steps));
        line("        session.set_run_index(step)?;");
        line("        let mut found = session.run(&fetches, &feeds)?.into_iter();");
        line("        let spent = found.by_ref().take(costs.len());");
        line("        results.extend(spent.map(|cost| (format!(\"a cost in step {}\", step + 1), cost)));");
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
        line("    let fetches: Vec<&dyn IntoFetch> = costs.iter().map(|cost| cost as _).collect();");
        line(
            "    results.extend(session.run(&fetches, &feeds)?.into_iter().map(|cost| (\"a cost\".to_string(), cost)));",
        );
    }
    line("    Ok(results)");
}
