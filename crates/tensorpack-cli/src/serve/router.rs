//! The paths of the protocol, and what each returns.

use super::infer_request::{InferRequest, JSON_LENGTH};
use super::infer_response::{Answered, Body};
use super::request_error::RequestError;
use super::served_model::{ServedModel, VERSION};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tensorpack::HostTensor;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

const JSON: &str = "application/json";

/// Answers requests.
pub(super) struct Router {
    model: ServedModel,
    max_body: usize,
    /// A permit for each inference request that may be in progress.
    in_progress: Arc<Semaphore>,
    timeout: Duration,
    /// Set when the server ends: each connection is closed after its next response.
    draining: AtomicBool,
    /// Set when the thread of the model has ended.
    broken: AtomicBool,
}

type Answer = Response<Full<Bytes>>;

impl Router {
    pub(super) fn new(model: ServedModel, max_body: usize, concurrent: usize, timeout: Duration) -> Router {
        Router {
            model,
            max_body,
            in_progress: Arc::new(Semaphore::new(concurrent)),
            timeout,
            draining: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        }
    }

    /// Closes each connection after its next response, and reports that the server is not ready.
    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Answers a request.
    pub(super) async fn answer(&self, request: Request<Incoming>) -> Answer {
        let mut answer = self.route(request).await.unwrap_or_else(|e| error_response(&e));
        if self.draining.load(Ordering::Relaxed) {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Answer, RequestError> {
        let path = request.uri().path().trim_matches('/').to_string();
        let segments: Vec<&str> = path.split('/').collect();
        let inference = match segments[..] {
            ["v2", "models", name, ref rest @ ..] => match self.of_model(name, rest)? {
                ["infer"] => true,
                [] | ["ready"] => false,
                _ => return Err(no_such_path(&path)),
            },
            ["metrics"] | ["v2"] | ["v2", "health", "live" | "ready"] => false,
            _ => return Err(no_such_path(&path)),
        };
        let allowed: &[Method] = if inference { &[Method::POST] } else { &[Method::GET, Method::HEAD] };
        if !allowed.contains(request.method()) {
            let why = format!("/{path} takes {} requests, not {}", allowed[0], request.method());
            return Err(RequestError::new(StatusCode::METHOD_NOT_ALLOWED, why));
        }
        match segments[..] {
            _ if inference => Ok(self.measured_infer(request).await),
            ["metrics"] => {
                let text = self.model.metrics.text(self.model.name());
                Ok(response(StatusCode::OK, "text/plain; version=0.0.4", text.into_bytes()))
            }
            ["v2"] => Ok(json_response(&json!({
                "name": "tensorpack",
                "version": env!("CARGO_PKG_VERSION"),
                "extensions": ["binary_tensor_data"],
            }))),
            ["v2", "health", "live"] => Ok(json_response(&json!({"live": true}))),
            ["v2", "health", "ready"] => self.ready(),
            [.., "ready"] => self.ready(),
            _ => Ok(json_response(&self.model.description())),
        }
    }

    /// Returns the rest of a path below a model and its version.
    fn of_model<'a, 'b>(&self, name: &str, rest: &'a [&'b str]) -> Result<&'a [&'b str], RequestError> {
        if name != self.model.name() {
            let why = format!("there is no model {name:?}; this server has {:?}", self.model.name());
            return Err(RequestError::new(StatusCode::NOT_FOUND, why));
        }
        match rest {
            ["versions", version, ..] if *version != VERSION => {
                let why = format!("model {name:?} has no version {version:?}; it has {VERSION:?}");
                Err(RequestError::new(StatusCode::NOT_FOUND, why))
            }
            ["versions", _, rest @ ..] => Ok(rest),
            rest => Ok(rest),
        }
    }

    fn ready(&self) -> Result<Answer, RequestError> {
        let is_ready = !self.draining.load(Ordering::Relaxed) && !self.broken.load(Ordering::Relaxed);
        match is_ready {
            true => Ok(json_response(&json!({"name": self.model.name(), "ready": true}))),
            false => Err(RequestError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is not ready")),
        }
    }

    /// Answers an inference request, and counts it.
    async fn measured_infer(&self, request: Request<Incoming>) -> Answer {
        let start = Instant::now();
        let metrics = self.model.metrics.clone();
        metrics.begin_request();
        // Counts it also if the connection is closed, which drops this future.
        let mut counted = Counted { end: Some(|status| metrics.end_request(status, start.elapsed())) };
        let answer = self.infer(request).await.unwrap_or_else(|e| error_response(&e));
        counted.end(answer.status().as_u16());
        answer
    }

    async fn infer(&self, request: Request<Incoming>) -> Result<Answer, RequestError> {
        let (head, body) = request.into_parts();
        let Ok(permit) = self.in_progress.clone().try_acquire_owned() else {
            self.discard(body, &head.headers).await;
            let why = "too many requests at a time: try again later";
            return Err(RequestError::new(StatusCode::SERVICE_UNAVAILABLE, why));
        };
        let encoding = head.headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes);
        if encoding.is_some_and(|encoding| encoding != b"identity") {
            self.discard(body, &head.headers).await;
            return Err(RequestError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "compressed requests are not supported",
            ));
        }
        let json_length = json_length(&head.headers)?;
        let body = self.read(body, &head.headers).await?;
        let request = InferRequest::parse(&body, json_length, self.model.inputs(), self.model.outputs())?;
        drop(body);
        let outputs = self.predict(request.inputs, permit).await?;
        let names: Vec<&str> = self.model.outputs().iter().map(|spec| spec.name.as_str()).collect();
        let answered =
            Answered { model_name: self.model.name(), model_version: VERSION, id: request.id.as_deref() };
        let Body { bytes, json_length } = answered.body(&request.outputs, &names, &outputs)?;
        let Some(length) = json_length else { return Ok(response(StatusCode::OK, JSON, bytes)) };
        let mut answer = response(StatusCode::OK, "application/octet-stream", bytes);
        answer.headers_mut().insert(HeaderName::from_static(JSON_LENGTH), HeaderValue::from(length));
        Ok(answer)
    }

    /// Reads a body of limited length within the time limit.
    async fn read(&self, body: Incoming, headers: &HeaderMap) -> Result<Bytes, RequestError> {
        let too_long = || {
            let why = format!("the body of a request may have {} bytes", self.max_body);
            RequestError::new(StatusCode::PAYLOAD_TOO_LARGE, why)
        };
        let length = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|n| n > self.max_body as u64) {
            self.discard(body, headers).await;
            return Err(too_long());
        }
        match timeout(self.timeout, Limited::new(body, self.max_body).collect()).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(e)) if e.is::<LengthLimitError>() => Err(too_long()),
            Ok(Err(e)) => Err(RequestError::bad(format!("the body cannot be read: {e}"))),
            Err(_) => {
                let why = format!("the body did not arrive within {} s", self.timeout.as_secs_f64());
                Err(RequestError::new(StatusCode::REQUEST_TIMEOUT, why))
            }
        }
    }

    /// Reads the body of a request that is refused, so that a client that sends before it reads
    /// gets the response. A client that waits for `100 Continue` sends nothing.
    async fn discard(&self, mut body: Incoming, headers: &HeaderMap) {
        if headers.contains_key(header::EXPECT) {
            return;
        }
        let mut left = self.max_body;
        let read = async {
            while let Some(Ok(frame)) = body.frame().await {
                let length = frame.data_ref().map_or(0, Bytes::len);
                match left.checked_sub(length) {
                    Some(rest) => left = rest,
                    None => break,
                }
            }
        };
        // Without the body in time, the response may be lost; there is nothing else to do.
        let _ = timeout(self.timeout, read).await;
    }

    /// Runs the model. The permit is held until it has run, also if nobody waits any more.
    async fn predict(
        &self,
        inputs: Vec<HostTensor>,
        permit: tokio::sync::OwnedSemaphorePermit,
    ) -> Result<Vec<HostTensor>, RequestError> {
        let (sender, outputs) = oneshot::channel();
        let then = move |outputs| {
            drop(permit);
            // The client may be gone; ignore the send error.
            drop(sender.send(outputs));
        };
        self.model.predict(inputs, then)?;
        match timeout(self.timeout, outputs).await {
            Ok(Ok(outputs)) => Ok(outputs?),
            Ok(Err(_)) => {
                self.broken.store(true, Ordering::Relaxed);
                Err(RequestError::new(StatusCode::INTERNAL_SERVER_ERROR, "the model has failed"))
            }
            Err(_) => {
                let why = format!("the model did not answer within {} s", self.timeout.as_secs_f64());
                Err(RequestError::new(StatusCode::GATEWAY_TIMEOUT, why))
            }
        }
    }
}

/// Calls a function once, at the latest when it is dropped.
struct Counted<F: FnOnce(u16)> {
    end: Option<F>,
}

impl<F: FnOnce(u16)> Counted<F> {
    fn end(&mut self, status: u16) {
        if let Some(end) = self.end.take() {
            end(status);
        }
    }
}

/// The status under which requests of closed connections are counted. No response has it.
const CLIENT_CLOSED: u16 = 499;

impl<F: FnOnce(u16)> Drop for Counted<F> {
    fn drop(&mut self) {
        self.end(CLIENT_CLOSED);
    }
}

fn json_length(headers: &HeaderMap) -> Result<Option<usize>, RequestError> {
    let Some(value) = headers.get(JSON_LENGTH) else { return Ok(None) };
    match value.to_str().ok().and_then(|text| text.parse().ok()) {
        Some(length) => Ok(Some(length)),
        None => Err(RequestError::bad(format!("{JSON_LENGTH} is not a number"))),
    }
}

fn no_such_path(path: &str) -> RequestError {
    RequestError::new(StatusCode::NOT_FOUND, format!("there is no /{path}"))
}

fn response(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Answer {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn json_response(value: &Value) -> Answer {
    response(StatusCode::OK, JSON, value.to_string().into_bytes())
}

fn error_response(e: &RequestError) -> Answer {
    let mut answer = response(e.status, JSON, json!({"error": e.message}).to_string().into_bytes());
    if e.status == StatusCode::SERVICE_UNAVAILABLE {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}
