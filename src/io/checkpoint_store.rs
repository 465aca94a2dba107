//! The checkpoints of a run, in `checkpoints/` of its log directory: one folder per commit, a file
//! `latest` that names the newest, and a file per tag.
//!
//! A commit writes a temporary folder, syncs every file, renames the folder, updates `latest`, and
//! only then removes old checkpoints. So at every point of failure `latest` names a complete
//! checkpoint.

use super::RunLock;
use super::checkpoint::{Checkpoint, Files, LoadError, Manifest};
use super::disk::{
    self, Disk, RealDisk, UNFINISHED, create_dir_durably, failed, is_missing, length, unfinished,
    write_atomically,
};
use crate::graph::nearest_names;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tensorpack_tensor::{Error, ErrorKind, Result};

const LATEST: &str = "latest";
const STEP: &str = "step-";
/// The maximum length of a pointer file in bytes. A longer file is something else.
const MAX_POINTER: u64 = 4096;
/// Free space to leave for directory entries and for rounding file sizes up to blocks.
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

/// A checkpoint on disk: where it is, and what it holds.
#[doc(alias = "Saved")]
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointInfo {
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
        create_dir_durably(&mut *disk, &dir).map_err(failed("create the directory", &dir))?;
        for Entry { path, .. } in entries(&*disk, &dir)? {
            if file_name(&path).starts_with(UNFINISHED) {
                log::info!("removing the incomplete {}", path.display());
                disk.remove(&path).map_err(failed("remove", &path))?;
            }
        }
        let next = list(&*disk, &dir)?.last().map_or(0, |s| s.sequence + 1);
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
        // Also if this save fails: its folder may exist by then, and commit numbers must be unique.
        self.next += 1;
        self.check_free_space(files.iter().map(|(_, parts)| length(parts)).sum())?;
        let name = self.free_name(checkpoint.global_step)?;
        let path = self.dir.join(&name);
        self.write_folder(&path, &files).map_err(|e| e.note("earlier checkpoints are unchanged"))?;
        let loadable =
            |e: Error| e.note(format!("{} is complete, and can be loaded by its path", path.display()));
        for file in std::iter::once(LATEST).chain(tags.iter().map(String::as_str)) {
            self.write_pointer(file, &name).map_err(loadable)?;
        }
        let saved = |e: Error| e.note(format!("{} was saved", path.display()));
        self.remove_old(&name).map_err(saved)?;
        Ok(path)
    }

    /// Returns the newest valid checkpoint and its folder. Skips damaged ones (a file is missing or
    /// fails its checksum) with a warning. If all are damaged, returns an error: only the user can
    /// decide to start over.
    ///
    /// A read error is an error, too: it may be transient, and resuming an older checkpoint would
    /// lose work.
    pub fn latest(&self) -> Result<Option<(PathBuf, Checkpoint)>> {
        latest(&*self.disk, &self.dir)
    }

    /// Returns all checkpoints, oldest first. Skips those with a damaged manifest, with a warning.
    /// Returns an error if anything cannot be read.
    pub fn list(&self) -> Result<Vec<CheckpointInfo>> {
        list(&*self.disk, &self.dir)
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
    fn free_name(&self, global_step: u64) -> Result<String> {
        let used: Vec<String> = entries(&*self.disk, &self.dir)?.iter().map(|e| file_name(&e.path)).collect();
        let first = format!("{STEP}{global_step:010}");
        let again = (1u64..).map(|n| format!("{first}.{n}"));
        let mut names = std::iter::once(first.clone()).chain(again);
        Ok(names.find(|name| !used.contains(name)).expect("there are fewer than 2^64 folders"))
    }

    fn write_folder(&mut self, path: &Path, files: &Files<'_>) -> Result<()> {
        let unfinished = unfinished(path)?;
        let disk = &mut *self.disk;
        let mut write = || {
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
        let saved = list(&*self.disk, &self.dir)?;
        let mut removed = Vec::new();
        for old in not_kept(&saved, self.keep).filter(|s| file_name(&s.path) != latest) {
            let renamed = unfinished(&old.path)?;
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
pub(super) fn latest(disk: &dyn Disk, dir: &Path) -> Result<Option<(PathBuf, Checkpoint)>> {
    let mut candidates: Vec<PathBuf> = list(disk, dir)?.into_iter().rev().map(|s| s.path).collect();
    if let Some(name) = read_pointer(disk, &dir.join(LATEST))? {
        let path = dir.join(name);
        candidates.retain(|p| *p != path);
        candidates.insert(0, path);
    }
    let mut damaged = Vec::new();
    for path in candidates {
        match Checkpoint::load_from(disk, &path) {
            Ok(checkpoint) => return Ok(Some((path, checkpoint))),
            Err(LoadError::Damaged(e)) => {
                log::warn!("skipping {}: {e}", path.display());
                damaged.push(e);
            }
            Err(LoadError::Failed(e)) => return Err(may_be_intact(e, &path)),
        }
    }
    let any_folder = entries(disk, dir)?.iter().any(Entry::is_commit);
    if damaged.is_empty() && !any_folder {
        return Ok(None);
    }
    let why = format!("{} has checkpoints, but none is valid", dir.display());
    let error = Error::new(ErrorKind::Io, why);
    let error = damaged.iter().fold(error, |error, e| error.note(e.message()));
    Err(error.note("use --fresh or another --logdir to start over"))
}

/// Returns the folder of the checkpoint with this tag in a directory of checkpoints.
pub(super) fn tagged(disk: &dyn Disk, dir: &Path, tag: &str) -> Result<PathBuf> {
    if let Some(folder) = pointed_at(disk, &dir.join(tag_file(tag)?))? {
        return Ok(folder);
    }
    let saved = list(disk, dir)?;
    let known = saved.iter().flat_map(|s| s.tags.iter().map(String::as_str));
    let why = format!("no checkpoint in {} has the tag {tag:?}", dir.display());
    Err(Error::new(ErrorKind::Name, why).note(nearest_names("tags", tag, known)))
}

/// Returns the folder that a pointer file names: that of a tag, or `latest`. Returns `None` if the
/// file does not exist or does not name a checkpoint.
pub(super) fn pointed_at(disk: &dyn Disk, file: &Path) -> Result<Option<PathBuf>> {
    Ok(read_pointer(disk, file)?.map(|name| file.with_file_name(name)))
}

/// Adds advice to the error of a checkpoint that cannot be read but may be intact.
fn may_be_intact(e: Error, folder: &Path) -> Error {
    e.note(format!(
        "the checkpoint may be intact: try again, or move {} elsewhere to use an older one",
        folder.display()
    ))
}

/// Returns the checkpoints of a run, oldest first, without its lock: a run may be writing them.
/// Skips those with a damaged manifest, with a warning.
pub fn list_checkpoints(run: impl AsRef<Path>) -> Result<Vec<CheckpointInfo>> {
    list(&RealDisk, &run.as_ref().join("checkpoints"))
}

/// Returns all checkpoints in a directory, oldest first.
fn list(disk: &dyn Disk, dir: &Path) -> Result<Vec<CheckpointInfo>> {
    let entries = entries(disk, dir)?;
    let mut tags = Vec::new();
    for Entry { path, .. } in entries.iter().filter(|e| e.may_be_tag()) {
        if let Some(folder) = read_pointer(disk, path)? {
            tags.push((folder, tag_of(&file_name(path))));
        }
    }
    let mut saved = Vec::new();
    for Entry { path, .. } in entries.into_iter().filter(Entry::is_commit) {
        match Manifest::load(disk, &path) {
            Ok(m) => saved.push(CheckpointInfo {
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
            Err(LoadError::Damaged(e)) => log::warn!("skipping {}: {e}", path.display()),
            Err(LoadError::Failed(e)) => return Err(may_be_intact(e, &path)),
        }
    }
    saved.sort_by_key(|s| s.sequence);
    Ok(saved)
}

/// Returns the checkpoints of `saved` (oldest first) to remove.
fn not_kept(saved: &[CheckpointInfo], keep: Keep) -> impl Iterator<Item = &CheckpointInfo> {
    let older = &saved[..saved.len().saturating_sub(keep.last)];
    let mut kept: Option<SystemTime> = None;
    older.iter().filter(move |s| {
        let due = keep.every.is_some_and(|every| {
            // A clock that was set back must not make all checkpoints look recent.
            kept.is_none_or(|kept| s.saved_at.duration_since(kept).map_or(true, |passed| passed >= every))
        });
        if due {
            kept = Some(s.saved_at);
        }
        !due && s.tags.is_empty()
    })
}

/// A file or folder in the directory of checkpoints.
struct Entry {
    path: PathBuf,
    is_dir: bool,
}

impl Entry {
    /// Returns whether this is a folder with the name of a commit.
    fn is_commit(&self) -> bool {
        self.is_dir && file_name(&self.path).starts_with(STEP)
    }

    /// Returns whether this is a file with a name that a tag may have.
    fn may_be_tag(&self) -> bool {
        let name = file_name(&self.path);
        !self.is_dir && name != LATEST && !name.starts_with('.')
    }
}

/// Reads a pointer file. Returns `None` if it does not exist, or, with a warning, if it does not
/// name a checkpoint.
fn read_pointer(disk: &dyn Disk, path: &Path) -> Result<Option<String>> {
    let text = match disk::read(disk, path, MAX_POINTER) {
        Ok(text) => text,
        Err(e) if is_missing(&e) => return Ok(None),
        Err(e) => return Err(failed("read", path)(e)),
    };
    let name = str::from_utf8(&text).ok().map(str::trim);
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-.".contains(&b);
    let name = name.filter(|n| n.starts_with(STEP) && n.len() <= 64 && n.bytes().all(plain));
    if name.is_none() {
        log::warn!("{} does not name a checkpoint", path.display());
    }
    Ok(name.map(str::to_string))
}

/// Returns the entries of a directory sorted by name. A missing directory has none.
fn entries(disk: &dyn Disk, dir: &Path) -> Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = match disk.entries(dir) {
        Ok(found) => found.into_iter().map(|e| Entry { path: dir.join(e.name), is_dir: e.is_dir }).collect(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(failed("read", dir)(e)),
    };
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Checks that a tag is neither empty nor reserved.
pub(crate) fn check_tag(tag: &str) -> Result<()> {
    let why = if tag.is_empty() {
        "it is empty"
    } else if tag == LATEST || tag.starts_with(STEP) {
        "the name is reserved"
    } else if tag.starts_with('.') {
        "it starts with a dot"
    } else {
        return Ok(());
    };
    Err(Error::argument(format!("{tag:?} is not a valid tag: {why}"))
        .note("use a name such as \"best\"; it does not choose a directory"))
}

/// Returns the file name of a tag. Statistics have names such as `tower0/cost`, so other characters
/// are percent-encoded.
fn tag_file(tag: &str) -> Result<String> {
    check_tag(tag)?;
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

    fn at(hours: f64) -> CheckpointInfo {
        CheckpointInfo {
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
        let mut saved: Vec<CheckpointInfo> = [0.0, 0.4, 1.0, 1.4, 1.9, 2.2, 2.3].map(at).to_vec();
        let removed = |saved: &[CheckpointInfo], keep| {
            not_kept(saved, keep).map(|s| file_name(&s.path)).collect::<Vec<_>>()
        };
        assert_eq!(removed(&saved, Keep::last(2)), ["0", "0.4", "1", "1.4", "1.9"]);
        assert_eq!(removed(&saved, Keep::last(2).every(Duration::from_secs(3600))), ["0.4", "1.4", "1.9"]);
        saved[1].tags.push("best".into());
        assert_eq!(removed(&saved, Keep::last(2).every(Duration::from_secs(3600))), ["1.4", "1.9"]);
        assert_eq!(removed(&saved, Keep::last(20)), [""; 0]);
        assert_eq!(Keep::last(0), Keep::last(1));
    }

    /// The clock was years ahead for a while.
    #[test]
    fn a_clock_that_is_set_back_loses_no_checkpoint() {
        let saved: Vec<CheckpointInfo> = [0.0, 90_000.0, 1.0, 2.0, 2.5, 3.0, 3.1].map(at).to_vec();
        let removed: Vec<String> = not_kept(&saved, Keep::last(1).every(Duration::from_secs(3600)))
            .map(|s| file_name(&s.path))
            .collect();
        assert_eq!(removed, ["2.5"]);
    }
}
