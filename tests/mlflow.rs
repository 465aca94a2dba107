//! The monitor for MLflow, against a small server and, if `TENSORPACK_MLFLOW` names a Python that has
//! it, against MLflow's own.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tensorpack::callback::TrainCx;
use tensorpack::dataflow::FromFn;
use tensorpack::monitor::{JsonWriter, Mlflow, Monitor};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::train::Trained;

/// What the server does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Answers,
    /// Reads them and never answers.
    Hangs,
    /// Answers all with status 500.
    Fails,
    /// Closes the connection in the middle of each answer.
    ClosesEarly,
    /// Answers, but rejects metrics.
    Rejects,
    /// Creates a run at once, and says so only after the client has given up.
    CreatesSlowly,
}

/// How long it takes a slow server to answer.
const SLOW: Duration = Duration::from_millis(600);

/// A server in this process. It records the calls and their bodies.
struct Server {
    uri: String,
    calls: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Server {
    fn start(mood: Mood) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let calls: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let of_thread = calls.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(|stream| stream.ok()) {
                let calls = of_thread.clone();
                std::thread::spawn(move || serve(stream, mood, &calls));
            }
        });
        Server { uri, calls }
    }

    /// Returns the bodies of all calls of this name.
    fn bodies(&self, call: &str) -> Vec<Value> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|(name, _)| name == call).map(|(_, body)| body.clone()).collect()
    }

    /// Returns the entries of a list in all batches.
    fn logged(&self, list: &str) -> Vec<Value> {
        let batches = self.bodies("runs/log-batch");
        batches.iter().flat_map(|batch| batch[list].as_array().cloned().unwrap_or_default()).collect()
    }
}

/// Serves the requests of one connection.
fn serve(stream: TcpStream, mood: Mood, calls: &Mutex<Vec<(String, Value)>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let mut first = String::new();
        reader.read_line(&mut first).ok().filter(|n| *n > 0)?;
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok().filter(|n| *n > 0)?;
            let header = header.trim().to_ascii_lowercase();
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if header.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let path = first.split_whitespace().nth(1)?.split('?').next()?;
        let call = path.strip_prefix("/api/2.0/mlflow/")?.to_string();
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let rejected = mood == Mood::Rejects && !body["metrics"].is_null();
        calls.lock().unwrap().push((call.clone(), body));
        let (status, answer) = match call.as_str() {
            _ if mood == Mood::Fails => (500, json!({})),
            _ if rejected => {
                (400, json!({"error_code": "INVALID_PARAMETER_VALUE", "message": "no such metric"}))
            }
            "experiments/get-by-name" => {
                (404, json!({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"}))
            }
            "experiments/create" => (200, json!({"experiment_id": "7"})),
            "runs/create" => (200, json!({"run": {"info": {"run_id": "r1"}}})),
            "runs/search" => (200, json!({"runs": [{"info": {"run_id": "r1"}}]})),
            _ => (200, json!({})),
        };
        let text = answer.to_string();
        let head = format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: ");
        if mood == Mood::CreatesSlowly && call == "runs/create" {
            std::thread::sleep(SLOW);
        }
        match mood {
            Mood::Hangs => std::thread::sleep(Duration::from_secs(3600)),
            Mood::ClosesEarly => {
                write!(stream, "{head}{}\r\n\r\n{{", text.len() + 100).ok()?;
                return None;
            }
            _ => write!(stream, "{head}{}\r\n\r\n{text}", text.len()).ok()?,
        }
    }
}

const STEPS: u64 = 4;

struct Line;

impl ModelDesc for Line {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(3)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let cost = Linear::new(1).apply(t, "fc", &inputs[0]).square().mean().named("cost");
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.1).boxed()
    }
}

fn batches() -> FromFn {
    FromFn::new(STEPS, |index| {
        let x: Vec<f32> = (0..12).map(|i| ((index * 12 + i) as f32).sin()).collect();
        Ok(vec![HostTensor::new([4, 3], x)?])
    })
}

/// Trains, and sends statistics to a server if one is given.
fn train(dir: &Path, epochs: u64, mlflow: Option<Mlflow>) -> Trained {
    let mut monitors: Vec<Box<dyn Monitor>> = vec![Box::new(JsonWriter::new())];
    monitors.extend(mlflow.map(|monitor| Box::new(monitor) as Box<dyn Monitor>));
    let config = TrainConfig::new(Line, batches())
        .callback(ModelSaver::new())
        .monitors(monitors)
        .logdir(dir)
        .seed(3)
        .max_epoch(epochs);
    launch_train_with_config(config, SimpleTrainer::new()).unwrap()
}

fn state(trained: &Trained) -> Value {
    trained.monitors.state()["monitors"]["Mlflow"].clone()
}

#[test]
fn a_run_is_sent_and_continued() {
    let (server, dir) = (Server::start(Mood::Answers), tempfile::tempdir().unwrap());
    let mlflow = || Mlflow::new(&server.uri).experiment("lines").run_name("first").tag("team", "a");
    let trained = train(dir.path(), 2, Some(mlflow()));
    let mark = state(&trained)["mark"].clone();
    assert_eq!(state(&trained), json!({"run_id": "r1", "dropped": 0, "mark": mark}));
    assert_eq!(server.bodies("experiments/create"), [json!({"name": "lines"})]);
    let [created] = &server.bodies("runs/create")[..] else { panic!("one run is created") };
    assert_eq!((&created["experiment_id"], &created["run_name"]), (&json!("7"), &json!("first")));
    let marked = json!({"key": "tensorpack_run", "value": mark});
    assert_eq!(created["tags"], json!([{"key": "team", "value": "a"}, marked]));
    let params = server.logged("params");
    assert!(params.contains(&json!({"key": "seed", "value": "3"})), "{params:?}");
    assert!(server.logged("tags").iter().any(|tag| tag["key"] == "tensorpack.version"));
    // The curve over steps has every step, and nothing is rounded.
    let of = |key: &str| {
        let metrics = server.logged("metrics");
        let of_key = metrics.iter().filter(|m| m["key"] == key);
        of_key.map(|m| (m["step"].as_u64().unwrap(), m["value"].as_f64().unwrap())).collect::<Vec<_>>()
    };
    let lines = |file: &str| {
        let text = std::fs::read_to_string(dir.path().join(file)).unwrap();
        let line = |l: &str| serde_json::from_str::<Value>(l).unwrap();
        let pair = |v: Value| Some((v["global_step"].as_u64()?, v["cost"].as_f64()?));
        text.lines().map(line).filter_map(pair).collect::<Vec<_>>()
    };
    assert_eq!(of("steps/cost"), lines("steps.jsonl"));
    assert_eq!(of("steps/cost").len() as u64, 2 * STEPS);
    assert_eq!(of("cost"), lines("stats.jsonl"));
    assert_eq!(of("cost").len(), 2);
    let updates = server.bodies("runs/update");
    assert_eq!(updates.len(), 1);
    assert_eq!((&updates[0]["run_id"], &updates[0]["status"]), (&json!("r1"), &json!("FINISHED")));
    // The same command again, for longer.
    train(dir.path(), 3, Some(mlflow()));
    assert_eq!(server.bodies("runs/create").len(), 1);
    assert_eq!(server.logged("params").len(), params.len());
    let statuses: Vec<Value> = server.bodies("runs/update").iter().map(|u| u["status"].clone()).collect();
    assert_eq!(statuses, ["FINISHED", "RUNNING", "FINISHED"]);
    assert_eq!(of("steps/cost"), lines("steps.jsonl"));
}

/// Whatever the server does, training ends as without it, and what is lost is counted.
#[test]
fn a_bad_server_neither_stops_nor_changes_training() {
    let plain = tempfile::tempdir().unwrap();
    let expected = train(plain.path(), 2, None).session.read("fc/W").unwrap();
    for mood in [Mood::Hangs, Mood::Fails, Mood::ClosesEarly, Mood::Rejects] {
        let (server, dir) = (Server::start(mood), tempfile::tempdir().unwrap());
        let mlflow = Mlflow::new(&server.uri).deadline(Duration::from_millis(150));
        let trained = train(dir.path(), 2, Some(mlflow));
        assert_eq!(trained.session.read("fc/W").unwrap(), expected, "{mood:?}");
        let lost = state(&trained)["dropped"].as_u64().unwrap();
        // At least the points of the curve.
        assert!(lost >= 2 * STEPS, "{mood:?}: {lost} values are lost");
        let [of_plain, found] = [&plain, &dir].map(|d| std::fs::read(d.path().join("stats.jsonl")).unwrap());
        assert_eq!(found, of_plain, "{mood:?}");
    }
    // Nobody listens.
    let dir = tempfile::tempdir().unwrap();
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mlflow = Mlflow::new(format!("http://{unused}")).deadline(Duration::MAX);
    assert!(state(&train(dir.path(), 1, Some(mlflow)))["dropped"].as_u64().unwrap() >= STEPS);
}

/// Waits for the server at the end of training.
struct WaitForTheServer;

impl Callback for WaitForTheServer {
    fn trigger_epoch(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        std::thread::sleep(SLOW);
        Ok(())
    }
}

/// A server that answers too late has created the run all the same, which is then found by its mark.
#[test]
fn a_slow_server_has_one_run() {
    let (server, dir) = (Server::start(Mood::CreatesSlowly), tempfile::tempdir().unwrap());
    let mlflow = Mlflow::new(&server.uri).deadline(SLOW / 3);
    let monitors: Vec<Box<dyn Monitor>> = vec![Box::new(mlflow)];
    let config = TrainConfig::new(Line, batches()).monitors(monitors).callback(WaitForTheServer);
    launch_train_with_config(config.logdir(dir.path()).max_epoch(3), SimpleTrainer::new()).unwrap();
    let created = server.bodies("runs/create");
    assert_eq!(created.len(), 1, "{created:?}");
    // It looked for the mark that it had created the run with.
    let mark = created[0]["tags"].as_array().unwrap().iter().find_map(|tag| {
        let is_mark = tag["key"].as_str().is_some_and(|key| key.starts_with("tensorpack"));
        is_mark.then(|| tag["value"].as_str().unwrap().to_string())
    });
    let searched = server.bodies("runs/search");
    assert!(
        searched.iter().any(|s| s["filter"].as_str().unwrap().contains(mark.as_ref().unwrap())),
        "{searched:?}"
    );
    assert!(server.bodies("runs/log-batch").iter().all(|batch| batch["run_id"] == "r1"));
    assert!(!server.logged("metrics").is_empty());
}

/// A run that fails or is not finite is marked, and such values arrive.
#[test]
fn failures_and_values_that_are_not_finite() {
    struct Puts;
    impl Callback for Puts {
        fn trigger_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
            cx.put_scalar("odd (name)//x", f64::NAN);
            cx.put_scalar("high", f64::INFINITY);
            Err(Error::argument("the sensor is unplugged"))
        }
    }
    let (server, dir) = (Server::start(Mood::Answers), tempfile::tempdir().unwrap());
    let config = TrainConfig::new(Line, batches())
        .callback(Puts)
        .monitors(vec![Box::new(Mlflow::new(&server.uri))])
        .logdir(dir.path())
        .max_epoch(1);
    launch_train_with_config(config, SimpleTrainer::new()).err().expect("an error");
    let metrics = server.logged("metrics");
    let value = |key: &str| metrics.iter().find(|m| m["key"] == key).map(|m| m["value"].clone());
    assert_eq!(value("odd _name_/x"), Some(json!("NaN")), "{metrics:?}");
    assert_eq!(value("high"), Some(json!("Infinity")));
    assert_eq!(server.bodies("runs/update")[0]["status"], "FAILED");
}

/// Kills the server at the end of the test.
#[cfg(unix)]
struct RealServer(Child);

#[cfg(unix)]
impl Drop for RealServer {
    fn drop(&mut self) {
        // SAFETY: `kill` has no requirements. The server and its workers are a process group of
        // their own, which was not waited for yet.
        unsafe { libc::kill(-(self.0.id() as i32), libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

/// MLflow's own client reads back what was written.
#[test]
#[cfg(unix)]
fn mlflow_reads_what_was_sent() {
    use std::os::unix::process::CommandExt;
    // The variable names a Python that has MLflow.
    if !tensorpack_testing::opted_in("TENSORPACK_MLFLOW") {
        return;
    }
    let python = std::env::var_os("TENSORPACK_MLFLOW").unwrap();
    let (dir, store) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Command::new(&python)
        .args(["-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"])
        .args(["--port", &port.to_string()])
        .arg("--backend-store-uri")
        .arg(format!("sqlite:///{}", store.path().join("db").display()))
        .current_dir(store.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let server = RealServer(server);
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(180), "the server does not start");
        std::thread::sleep(Duration::from_millis(100));
    }
    let uri = format!("http://127.0.0.1:{port}");
    let mlflow = || Mlflow::new(&uri).experiment("lines").tag("team", "a").deadline(Duration::from_secs(60));
    train(dir.path(), 2, Some(mlflow()));
    let trained = train(dir.path(), 3, Some(mlflow()));
    assert_eq!(state(&trained)["dropped"], 0);
    let read = "import json, sys, mlflow\n\
                client = mlflow.MlflowClient(sys.argv[1])\n\
                experiment = client.get_experiment_by_name('lines')\n\
                runs = client.search_runs([experiment.experiment_id])\n\
                run = runs[0]\n\
                curve = client.get_metric_history(run.info.run_id, 'steps/cost')\n\
                print(json.dumps([len(runs), run.info.status, run.data.params['seed'], run.data.tags['team'],\n\
                \x20                 sorted((m.step, m.value) for m in curve)]))\n";
    let output = Command::new(&python).args(["-c", read, &uri]).output().unwrap();
    drop(server);
    let text = String::from_utf8_lossy(&output.stdout);
    let found: Value = serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{e}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    let steps = std::fs::read_to_string(dir.path().join("steps.jsonl")).unwrap();
    let line = |l: &str| serde_json::from_str::<Value>(l).unwrap();
    let curve: Vec<Value> = steps.lines().map(line).map(|l| json!([l["global_step"], l["cost"]])).collect();
    assert_eq!(curve.len() as u64, 3 * STEPS);
    assert_eq!(found, json!([1, "FINISHED", "3", "a", curve]));
}
