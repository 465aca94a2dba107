//! One session, many threads: runs wait for each other, and every one gets its own answer.

use tensorpack::HostTensor;
use tensorpack::graph::{Fetch, Graph, Init, TensorSpec, VariableSpec};
use tensorpack::runtime::{Session, SessionOptions};
use tensorpack::tower::TowerContext;

#[test]
fn a_session_can_be_shared_and_sent() {
    fn shareable<T: Send + Sync>() {}
    shareable::<Session>();
    shareable::<Fetch>();
    shareable::<HostTensor>();
}

#[test]
fn concurrent_runs_give_correct_results() {
    const THREADS: usize = 4;
    const RUNS: usize = 50;
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [None, Some(16)]));
    let w = t.variable(VariableSpec::new("w", [16, 16]).init(Init::ones()).non_trainable());
    let seen = t.variable(VariableSpec::new("seen", []).init(Init::zeros()).non_trainable());
    let y = Fetch::from(&(x.matmul(&w).sum() + 1.0));
    let count = Fetch::from(&seen.update(|s| s + 1.0));
    let options = SessionOptions { threads: Some(2), programs: 2, ..SessionOptions::default() };
    let session = Session::with(g.freeze().unwrap(), options).unwrap();
    std::thread::scope(|scope| {
        for me in 0..THREADS {
            let (session, y, count) = (&session, &y, &count);
            scope.spawn(move || {
                // Every thread uses another shape, and the program cache holds fewer programs than
                // shapes.
                let rows = me + 1;
                for run in 0..RUNS {
                    let value = (me * RUNS + run) as f32;
                    let x = HostTensor::new([rows, 16], vec![value; rows * 16]).unwrap();
                    let got = session.run(&[y, count], &[("x", &x)]).unwrap();
                    assert_eq!(got[0].to_scalar().unwrap(), f64::from(value) * (rows * 256) as f64 + 1.0);
                    assert_eq!(session.read("w").unwrap().to_f64_vec(), [1.0; 256]);
                }
            });
        }
    });
    assert_eq!(session.read("seen").unwrap().to_scalar().unwrap(), (THREADS * RUNS) as f64);
}
