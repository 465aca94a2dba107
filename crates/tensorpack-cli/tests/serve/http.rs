//! A server in a process of its own, and a small HTTP client.

use serde_json::Value;
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A running `tensorpack serve`, killed when it is dropped.
pub(super) struct Server {
    child: Child,
    pub(super) address: String,
}

impl Server {
    /// Serves a file on a free port, with these options.
    pub(super) fn start(model: &Path, options: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorpack"));
        command.arg("serve").arg(model).args(["--port", "0", "--threads", "1"]).args(options);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).and_then(|rest| rest.split_whitespace().next());
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}")).to_string();
        Server { child, address }
    }

    pub(super) fn connect(&self) -> Connection {
        Connection::open(&self.address).unwrap()
    }

    /// Asks the process to end.
    pub(super) fn terminate(&self) {
        let kill = format!("kill -TERM {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    pub(super) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A response.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) headers: HashMap<String, String>,
    pub(super) body: Vec<u8>,
}

impl Response {
    pub(super) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {} {text}", self.status))
    }

    /// Returns the message of an error with this status.
    #[track_caller]
    pub(super) fn error(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        assert_eq!(self.headers["content-type"], "application/json");
        let json = self.json();
        json["error"].as_str().unwrap_or_else(|| panic!("no error in {json}")).to_string()
    }

    pub(super) fn closes(&self) -> bool {
        self.headers.get("connection").is_some_and(|value| value == "close")
    }
}

/// A connection that is kept alive.
pub(super) struct Connection {
    pub(super) stream: BufReader<TcpStream>,
}

impl Connection {
    pub(super) fn open(address: &str) -> io::Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream: BufReader::new(stream) })
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads a response. The error is `UnexpectedEof` if the connection ends before it.
    pub(super) fn receive(&mut self) -> io::Result<Response> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let status = line.split(' ').nth(1).and_then(|text| text.parse().ok());
        let status = status.unwrap_or_else(|| panic!("not a status line: {line:?}"));
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_string());
        }
        let length = headers.get("content-length").map_or(0, |n| n.parse().unwrap());
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(Response { status, headers, body })
    }

    pub(super) fn get(&mut self, path: &str) -> Response {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes()).unwrap();
        self.receive().unwrap()
    }

    /// Sends a request with a body and reads its response. `headers` are lines that end with `\r\n`.
    pub(super) fn post(&mut self, path: &str, headers: &str, body: &[u8]) -> io::Result<Response> {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n{headers}\r\n");
        self.send(&[head.as_bytes(), body].concat())?;
        self.receive()
    }

    pub(super) fn infer(&mut self, path: &str, request: &Value) -> Response {
        self.post(path, "", request.to_string().as_bytes()).unwrap()
    }
}
