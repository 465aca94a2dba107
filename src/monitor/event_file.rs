//! TensorBoard's event files: a sequence of `Event` messages, each framed with its length and
//! masked CRC-32C checksums.

use super::{Histogram, Image};
use crate::graph::{Frozen, Node, TensorId};
use tensorpack_dataflow::format::tfrecord;
use tensorpack_protobuf::Message;
use tensorpack_tensor::Result;

/// An entry of an event file.
pub(super) struct Event<'a> {
    /// Seconds since 1970.
    pub(super) wall_time: f64,
    /// The global step.
    pub(super) step: u64,
    pub(super) what: What<'a>,
}

/// The content of an event.
pub(super) enum What<'a> {
    /// First in every file.
    Version,
    /// The start of a new or resumed run: readers drop events of other files from this step on.
    Start,
    /// The graph.
    Graph(&'a Frozen),
    /// A scalar.
    Scalar(&'a str, f64),
    /// An image.
    Image(&'a str, &'a Image),
    /// A histogram.
    Histogram(&'a str, &'a Histogram),
}

impl Event<'_> {
    /// Serializes the event as a record.
    pub(super) fn to_record(&self) -> Result<Vec<u8>> {
        let event = Message::new().nonzero_double(1, self.wall_time);
        let event = if self.step == 0 { event } else { event.int64(2, self.step as i64) };
        let event = match self.what {
            What::Version => event.string(3, "brain.Event:2"),
            What::Graph(graph) => event.message(4, &graph_def(graph)),
            What::Scalar(tag, value) => event.message(5, &summary(&value_of(tag).float(2, value as f32))),
            What::Image(tag, image) => {
                let proto = Message::new()
                    .int64(1, i64::from(image.height))
                    .int64(2, i64::from(image.width))
                    .int64(3, image.channels as i64)
                    .bytes(4, image.to_png()?);
                event.message(5, &summary(&value_of(tag).message(4, &proto)))
            }
            What::Histogram(tag, h) => {
                event.message(5, &summary(&value_of(tag).message(5, &histogram_proto(h))))
            }
            What::Start => event.message(7, &Message::new().int64(1, START)),
        };
        Ok(record(&event.into_bytes()))
    }
}

/// `SessionLog.SessionStatus.START`.
const START: i64 = 1;

/// Returns a `Summary.Value` with only the tag.
fn value_of(tag: &str) -> Message {
    Message::new().string(1, tag)
}

/// Returns a `Summary` of one value.
fn summary(value: &Message) -> Message {
    Message::new().message(1, value)
}

fn histogram_proto(h: &Histogram) -> Message {
    Message::new()
        .nonzero_double(1, h.min)
        .nonzero_double(2, h.max)
        .nonzero_double(3, h.count)
        .nonzero_double(4, h.sum)
        .nonzero_double(5, h.sum_of_squares)
        .packed_double(6, h.buckets.iter().map(|b| b.0))
        .packed_double(7, h.buckets.iter().map(|b| b.1))
}

/// Returns a `GraphDef`: all nodes with their names, inputs and output shapes.
fn graph_def(graph: &Frozen) -> Message {
    graph.nodes().iter().fold(Message::new(), |def, node| def.message(1, &node_def(graph, node)))
}

fn node_def(graph: &Frozen, node: &Node) -> Message {
    let name = |id: &TensorId| match (&graph.node(id.node).name, id.output) {
        (name, 0) => name.clone(),
        (name, n) => format!("{name}:{n}"),
    };
    let inputs = node.inputs.iter().map(name);
    // Control inputs start with a caret.
    let along = node.runs.iter().map(|&id| format!("^{}", graph.node(id).name));
    let def = Message::new().string(1, &node.name).string(2, node.kind.name());
    let def = inputs.chain(along).fold(def, |def, input| def.string(3, &input));
    if node.outputs.is_empty() {
        return def;
    }
    let shape = |dims: &[tensorpack_tensor::Dim]| {
        dims.iter().fold(Message::new(), |shape, dim| {
            let size = dim.known().map_or(-1, |n| n as i64);
            shape.message(2, &Message::new().int64(1, size))
        })
    };
    let shapes = node.outputs.iter().fold(Message::new(), |list, out| list.message(7, &shape(&out.shape)));
    let attribute =
        Message::new().string(1, "_output_shapes").message(2, &Message::new().message(1, &shapes));
    def.message(5, &attribute)
}

/// Frames a record. Event files use the framing of TFRecord.
fn record(data: &[u8]) -> Vec<u8> {
    let (header, footer) = tfrecord::frame(data);
    [&header[..], data, &footer].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, Sharing, TensorSpec, VariableSpec};

    fn hex(step: u64, what: What<'_>) -> String {
        let record = Event { wall_time: 1.5, step, what }.to_record().unwrap();
        record.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The expected bytes are those of TensorBoard's own writer.
    #[test]
    fn events_match_tensorboard_byte_for_byte() {
        assert_eq!(
            hex(0, What::Version),
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c"
        );
        assert_eq!(hex(7, What::Start), "0f000000000000006d532b0909000000000000f83f10073a020801774771c7");
        assert_eq!(
            hex(300, What::Scalar("cost", 0.25)),
            "1b000000000000001a0d9e1309000000000000f83f10ac022a0d0a0b0a04636f7374150000803e4cda9d6d"
        );
        let h = Histogram {
            min: -1.0,
            max: 2.0,
            count: 3.0,
            sum: 1.0,
            sum_of_squares: 5.0,
            buckets: vec![(-1.0, 0.0), (0.0, 1.0), (3.0, 2.0)],
        };
        assert_eq!(
            hex(2, What::Histogram("w", &h)),
            "7500000000000000d7d9417809000000000000f83f10022a680a660a01772a6109000000000000f0bf1100000000000000401900\
             0000000000084021000000000000f03f2900000000000014403218000000000000f0bf000000000000000000000000000008403a\
             180000000000000000000000000000f03f0000000000000040f0b106df"
        );
    }

    #[test]
    fn a_graph_lists_its_nodes_inputs_and_shapes() {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(3)]));
        let v = graph.variable(VariableSpec::new("v", [3]), Sharing::Make);
        let next = v.assign(&(&x + &x).sum_axes(&[0]));
        let _ = graph.group(&[&next]);
        let frozen = graph.freeze().unwrap();
        let bytes = graph_def(&frozen).into_bytes();
        let holds = |part: &[u8]| bytes.windows(part.len()).any(|w| w == part);
        assert!(holds(b"\x0a\x01x\x12\x0bPlaceholder"));
        assert!(holds(b"_output_shapes"));
        let unknown_by_3 = [&[0x3a, 17, 0x12, 11, 8][..], &[0xff; 9], &[1, 0x12, 2, 8, 3]].concat();
        assert!(holds(&unknown_by_3));
        assert!(holds(b"^"), "no control input for the group");
    }
}
