//! Downloads of models from the Hugging Face hub, into the cache that its own clients use (cargo
//! feature `hub`).

use super::disk::failed;
use super::hub_folder::{FILES, INDEX, plain_name, shard_names};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::{self, File};
use std::io::{ErrorKind as IoErrorKind, Read};
use std::path::{Path, PathBuf};
use tensorpack_dataflow::dataset::HttpClient;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The hub, if neither [`HubRepository::endpoint`] nor `HF_ENDPOINT` names another one.
const ENDPOINT: &str = "https://huggingface.co";
/// The maximum length of the description of a repository.
const MAX_DESCRIPTION: u64 = 100 << 20;
/// The maximum length of a file: more than any shard has.
const MAX_FILE: u64 = 200 << 30;
/// Redirects within the hub, as of a repository that was renamed.
const MAX_REDIRECTS: usize = 5;

/// A model repository of the Hugging Face hub, to be downloaded into the hub's cache.
///
/// ```no_run
/// use tensorpack::io::{HubRepository, SaverRestore, SessionInit, WeightMap};
/// # use tensorpack::prelude::*;
/// # fn load(session: &Session) -> Result<()> {
/// let folder = HubRepository::new("openai-community/gpt2")?.download()?;
/// SaverRestore::new(folder).map(WeightMap::hf_gpt2()).init(session)
/// # }
/// ```
///
/// The token for private repositories is read from `HF_TOKEN`, and sent to the hub only: not to the
/// servers that it redirects to.
#[derive(Clone)]
pub struct HubRepository {
    name: String,
    revision: String,
    endpoint: String,
    cache: Option<PathBuf>,
    token: Option<String>,
}

// Without the token, so that no log contains it.
impl fmt::Debug for HubRepository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HubRepository { name, revision, endpoint, .. } = self;
        write!(f, "HubRepository({name} at {revision}, {endpoint})")
    }
}

/// What the hub says of a revision.
#[derive(Deserialize)]
struct Description {
    /// The commit.
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// What the hub says of a file.
struct FileInfo {
    /// Identifies the contents; the SHA-256 of a large file.
    etag: String,
    size: Option<u64>,
}

impl HubRepository {
    /// Describes the repository `owner/name`, at its revision `main`.
    pub fn new(name: impl Into<String>) -> Result<HubRepository> {
        let name = name.into();
        let is_part = |part: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !part.is_empty() && part.chars().all(known) && !part.starts_with('.') && !part.contains("--")
        };
        if !(1..=2).contains(&name.split('/').count()) || !name.split('/').all(is_part) {
            return Err(Error::argument(format!("{name:?} is not a repository: expected owner/name")));
        }
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        Ok(HubRepository {
            name,
            revision: "main".into(),
            endpoint: variable("HF_ENDPOINT").unwrap_or(ENDPOINT.into()),
            cache: None,
            token: variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN")),
        })
    }

    /// Sets the revision: a branch, a tag or a commit.
    #[must_use]
    pub fn revision(self, revision: impl Into<String>) -> HubRepository {
        HubRepository { revision: revision.into(), ..self }
    }

    /// Sets the address of the hub. Defaults to `HF_ENDPOINT`. It must be an `https` URL, or one of
    /// this machine.
    #[must_use]
    pub fn endpoint(self, endpoint: impl Into<String>) -> HubRepository {
        HubRepository { endpoint: endpoint.into(), ..self }
    }

    /// Sets the folder of the cache. Defaults to `HF_HUB_CACHE`, then to `hub` in `HF_HOME`, then to
    /// `~/.cache/huggingface/hub`.
    #[must_use]
    pub fn cache(self, folder: impl Into<PathBuf>) -> HubRepository {
        HubRepository { cache: Some(folder.into()), ..self }
    }

    /// Sets the token. Defaults to `HF_TOKEN`. It is neither stored nor printed.
    #[must_use]
    pub fn token(self, token: impl Into<String>) -> HubRepository {
        HubRepository { token: Some(token.into()), ..self }
    }

    /// Downloads the weights, and `config.json` if there is one. Returns the folder of the revision,
    /// which [`SaverRestore`](super::SaverRestore) and [`read_tensors`](super::read_tensors) load.
    ///
    /// Of several files with weights it takes the best one: one safetensors file, then sharded ones,
    /// then a PyTorch file. Files that the cache has are not downloaded again, and an interrupted
    /// download continues where it ended.
    #[doc(alias = "snapshot_download")]
    pub fn download(&self) -> Result<PathBuf> {
        let hub = Hub::new(self)?;
        let description = hub.describe()?;
        let has = |name: &str| description.siblings.iter().any(|s| s.rfilename == name);
        let Some(weights) = FILES.iter().copied().find(|name| has(name)) else {
            let why = format!("{} at {} has no weights", self.name, self.revision);
            return Err(Error::new(ErrorKind::Data, why).note(format!("expected {}", FILES.join(" or "))));
        };
        if has("config.json") {
            hub.fetch(&description.sha, "config.json")?;
        }
        let path = hub.fetch(&description.sha, weights)?;
        if weights.ends_with(INDEX) {
            for shard in shard_names(&path)? {
                hub.fetch(&description.sha, &shard)?;
            }
        }
        // Last, so that a reader of the revision never finds a part of it.
        hub.write_ref(&description.sha)?;
        Ok(hub.snapshot(&description.sha))
    }

    /// Downloads one file of the repository, such as `tokenizer.json`, and returns its path.
    #[doc(alias = "hf_hub_download")]
    pub fn download_file(&self, name: &str) -> Result<PathBuf> {
        let hub = Hub::new(self)?;
        let commit = hub.describe()?.sha;
        hub.fetch(&commit, name)
    }

    /// Returns the folder of the repository in the cache.
    fn folder(&self) -> Result<PathBuf> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let home = || variable("HOME").or_else(|| variable("USERPROFILE")).map(PathBuf::from);
        let cache = self
            .cache
            .clone()
            .or_else(|| variable("HF_HUB_CACHE").map(PathBuf::from))
            .or_else(|| variable("HF_HOME").map(|home| PathBuf::from(home).join("hub")))
            .or_else(|| home().map(|home| home.join(".cache").join("huggingface").join("hub")));
        let cache = cache.ok_or_else(|| {
            Error::argument("there is no home directory for the cache: use HubRepository::cache")
        })?;
        Ok(cache.join(format!("models--{}", self.name.replace('/', "--"))))
    }
}

/// A repository, and the connection to the hub.
struct Hub<'a> {
    repository: &'a HubRepository,
    client: HttpClient,
    folder: PathBuf,
    authorization: Option<String>,
}

/// Returns the value of a header of an answer.
fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

impl Hub<'_> {
    fn new(repository: &HubRepository) -> Result<Hub<'_>> {
        let endpoint = &repository.endpoint;
        let is_local = ["http://127.0.0.1:", "http://localhost:", "http://[::1]:"]
            .iter()
            .any(|start| endpoint.starts_with(start));
        if !endpoint.starts_with("https://") && !is_local {
            let why = format!("the hub's address must be an https URL, not {endpoint}");
            return Err(Error::argument(why));
        }
        let authorization = repository.token.as_ref().map(|token| format!("Bearer {}", token.trim()));
        Ok(Hub {
            repository,
            client: HttpClient::new(!is_local),
            folder: repository.folder()?,
            authorization,
        })
    }

    fn headers(&self) -> Vec<(&str, &str)> {
        self.authorization.iter().map(|value| ("Authorization", value.as_str())).collect()
    }

    fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.repository.endpoint.trim_end_matches('/'))
    }

    fn describe(&self) -> Result<Description> {
        let HubRepository { name, revision, .. } = self.repository;
        let url = self.url(&format!("api/models/{name}/revision/{}", revision.replace('/', "%2F")));
        let (url, ..) = self.head(url)?;
        let text = self.client.text(&url, &self.headers(), MAX_DESCRIPTION).map_err(|e| self.explained(e))?;
        let invalid = |why: String| Error::new(ErrorKind::Data, format!("{url}: {why}"));
        let description: Description =
            serde_json::from_str(&text).map_err(|e| invalid(format!("unexpected answer: {e}")))?;
        plain_name(&description.sha).map_err(|e| invalid(e.message().to_string()))?;
        Ok(description)
    }

    /// Says what may be wrong if the hub refuses something.
    fn explained(&self, error: Error) -> Error {
        let refused = ["HTTP status 401", "HTTP status 403", "HTTP status 404"];
        if !refused.iter().any(|status| error.message().contains(status)) {
            return error;
        }
        error.note(match self.authorization {
            None => "check the name and the revision; a private repository needs a token in HF_TOKEN",
            Some(_) => "check the name, the revision, and whether the token may read it",
        })
    }

    fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Returns the path of a file of a commit, which it downloads unless the cache has it.
    fn fetch(&self, commit: &str, name: &str) -> Result<PathBuf> {
        let path = self.snapshot(commit).join(plain_name(name)?);
        if path.is_file() {
            return Ok(path);
        }
        let url = self.url(&format!("{}/resolve/{commit}/{name}", self.repository.name));
        let (url, info) = self.file_info(url)?;
        let blobs = self.folder.join("blobs");
        let blob = blobs.join(&info.etag);
        fs::create_dir_all(&blobs).map_err(failed("create", &blobs))?;
        let lock = self.lock(&info.etag)?;
        if !blob.is_file() {
            let partial = blobs.join(format!("{}.incomplete", info.etag));
            let complete = blobs.join(format!("{}.complete", info.etag));
            let label = format!("downloading {} of {}", name, self.repository.name);
            self.client
                .download(&url, &self.headers(), &complete, &partial, MAX_FILE, &label)
                .map_err(|e| self.explained(e))?;
            if let Err(e) = verify(&complete, &info) {
                // A part of another file was resumed, or the transfer is damaged.
                let _ = fs::remove_file(&complete);
                return Err(e.within(&url));
            }
            fs::rename(&complete, &blob).map_err(failed("rename", &complete))?;
        }
        let folder = self.snapshot(commit);
        fs::create_dir_all(&folder).map_err(failed("create", &folder))?;
        link(&blob, &path)?;
        drop(lock);
        Ok(path)
    }

    /// Waits until no other process or thread works on the same file.
    fn lock(&self, name: &str) -> Result<File> {
        let locks = self.folder.join(".locks");
        fs::create_dir_all(&locks).map_err(failed("create", &locks))?;
        let path = locks.join(format!("{name}.lock"));
        let locked = File::create(&path).and_then(|file| file.lock().map(|()| file));
        locked.map_err(failed("lock", &path))
    }

    /// Sends HEAD requests, and follows redirects within the hub, such as those of a renamed
    /// repository, with the token. Returns the last address, and the answer.
    fn head(&self, mut url: String) -> Result<(String, u16, Vec<(String, String)>)> {
        for _ in 0..MAX_REDIRECTS {
            let (status, headers) = self.client.head(&url, &self.headers())?;
            let location = header(&headers, "location").filter(|_| (300..400).contains(&status));
            let here = location.map(|to| to.strip_prefix(self.url("").trim_end_matches('/')).unwrap_or(to));
            match here.filter(|to| to.starts_with('/') && !to.starts_with("//")) {
                Some(path) => url = self.url(path.trim_start_matches('/')),
                None => return Ok((url, status, headers)),
            }
        }
        Err(Error::new(ErrorKind::Io, format!("{url}: too many redirects")))
    }

    /// Asks for the contents' identity. The redirect of a large file leads elsewhere; the download
    /// follows it, without the token.
    fn file_info(&self, url: String) -> Result<(String, FileInfo)> {
        let (url, status, headers) = self.head(url)?;
        let header = |name: &str| header(&headers, name);
        match status {
            200 | 302 | 303 | 307 | 308 if header("x-linked-etag").or(header("etag")).is_some() => {
                let etag = header("x-linked-etag").or(header("etag")).unwrap_or_default();
                let etag = etag.trim_start_matches("W/").trim_matches('"').to_string();
                let is_hash = !etag.is_empty() && etag.chars().all(|c| c.is_ascii_hexdigit());
                if !is_hash {
                    let why = format!("{url}: the ETag {etag:?} is not a hash");
                    return Err(Error::new(ErrorKind::Data, why));
                }
                let size = header("x-linked-size")
                    .or(header("content-length").filter(|_| status == 200))
                    .and_then(|size| size.parse().ok());
                Ok((url, FileInfo { etag, size }))
            }
            200 => Err(Error::new(ErrorKind::Data, format!("{url}: the answer has no ETag"))),
            _ => {
                let error = Error::new(ErrorKind::Io, format!("{url}: HTTP status {status}"));
                Err(self.explained(error))
            }
        }
    }

    /// Records the commit of the revision, unless the revision is the commit.
    fn write_ref(&self, commit: &str) -> Result<()> {
        let revision = &self.repository.revision;
        if revision == commit {
            return Ok(());
        }
        let _lock = self.lock("refs")?;
        let mut path = self.folder.join("refs");
        for part in revision.split('/') {
            path.push(plain_name(part)?);
        }
        let folder = path.parent().unwrap_or(&self.folder);
        fs::create_dir_all(folder).map_err(failed("create", folder))?;
        let unfinished = path.with_extension("incomplete");
        fs::write(&unfinished, commit).map_err(failed("write", &unfinished))?;
        fs::rename(&unfinished, &path).map_err(failed("rename", &path))
    }
}

/// Checks the size, and the contents of a large file, whose ETag is their SHA-256.
fn verify(path: &Path, info: &FileInfo) -> Result<()> {
    let wrong = |why: String| Err(Error::new(ErrorKind::Data, why).note("download it again"));
    let mut file = File::open(path).map_err(failed("open", path))?;
    let (mut hash, mut size, mut buffer) = (Sha256::new(), 0u64, vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).map_err(failed("read", path))? {
            0 => break,
            n => {
                hash.update(&buffer[..n]);
                size += n as u64;
            }
        }
    }
    if info.size.is_some_and(|expected| expected != size) {
        return wrong(format!("{size} bytes arrived in place of {}", info.size.unwrap_or(0)));
    }
    let hash: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    match info.etag.len() == hash.len() && !info.etag.eq_ignore_ascii_case(&hash) {
        true => wrong(format!("the SHA-256 is {hash} in place of {}", info.etag)),
        false => Ok(()),
    }
}

/// Puts a blob into a snapshot: as a relative link, or as a copy where links are not allowed.
fn link(blob: &Path, path: &Path) -> Result<()> {
    let linked = match blob.file_name() {
        #[cfg(unix)]
        Some(name) => std::os::unix::fs::symlink(Path::new("../../blobs").join(name), path),
        #[cfg(not(unix))]
        Some(_) => fs::hard_link(blob, path),
        None => Ok(()),
    };
    match linked {
        Err(e) if e.kind() == IoErrorKind::AlreadyExists && path.is_file() => Ok(()),
        Err(_) => fs::copy(blob, path).map(|_| ()).map_err(failed("create", path)),
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
