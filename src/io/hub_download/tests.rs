//! Downloads from a server in this process that answers as the hub does: descriptions and small files
//! itself, large files by a redirect to another server.

use super::super::read_tensors;
use super::super::safetensors;
use super::*;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use tensorpack_tensor::HostTensor;
use tensorpack_testing::assert_mentions;

const TOKEN: &str = "hf_secret";
const COMMIT: &str = "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00";

/// A request as a server saw it.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Method and path.
    line: String,
    authorization: Option<String>,
    /// The first byte that was asked for.
    from: usize,
}

/// The head of an answer after `HTTP/1.1`, and its body.
type Answer = (String, Vec<u8>);

/// Answers every request of a connection that is closed after it. Returns the address.
fn serve(answer: impl Fn(&Seen) -> Answer + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    // Ends with the process: it blocks in accept.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream: TcpStream = stream.unwrap();
            let mut seen = Seen::default();
            for line in BufReader::new(&stream).lines().map_while(std::io::Result::ok) {
                let lower = line.to_lowercase();
                if seen.line.is_empty() {
                    seen.line = line.trim_end_matches(" HTTP/1.1").to_string();
                } else if let Some(range) = lower.strip_prefix("range: bytes=") {
                    seen.from = range.trim_end_matches('-').parse().unwrap();
                } else if lower.starts_with("authorization: ") {
                    seen.authorization = Some(line["authorization: ".len()..].to_string());
                } else if line.is_empty() {
                    break;
                }
            }
            let (head, body) = answer(&seen);
            let _ = stream.write_all(format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").as_bytes());
            let _ = stream.write_all(&body);
        }
    });
    address
}

/// A hub with one repository, `owner/net`.
struct MockHub {
    address: String,
    /// The requests of the hub, and of the server of large files.
    seen: Arc<Mutex<Vec<Seen>>>,
    seen_large: Arc<Mutex<Vec<Seen>>>,
}

impl MockHub {
    /// Serves these files. The first transfers of a large one end after this many bytes. With
    /// `is_damaged`, large files arrive with another byte in them.
    fn start(files: Vec<(&'static str, Vec<u8>)>, cut: Option<usize>, is_damaged: bool) -> MockHub {
        let (seen, seen_large) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::<Mutex<Vec<Seen>>>::default());
        let (large, noted) = (files.clone(), seen_large.clone());
        let elsewhere = serve(move |request| {
            let count = {
                let mut noted = noted.lock().unwrap();
                noted.push(request.clone());
                noted.len()
            };
            let name = request.line.rsplit('/').next().unwrap();
            let mut body = large.iter().find(|(n, _)| *n == name).unwrap().1.clone();
            if is_damaged {
                *body.last_mut().unwrap() ^= 1;
            }
            let (total, mut rest) = (body.len(), body.split_off(request.from));
            let length = rest.len();
            if let Some(cut) = cut.filter(|_| count == 1) {
                rest.truncate(cut);
            }
            match request.from {
                0 => (format!("200 OK\r\nContent-Length: {length}"), rest),
                from => {
                    let range = format!("Content-Range: bytes {from}-{}/{total}", total - 1);
                    (format!("206 Partial Content\r\n{range}\r\nContent-Length: {length}"), rest)
                }
            }
        });
        let noted = seen.clone();
        let address = serve(move |request| {
            noted.lock().unwrap().push(request.clone());
            if request.authorization.as_deref() != Some(&format!("Bearer {TOKEN}")) {
                return ("401 Unauthorized\r\nContent-Length: 0".into(), Vec::new());
            }
            let (method, path) = request.line.split_once(' ').unwrap();
            // The repository's former name.
            if let Some((before, after)) = path.split_once("/owner/old") {
                let location = format!("Location: {before}/owner/net{after}");
                return (format!("307 Temporary Redirect\r\n{location}\r\nContent-Length: 0"), Vec::new());
            }
            if path.starts_with("/api/models/owner/net/revision/") {
                let names = files.iter().map(|(name, _)| format!(r#"{{"rfilename": "{name}"}}"#));
                let names = names.collect::<Vec<_>>().join(", ");
                let body = format!(r#"{{"sha": "{COMMIT}", "siblings": [{names}]}}"#).into_bytes();
                let head = format!("200 OK\r\nContent-Length: {}", body.len());
                return (head, if method == "HEAD" { Vec::new() } else { body });
            }
            let name = path.strip_prefix(&format!("/owner/net/resolve/{COMMIT}/")).unwrap_or("");
            let Some((_, contents)) = files.iter().find(|(n, _)| *n == name) else {
                return ("404 Not Found\r\nContent-Length: 0".into(), Vec::new());
            };
            if name.ends_with(".json") {
                let head =
                    format!("200 OK\r\nETag: \"{:040x}\"\r\nContent-Length: {}", name.len(), contents.len());
                return (head, if method == "HEAD" { Vec::new() } else { contents.clone() });
            }
            let hash: String = Sha256::digest(contents).iter().map(|byte| format!("{byte:02x}")).collect();
            let linked = format!("X-Linked-Etag: \"{hash}\"\r\nX-Linked-Size: {}", contents.len());
            let location = format!("Location: {elsewhere}/{name}");
            (format!("302 Found\r\n{linked}\r\n{location}\r\nContent-Length: 0"), Vec::new())
        });
        MockHub { address, seen, seen_large }
    }

    fn repository(&self, cache: &Path) -> HubRepository {
        let repository = HubRepository::new("owner/net").unwrap().endpoint(&self.address);
        repository.cache(cache).token(TOKEN)
    }

    fn ranges(&self) -> Vec<usize> {
        self.seen_large.lock().unwrap().iter().map(|seen| seen.from).collect()
    }
}

/// A safetensors file with one tensor of this name.
fn weights(name: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("w.safetensors");
    let tensor = HostTensor::new([1000], (0..1000).map(|i| i as f32).collect()).unwrap();
    safetensors::write(&path, &[(name.to_string(), tensor)]).unwrap();
    fs::read(path).unwrap()
}

#[test]
fn a_download_has_the_layout_of_the_cache_and_is_not_repeated() {
    let files =
        vec![("config.json", b"{}".to_vec()), ("model.safetensors", weights("w")), ("x.bin", vec![1])];
    let hub = MockHub::start(files, None, false);
    let dir = tempfile::tempdir().unwrap();
    let folder = hub.repository(dir.path()).download().unwrap();
    let repository = dir.path().join("models--owner--net");
    assert_eq!(folder, repository.join("snapshots").join(COMMIT));
    assert_eq!(fs::read_to_string(repository.join("refs/main")).unwrap(), COMMIT);
    assert_eq!(fs::read(folder.join("config.json")).unwrap(), b"{}");
    for path in [&folder, &repository] {
        assert_eq!(read_tensors(path, None).unwrap()[0].0, "w", "{}", path.display());
    }
    #[cfg(unix)]
    assert!(fs::read_link(folder.join("model.safetensors")).unwrap().starts_with("../../blobs"));
    // The token goes to the hub, and nowhere else.
    assert!(hub.seen_large.lock().unwrap().iter().all(|seen| seen.authorization.is_none()));
    let before = hub.seen.lock().unwrap().len();
    hub.repository(dir.path()).download().unwrap();
    // Only the description.
    assert_eq!((hub.seen.lock().unwrap().len() - before, hub.ranges().len()), (2, 1));
    // Another revision with the same commit shares the files.
    hub.repository(dir.path()).revision("v1.0").download().unwrap();
    assert_eq!(fs::read_to_string(repository.join("refs/v1.0")).unwrap(), COMMIT);
    assert_eq!(hub.ranges().len(), 1);
}

#[test]
fn a_renamed_private_repository_is_found_under_its_former_name() {
    let hub = MockHub::start(vec![("model.safetensors", weights("w"))], None, false);
    let dir = tempfile::tempdir().unwrap();
    let old = HubRepository::new("owner/old").unwrap().endpoint(&hub.address);
    let folder = old.cache(dir.path()).token(TOKEN).download().unwrap();
    assert_eq!(read_tensors(&folder, None).unwrap()[0].0, "w");
    assert!(hub.seen_large.lock().unwrap().iter().all(|seen| seen.authorization.is_none()));
}

#[test]
fn interrupted_transfers_continue_in_this_process_and_in_the_next() {
    let contents = weights("w");
    let hub = MockHub::start(vec![("model.safetensors", contents.clone())], Some(1500), false);
    let dir = tempfile::tempdir().unwrap();
    hub.repository(dir.path()).download().unwrap();
    assert_eq!(hub.ranges(), [0, 1500]);
    // What another process left.
    let hub = MockHub::start(vec![("model.safetensors", contents.clone())], None, false);
    let dir = tempfile::tempdir().unwrap();
    let blobs = dir.path().join("models--owner--net/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let hash: String = Sha256::digest(&contents).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(blobs.join(format!("{hash}.incomplete")), &contents[..700]).unwrap();
    let folder = hub.repository(dir.path()).download().unwrap();
    assert_eq!(hub.ranges(), [700]);
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), contents);
}

#[test]
fn damaged_files_are_errors_and_leave_nothing_to_load() {
    let hub = MockHub::start(vec![("model.safetensors", weights("w"))], None, true);
    let dir = tempfile::tempdir().unwrap();
    let e = hub.repository(dir.path()).download().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Data);
    assert_mentions(e.to_string(), &["model.safetensors", "SHA-256", "download it again"]);
    let repository = dir.path().join("models--owner--net");
    assert!(!repository.join("refs").exists() && !repository.join("snapshots").exists());
    assert_eq!(fs::read_dir(repository.join("blobs")).unwrap().count(), 0);
}

#[test]
fn all_shards_of_an_index_are_downloaded() {
    let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    let files = vec![
        ("model.safetensors.index.json", index.as_bytes().to_vec()),
        ("model-1.safetensors", weights("a")),
        ("model-2.safetensors", weights("b")),
        ("pytorch_model.bin", vec![1, 2, 3]),
    ];
    let hub = MockHub::start(files, None, false);
    let dir = tempfile::tempdir().unwrap();
    let tensors = read_tensors(hub.repository(dir.path()).download().unwrap(), None).unwrap();
    assert_eq!(tensors.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(hub.ranges().len(), 2);
}

#[test]
fn refusals_say_what_to_do_and_never_show_the_token() {
    let hub = MockHub::start(vec![("readme.md", vec![1])], None, false);
    let dir = tempfile::tempdir().unwrap();
    let repository = hub.repository(dir.path());
    assert!(!format!("{repository:?}").contains(TOKEN));
    assert_mentions(
        repository.download().unwrap_err().to_string(),
        &["owner/net", "no weights", "model.safetensors"],
    );
    let e = repository.download_file("tokenizer.json").unwrap_err().to_string();
    assert_mentions(&e, &["tokenizer.json", "HTTP status 404", "check the name"]);
    let e = repository.clone().token("hf_wrong").download().unwrap_err().to_string();
    assert_mentions(&e, &["HTTP status 401", "whether the token may read it"]);
    assert!(!e.contains("hf_wrong"), "{e}");
    let elsewhere = repository.clone().endpoint("http://example.org").download().unwrap_err();
    assert_mentions(elsewhere.to_string(), &["https", "http://example.org"]);
    for name in ["", "a/b/c", "../x", "a/..", "a b", "owner/"] {
        assert!(HubRepository::new(name).is_err(), "{name}");
    }
    let hub = MockHub::start(vec![("model.safetensors", weights("w"))], None, false);
    let e = hub.repository(dir.path()).revision("../../x").download().unwrap_err();
    assert_mentions(e.to_string(), &["not the name of a file"]);
    assert!(!dir.path().join("x").exists());
}

/// As ranks do on one machine.
#[test]
fn threads_that_download_the_same_model_do_not_disturb_each_other() {
    let files = vec![("config.json", b"{}".to_vec()), ("model.safetensors", weights("w"))];
    let hub = MockHub::start(files, None, false);
    let cache = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| hub.repository(cache.path()).download().unwrap());
        }
    });
}
