//! The checkpoints of a run, in `checkpoints/` of its directory: one folder a commit, a file `latest` that names the
//! newest, and a file for each tag.
//!
//! A commit is written under another name, every file waits for the device, the folder is renamed, `latest` moves, and
//! only then older ones go. So wherever that stops, `latest` names a whole checkpoint.

use super::RunLock;
use super::checkpoint::{Checkpoint, Files, Manifest};
use super::disk::{Disk, RealDisk, UNFINISHED, failed, length, write_whole};
use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tensorpack_tensor::{Error, ErrorKind, Result};

const LATEST: &str = "latest";
const STEP: &str = "step-";
/// Directory entries and the rounding of files to blocks.
const SLACK: u64 = 64 << 10;

/// Which checkpoints stay. Tagged ones and the latest always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    last: usize,
    every: Option<Duration>,
}

impl Keep {
    /// The `n` newest ones.
    pub fn last(n: usize) -> Keep {
        Keep { last: n.max(1), every: None }
    }

    /// Besides, for good, the oldest one and after it one for each time `every` has passed.
    #[must_use]
    pub fn every(self, every: Duration) -> Keep {
        Keep { every: Some(every), ..self }
    }
}

/// The ten newest, and one for each half hour.
impl Default for Keep {
    fn default() -> Keep {
        Keep::last(10).every(Duration::from_secs(30 * 60))
    }
}

/// A checkpoint on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// Its folder.
    pub path: PathBuf,
    /// How many steps there had been.
    pub global_step: u64,
    /// Which commit of the run it is: larger ones are newer.
    pub sequence: u64,
    /// When it was written.
    pub saved_at: SystemTime,
    /// How many bytes its tensors and state take.
    pub bytes: u64,
    /// The tags that name it.
    pub tags: Vec<String>,
}

/// Writes and finds the checkpoints of a run. It holds the run's lock.
pub struct CheckpointStore {
    dir: PathBuf,
    disk: Box<dyn Disk>,
    keep: Keep,
    next: u64,
    _lock: RunLock,
}

impl CheckpointStore {
    /// The checkpoints in `checkpoints/` of the locked directory. What a crash left unfinished there is removed.
    pub fn open(lock: &RunLock) -> Result<CheckpointStore> {
        CheckpointStore::open_on(Box::new(RealDisk), lock)
    }

    /// [`CheckpointStore::open`], writing through another [`Disk`].
    pub fn open_on(mut disk: Box<dyn Disk>, lock: &RunLock) -> Result<CheckpointStore> {
        let dir = lock.dir().join("checkpoints");
        disk.create_dir(&dir)
            .and_then(|()| disk.sync_dir(lock.dir()))
            .map_err(failed("make the directory", &dir))?;
        for path in entries(&dir)? {
            if file_name(&path).starts_with(UNFINISHED) {
                log::info!("removing {}, which was not finished", path.display());
                disk.remove(&path).map_err(failed("remove", &path))?;
            }
        }
        let next = list(&dir)?.last().map_or(0, |s| s.sequence + 1);
        Ok(CheckpointStore { dir, disk, keep: Keep::default(), next, _lock: lock.clone() })
    }

    /// Keeping these.
    #[must_use]
    pub fn keep(self, keep: Keep) -> CheckpointStore {
        CheckpointStore { keep, ..self }
    }

    /// Where the folders are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a checkpoint, names it the latest and by `tags` (such as `max-accuracy`; a tag names one checkpoint, so
    /// it leaves an older one), and removes those that are not kept. Returns its folder.
    ///
    /// An error leaves all that was there before, and says whether this one was saved.
    pub fn save(&mut self, checkpoint: &Checkpoint, tags: &[&str]) -> Result<PathBuf> {
        let tags = tags.iter().map(|tag| tag_file(tag)).collect::<Result<Vec<_>>>()?;
        let files = checkpoint.encode(self.next)?;
        self.preflight(files.iter().map(|(_, parts)| length(parts)).sum())?;
        let name = self.free_name(checkpoint.global_step);
        let path = self.dir.join(&name);
        self.write_folder(&path, &files).map_err(|e| e.note("earlier checkpoints are as they were"))?;
        self.next += 1;
        let named = |e: Error| e.note(format!("{} is whole, and can be loaded by its name", path.display()));
        for file in std::iter::once(LATEST).chain(tags.iter().map(String::as_str)) {
            self.point(file, &name).map_err(named)?;
        }
        let saved = |e: Error| e.note(format!("{} is saved", path.display()));
        self.remove_old(&name).map_err(saved)?;
        Ok(path)
    }

    /// The newest whole checkpoint and its folder. Damaged ones are passed over with a warning; if there are none but
    /// damaged ones, that is an error: to begin anew is for the user to say.
    pub fn latest(&self) -> Result<Option<(PathBuf, Checkpoint)>> {
        latest(&self.dir)
    }

    /// All checkpoints, oldest first. Those without a whole manifest are left out, with a warning.
    pub fn list(&self) -> Result<Vec<Saved>> {
        list(&self.dir)
    }

    /// Whether it all fits, asked before anything is written.
    fn preflight(&mut self, bytes: u64) -> Result<()> {
        let needed = bytes + SLACK;
        let free = self.disk.free_space(&self.dir).map_err(failed("ask how much is free in", &self.dir))?;
        match free.and_then(|free| needed.checked_sub(free)) {
            None | Some(0) => Ok(()),
            Some(missing) => {
                let why = format!(
                    "a checkpoint takes {needed} bytes in {}, and {missing} of them are not free",
                    self.dir.display()
                );
                Err(Error::new(ErrorKind::Io, why).note("make room, or keep fewer checkpoints"))
            }
        }
    }

    /// The name of a commit's folder: by its step, and numbered where a step is committed again.
    fn free_name(&self, global_step: u64) -> String {
        let first = format!("{STEP}{global_step:010}");
        let again = (1u64..).map(|n| format!("{first}.{n}"));
        std::iter::once(first.clone())
            .chain(again)
            .find(|name| !self.dir.join(name).exists())
            .expect("there are fewer folders than numbers")
    }

    fn write_folder(&mut self, path: &Path, files: &Files<'_>) -> Result<()> {
        let unfinished = unfinished(path);
        let disk = &mut *self.disk;
        let mut write = || {
            if unfinished.exists() {
                disk.remove(&unfinished).map_err(failed("remove", &unfinished))?;
            }
            disk.create_dir(&unfinished).map_err(failed("make the directory", &unfinished))?;
            for (name, parts) in files {
                let file = unfinished.join(name);
                disk.write(&file, parts).map_err(failed("write", &file))?;
            }
            disk.sync_dir(&unfinished).map_err(failed("write", &unfinished))?;
            disk.rename(&unfinished, path).map_err(failed("rename a folder to", path))?;
            disk.sync_dir(&self.dir).map_err(failed("write", &self.dir))
        };
        write().inspect_err(|_| {
            // A second error says nothing new, and the next one to open the directory cleans up.
            let _ = self.disk.remove(&unfinished);
        })
    }

    /// Lets a small file name a folder.
    fn point(&mut self, file: &str, folder: &str) -> Result<()> {
        let text = format!("{folder}\n");
        write_whole(&mut *self.disk, &self.dir.join(file), &[Cow::Borrowed(text.as_bytes())])
    }

    fn remove_old(&mut self, latest: &str) -> Result<()> {
        let saved = list(&self.dir)?;
        let mut going = Vec::new();
        for old in not_kept(&saved, self.keep).filter(|s| file_name(&s.path) != latest) {
            let renamed = unfinished(&old.path);
            self.disk.rename(&old.path, &renamed).map_err(failed("remove", &old.path))?;
            going.push(renamed);
        }
        if !going.is_empty() {
            // Before the first file goes: a folder that has its name is whole, also when the power fails.
            self.disk.sync_dir(&self.dir).map_err(failed("write", &self.dir))?;
        }
        going.iter().try_for_each(|path| self.disk.remove(path).map_err(failed("remove", path)))
    }
}

/// The newest whole checkpoint in a directory of checkpoints, which may belong to another run.
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
                log::warn!("{} is passed over: {e}", path.display());
                wrong.push(e);
            }
        }
    }
    let damaged: Vec<PathBuf> = entries(dir)?.into_iter().filter(|p| is_commit(p)).collect();
    if wrong.is_empty() && damaged.is_empty() {
        return Ok(None);
    }
    let why = format!("{} has checkpoints, but none is whole", dir.display());
    let error = Error::new(ErrorKind::Io, why);
    let error = wrong.iter().fold(error, |error, e| error.note(e.message()));
    Err(error.note("to begin anew use --fresh, or another --logdir"))
}

/// All checkpoints in a directory, oldest first.
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
                bytes: m.files.iter().map(|(_, seal)| seal.bytes).sum(),
                tags: tags
                    .iter()
                    .filter(|(folder, _)| *folder == file_name(&path))
                    .map(|(_, t)| t.clone())
                    .collect(),
                path,
            }),
            Err(e) => log::warn!("{} is passed over: {e}", path.display()),
        }
    }
    saved.sort_by_key(|s| s.sequence);
    Ok(saved)
}

/// Those of `saved` (oldest first) that may go.
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

/// Whether a path is a commit's folder by its name.
fn is_commit(path: &Path) -> bool {
    file_name(path).starts_with(STEP) && path.is_dir()
}

fn is_hidden(path: &Path) -> bool {
    file_name(path).starts_with('.')
}

/// The folder that a small file names; none if there is no such file.
fn read_pointer(path: &Path) -> Result<Option<String>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed("read", path)(e)),
    };
    let name = str::from_utf8(&text).ok().map(str::trim);
    match name.filter(|n| n.starts_with(STEP) && !n.contains(['/', '\\'])) {
        Some(name) => Ok(Some(name.to_string())),
        None => Err(Error::new(ErrorKind::Io, format!("{} names no checkpoint", path.display()))),
    }
}

/// What is in a directory, in the order of names; nothing if there is no such directory.
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

/// What a path is called while it is made or removed.
fn unfinished(path: &Path) -> PathBuf {
    path.with_file_name(format!("{UNFINISHED}{}", file_name(path)))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The file of a tag. Statistics have names such as `tower0/cost`, so what files cannot have is written as `%2F`.
fn tag_file(tag: &str) -> Result<String> {
    if tag.is_empty() || tag == LATEST || tag.starts_with(STEP) || tag.starts_with('.') {
        let why = format!("{tag:?} cannot be a tag: it is empty, or the name of something else");
        return Err(Error::argument(why));
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let encode = |b: u8| if plain(b) { (b as char).to_string() } else { format!("%{b:02X}") };
    Ok(tag.bytes().map(encode).collect())
}

/// The tag of a file that [`tag_file`] named.
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
    fn tags_become_files_and_back() {
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
    fn what_is_kept() {
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
