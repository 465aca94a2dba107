//! Errors of feeds that do not match the inputs of a model.

use crate::graph::{Frozen, lacks_batch};
use crate::runtime::Session;
use tensorpack_tensor::{Error, ErrorKind, HostTensor};

/// Returns the error of a run with these feeds. If the cause is a feed that does not match its
/// input, the error says so and has no source line: the line of the input is in the library, so the
/// caller adds that of the feed.
pub(crate) fn explain_feeds(session: &Session, feeds: &[(&str, &HostTensor)], e: Error) -> Error {
    match e.kind() {
        ErrorKind::Shape | ErrorKind::DType => {
            feeds.iter().find_map(|(name, value)| mismatch(session.graph(), name, value)).unwrap_or(e)
        }
        _ => e,
    }
}

/// Returns the error of a value that does not match the input `name`.
fn mismatch(graph: &Frozen, name: &str, value: &HostTensor) -> Option<Error> {
    let spec = &graph.node(graph.fetch(name).ok()?.node).outputs[0];
    let (dtype, sizes) = (value.dtype(), value.sizes());
    if spec.dtype == dtype && spec.shape.allows(sizes) {
        return None;
    }
    let kind = if spec.dtype == dtype { ErrorKind::Shape } else { ErrorKind::DType };
    let why = format!("the input {name} is {}{}, but {dtype}{sizes:?} was fed", spec.dtype, spec.shape);
    let e = Error::new(kind, why);
    let dims: Vec<Option<usize>> = spec.shape.iter().map(|d| d.known()).collect();
    Some(if lacks_batch(&dims, sizes) { e.note(MISSING_BATCH) } else { e })
}

/// The note for a sample where a batch is expected.
pub(crate) const MISSING_BATCH: &str = "the batch dimension is missing: is there no .batch(n)?";

/// Returns the error of a sample of `count` components for these inputs.
pub(crate) fn wrong_component_count(what: &str, count: usize, inputs: &[&str]) -> Error {
    let takes = inputs.len();
    let why = format!("{what} has {count} components, but the model has {takes} inputs");
    let e = Error::new(ErrorKind::Data, why);
    match inputs.get(count..) {
        Some(without) => e.note(format!("no component for: {}", without.join(", "))),
        None => e.note(format!("the inputs are: {}", inputs.join(", "))),
    }
}
