//! Log output of model building: one line per layer, the regularized variables, and the table of
//! trainable variables.

use std::sync::{Mutex, Once};
use tensorpack::ErrorKind;
use tensorpack::prelude::*;
use tensorpack::tower::Mode;

static LINES: Mutex<Vec<(std::thread::ThreadId, String)>> = Mutex::new(Vec::new());

/// A logger that records the lines of each thread.
struct Recorder;

impl log::Log for Recorder {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        LINES.lock().unwrap().push((std::thread::current().id(), record.args().to_string()));
    }
    fn flush(&self) {}
}

/// Returns the lines that `build` logs on this thread.
fn lines_of(build: impl FnOnce()) -> Vec<String> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Recorder).unwrap();
        log::set_max_level(log::LevelFilter::Info);
    });
    let me = std::thread::current().id();
    LINES.lock().unwrap().retain(|(thread, _)| *thread != me);
    build();
    LINES.lock().unwrap().iter().filter(|(thread, _)| *thread == me).map(|(_, line)| line.clone()).collect()
}

#[track_caller]
fn block(t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
    t.layer(name, x, |t| {
        let y = Conv2d::new(8, 3).stride(2).apply(t, "conv", x);
        BatchNorm::new().relu().apply(t, "bn", &y)
    })
}

#[test]
fn each_layer_logs_its_shapes_once() {
    let lines = lines_of(|| {
        let graph = Graph::new();
        for i in 0..2 {
            let t = TowerContext::new(&graph, Mode::Training, i, 2);
            let x =
                graph.placeholder(&TensorSpec::f32(format!("image{i}"), [None, Some(28), Some(28), Some(1)]));
            t.build(|t| {
                let x = Conv2d::new(32, 3).apply(t, "conv0", &x);
                let x = block(t, "block", &x);
                Linear::new(10).apply(t, "fc", &x)
            });
        }
        graph.freeze().unwrap();
    });
    assert_eq!(
        lines,
        [
            "conv0: [?, 28, 28, 1] -> [?, 28, 28, 32]",
            "block: [?, 28, 28, 32] -> [?, 14, 14, 8]",
            "  conv: [?, 28, 28, 32] -> [?, 14, 14, 8]",
            "  bn: [?, 14, 14, 8] -> [?, 14, 14, 8]",
            "fc: [?, 14, 14, 8] -> [?, 10]",
        ]
    );
}

#[test]
fn regularized_variables_are_selected_by_name() {
    let mut costs = Vec::new();
    let lines = lines_of(|| {
        let graph = Graph::new();
        let t = &TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(2)]));
        let y = Linear::new(2).init(Init::Constant(3.0)).apply(t, "fc0", &x);
        let y = Linear::new(1).init(Init::Constant(-2.0)).apply(t, "fc1", &y);
        let _ = Linear::new(1).init(Init::Constant(100.0)).apply(t, "out", &y);
        let l2 = regularize_cost(t, "fc.*/W", l2_regularizer(0.1));
        let l1 = regularize_cost(t, "fc1/W", l1_regularizer(0.5));
        let outside = regularize_cost(&TowerContext::inference(&graph), "fc.*", l2_regularizer(1.0));
        let again = regularize_cost(t, "fc.*/W", l2_regularizer(0.1));
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        costs = session.run(&[&l2, &l1, &outside, &again], &[]).unwrap();
    });
    let costs: Vec<f64> = costs.iter().map(|c| c.to_f64_vec()[0]).collect();
    let right = [0.1 * (4.0 * 9.0 + 2.0 * 4.0) / 2.0, 0.5 * 4.0, 0.0, 2.2];
    assert!(costs.iter().zip(right).all(|(a, b)| (a - b).abs() < 1e-5), "{costs:?}");
    let [first, second] = &lines[3..] else { panic!("{lines:?}") };
    assert!(first.contains("fc.*/W") && first.ends_with("fc0/W, fc1/W"), "{first}");
    assert!(second.contains("fc1/W") && second.ends_with(" fc1/W"), "{second}");
}

#[test]
fn a_bad_pattern_is_an_error_at_its_line() {
    // The second is valid, but matches no whole name.
    for pattern in ["fc(", "fc"] {
        let graph = Graph::new();
        let t = &TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(2)]));
        let _ = Linear::new(2).apply(t, "fc0", &x);
        let line = line!() + 1;
        let _ = regularize_cost(t, pattern, l2_regularizer(1.0));
        let e = graph.freeze().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Name);
        assert!(e.message().contains(&format!("{pattern:?}")), "{e}");
        assert_eq!(e.site().map(|s| s.line), Some(line), "{e}");
    }
}

#[test]
fn describe_trainables_returns_a_table() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(784)]));
    let x = Linear::new(512).apply(t, "fc0", &x);
    BatchNorm::new().apply(t, "bn", &x);
    assert_eq!(
        describe_trainables(&graph),
        "name      type  shape       elements\n\
         fc0/W     f32   [784, 512]    401408\n\
         fc0/b     f32   [512]            512\n\
         bn/gamma  f32   [512]            512\n\
         bn/beta   f32   [512]            512\n\
         4 trainable variables, 402944 elements, 1.54 MB\n"
    );
}
