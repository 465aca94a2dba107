//! Requests over a real socket, as browsers and others send them.

use crate::sample_runs::{Sample, serve, write_run, write_samples};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Sends a request and returns the answer: its head and its body.
fn send(address: SocketAddr, request: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The server may answer, and close, before it has read everything.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").map_or(answer.len(), |at| at + 4);
    let body = answer.split_off(end);
    (String::from_utf8_lossy(&answer).to_lowercase(), body)
}

fn get(address: SocketAddr, path: &str, headers: &str) -> (String, Vec<u8>) {
    send(address, &format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n"))
}

fn post(address: SocketAddr, path: &str, headers: &str, body: &str) -> (String, Vec<u8>) {
    let head = format!("POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}");
    send(address, &format!("{head}content-length: {}\r\n\r\n{body}", body.len()))
}

fn status(answer: &(String, Vec<u8>)) -> u16 {
    answer.0.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0)
}

fn json(answer: &(String, Vec<u8>)) -> serde_json::Value {
    serde_json::from_slice(&answer.1)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&answer.1)))
}

/// Waits until the server has read the runs, and returns their ids by name.
fn runs(address: SocketAddr, headers: &str, count: usize) -> std::collections::BTreeMap<String, String> {
    let begun = Instant::now();
    loop {
        let list = json(&get(address, "/api/runs", headers));
        let runs = list["runs"].as_array().unwrap();
        if runs.len() == count && runs.iter().all(|r| r["complete"] == true) {
            let pair = |r: &serde_json::Value| Some((r["name"].as_str()?.into(), r["id"].as_str()?.into()));
            return runs.iter().filter_map(pair).collect();
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{list}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn only_pages_of_this_server_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let (address, url) = serve(folder.path(), |_| ());
    assert!(!url.contains("token"), "a loopback address needs none: {url}");
    let page = get(address, "/", "");
    assert_eq!(status(&page), 200);
    for header in [
        "content-security-policy: default-src 'none'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
    ] {
        assert!(page.0.contains(header), "{header} is not in {}", page.0);
    }
    let port = address.port();
    let with_host = |host: &str| {
        let request = format!("GET /api/runs HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        status(&send(address, &request))
    };
    assert_eq!(with_host(&format!("localhost:{port}")), 200);
    // DNS rebinding: the name of another site that leads to this address.
    assert_eq!(with_host(&format!("evil.example:{port}")), 403);
    assert_eq!(with_host("localhost:1"), 403);
    assert_eq!(status(&get(address, "/api/runs", "origin: http://evil.example\r\n")), 403);
    assert_eq!(status(&get(address, "/api/runs", &format!("origin: http://{address}\r\n"))), 200);
    let typed = "content-type: application/json\r\n";
    assert_eq!(status(&post(address, "/api/stop", typed, "{}")), 403, "no origin");
    // Control is off.
    let own = format!("{typed}origin: http://{address}\r\n");
    let refused = post(address, "/api/stop", &own, "{}");
    assert_eq!(status(&refused), 403);
    assert!(String::from_utf8_lossy(&refused.1).contains("--allow-control"));
    assert_eq!(
        status(&send(address, &format!("DELETE / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"))),
        405
    );
}

#[test]
fn a_token_is_asked_of_all_but_the_first_visit() {
    let folder = tempfile::tempdir().unwrap();
    let _lock = write_samples(folder.path());
    let (address, url) = serve(folder.path(), |options| options.allow_control = true);
    let token = url.split("token=").nth(1).unwrap();
    assert_eq!(token.len(), 48);
    for path in ["/", "/app.js", "/api/runs", "/?token=wrong", &format!("/api/runs?token={token}")] {
        assert_eq!(status(&get(address, path, "")), 401, "{path}");
    }
    let first = get(address, &format!("/?token={token}"), "");
    assert_eq!(status(&first), 303);
    let cookie = first.0.lines().find_map(|l| l.strip_prefix("set-cookie: ")).unwrap();
    assert!(cookie.contains("httponly") && cookie.contains("samesite=strict"), "{cookie}");
    let cookie = format!("cookie: {}\r\n", cookie.split(';').next().unwrap());
    assert_eq!(status(&get(address, "/", &cookie)), 200);
    let ids = runs(address, &cookie, 5);
    let origin = format!("origin: http://{address}\r\n");
    let typed = "content-type: application/json\r\n";
    let body = format!(r#"{{"run":"{}","name":"learning_rate","value":0.25}}"#, ids["mnist/wide"]);
    let hyper = |headers: &str, body: &str| status(&post(address, "/api/hyper", headers, body));
    assert_eq!(hyper(&format!("{cookie}{typed}"), &body), 403, "no origin");
    assert_eq!(hyper(&format!("{origin}{typed}"), &body), 401, "no cookie");
    assert_eq!(hyper(&format!("{cookie}{origin}"), &body), 415, "a form of another site has no JSON");
    assert_eq!(hyper(&format!("{cookie}{origin}{typed}"), &format!("{body}{}", " ".repeat(5000))), 413);
    assert_eq!(hyper(&format!("{cookie}{origin}{typed}"), "{"), 400);
    assert_eq!(hyper(&format!("{cookie}{origin}{typed}"), r#"{"run":"../x"}"#), 404);
    assert_eq!(hyper(&format!("{cookie}{origin}{typed}"), &body), 200);
    let written = fs::read_to_string(folder.path().join("mnist/wide/hyper.txt")).unwrap();
    assert_eq!(written, "learning_rate: 0.25\n");
    // The run was killed: no process is stopped.
    let stop = format!(r#"{{"run":"{}"}}"#, ids["mnist/wide"]);
    assert_eq!(status(&post(address, "/api/stop", &format!("{cookie}{origin}{typed}"), &stop)), 409);
}

#[test]
fn a_public_address_needs_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let (address, url) = serve(folder.path(), |options| options.host = "0.0.0.0".parse().unwrap());
    assert!(url.contains("?token="), "{url}");
    let local = SocketAddr::from(([127, 0, 0, 1], address.port()));
    assert_eq!(status(&get(local, "/api/runs", "")), 401);
}

#[test]
fn data_of_runs_is_served_by_id_only() {
    let folder = tempfile::tempdir().unwrap();
    let shown = folder.path().join("shown");
    let _lock = write_samples(&shown);
    fs::write(folder.path().join("secret.log"), "secret\n").unwrap();
    let (address, _) = serve(&shown, |_| ());
    let ids = runs(address, "", 5);
    let id = &ids["mnist/baseline"];
    let ok = |path: &str| {
        let answer = get(address, path, "");
        assert_eq!(status(&answer), 200, "{path}: {}", String::from_utf8_lossy(&answer.1));
        answer
    };
    let log = json(&ok(&format!("/api/log?run={id}")));
    let next = log["next"].as_u64().unwrap();
    assert!(log["text"].as_str().unwrap().contains("epoch 30") && next > 0);
    let again = json(&ok(&format!("/api/log?run={id}&from={next}")));
    assert_eq!((again["text"].as_str(), again["next"].as_u64()), (Some(""), Some(next)));
    let media = json(&ok(&format!("/api/media?run={id}")));
    let place = media["images"]["samples"][0]["place"].as_str().unwrap().to_string();
    let image = ok(&format!("/api/image?run={id}&place={place}"));
    assert!(image.1.starts_with(b"\x89PNG") && image.0.contains("content-type: image/png"));
    let histograms = json(&ok(&format!("/api/histograms?run={id}&tag=conv0/W")));
    assert_eq!(histograms["steps"].as_array().unwrap().len(), 10);
    let graph = json(&ok(&format!("/api/graph?run={id}")));
    assert!(graph["parts"].as_array().unwrap().len() >= 8);
    let details = json(&ok(&format!("/api/details?runs={id}")));
    assert_eq!(details[id]["details"]["settings/max_epoch"], 30);
    for path in [
        "/api/log?run=../secret".to_string(),
        "/api/log?run=..%2Fsecret.log".into(),
        "/../secret.log".into(),
        "/%2e%2e/secret.log".into(),
        format!("/api/image?run={id}&place=../../../secret.log@0"),
        format!("/api/image?run={id}&place=log.log@0"),
        format!("/api/nothing?run={id}"),
    ] {
        let answer = get(address, &path, "");
        assert_eq!(status(&answer), 404, "{path}");
        assert!(!String::from_utf8_lossy(&answer.1).contains("secret\n"));
    }
}

#[test]
fn hostile_requests_and_files_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let sample = Sample { name: "", seed: 1, epochs: 3, learning_rate: 0.1, ending: "saved", media: true };
    write_run(&folder.path().join("good"), &sample);
    // Torn, damaged and odd files.
    let bad = folder.path().join("bad");
    write_run(&bad, &sample);
    let events = bad.join("events.out.tfevents.1800000000.tensorpack");
    let mut bytes = fs::read(&events).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 50].fill(0xff);
    fs::write(&events, bytes).unwrap();
    fs::write(
        bad.join("stats.jsonl"),
        b"\xff\xfe{{{\n{\"epoch_num\":1}\n[1,2]\n{\"epoch_num\":1,\"global_step\":1,\"a\":1}\n{\"ep",
    )
    .unwrap();
    fs::write(bad.join("manifest.json"), "[".repeat(100_000)).unwrap();
    fs::write(bad.join("lock"), "x").unwrap();
    #[cfg(unix)]
    {
        fs::remove_file(bad.join("log.log")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", bad.join("log.log")).unwrap();
    }
    let (address, _) = serve(folder.path(), |_| ());
    let ids = runs(address, "", 2);
    let list = json(&get(address, "/api/runs", ""));
    let damaged =
        list["runs"].as_array().unwrap().iter().find(|r| r["name"] == "bad").unwrap()["damaged"].clone();
    assert_eq!(damaged, 3);
    for path in ["log", "media", "graph", "details", "histograms"] {
        let (id, tag) = (&ids["bad"], "conv0/W");
        let answer = get(address, &format!("/api/{path}?run={id}&runs={id}&tag={tag}"), "");
        assert!([200, 404].contains(&status(&answer)), "{path}: {}", answer.0);
        assert!(!String::from_utf8_lossy(&answer.1).contains("root:"), "{path}");
    }
    // Odd numbers in an address.
    for query in [
        "width=-5",
        "width=1e300",
        "smooth=nan",
        "smooth=7",
        "from=5&to=1",
        "x=nothing",
        "xlog=1&from=-1&to=0",
    ] {
        let id = &ids["good"];
        let answer = get(address, &format!("/api/curves?tag=cost&runs={id}&{query}"), "");
        assert_eq!(status(&answer), 200, "{query}");
    }
    // A head without an end, and one that is too large.
    assert_ne!(
        status(&send(
            address,
            &format!("GET / HTTP/1.1\r\nhost: {address}\r\nx: {}\r\n\r\n", "y".repeat(200_000))
        )),
        200
    );
    let _unfinished =
        TcpStream::connect(address).and_then(|mut s| s.write_all(b"GET / HTT").map(|()| s)).unwrap();
    assert_eq!(status(&get(address, "/", "")), 200);
}
