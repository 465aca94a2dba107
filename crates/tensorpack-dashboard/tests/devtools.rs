//! Drives Chromium over the DevTools protocol.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_testing::{Requirement, skip};

/// A headless Chromium with one page.
pub(crate) struct Browser {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    session: Option<String>,
    next: u64,
    /// Errors of the page: exceptions, failed requests, violations of its policy.
    pub(crate) problems: Vec<String>,
    _profile: tempfile::TempDir,
}

/// How long to wait for something on the page.
const PATIENCE: Duration = Duration::from_secs(30);

impl Browser {
    /// Starts Chromium. If there is none, reports the test as skipped.
    #[track_caller]
    pub(crate) fn start() -> Option<Browser> {
        let found = ["chromium", "chromium-browser", "google-chrome"]
            .into_iter()
            .find(|name| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success()));
        let Some(program) = found else {
            skip(Requirement::Browser, "there is no Chromium");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        // The protocol uses the file descriptors 3 and 4. `timeout` ends a browser that hangs.
        let script = format!(
            "exec timeout -k 1 120 {program} --headless --no-sandbox --disable-gpu --hide-scrollbars \
             --force-color-profile=srgb --disable-background-networking --disable-dev-shm-usage \
             --no-first-run --user-data-dir='{}' --remote-debugging-pipe about:blank \
             3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null",
            profile.path().display()
        );
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh starts");
        let commands = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let problems = Vec::new();
        let mut browser =
            Browser { child, commands, answers, session: None, next: 0, problems, _profile: profile };
        let page = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": page["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().map(String::from);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Sends a command and returns its result.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let mut command = json!({"id": self.next, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).expect("Chromium reads commands");
        loop {
            let mut message = Vec::new();
            let read = self.answers.read_until(0, &mut message).expect("Chromium answers");
            assert!(read > 0, "Chromium ended during {method}");
            message.pop();
            let message: Value = serde_json::from_slice(&message).unwrap();
            if message["id"] == json!(self.next) {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            let detail = &message["params"];
            match message["method"].as_str() {
                Some("Runtime.exceptionThrown") => self.problems.push(detail["exceptionDetails"].to_string()),
                Some("Log.entryAdded") if detail["entry"]["level"] == "error" => {
                    self.problems.push(detail["entry"].to_string());
                }
                _ => {}
            }
        }
    }

    /// Opens an address in a window of this size.
    pub(crate) fn open(&mut self, url: &str, width: u32, height: u32) {
        self.resize(width, height);
        // Another hash would not load the page again.
        self.call("Page.navigate", json!({"url": "about:blank"}));
        self.call("Page.navigate", json!({"url": url}));
    }

    /// Changes the size of the window.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Prefers light or dark colors.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Evaluates JavaScript, and waits if it is a promise.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let call = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", call);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn wait(&mut self, expression: &str) {
        let begun = Instant::now();
        loop {
            if self.evaluate(&format!("Boolean({expression})")) == json!(true) {
                return;
            }
            if begun.elapsed() > PATIENCE {
                let text = self.evaluate("document.body.innerText.slice(0, 2000)");
                panic!("{expression} stayed false\nproblems: {:?}\npage: {text}", self.problems);
            }
            thread::sleep(Duration::from_millis(30));
        }
    }

    /// Moves the mouse.
    pub(crate) fn hover(&mut self, x: f64, y: f64) {
        self.call("Input.dispatchMouseEvent", json!({"type": "mouseMoved", "x": x, "y": y}));
    }

    /// Moves the mouse from one point to another with its button pressed.
    pub(crate) fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.hover(from.0, from.1);
        for (kind, (x, y), buttons) in
            [("mousePressed", from, 1), ("mouseMoved", to, 1), ("mouseReleased", to, 0)]
        {
            let event =
                json!({"type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Presses and releases a key.
    pub(crate) fn key(&mut self, key: &str) {
        let text = if key.len() == 1 { key } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            self.call("Input.dispatchKeyEvent", json!({"type": kind, "key": key, "text": text}));
        }
    }

    /// Returns a picture of the window as a PNG file. If `TENSORPACK_SCREENSHOTS` names a folder,
    /// it is also written there.
    pub(crate) fn screenshot(&mut self, name: &str) -> Vec<u8> {
        // What was changed is asked for in the next frame, and what has arrived is drawn in another.
        let frames = "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))";
        self.evaluate(frames);
        self.wait("dashboard.settled()");
        self.evaluate(frames);
        let shot = self.call("Page.captureScreenshot", json!({"format": "png"}));
        let file = from_base64(shot["data"].as_str().unwrap());
        if let Some(folder) = std::env::var_os("TENSORPACK_SCREENSHOTS") {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(std::path::Path::new(&folder).join(format!("{name}.png")), &file).unwrap();
        }
        file
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // `timeout` passes the signal on.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0);
    for c in text.bytes().filter(|&c| c != b'=') {
        let digit = alphabet.iter().position(|&a| a == c).expect("base64");
        (bits, count) = (bits << 6 | digit as u32, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
