//! Averages gradients over towers.

use crate::optim::Gradient;
use crate::tower::TowerContext;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Averages gradients over towers, for trainers that build their towers themselves. Takes every
/// tower with its gradients, in the order of their indices. Returns the averages, for one update of
/// the variables that the towers share:
///
/// ```
/// # use tensorpack::prelude::*;
/// # use tensorpack::tower::Mode;
/// # use tensorpack::train::average_gradients;
/// # fn main() -> Result<()> {
/// let graph = Graph::new();
/// let mut towers = Vec::new();
/// for index in 0..2 {
///     let t = TowerContext::new(&graph, Mode::Training, index, 2);
///     let x = graph.placeholder(&TensorSpec::f32(format!("x{index}"), [None]));
///     let cost = t.build(|t| (t.variable(VariableSpec::new("w", [1])).value() * &x).mean());
///     towers.push((t, compute_gradients(&cost)?));
/// }
/// let averages = average_gradients(towers)?;
/// let step = apply_gradients(&Sgd::new(1.0), &graph, &averages)?;
/// # let session = Session::new(graph.freeze()?)?;
/// # let before = session.read("w")?.to_f64_vec()[0];
/// # let fed = |x: f32| HostTensor::new([1], vec![x]);
/// # session.run(&[&step], &[("x0", &fed(1.0)?), ("x1", &fed(3.0)?)])?;
/// # assert!((before - session.read("w")?.to_f64_vec()[0] - 2.0).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// All towers wait for each other here, on any engine. Returns an error if a tower is missing, or
/// if the towers do not train the same variables.
#[doc(alias = "allreduce_grads")]
#[doc(alias = "aggregate_grads")]
pub fn average_gradients(
    towers: impl IntoIterator<Item = (TowerContext, Vec<Gradient>)>,
) -> Result<Vec<Gradient>> {
    let towers: Vec<(TowerContext, Vec<Gradient>)> = towers.into_iter().collect();
    let Some((first_tower, first)) = towers.first() else {
        return Err(Error::argument("gradients cannot be averaged over no towers"));
    };
    for (index, (t, gradients)) in towers.iter().enumerate() {
        if !t.is_tower_of(index, towers.len()) || t.graph().uid() != first_tower.graph().uid() {
            let why = format!(
                "entry {index} of {} is tower {} of {}: averaging takes all towers of one graph, in order",
                towers.len(),
                t.index(),
                t.total()
            );
            return Err(Error::argument(why));
        }
        same_variables(first, gradients, index)?;
    }
    let averages = towers.into_iter().map(|(t, gradients)| {
        // The gradients of the last layers are there first, and other processes can have them while
        // the others are computed.
        let last_first = gradients.into_iter().rev();
        let mut averages = t.build(|t| last_first.map(|g| averaged(t, g)).collect::<Vec<Gradient>>());
        averages.reverse();
        averages
    });
    // Every tower builds the sums. All have the same results, and the update reads the first's.
    let averages: Vec<Vec<Gradient>> = averages.collect();
    Ok(averages.into_iter().next().unwrap_or_default())
}

/// Averages a gradient over the towers. If a tower times out here, the error points at the line
/// that created the variable.
fn averaged(t: &TowerContext, g: Gradient) -> Gradient {
    let site = g.variable.id.and_then(|id| t.graph().variable_info(id)).map(|v| v.site);
    let mean = || t.mean_gradient(&format!("average/{}", g.variable.name()), &g.value);
    let value = site.map_or_else(mean, |site| t.graph().on_line(site, mean));
    g.with_value(value)
}

/// Checks that a tower has gradients of the same variables as the first: otherwise the all-reduces
/// would wait for each other.
fn same_variables(first: &[Gradient], other: &[Gradient], index: usize) -> Result<()> {
    let names = |gs: &[Gradient]| gs.iter().map(|g| g.variable.name().to_string()).collect::<Vec<_>>();
    let (first, other) = (names(first), names(other));
    if first == other {
        return Ok(());
    }
    let only = |a: &[String], b: &[String]| {
        a.iter().filter(|n| !b.contains(n)).cloned().collect::<Vec<_>>().join(", ")
    };
    Err(Error::new(ErrorKind::Graph, format!("tower {index} does not train the same variables as tower 0"))
        .note(format!("only tower 0: {}; only tower {index}: {}", only(&first, &other), only(&other, &first)))
        .note("a tower function must build the same model in every tower"))
}
