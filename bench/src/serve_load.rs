//! Loads an inference server with requests of many clients.

use serde_json::json;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerFunc;

/// The width of the served net's input, and of its hidden layer.
const INPUTS: usize = 784;
const HIDDEN: usize = 256;
const CLASSES: usize = 10;
/// The longest wait for a response.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The options of `bench -- serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Write the net for `tensorpack serve` to this file, and send nothing.
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,
    /// Host and port of the server.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8000")]
    address: String,
    /// The name of the model in requests.
    #[arg(long, value_name = "NAME", default_value = "mlp")]
    model: String,
    /// Clients that each send a request as soon as they have the answer to the one before.
    #[arg(long, value_name = "N", default_value_t = 200)]
    clients: usize,
    /// Seconds during which requests begin, after a warm-up of a fifth of that time.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// Print one JSON line.
    #[arg(long)]
    json: bool,
}

/// What one client saw.
#[derive(Default)]
struct Seen {
    /// Seconds from each request to its answer.
    times: Vec<f64>,
    errors: usize,
    first_error: Option<String>,
}

pub(crate) fn measure(args: &ServeArgs) -> Result<()> {
    if let Some(path) = &args.export {
        return OfflinePredictor::new(PredictConfig::from_tower(net()?, ["y"]))?.export(path);
    }
    let seconds = Duration::try_from_secs_f64(args.seconds)
        .map_err(|_| Error::argument(format!("--seconds {} is not a time", args.seconds)))?;
    let ready = &Barrier::new(args.clients);
    let seen: Vec<Seen> = thread::scope(|scope| {
        let clients: Vec<_> =
            (0..args.clients).map(|i| scope.spawn(move || client(args, i, seconds, ready))).collect();
        clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect()
    });
    let mut times: Vec<f64> = seen.iter().flat_map(|s| &s.times).copied().collect();
    times.sort_by(f64::total_cmp);
    let errors: usize = seen.iter().map(|s| s.errors).sum();
    let first_error = seen.iter().find_map(|s| s.first_error.as_deref());
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN) * 1e3;
    let (rate, median, p99) = (times.len() as f64 / args.seconds, at(0.5), at(0.99));
    if args.json {
        let line = json!({
            "clients": args.clients, "requests": times.len(), "errors": errors, "first_error": first_error,
            "requests_per_second": rate, "median_ms": median, "p99_ms": p99,
        });
        println!("{line}");
    } else {
        println!(
            "{} clients: {} answers, {rate:.0} per second; median {median:.2} ms, 99 % within {p99:.2} ms; {errors} errors",
            args.clients,
            times.len(),
        );
        if let Some(error) = first_error {
            println!("the first error: {error}");
        }
    }
    Ok(())
}

/// The served net: a hidden layer.
fn net() -> Result<TowerFunc> {
    TowerFunc::new(vec![TensorSpec::f32("x", [None, Some(INPUTS)])], |t, inputs| {
        let hidden = Linear::new(HIDDEN).apply(t, "hidden", &inputs[0]).relu();
        vec![Linear::new(CLASSES).apply(t, "out", &hidden).softmax().named("y")]
    })
}

/// Sends requests until the time is over.
fn client(args: &ServeArgs, index: usize, seconds: Duration, ready: &Barrier) -> Seen {
    let mut seen = Seen::default();
    let request = request(args, index);
    let mut connection = connect(&args.address);
    ready.wait();
    let began = Instant::now() + seconds / 5;
    loop {
        let sent = Instant::now();
        if sent >= began + seconds {
            return seen;
        }
        let answer = match &mut connection {
            Ok(connection) => exchange(connection, &request),
            Err(e) => Err(std::io::Error::new(e.kind(), e.to_string())),
        };
        match answer {
            Ok(()) if sent >= began => seen.times.push(sent.elapsed().as_secs_f64()),
            Ok(()) => (),
            Err(e) => {
                seen.errors += 1;
                seen.first_error.get_or_insert_with(|| e.to_string());
                // A server that refuses every connection must not be asked all the time.
                thread::sleep(Duration::from_millis(10));
                connection = connect(&args.address);
            }
        }
    }
}

fn connect(address: &str) -> std::io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(BufReader::new(stream))
}

/// The request of a client: one example.
fn request(args: &ServeArgs, index: usize) -> Vec<u8> {
    let rng = CounterRng::new(index as u64, "request");
    let data: Vec<f64> = (0..INPUTS).map(|i| (rng.uniform(0, i as u64) * 1e4).round() / 1e4).collect();
    let body = json!({
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, INPUTS], "data": data}],
    })
    .to_string();
    let head = format!(
        "POST /v2/models/{}/infer HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        args.model,
        args.address,
        body.len(),
    );
    [head.into_bytes(), body.into_bytes()].concat()
}

/// Sends a request and reads the whole response, which must have status 200 and one probability per
/// class.
fn exchange(connection: &mut BufReader<TcpStream>, request: &[u8]) -> std::io::Result<()> {
    let broken = |why: String| std::io::Error::other(why);
    connection.get_mut().write_all(request)?;
    let (mut line, mut length) = (String::new(), None);
    if connection.read_line(&mut line)? == 0 {
        return Err(broken("the server closed the connection".into()));
    }
    let status = line.trim_end().to_string();
    loop {
        line.clear();
        connection.read_line(&mut line)?;
        let header = line.trim_end();
        if header.is_empty() {
            break;
        }
        if let Some((name, value)) =
            header.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        {
            length = Some(value.trim().parse().map_err(|_| broken(format!("{name}:{value}")))?);
        }
    }
    let mut body = vec![0; length.ok_or_else(|| broken(format!("{status}, without a length")))?];
    connection.read_exact(&mut body)?;
    if status.split(' ').nth(1) != Some("200") {
        return Err(broken(format!("{status}: {}", String::from_utf8_lossy(&body))));
    }
    let answer: serde_json::Value = serde_json::from_slice(&body)?;
    match answer["outputs"][0]["data"].as_array() {
        Some(data) if data.len() == CLASSES => Ok(()),
        _ => Err(broken(format!("not the output of the net: {answer}"))),
    }
}
