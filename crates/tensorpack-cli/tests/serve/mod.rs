//! `tensorpack serve`: the protocol, its limits, and the end of the server.

mod http;

use http::{Connection, Server};
use serde_json::{Value, json};
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack::predict::OnnxOptions;
use tensorpack::prelude::*;
use tensorpack::tower::TowerFunc;
use tensorpack_testing::opted_in;

const INFER: &str = "/v2/models/double/infer";

/// A model with the inputs `x`, f32[?, 2], and `n`, i64[?], and the outputs `doubled` and `next`.
fn double(dir: &Path) -> (OfflinePredictor, PathBuf) {
    let inputs = vec![TensorSpec::f32("x", [None, Some(2)]), TensorSpec::new("n", DType::I64, vec![None])];
    let tower = TowerFunc::new(inputs, |t, x| {
        let w = HostTensor::new([2, 2], vec![2.0f32, 0.0, 0.0, 2.0]).unwrap();
        let doubled = x[0].matmul(&t.graph().constant(w)).named("doubled");
        vec![doubled, (&x[1] + 1.0).named("next")]
    });
    let config = PredictConfig::from_tower(tower.unwrap(), ["doubled", "next"]);
    let predictor = OfflinePredictor::new(config).unwrap();
    let path = dir.join("double.safetensors");
    predictor.export(&path).unwrap();
    (predictor, path)
}

/// A model that multiplies its input, f32[256, 256], by itself many times: it takes long, and its
/// requests cannot run together.
fn slow(dir: &Path) -> PathBuf {
    let x = TensorSpec::f32("x", [Some(256), Some(256)]);
    let tower = TowerFunc::new(vec![x], |_, x| {
        let power = (0..1500).fold(x[0].clone(), |y, _| y.matmul(&x[0]));
        vec![power.named("y")]
    });
    let path = dir.join("slow.safetensors");
    let predictor = OfflinePredictor::new(PredictConfig::from_tower(tower.unwrap(), ["y"])).unwrap();
    predictor.export(&path).unwrap();
    path
}

/// A request with `rows` examples for [`double`].
fn request(id: usize, rows: usize) -> Value {
    let x: Vec<f64> = (0..2 * rows).map(|i| (1000 * id + i) as f64 / 2.0).collect();
    json!({"id": id.to_string(), "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [rows, 2], "data": x},
        {"name": "n", "datatype": "INT64", "shape": [rows], "data": vec![id; rows]},
    ]})
}

/// Checks the response to [`request`].
#[track_caller]
fn check(response: &http::Response, id: usize, rows: usize) {
    let json = response.json();
    assert_eq!(response.status, 200, "{json}");
    let x: Vec<f64> = (0..2 * rows).map(|i| (1000 * id + i) as f64).collect();
    let right = json!({"model_name": "double", "model_version": "1", "id": id.to_string(), "outputs": [
        {"name": "doubled", "datatype": "FP32", "shape": [rows, 2], "data": x},
        {"name": "next", "datatype": "INT64", "shape": [rows], "data": vec![id + 1; rows]},
    ]});
    assert_eq!(json, right);
}

#[test]
fn health_metadata_and_inference_in_json() {
    let dir = tempfile::tempdir().unwrap();
    let (predictor, path) = double(dir.path());
    let onnx = dir.path().join("double.onnx");
    predictor.export_onnx(&onnx, &OnnxOptions::default()).unwrap();
    for file in [path, onnx] {
        let server = Server::start(&file, &[]);
        let mut client = server.connect();
        for path in ["/v2/health/live", "/v2/health/ready", "/v2/models/double/ready"] {
            assert_eq!(client.get(path).status, 200, "{path}");
        }
        let about = client.get("/v2").json();
        assert_eq!(
            (&about["name"], &about["extensions"]),
            (&json!("tensorpack"), &json!(["binary_tensor_data"]))
        );
        for path in ["/v2/models/double", "/v2/models/double/versions/1"] {
            let model = client.get(path).json();
            assert_eq!((&model["name"], &model["versions"]), (&json!("double"), &json!(["1"])));
            let inputs = json!([{"name": "x", "datatype": "FP32", "shape": [-1, 2]},
                {"name": "n", "datatype": "INT64", "shape": [-1]}]);
            assert_eq!(model["inputs"], inputs);
            assert_eq!(model["outputs"][0], json!({"name": "doubled", "datatype": "FP32", "shape": [-1, 2]}));
        }
        for (id, rows) in [(1, 1), (2, 3), (3, 0), (4, 100)] {
            check(&client.infer(INFER, &request(id, rows)), id, rows);
        }
        // Nested data, one output, and a path with a version.
        let nested = json!({"inputs": [
            {"name": "n", "datatype": "INT64", "shape": [2], "data": [9007199254740993i64, -1]},
            {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [[1, 0.5], [-3, 0]]},
        ], "outputs": [{"name": "next"}]});
        let y = client.infer("/v2/models/double/versions/1/infer", &nested).json();
        let next =
            json!([{"name": "next", "datatype": "INT64", "shape": [2], "data": [9007199254740994i64, 0]}]);
        assert_eq!(y["outputs"], next);
    }
}

#[test]
fn inference_with_tensors_in_binary() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&double(dir.path()).1, &[]);
    let mut client = server.connect();
    let x: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let json = json!({"inputs": [
        {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
        {"name": "n", "datatype": "INT64", "shape": [1], "data": [6]},
    ], "outputs": [{"name": "next"}, {"name": "doubled", "parameters": {"binary_data": true}}]});
    let json = json.to_string().into_bytes();
    let length = format!("Inference-Header-Content-Length: {}\r\n", json.len());
    let y = client.post(INFER, &length, &[&json[..], &x].concat()).unwrap();
    assert_eq!((y.status, y.headers["content-type"].as_str()), (200, "application/octet-stream"));
    let at = y.headers["inference-header-content-length"].parse().unwrap();
    let head: Value = serde_json::from_slice(&y.body[..at]).unwrap();
    assert_eq!(head["outputs"][0]["data"], json!([7]));
    assert_eq!(head["outputs"][1]["parameters"], json!({"binary_data_size": 8}));
    let doubled: Vec<f32> =
        y.body[at..].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(doubled, [3.0, -4.0]);
    // All outputs in binary.
    let mut all: Value = serde_json::from_slice(&json).unwrap();
    all["outputs"] = json!([]);
    all["parameters"] = json!({"binary_data_output": true});
    let all = all.to_string().into_bytes();
    let length = format!("Inference-Header-Content-Length: {}\r\n", all.len());
    let y = client.post(INFER, &length, &[&all[..], &x].concat()).unwrap();
    let at: usize = y.headers["inference-header-content-length"].parse().unwrap();
    assert_eq!(y.body.len() - at, 8 + 8);
    // Lengths that do not match.
    for (length, body) in [
        (json.len() + 100, [&json[..], &x].concat()),
        (json.len(), [&json[..], &x[..7]].concat()),
        (json.len(), [&json[..], &x, b"more"].concat()),
    ] {
        let length = format!("Inference-Header-Content-Length: {length}\r\n");
        let message = client.post(INFER, &length, &body).unwrap().error(400);
        assert!(message.contains("bytes"), "{message}");
    }
    let message = client.post(INFER, "Inference-Header-Content-Length: -1\r\n", &json).unwrap().error(400);
    assert!(message.contains("inference-header-content-length"), "{message}");
}

#[test]
fn malformed_requests_are_errors_that_say_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&double(dir.path()).1, &[]);
    let mut client = server.connect();
    let with = |key: &str, value: Value| {
        let mut request = request(1, 1);
        request["inputs"][0][key] = value;
        request
    };
    let mut unknown_output = request(1, 1);
    unknown_output["outputs"] = json!([{"name": "tripled"}]);
    let mut twice = request(1, 1);
    twice["inputs"][1] = twice["inputs"][0].clone();
    let mut rows = request(1, 1);
    rows["inputs"][1] = json!({"name": "n", "datatype": "INT64", "shape": [2], "data": [1, 2]});
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let huge = 1u64 << 62;
    let mut same_output = request(1, 1);
    same_output["outputs"] = json!([{"name": "next"}, {"name": "next"}]);
    let cases: [(String, &[&str]); 16] = [
        ("{\"inputs\": [".into(), &["not valid"]),
        ("[]".into(), &["not valid"]),
        ("{}".into(), &["inputs"]),
        (json!({"inputs": []}).to_string(), &["missing inputs", "x, n"]),
        (with("name", json!("z")).to_string(), &["\"z\"", "x, n"]),
        (with("datatype", json!("FP64")).to_string(), &["\"x\"", "FP32", "FP64"]),
        (with("shape", json!([1, 3])).to_string(), &["\"x\"", "[-1, 2]", "[1, 3]"]),
        (with("shape", json!([2, 2])).to_string(), &["2 numbers", "[2, 2]"]),
        (with("shape", json!([huge, 2])).to_string(), &["[4611686018427387904, 2]"]),
        (with("shape", json!([-1, 2])).to_string(), &["not valid"]),
        (with("data", json!([1e300, 0])).to_string(), &["\"x\"", "does not fit"]),
        (with("data", json!(["a", "b"])).to_string(), &["strings"]),
        (with("data", Value::Null).to_string(), &["\"x\"", "neither"]),
        (twice.to_string(), &["\"x\"", "twice"]),
        (unknown_output.to_string(), &["tripled", "doubled, next"]),
        (same_output.to_string(), &["\"next\"", "twice"]),
    ];
    for (body, words) in cases {
        let message = client.post(INFER, "", body.as_bytes()).unwrap().error(400);
        assert!(words.iter().all(|word| message.contains(word)), "{message:?} for {body}");
    }
    let body = with("data", json!("DEEP")).to_string().replace("\"DEEP\"", &deep);
    client.post(INFER, "", body.as_bytes()).unwrap().error(400);
    // Inputs that only the model can refuse.
    assert_eq!(client.infer(INFER, &rows).status, 200);
    for (path, words) in [
        ("/v2/models/triple", ["triple", "double"]),
        ("/v2/models/double/versions/2", ["\"2\"", "\"1\""]),
        ("/v2/models/double/explain", ["explain", ""]),
        ("/v3", ["/v3", ""]),
    ] {
        let message = client.get(path).error(404);
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
    assert!(client.get(INFER).error(405).contains("POST"));
    client.post("/v2", "", b"").unwrap().error(405);
    client.post(INFER, "Content-Encoding: gzip\r\n", b"1234").unwrap().error(415);
    // Not HTTP at all.
    let mut garbage = server.connect();
    garbage.send(&[0x16, 3, 1, 0, 5, 0, 0, b'\r', b'\n', b'\r', b'\n']).unwrap();
    assert_eq!(garbage.receive().unwrap().status, 400);
    check(&client.infer(INFER, &request(1, 1)), 1, 1);
}

#[test]
fn long_and_slow_requests_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&double(dir.path()).1, &["--max-body-bytes", "3000", "--timeout", "1.5"]);
    let long = vec![b' '; 5000];
    let message = server.connect().post(INFER, "", &long).unwrap().error(413);
    assert!(message.contains("3000"), "{message}");
    let mut waits = server.connect();
    let head =
        format!("POST {INFER} HTTP/1.1\r\nHost: t\r\nContent-Length: 5000\r\nExpect: 100-continue\r\n\r\n");
    waits.send(head.as_bytes()).unwrap();
    waits.receive().unwrap().error(413);
    let mut chunked = server.connect();
    chunked
        .send(format!("POST {INFER} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n").as_bytes())
        .unwrap();
    for _ in 0..4 {
        chunked.send(format!("3e8\r\n{}\r\n", "x".repeat(1000)).as_bytes()).unwrap();
    }
    chunked.receive().unwrap().error(413);
    // A body that does not arrive, and a head that does not.
    let mut slow = server.connect();
    slow.send(format!("POST {INFER} HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{{").as_bytes())
        .unwrap();
    assert!(slow.receive().unwrap().error(408).contains("1.5 s"));
    let mut silent = server.connect();
    silent.send(b"POST /v2/mod").unwrap();
    let start = Instant::now();
    if let Ok(response) = silent.receive() {
        assert_eq!(response.status, 408);
    }
    assert!(start.elapsed() < Duration::from_secs(20), "the connection was kept");
    check(&server.connect().infer(INFER, &request(7, 2)), 7, 2);
}

#[test]
fn a_busy_model_refuses_requests_and_answers_late_ones_with_504() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&slow(dir.path()), &["--max-concurrent", "1", "--timeout", "0.2"]);
    let body = json!({"inputs": [
        {"name": "x", "datatype": "FP32", "shape": [256, 256], "parameters": {"binary_data_size": 262144}},
    ]});
    let body = body.to_string().into_bytes();
    let length = format!("Inference-Header-Content-Length: {}\r\n", body.len());
    let body = [&body[..], &[0; 262144]].concat();
    let infer = "/v2/models/slow/infer";
    let mut client = server.connect();
    assert!(client.post(infer, &length, &body).unwrap().error(504).contains("0.2 s"));
    // The model still works on the first request.
    let busy = client.post(infer, &length, &body).unwrap();
    assert_eq!(busy.headers["retry-after"], "1");
    assert!(busy.error(503).contains("too many requests"));
    let metrics = String::from_utf8(client.get("/metrics").body).unwrap();
    for line in ["tensorpack_requests_total{model=\"slow\",code=\"503\"} 1", "code=\"504\"} 1"] {
        assert!(metrics.contains(line), "{metrics}");
    }
}

#[test]
fn closed_connections_do_no_harm_and_requests_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&double(dir.path()).1, &[]);
    let body = request(1, 1).to_string();
    let head = format!("POST {INFER} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n", body.len());
    for i in 0..20 {
        let mut client = server.connect();
        // Half a body, or all of it, and then nobody reads the response.
        let sent = if i % 2 == 0 { &body[..body.len() / 2] } else { &body };
        client.send(format!("{head}{sent}").as_bytes()).unwrap();
    }
    // One that only sends no more.
    let mut half_closed = server.connect();
    half_closed.send(format!("{head}{body}").as_bytes()).unwrap();
    half_closed.stream.get_ref().shutdown(Shutdown::Write).unwrap();
    check(&half_closed.receive().unwrap(), 1, 1);
    let mut client = server.connect();
    for id in 0..2 {
        check(&client.infer(INFER, &request(id, 2)), id, 2);
    }
    let start = Instant::now();
    loop {
        let metrics = client.get("/metrics");
        assert_eq!(metrics.headers["content-type"], "text/plain; version=0.0.4");
        let text = String::from_utf8(metrics.body).unwrap();
        let value = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.rsplit(' ').next()).map_or(0.0, |text| text.parse().unwrap())
        };
        let ended = value("tensorpack_request_duration_seconds_count") as usize;
        if ended == 23 && value("tensorpack_requests_in_flight") == 0.0 {
            assert!(value("tensorpack_requests_total{model=\"double\",code=\"200\"}") >= 3.0, "{text}");
            assert!(value("tensorpack_batch_examples_sum") >= 5.0, "{text}");
            assert!(value("tensorpack_batch_examples_bucket{model=\"double\",le=\"+Inf\"}") >= 3.0, "{text}");
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{text}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn two_hundred_clients_at_once_get_their_own_answers() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&double(dir.path()).1, &[]);
    thread::scope(|s| {
        for client in 0..200 {
            let server = &server;
            let run = move || {
                let mut connection = server.connect();
                for i in 0..5 {
                    let (id, rows) = (client * 5 + i, 1 + client % 3);
                    check(&connection.infer(INFER, &request(id, rows)), id, rows);
                }
            };
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(s, run).unwrap();
        }
    });
    let text = String::from_utf8(server.connect().get("/metrics").body).unwrap();
    assert!(text.contains("tensorpack_requests_total{model=\"double\",code=\"200\"} 1000"), "{text}");
    let runs =
        text.lines().find_map(|line| line.strip_prefix("tensorpack_batch_examples_count{model=\"double\"} "));
    assert!(runs.unwrap().parse::<usize>().unwrap() < 1000, "nothing was batched: {text}");
}

/// Every request that is sent gets its response. Clients stop when a response closes its connection.
#[test]
fn a_terminated_server_answers_every_request() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(&double(dir.path()).1, &[]);
    let (answered, is_terminated) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|s| {
        let clients: Vec<_> = (0..24)
            .map(|client: usize| {
                let (server_address, answered, is_terminated) = (&server.address, &answered, &is_terminated);
                s.spawn(move || {
                    let mut connection = Connection::open(server_address).unwrap();
                    for i in 0.. {
                        let (id, rows) = (client * 500 + i % 500, 1 + i % 4);
                        let body = request(id, rows).to_string();
                        let response = connection.post(INFER, "", body.as_bytes());
                        let response = response.unwrap_or_else(|e| panic!("request {id} was lost: {e}"));
                        check(&response, id, rows);
                        answered.fetch_add(1, Ordering::Relaxed);
                        if response.closes() {
                            assert!(is_terminated.load(Ordering::Relaxed), "closed before the signal");
                            return;
                        }
                        // Some clients open a connection for every request.
                        if client.is_multiple_of(3) {
                            connection = match Connection::open(server_address) {
                                // No connection, no request that could be lost.
                                Err(_) if is_terminated.load(Ordering::Relaxed) => return,
                                opened => opened.unwrap(),
                            };
                        }
                    }
                })
            })
            .collect();
        // An idle connection must not keep the server alive.
        let idle = Connection::open(&server.address).unwrap();
        while answered.load(Ordering::Relaxed) < 200 {
            assert!(!clients.iter().any(|client| client.is_finished()), "a client has failed");
            thread::sleep(Duration::from_millis(5));
        }
        is_terminated.store(true, Ordering::Relaxed);
        server.terminate();
        clients.into_iter().for_each(|client| client.join().unwrap());
        drop(idle);
    });
    assert!(server.wait().success());
    assert!(Connection::open(&server.address).is_err(), "the port is still open");
}

#[test]
fn a_server_that_ends_is_alive_but_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(&double(dir.path()).1, &[]);
    let (mut idle, mut polling) = (server.connect(), server.connect());
    assert_eq!(polling.get("/v2/health/ready").status, 200);
    server.terminate();
    let start = Instant::now();
    let closed = loop {
        let ready = polling.get("/v2/health/ready");
        match (ready.closes(), ready.status) {
            // The signal came between the answer and its header.
            (true, 200) => polling = server.connect(),
            (true, _) => break ready,
            _ => {}
        }
        assert!(start.elapsed() < Duration::from_secs(30));
    };
    assert!(closed.error(503).contains("not ready"));
    assert_eq!(idle.get("/v2/health/live").status, 200);
    assert!(server.wait().success());
}

#[test]
fn bad_arguments_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let (_, path) = double(dir.path());
    let run = |words: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_tensorpack")).arg("serve").arg(&path).args(words).output();
        let output = output.unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    for (words, named) in [
        (["--timeout", "0"], "--timeout"),
        (["--timeout", "nan"], "--timeout"),
        (["--max-batch-size", "0"], "--max-batch-size"),
        (["--name", "a/b"], "--name"),
        (["--host", "nowhere"], "--host"),
    ] {
        let text = run(&words);
        assert!(text.contains(named), "{text}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let text = run(&["--port", &port]);
    assert!(text.contains(&port), "{text}");
    assert!(
        Command::new(env!("CARGO_BIN_EXE_tensorpack"))
            .args(["serve", "none.onnx"])
            .output()
            .unwrap()
            .status
            .code()
            == Some(1)
    );
}

/// The client of Triton, which also speaks this protocol.
#[test]
fn a_client_of_the_protocol_is_served() {
    if !opted_in("TENSORPACK_TRITON_CLIENT") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&double(dir.path()).1, &[]);
    let python = std::env::var_os("TENSORPACK_TRITON_CLIENT").filter(|python| python != "1");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve/triton_client.py");
    let output =
        Command::new(python.unwrap_or_else(|| "python3".into())).arg(script).arg(&server.address).output();
    let output = output.expect("TENSORPACK_TRITON_CLIENT names a Python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
}
