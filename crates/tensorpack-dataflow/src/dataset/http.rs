//! Downloads over HTTPS (cargo feature `http`).

use super::archive::MAX_SIZE;
use super::progress::Progress;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;
use tensorpack_tensor::{Error, ErrorKind, Result, hash_name};
use ureq::Agent;
use ureq::http::{HeaderMap, Response};
use ureq::tls::TlsConfig;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A transfer without a byte for this long is interrupted. A slow one is not.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Consecutive attempts without a new byte before giving up.
const MAX_FAILURES: u32 = 2;
/// Attempts in total, for servers that close the connection again and again.
const MAX_ATTEMPTS: u32 = 100;

/// How an attempt failed.
enum Failure {
    /// Trying again may help; the bytes received so far are kept.
    Interrupted(Error),
    /// Trying again does not help.
    Permanent(Error),
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        Failure::Permanent(e.into())
    }
}

/// Downloads `files` below the URL `base` into `folder`.
///
/// Partial files are kept in the directory `.download` beside `folder` until they are complete.
pub(super) fn fetch(base: &str, files: &[&str], folder: &Path, label: &str) -> Result<()> {
    let agent = agent(TlsConfig::default());
    let partials = folder.with_file_name(".download");
    fs::create_dir_all(&partials).map_err(|e| Error::from(e).within(partials.display()))?;
    let done = files.iter().try_for_each(|name| {
        let url = format!("{base}{name}");
        // Mirrors must not resume each other's files.
        let partial = partials.join(format!("{:016x}.{name}", hash_name(&url)));
        download(&agent, &url, &[], &folder.join(name), &partial, MAX_SIZE, label)
    });
    // Fails, as it should, if a partial file is left to resume.
    let _ = fs::remove_dir(&partials);
    done
}

/// Creates a client with the root certificates in `tls`.
pub(super) fn agent(tls: TlsConfig) -> Agent {
    agent_for(tls, true)
}

fn agent_for(tls: TlsConfig, https_only: bool) -> Agent {
    let config = Agent::config_builder()
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_per_read(Some(READ_TIMEOUT))
        .https_only(https_only)
        .http_status_as_error(false)
        .tls_config(tls);
    config.build().into()
}

/// A client for the hub of models in the main crate.
#[doc(hidden)]
#[derive(Debug)]
pub struct HttpClient {
    agent: Agent,
}

/// Headers of a request, by name.
type Headers<'a> = &'a [(&'a str, &'a str)];

impl HttpClient {
    /// Creates a client. Without `https_only` it also takes `http` URLs.
    pub fn new(https_only: bool) -> HttpClient {
        HttpClient { agent: agent_for(TlsConfig::default(), https_only) }
    }

    /// Returns the body at `url`, of at most `max` bytes.
    pub fn text(&self, url: &str, headers: Headers<'_>, max: u64) -> Result<String> {
        let failed = |why: String| Error::new(ErrorKind::Io, why).within(url);
        let request = headers.iter().fold(self.agent.get(url), |r, (name, value)| r.header(*name, *value));
        let mut response = request.call().map_err(|e| failed(e.to_string()))?;
        match response.status().as_u16() {
            200 => response
                .body_mut()
                .with_config()
                .limit(max)
                .read_to_string()
                .map_err(|e| failed(e.to_string())),
            status => Err(failed(format!("HTTP status {status}"))),
        }
    }

    /// Returns the status and the headers of the answer to a HEAD request; redirects are not
    /// followed.
    pub fn head(&self, url: &str, headers: Headers<'_>) -> Result<(u16, Vec<(String, String)>)> {
        let request = headers.iter().fold(self.agent.head(url), |r, (name, value)| r.header(*name, *value));
        let response = request.config().max_redirects(0).build().call();
        let response = response.map_err(|e| Error::new(ErrorKind::Io, e.to_string()).within(url))?;
        let text = |value: &ureq::http::HeaderValue| value.to_str().unwrap_or_default().to_string();
        let found = response.headers().iter().map(|(name, value)| (name.to_string(), text(value)));
        Ok((response.status().as_u16(), found.collect()))
    }

    /// Downloads `url` to `path`, at most `max` bytes. An interrupted transfer is resumed, also by a
    /// later call with the same `partial` file. The caller must verify the result.
    pub fn download(
        &self,
        url: &str,
        headers: Headers<'_>,
        path: &Path,
        partial: &Path,
        max: u64,
        label: &str,
    ) -> Result<()> {
        download(&self.agent, url, headers, path, partial, max, label)
    }
}

/// Downloads `url` to `path`, at most `max` bytes.
///
/// The bytes go to `partial` first. An interrupted transfer is resumed there, also by a later call,
/// so the caller must verify the checksum of the result.
pub(super) fn download(
    agent: &Agent,
    url: &str,
    headers: Headers<'_>,
    path: &Path,
    partial: &Path,
    max: u64,
    label: &str,
) -> Result<()> {
    let mut failures = 0;
    for _ in 0..MAX_ATTEMPTS {
        let start = received(partial);
        match transfer(agent, url, headers, partial, start, max, label) {
            Ok(()) => {
                return fs::rename(partial, path).map_err(|e| Error::from(e).within(path.display()));
            }
            Err(Failure::Permanent(e)) => {
                let _ = fs::remove_file(partial);
                return Err(e.within(url));
            }
            Err(Failure::Interrupted(e)) => {
                failures = if received(partial) > start { 0 } else { failures + 1 };
                if failures == MAX_FAILURES {
                    return Err(e.within(url));
                }
            }
        }
    }
    Err(Error::new(ErrorKind::Io, format!("{url}: interrupted {MAX_ATTEMPTS} times")))
}

fn received(partial: &Path) -> u64 {
    fs::metadata(partial).map_or(0, |meta| meta.len())
}

/// Requests the bytes from `start` on and appends them to `partial`.
fn transfer(
    agent: &Agent,
    url: &str,
    headers: Headers<'_>,
    partial: &Path,
    start: u64,
    max: u64,
    label: &str,
) -> Result<(), Failure> {
    let interrupted =
        |e: &dyn std::fmt::Display| Failure::Interrupted(Error::new(ErrorKind::Io, e.to_string()));
    let permanent = |why: String| Failure::Permanent(Error::new(ErrorKind::Io, why));
    let mut request = headers.iter().fold(agent.get(url), |r, (name, value)| r.header(*name, *value));
    if start > 0 {
        request = request.header("Range", format!("bytes={start}-"));
    }
    let response = request.call().map_err(|e| interrupted(&e))?;
    let start = match response.status().as_u16() {
        // The server sends everything, whether asked for a range or not.
        200 => 0,
        206 if start > 0 && range_start(response.headers()) == Some(start) => start,
        // Not the range that was requested, for example because the file has changed: start over.
        206 | 416 => {
            fs::remove_file(partial)?;
            return Err(interrupted(&"the server cannot resume the download"));
        }
        status => return Err(permanent(format!("HTTP status {status}"))),
    };
    let total = content_length(&response).map(|length| length.saturating_add(start));
    if total.is_some_and(|total| total > max) {
        return Err(permanent(format!("the file is larger than the limit of {max} bytes")));
    }
    let mut options = OpenOptions::new();
    let mut file: File =
        if start == 0 { options.write(true).create(true).truncate(true) } else { options.append(true) }
            .open(partial)?;
    let mut progress = Progress::new(label, total);
    let (mut body, mut buffer, mut done) = (response.into_body().into_reader(), vec![0; 1 << 16], start);
    loop {
        match body.read(&mut buffer) {
            Ok(0) if total.is_some_and(|total| done < total) => {
                return Err(interrupted(&"the connection was closed early"));
            }
            Ok(0) => break,
            Ok(n) => {
                done += n as u64;
                if done > max {
                    return Err(permanent(format!("the file is larger than the limit of {max} bytes")));
                }
                file.write_all(&buffer[..n])?;
                progress.at(done);
            }
            Err(e) => return Err(interrupted(&e)),
        }
    }
    file.sync_all()?;
    Ok(())
}

fn content_length<T>(response: &Response<T>) -> Option<u64> {
    response.headers().get("content-length")?.to_str().ok()?.parse().ok()
}

/// Parses the first byte position of `Content-Range: bytes 5-9/10`.
fn range_start(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get("content-range")?.to_str().ok()?.strip_prefix("bytes ")?;
    range.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ServerConfig, ServerConnection, StreamOwned};
    use std::io::{BufRead, BufReader};
    use std::net::{TcpListener, TcpStream};
    use std::sync::{Arc, Mutex};
    use std::thread;
    use ureq::tls::{Certificate, RootCerts};

    const CERT: &[u8] = include_bytes!("testdata/localhost.cert.pem");
    const KEY: &[u8] = include_bytes!("testdata/localhost.key.pem");

    type Connection = StreamOwned<ServerConnection, TcpStream>;

    /// A TLS server that answers the n-th request with the n-th function, and the last one from
    /// then on. Each gets the connection and the first byte of the requested range.
    struct Server {
        url: String,
        /// The ranges of all requests.
        ranges: Arc<Mutex<Vec<u64>>>,
    }

    impl Server {
        fn start(answers: Vec<fn(&mut Connection, u64)>) -> Server {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(
                    vec![CertificateDer::from_pem_slice(CERT).unwrap()],
                    PrivateKeyDer::from_pem_slice(KEY).unwrap(),
                )
                .unwrap();
            let config = Arc::new(config);
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("https://localhost:{}/file", listener.local_addr().unwrap().port());
            let ranges = Arc::new(Mutex::new(Vec::new()));
            let seen = ranges.clone();
            // Ends with the process: it blocks in accept.
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let session = ServerConnection::new(config.clone()).unwrap();
                    let mut connection = BufReader::new(StreamOwned::new(session, stream.unwrap()));
                    let mut start = 0;
                    let mut complete = false;
                    for line in connection.by_ref().lines().map_while(std::io::Result::ok) {
                        if let Some(range) = line.to_lowercase().strip_prefix("range: bytes=") {
                            start = range.trim_end_matches('-').parse().unwrap();
                        }
                        if line.is_empty() {
                            complete = true;
                            break;
                        }
                    }
                    // A client that does not trust the certificate sends no request.
                    if !complete {
                        continue;
                    }
                    let answer = {
                        let mut seen = seen.lock().unwrap();
                        seen.push(start);
                        answers[(seen.len() - 1).min(answers.len() - 1)]
                    };
                    answer(connection.get_mut(), start);
                    let connection = connection.get_mut();
                    connection.conn.send_close_notify();
                    let _ = connection.flush();
                }
            });
            Server { url, ranges }
        }

        fn ranges(&self) -> Vec<u64> {
            self.ranges.lock().unwrap().clone()
        }
    }

    fn send(connection: &mut Connection, head: &str, body: &[u8]) {
        let _ = connection.write_all(format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").as_bytes());
        let _ = connection.write_all(body);
        let _ = connection.flush();
    }

    fn contents() -> Vec<u8> {
        (0..100_000u32).map(|i| (i * 31 % 251) as u8).collect()
    }

    fn whole(connection: &mut Connection, _: u64) {
        send(connection, "200 OK\r\nContent-Length: 100000", &contents());
    }

    /// Claims to send everything, but closes the connection after 30,000 bytes.
    fn cut(connection: &mut Connection, start: u64) {
        send(connection, "200 OK\r\nContent-Length: 100000", &contents()[start as usize..][..30_000]);
    }

    fn rest(connection: &mut Connection, start: u64) {
        let body = &contents()[start as usize..];
        let range = format!("bytes {start}-99999/100000");
        let head = format!("206 Partial Content\r\nContent-Range: {range}\r\nContent-Length: {}", body.len());
        send(connection, &head, body);
    }

    fn trusted() -> Agent {
        let roots = RootCerts::from(vec![Certificate::from_pem(CERT).unwrap()]);
        agent(TlsConfig::builder().root_certs(roots).build())
    }

    /// Downloads into a new directory, and returns the result and the size of what is left partial.
    fn get(agent: &Agent, server: &Server, max: u64) -> (Result<Vec<u8>>, u64) {
        let dir = tempfile::tempdir().unwrap();
        let (path, partial) = (dir.path().join("file"), dir.path().join("file.part"));
        let done = download(agent, &server.url, &[], &path, &partial, max, "test");
        assert_eq!(path.exists(), done.is_ok());
        (done.map(|()| fs::read(&path).unwrap()), received(&partial))
    }

    #[test]
    fn downloads_over_tls_with_a_trusted_certificate_only() {
        let server = Server::start(vec![whole]);
        assert_eq!(get(&trusted(), &server, 1 << 20).0.unwrap(), contents());
        let e = get(&agent(TlsConfig::default()), &server, 1 << 20).0.unwrap_err();
        assert!(e.kind() == ErrorKind::Io && e.message().contains(&server.url), "{e}");
    }

    #[test]
    fn interrupted_downloads_resume() {
        let server = Server::start(vec![cut, rest]);
        let (done, left) = get(&trusted(), &server, 1 << 20);
        assert_eq!((done.unwrap(), left), (contents(), 0));
        assert_eq!(server.ranges(), [0, 30_000]);
    }

    #[test]
    fn partial_files_of_an_earlier_process_are_resumed() {
        let server = Server::start(vec![rest]);
        let dir = tempfile::tempdir().unwrap();
        let (path, partial) = (dir.path().join("file"), dir.path().join("file.part"));
        fs::write(&partial, &contents()[..70_000]).unwrap();
        download(&trusted(), &server.url, &[], &path, &partial, 1 << 20, "test").unwrap();
        assert_eq!(fs::read(path).unwrap(), contents());
        assert_eq!(server.ranges(), [70_000]);
    }

    #[test]
    fn servers_without_ranges_start_over() {
        let server = Server::start(vec![cut, whole]);
        assert_eq!(get(&trusted(), &server, 1 << 20).0.unwrap(), contents());
        // A file that has shrunk: the range is refused, and the next request asks for all of it.
        let refuse: fn(&mut Connection, u64) =
            |c, _| send(c, "416 Range Not Satisfiable\r\nContent-Length: 0", b"");
        let server = Server::start(vec![cut, refuse, whole]);
        assert_eq!(get(&trusted(), &server, 1 << 20).0.unwrap(), contents());
        assert_eq!(server.ranges(), [0, 30_000, 0]);
    }

    #[test]
    fn downloads_over_the_limit_are_rejected() {
        // By the declared length, before anything is received; and by the bytes that arrive.
        let endless: fn(&mut Connection, u64) = |c, _| send(c, "200 OK", &[7; 1 << 20]);
        for answer in [whole as fn(&mut Connection, u64), endless] {
            let server = Server::start(vec![answer]);
            let (done, left) = get(&trusted(), &server, 99_999);
            let e = done.unwrap_err();
            assert!(e.message().contains("limit of 99999 bytes"), "{e}");
            assert_eq!((left, server.ranges().len()), (0, 1));
        }
    }

    #[test]
    fn errors_name_the_url_and_the_status() {
        let missing: fn(&mut Connection, u64) = |c, _| send(c, "404 Not Found\r\nContent-Length: 0", b"");
        let server = Server::start(vec![missing]);
        let e = get(&trusted(), &server, 1 << 20).0.unwrap_err();
        assert!(e.message().contains(&server.url) && e.message().contains("404"), "{e}");
        assert_eq!(server.ranges().len(), 1, "a missing file is not requested again");
        // A server that closes every connection at once is given up after two attempts.
        let server = Server::start(vec![|_, _| ()]);
        assert!(get(&trusted(), &server, 1 << 20).0.is_err());
        assert_eq!(server.ranges().len(), MAX_FAILURES as usize);
    }
}
