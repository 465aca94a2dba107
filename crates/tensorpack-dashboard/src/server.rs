//! The web server.

use crate::api::{self, Answer, Query};
use crate::assets;
use crate::confined::Roots;
use crate::guard::Guard;
use crate::run_list::RunList;
use crate::run_status::host_name;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tensorpack_tensor::{Error, ErrorKind, Result};
use tokio::sync::Semaphore;

/// What a dashboard shows, and to whom.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folders in which runs are searched.
    pub folders: Vec<PathBuf>,
    /// The address to listen at. Any but a loopback address needs a token.
    pub host: IpAddr,
    /// The port. 0 takes a free one.
    pub port: u16,
    /// Further names by which browsers may call this server.
    pub allowed_hosts: Vec<String>,
    /// Whether the page may stop runs and change hyper-parameters. This needs a token, too,
    /// because every user of a machine can reach its loopback address.
    pub allow_control: bool,
    /// The time between two looks at the folders.
    pub interval: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            folders: Vec::new(),
            host: IpAddr::from([127, 0, 0, 1]),
            port: 6007,
            allowed_hosts: Vec::new(),
            allow_control: false,
            interval: Duration::from_secs(1),
        }
    }
}

/// A dashboard that listens.
#[derive(Debug)]
pub struct Dashboard {
    listener: TcpListener,
    address: SocketAddr,
    token: Option<String>,
    state: Arc<State>,
    interval: Duration,
}

/// What all requests share.
#[derive(Debug)]
struct State {
    list: RunList,
    guard: Guard,
    allow_control: bool,
}

/// The most connections at a time. Browsers open six each.
const MAX_CONNECTIONS: usize = 128;
/// The largest body of a request.
const MAX_BODY: usize = 4096;
/// The largest head of a request. The runs of a chart are in its address.
const MAX_HEAD: usize = 64 << 10;
/// How long a browser may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a browser may take to send the body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

impl Dashboard {
    /// Opens the port.
    pub fn bind(options: &Options) -> Result<Dashboard> {
        let roots = Roots::new(&options.folders).map_err(|e| {
            let missing = options.folders.iter().find(|f| !f.is_dir());
            let what = missing.map_or_else(String::new, |f| format!(" {}", f.display()));
            Error::new(ErrorKind::Io, format!("cannot open the folder{what}: {e}"))
        })?;
        let address = SocketAddr::new(options.host, options.port);
        let failed = |e: std::io::Error| {
            let error = Error::new(ErrorKind::Io, format!("cannot listen at {address}: {e}"));
            match e.kind() {
                std::io::ErrorKind::AddrInUse => error.note("choose another --port; 0 takes a free one"),
                _ => error,
            }
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let public = !options.host.is_loopback();
        let token = if public || options.allow_control { Some(random_token()?) } else { None };
        let mut names = options.allowed_hosts.clone();
        if public {
            names.push(host_name());
        }
        let guard = Guard::new(address.port(), public, names, token.clone());
        let state = State { list: RunList::new(roots), guard, allow_control: options.allow_control };
        Ok(Dashboard { listener, address, token, state: Arc::new(state), interval: options.interval })
    }

    /// Returns the address to open in a browser, with the token if there is one.
    pub fn url(&self) -> String {
        let host = match self.address.ip() {
            // This listens at all addresses; the name of the machine is one that others can use.
            ip if ip.is_unspecified() => host_name(),
            IpAddr::V6(ip) => format!("[{ip}]"),
            IpAddr::V4(ip) => ip.to_string(),
        };
        let token = self.token.as_ref().map_or(String::new(), |t| format!("?token={t}"));
        format!("http://{host}:{}/{token}", self.address.port())
    }

    /// Returns the address that the server listens at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the process ends.
    pub fn run(self) -> Result<()> {
        let failed = |e: std::io::Error| Error::new(ErrorKind::Io, format!("cannot serve: {e}"));
        let (state, interval) = (Arc::downgrade(&self.state), self.interval);
        thread::Builder::new()
            .name("runs".into())
            .spawn(move || {
                while let Some(state) = state.upgrade() {
                    state.list.search();
                    state.list.update();
                    drop(state);
                    thread::sleep(interval);
                }
            })
            .map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(self.listener).map_err(failed)?;
            let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
            loop {
                let Ok(permit) = connections.clone().acquire_owned().await else { return Ok(()) };
                let Ok((stream, _)) = listener.accept().await else {
                    // Out of file descriptors, or a connection that was reset.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                let state = self.state.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request| respond(state.clone(), request));
                    let mut http = http1::Builder::new();
                    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD);
                    // A browser that closes its connection early is no error.
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                    drop(permit);
                });
            }
        })
    }
}

/// Returns 192 random bits in hexadecimal.
fn random_token() -> Result<String> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::new(ErrorKind::Io, format!("the system has no random numbers: {e}")))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

async fn respond(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let changes = parts.method == Method::POST;
    if let Err(refusal) = state.guard.check_site(&parts.headers, changes) {
        return Ok(response(Answer::text(StatusCode::FORBIDDEN, refusal.message())));
    }
    let path = parts.uri.path().to_string();
    let query = api::parse_query(parts.uri.query().unwrap_or_default());
    if let Some(token) = query.get("token").filter(|_| parts.method == Method::GET && path == "/")
        && let Some(cookie) = state.guard.cookie(token)
    {
        return Ok(with_cookie(&cookie));
    }
    if let Err(refusal) = state.guard.check_token(&parts.headers) {
        return Ok(response(Answer::text(StatusCode::UNAUTHORIZED, refusal.message())));
    }
    let answer = match parts.method {
        Method::GET if path.starts_with("/api/") => in_background(state, path, query).await,
        Method::GET => assets::get(&path),
        Method::POST if !state.allow_control => {
            Answer::text(StatusCode::FORBIDDEN, "start the dashboard with --allow-control to change runs")
        }
        Method::POST => {
            let is_json = parts.headers.get(header::CONTENT_TYPE).is_some_and(|t| t == "application/json");
            let body = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await;
            match body {
                Ok(Ok(body)) if is_json => {
                    let body = body.to_bytes();
                    let done =
                        tokio::task::spawn_blocking(move || api::post(&state.list, &path, &body)).await;
                    done.unwrap_or_else(|_| failed())
                }
                Ok(Ok(_)) => Answer::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must be JSON"),
                Ok(Err(_)) => Answer::text(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"),
                Err(_) => Answer::text(StatusCode::REQUEST_TIMEOUT, "the body took too long"),
            }
        }
        _ => Answer::text(StatusCode::METHOD_NOT_ALLOWED, "only GET and POST are answered"),
    };
    Ok(response(answer))
}

/// Answers a request for data on another thread, because it reads files.
async fn in_background(state: Arc<State>, path: String, query: Query) -> Answer {
    let get = move || api::get(&state.list, &path, &query, state.allow_control);
    tokio::task::spawn_blocking(get).await.unwrap_or_else(|_| failed())
}

fn failed() -> Answer {
    Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "the request failed; standard error has the reason")
}

/// Nothing from elsewhere is loaded, and no other site can show the page in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn response(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(answer.body));
    *response.status_mut() = answer.status;
    let cache = if answer.immutable { "private, max-age=31536000, immutable" } else { "no-store" };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    response
}

/// Turns the token into a cookie, and leads to an address without it.
fn with_cookie(cookie: &str) -> Response<Full<Bytes>> {
    let mut response = response(Answer::text(StatusCode::SEE_OTHER, "see /"));
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, HeaderValue::from_static("/"));
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        headers.insert(header::SET_COOKIE, cookie);
    }
    response
}
