//! The checkpoints of a run, in `checkpoints/` of its log directory: one folder per commit, a file
//! `latest` that names the newest, and a file per tag.
//!
//! A commit writes a temporary folder, syncs every file, renames the folder, updates `latest`, and
//! only then removes old checkpoints. So at every point of failure `latest` names a complete
//! checkpoint.

use super::RunLock;
use super::checkpoint::{Checkpoint, Files, Manifest};
use super::disk::{Disk, RealDisk, UNFINISHED, failed, length, write_atomically};
use std::borrow::Cow;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tensorpack_dataflow::format::open_regular_file;
use tensorpack_tensor::{Error, ErrorKind, Result};

const LATEST: &str = "latest";
const STEP: &str = "step-";
/// Allowance for directory entries and the rounding of files to blocks.
const SLACK: u64 = 64 << 10;

/// Which checkpoints to keep. Tagged ones and the latest are always kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    last: usize,
    every: Option<Duration>,
}

impl Keep {
    /// Keeps the `n` newest checkpoints.
    pub fn last(n: usize) -> Keep {
        Keep { last: n.max(1), every: None }
    }

    /// Also keeps, permanently, the oldest checkpoint and then one per interval `every`.
    #[must_use]
    pub fn every(self, every: Duration) -> Keep {
        Keep { every: Some(every), ..self }
    }
}

/// Keeps the ten newest, and one per half hour.
impl Default for Keep {
    fn default() -> Keep {
        Keep::last(10).every(Duration::from_secs(30 * 60))
    }
}

/// A checkpoint on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// The folder.
    pub path: PathBuf,
    /// The number of finished steps.
    pub global_step: u64,
    /// The commit number: larger is newer.
    pub sequence: u64,
    /// When it was written.
    pub saved_at: SystemTime,
    /// The size of the tensors and the state in bytes.
    pub bytes: u64,
    /// The tags that point to it.
    pub tags: Vec<String>,
}

/// Writes and finds the checkpoints of a run. Holds the run's lock.
pub struct CheckpointStore {
    dir: PathBuf,
    disk: Box<dyn Disk>,
    keep: Keep,
    next: u64,
    _lock: RunLock,
}

impl CheckpointStore {
    /// Opens `checkpoints/` in the locked directory. Removes incomplete files that a crash left
    /// there.
    pub fn open(lock: &RunLock) -> Result<CheckpointStore> {
        CheckpointStore::open_on(Box::new(RealDisk), lock)
    }

    /// Like [`CheckpointStore::open`], but writes to another [`Disk`].
    pub fn open_on(mut disk: Box<dyn Disk>, lock: &RunLock) -> Result<CheckpointStore> {
        let dir = lock.dir().join("checkpoints");
        disk.create_dir(&dir)
            .and_then(|()| disk.sync_dir(lock.dir()))
            .map_err(failed("create the directory", &dir))?;
        for path in entries(&dir)? {
            if file_name(&path).starts_with(UNFINISHED) {
                log::info!("removing the incomplete {}", path.display());
                disk.remove(&path).map_err(failed("remove", &path))?;
            }
        }
        let next = list(&dir)?.last().map_or(0, |s| s.sequence + 1);
        Ok(CheckpointStore { dir, disk, keep: Keep::default(), next, _lock: lock.clone() })
    }

    /// Sets which checkpoints to keep.
    #[must_use]
    pub fn keep(self, keep: Keep) -> CheckpointStore {
        CheckpointStore { keep, ..self }
    }

    /// Returns the directory of the checkpoint folders.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a checkpoint, points `latest` and `tags` (such as `max-accuracy`) to it, and removes
    /// checkpoints that are no longer kept. A tag points to one checkpoint, so it moves from an
    /// older one. Returns the folder.
    ///
    /// On an error all earlier checkpoints remain, and the error says whether this one was saved.
    pub fn save(&mut self, checkpoint: &Checkpoint, tags: &[&str]) -> Result<PathBuf> {
        let tags = tags.iter().map(|tag| tag_file(tag)).collect::<Result<Vec<_>>>()?;
        let files = checkpoint.encode(self.next)?;
        self.check_free_space(files.iter().map(|(_, parts)| length(parts)).sum())?;
        let name = self.free_name(checkpoint.global_step);
        let path = self.dir.join(&name);
        self.write_folder(&path, &files).map_err(|e| e.note("earlier checkpoints are unchanged"))?;
        self.next += 1;
        let named =
            |e: Error| e.note(format!("{} is complete, and can be loaded by its path", path.display()));
        for file in std::iter::once(LATEST).chain(tags.iter().map(String::as_str)) {
            self.write_pointer(file, &name).map_err(named)?;
        }
        let saved = |e: Error| e.note(format!("{} was saved", path.display()));
        self.remove_old(&name).map_err(saved)?;
        Ok(path)
    }

    /// Returns the newest valid checkpoint and its folder. Skips corrupted ones with a warning. If
    /// all are corrupted, returns an error: only the user can decide to start over.
    pub fn latest(&self) -> Result<Option<(PathBuf, Checkpoint)>> {
        latest(&self.dir)
    }

    /// Returns all checkpoints, oldest first. Skips those without a valid manifest, with a warning.
    pub fn list(&self) -> Result<Vec<Saved>> {
        list(&self.dir)
    }

    /// Checks that there is enough free space before anything is written.
    fn check_free_space(&mut self, bytes: u64) -> Result<()> {
        let needed = bytes + SLACK;
        let free =
            self.disk.free_space(&self.dir).map_err(failed("determine the free space in", &self.dir))?;
        match free.and_then(|free| needed.checked_sub(free)) {
            None | Some(0) => Ok(()),
            Some(missing) => {
                let why = format!(
                    "a checkpoint needs {needed} bytes in {}, but {missing} bytes are missing",
                    self.dir.display()
                );
                Err(Error::new(ErrorKind::Io, why).note("free some space, or keep fewer checkpoints"))
            }
        }
    }

    /// Returns an unused folder name for a step. Further commits of the same step are numbered.
    fn free_name(&self, global_step: u64) -> String {
        let first = format!("{STEP}{global_step:010}");
        let again = (1u64..).map(|n| format!("{first}.{n}"));
        std::iter::once(first.clone())
            .chain(again)
            .find(|name| !self.dir.join(name).exists())
            .expect("the numbers do not run out")
    }

    fn write_folder(&mut self, path: &Path, files: &Files<'_>) -> Result<()> {
        let unfinished = unfinished(path);
        let disk = &mut *self.disk;
        let mut write = || {
            if unfinished.exists() {
                disk.remove(&unfinished).map_err(failed("remove", &unfinished))?;
            }
            disk.create_dir(&unfinished).map_err(failed("create the directory", &unfinished))?;
            for (name, parts) in files {
                let file = unfinished.join(name);
                disk.write(&file, parts).map_err(failed("write", &file))?;
            }
            disk.sync_dir(&unfinished).map_err(failed("write", &unfinished))?;
            disk.rename(&unfinished, path).map_err(failed("rename a folder to", path))?;
            disk.sync_dir(&self.dir).map_err(failed("write", &self.dir))
        };
        write().inspect_err(|_| {
            // Report the first error only; the next `open` cleans up.
            let _ = self.disk.remove(&unfinished);
        })
    }

    /// Writes a pointer file: a small file with the name of a folder.
    fn write_pointer(&mut self, file: &str, folder: &str) -> Result<()> {
        let text = format!("{folder}\n");
        write_atomically(&mut *self.disk, &self.dir.join(file), &[Cow::Borrowed(text.as_bytes())])
    }

    fn remove_old(&mut self, latest: &str) -> Result<()> {
        let saved = list(&self.dir)?;
        let mut removed = Vec::new();
        for old in not_kept(&saved, self.keep).filter(|s| file_name(&s.path) != latest) {
            let renamed = unfinished(&old.path);
            self.disk.rename(&old.path, &renamed).map_err(failed("remove", &old.path))?;
            removed.push(renamed);
        }
        if !removed.is_empty() {
            // Sync before removing the first file, so that even after a power failure a folder with
            // a final name is complete.
            self.disk.sync_dir(&self.dir).map_err(failed("write", &self.dir))?;
        }
        removed.iter().try_for_each(|path| self.disk.remove(path).map_err(failed("remove", path)))
    }
}

/// Returns the newest valid checkpoint in a directory of checkpoints, which may belong to another
/// run.
pub(super) fn latest(dir: &Path) -> Result<Option<(PathBuf, Checkpoint)>> {
    let mut candidates: Vec<PathBuf> = list(dir)?.into_iter().rev().map(|s| s.path).collect();
    let pointed = read_pointer(&dir.join(LATEST));
    match &pointed {
        Ok(Some(name)) => {
            let path = dir.join(name);
            candidates.retain(|p| *p != path);
            candidates.insert(0, path);
        }
        Ok(None) => {}
        Err(e) => log::warn!("{e}"),
    }
    let mut wrong = Vec::new();
    for path in candidates {
        match Checkpoint::load(&path) {
            Ok(checkpoint) => return Ok(Some((path, checkpoint))),
            Err(e) => {
                log::warn!("skipping {}: {e}", path.display());
                wrong.push(e);
            }
        }
    }
    let corrupted: Vec<PathBuf> = entries(dir)?.into_iter().filter(|p| is_commit(p)).collect();
    if wrong.is_empty() && corrupted.is_empty() {
        return Ok(None);
    }
    let why = format!("{} has checkpoints, but none is valid", dir.display());
    let error = Error::new(ErrorKind::Io, why);
    let error = wrong.iter().fold(error, |error, e| error.note(e.message()));
    Err(error.note("use --fresh or another --logdir to start over"))
}

/// Returns all checkpoints in a directory, oldest first.
pub(super) fn list(dir: &Path) -> Result<Vec<Saved>> {
    let paths = entries(dir)?;
    let mut tags = Vec::new();
    for path in paths.iter().filter(|p| p.is_file() && file_name(p) != LATEST && !is_hidden(p)) {
        match read_pointer(path) {
            Ok(Some(folder)) => tags.push((folder, tag_of(&file_name(path)))),
            Ok(None) => {}
            Err(e) => log::warn!("{e}"),
        }
    }
    let mut saved = Vec::new();
    for path in paths.into_iter().filter(|p| is_commit(p)) {
        match Manifest::load(&path) {
            Ok(m) => saved.push(Saved {
                global_step: m.global_step,
                sequence: m.sequence,
                saved_at: m.saved_at,
                bytes: m.files.iter().map(|(_, digest)| digest.bytes).sum(),
                tags: tags
                    .iter()
                    .filter(|(folder, _)| *folder == file_name(&path))
                    .map(|(_, t)| t.clone())
                    .collect(),
                path,
            }),
            Err(e) => log::warn!("skipping {}: {e}", path.display()),
        }
    }
    saved.sort_by_key(|s| s.sequence);
    Ok(saved)
}

/// Returns the checkpoints of `saved` (oldest first) to remove.
fn not_kept(saved: &[Saved], keep: Keep) -> impl Iterator<Item = &Saved> {
    let older = &saved[..saved.len().saturating_sub(keep.last)];
    let mut kept: Option<SystemTime> = None;
    older.iter().filter(move |s| {
        let due = keep.every.is_some_and(|every| {
            kept.is_none_or(|kept| s.saved_at.duration_since(kept).is_ok_and(|passed| passed >= every))
        });
        if due {
            kept = Some(s.saved_at);
        }
        !due && s.tags.is_empty()
    })
}

/// Returns whether a path is a folder with the name of a commit.
fn is_commit(path: &Path) -> bool {
    file_name(path).starts_with(STEP) && path.is_dir()
}

fn is_hidden(path: &Path) -> bool {
    file_name(path).starts_with('.')
}

/// Reads a pointer file. Returns `None` if it does not exist.
fn read_pointer(path: &Path) -> Result<Option<String>> {
    const MAX_NAME: u64 = 4096;
    let mut text = Vec::new();
    match open_regular_file(path).and_then(|(file, _)| file.take(MAX_NAME).read_to_end(&mut text)) {
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed("read", path)(e)),
    };
    let name = str::from_utf8(&text).ok().map(str::trim);
    match name.filter(|n| n.starts_with(STEP) && !n.contains(['/', '\\'])) {
        Some(name) => Ok(Some(name.to_string())),
        None => Err(Error::new(ErrorKind::Io, format!("{} does not name a checkpoint", path.display()))),
    }
}

/// Returns the entries of a directory sorted by name. A missing directory has none.
fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let read = match fs::read_dir(dir) {
        Ok(read) => read,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed("read", dir)(e)),
    };
    let mut paths = read
        .map(|entry| entry.map(|e| e.path()))
        .collect::<std::io::Result<Vec<_>>>()
        .map_err(failed("read", dir))?;
    paths.sort();
    Ok(paths)
}

/// Returns the temporary name of a path while it is written or removed.
fn unfinished(path: &Path) -> PathBuf {
    path.with_file_name(format!("{UNFINISHED}{}", file_name(path)))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the file name of a tag. Statistics have names such as `tower0/cost`, so other characters
/// are percent-encoded.
fn tag_file(tag: &str) -> Result<String> {
    if tag.is_empty() || tag == LATEST || tag.starts_with(STEP) || tag.starts_with('.') {
        let why = format!("{tag:?} is not a valid tag: it is empty or reserved");
        return Err(Error::argument(why));
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let encode = |b: u8| if plain(b) { (b as char).to_string() } else { format!("%{b:02X}") };
    Ok(tag.bytes().map(encode).collect())
}

/// Returns the tag of a file name that [`tag_file`] returned.
fn tag_of(file: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = file.as_bytes();
    while let [first, after @ ..] = rest {
        let decoded = (*first == b'%')
            .then(|| u8::from_str_radix(str::from_utf8(after.get(..2)?).ok()?, 16).ok())
            .flatten();
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_round_trip_through_file_names() {
        for (tag, file) in [("max-accuracy", "max-accuracy"), ("min-tower0/a b", "min-tower0%2Fa%20b")] {
            assert_eq!(tag_file(tag).unwrap(), file);
            assert_eq!(tag_of(file), tag);
        }
        assert_eq!(tag_of("100%"), "100%");
        for bad in ["", "latest", "step-1", "..", ".tmp-x"] {
            assert!(tag_file(bad).is_err(), "{bad}");
        }
    }

    fn at(hours: f64) -> Saved {
        Saved {
            path: PathBuf::from(format!("{hours}")),
            global_step: 0,
            sequence: 0,
            saved_at: SystemTime::UNIX_EPOCH + Duration::from_secs_f64(hours * 3600.0),
            bytes: 0,
            tags: Vec::new(),
        }
    }

    #[test]
    fn keep_policy() {
        let mut saved: Vec<Saved> = [0.0, 0.4, 1.0, 1.4, 1.9, 2.2, 2.3].map(at).to_vec();
        let gone =
            |saved: &[Saved], keep| not_kept(saved, keep).map(|s| file_name(&s.path)).collect::<Vec<_>>();
        assert_eq!(gone(&saved, Keep::last(2)), ["0", "0.4", "1", "1.4", "1.9"]);
        assert_eq!(gone(&saved, Keep::last(2).every(Duration::from_secs(3600))), ["0.4", "1.4", "1.9"]);
        saved[1].tags.push("best".into());
        assert_eq!(gone(&saved, Keep::last(2).every(Duration::from_secs(3600))), ["1.4", "1.9"]);
        assert_eq!(gone(&saved, Keep::last(20)), [""; 0]);
        assert_eq!(Keep::last(0), Keep::last(1));
    }
}
