//! A disk in memory that keeps, after a crash, only what was synced.
//!
//! The rules are those that file systems promise, and no more:
//! - The contents of a file are durable after a sync of the file. Before that, a crash leaves the
//!   old contents, the new ones, a part of them, or zeros.
//! - The entries of a directory are durable after a sync of the directory. Before that, a crash
//!   leaves any subset of the changes since, so a later change may survive an earlier one.
//! - A rename is atomic: it happens or it does not.
//! - Removing a directory removes its files one by one, in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Cursor};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use tensorpack::io::{DirEntry, Disk, OpenFile, Parts};
use tensorpack::tensor::CounterRng;

/// The line of the library that syncs.
pub(crate) type Site = (&'static str, u32);

/// Which unsynced changes survive a crash.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leaves {
    /// All of them.
    Everything,
    /// None of them.
    Nothing,
    /// A part of them that depends on this seed.
    Some(u64),
}

/// A handle to the disk. Clones share it.
#[derive(Clone)]
pub(crate) struct CrashDisk(Arc<Mutex<Model>>);

struct Model {
    nodes: Vec<Node>,
    /// The syncs that were called so far.
    sites: BTreeSet<Site>,
    /// A call site whose syncs do nothing.
    broken: Option<Site>,
}

/// A file or directory: as processes see it, and as it is on the device.
#[derive(Clone)]
enum Node {
    File { seen: Vec<u8>, durable: Vec<u8> },
    Dir { seen: Entries, durable: Entries, unsynced: Vec<Change> },
}

type Entries = BTreeMap<OsString, usize>;

/// A change of the entries of a directory.
#[derive(Clone)]
enum Change {
    Add(OsString, usize),
    Rename(OsString, OsString, usize),
    Remove(OsString),
}

impl Change {
    fn apply(&self, entries: &mut Entries) {
        match self {
            Change::Add(name, node) => {
                entries.insert(name.clone(), *node);
            }
            Change::Rename(from, to, node) => {
                entries.remove(from);
                entries.insert(to.clone(), *node);
            }
            Change::Remove(name) => {
                entries.remove(name);
            }
        }
    }
}

fn empty_dir() -> Node {
    Node::Dir { seen: Entries::new(), durable: Entries::new(), unsynced: Vec::new() }
}

fn error(kind: io::ErrorKind) -> io::Error {
    kind.into()
}

impl Model {
    fn find(&self, path: &Path) -> io::Result<usize> {
        let mut at = 0;
        for part in path.components().filter(|c| matches!(c, std::path::Component::Normal(_))) {
            let Node::Dir { seen, .. } = &self.nodes[at] else {
                return Err(error(io::ErrorKind::NotADirectory));
            };
            at = *seen.get(part.as_os_str()).ok_or_else(|| error(io::ErrorKind::NotFound))?;
        }
        Ok(at)
    }

    fn parent(&self, path: &Path) -> io::Result<(usize, OsString)> {
        let name = path.file_name().ok_or_else(|| error(io::ErrorKind::InvalidInput))?;
        Ok((self.find(path.parent().unwrap_or(Path::new("/")))?, name.to_owned()))
    }

    fn seen(&self, dir: usize) -> io::Result<&Entries> {
        match &self.nodes[dir] {
            Node::Dir { seen, .. } => Ok(seen),
            Node::File { .. } => Err(error(io::ErrorKind::NotADirectory)),
        }
    }

    fn change(&mut self, dir: usize, change: Change) -> io::Result<()> {
        let Node::Dir { seen, unsynced, .. } = &mut self.nodes[dir] else {
            return Err(error(io::ErrorKind::NotADirectory));
        };
        change.apply(seen);
        unsynced.push(change);
        Ok(())
    }

    fn add(&mut self, dir: usize, name: OsString, node: Node) -> io::Result<usize> {
        self.nodes.push(node);
        let id = self.nodes.len() - 1;
        self.change(dir, Change::Add(name, id))?;
        Ok(id)
    }

    /// Removes what is in a directory, and what is in that.
    fn clear(&mut self, dir: usize) {
        let Ok(names) = self.seen(dir).cloned() else { return };
        for (name, node) in names {
            self.clear(node);
            self.change(dir, Change::Remove(name)).expect("a directory");
        }
    }

    /// Notes a sync. Returns whether it works.
    fn syncs(&mut self, at: &'static Location<'static>) -> bool {
        let site = (at.file(), at.line());
        self.sites.insert(site);
        self.broken != Some(site)
    }
}

/// Random numbers for what a crash leaves.
struct Draws(CounterRng, u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.1 += 1;
        ((self.0.uniform(0, self.1) * n as f64) as usize).min(n - 1)
    }
}

fn torn(seen: &[u8], durable: &[u8], draws: &mut Draws) -> Vec<u8> {
    match draws.below(4) {
        0 => durable.to_vec(),
        1 => seen.to_vec(),
        2 => seen[..draws.below(seen.len() + 1)].to_vec(),
        _ => vec![0; seen.len()],
    }
}

impl CrashDisk {
    /// Creates a disk with one directory, which is durable.
    pub(crate) fn new(dir: &Path) -> CrashDisk {
        let model = Model { nodes: vec![empty_dir()], sites: BTreeSet::new(), broken: None };
        let mut disk = CrashDisk(Arc::new(Mutex::new(model)));
        disk.create_dir(dir).unwrap();
        disk.crash(Leaves::Everything);
        disk
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap()
    }

    /// Returns a disk with the same contents that shares nothing with this one.
    pub(crate) fn copy(&self) -> CrashDisk {
        let model = self.model();
        let Model { nodes, sites, broken } = &*model;
        let copy = Model { nodes: nodes.clone(), sites: sites.clone(), broken: *broken };
        CrashDisk(Arc::new(Mutex::new(copy)))
    }

    /// Stops the machine and starts it again.
    pub(crate) fn crash(&self, leaves: Leaves) {
        let mut draws = match leaves {
            Leaves::Some(seed) => Draws(CounterRng::new(seed, "crash"), 0),
            _ => Draws(CounterRng::new(0, "crash"), 0),
        };
        for node in &mut self.model().nodes {
            match node {
                Node::File { seen, durable } => {
                    match leaves {
                        Leaves::Everything => durable.clone_from(seen),
                        Leaves::Nothing => {}
                        // Contents that were synced are safe.
                        Leaves::Some(_) if seen == durable => {}
                        Leaves::Some(_) => *durable = torn(seen, durable, &mut draws),
                    }
                    seen.clone_from(durable);
                }
                Node::Dir { seen, durable, unsynced } => {
                    for change in unsynced.drain(..) {
                        let survives = match leaves {
                            Leaves::Everything => true,
                            Leaves::Nothing => false,
                            Leaves::Some(_) => draws.below(2) == 0,
                        };
                        if survives {
                            change.apply(durable);
                        }
                    }
                    seen.clone_from(durable);
                }
            }
        }
    }

    /// Makes all syncs of one call site do nothing.
    pub(crate) fn break_sync(&self, site: Site) {
        self.model().broken = Some(site);
    }

    /// Returns the call sites of all syncs so far.
    pub(crate) fn sites(&self) -> BTreeSet<Site> {
        self.model().sites.clone()
    }

    /// Returns the contents of a file.
    pub(crate) fn contents(&self, path: &Path) -> io::Result<Vec<u8>> {
        let model = self.model();
        match &model.nodes[model.find(path)?] {
            Node::File { seen, .. } => Ok(seen.clone()),
            Node::Dir { .. } => Err(error(io::ErrorKind::IsADirectory)),
        }
    }

    /// Writes half of a file, and syncs nothing.
    pub(crate) fn write_half(&mut self, path: &Path, parts: &Parts<'_>) -> io::Result<()> {
        let whole = parts.concat();
        self.put(path, whole[..whole.len() / 2].to_vec()).map(|_| ())
    }

    fn put(&self, path: &Path, contents: Vec<u8>) -> io::Result<usize> {
        let mut model = self.model();
        let (dir, name) = model.parent(path)?;
        match model.seen(dir)?.get(&name).copied() {
            Some(id) => match &mut model.nodes[id] {
                Node::File { seen, .. } => {
                    *seen = contents;
                    Ok(id)
                }
                Node::Dir { .. } => Err(error(io::ErrorKind::IsADirectory)),
            },
            None => model.add(dir, name, Node::File { seen: contents, durable: Vec::new() }),
        }
    }
}

impl Disk for CrashDisk {
    fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        let mut model = self.model();
        let mut ancestors: Vec<PathBuf> = path.ancestors().map(Path::to_path_buf).collect();
        ancestors.reverse();
        for dir in ancestors.iter().filter(|d| d.file_name().is_some()) {
            let (parent, name) = model.parent(dir)?;
            if !model.seen(parent)?.contains_key(&name) {
                model.add(parent, name, empty_dir())?;
            }
        }
        Ok(())
    }

    fn write(&mut self, path: &Path, parts: &Parts<'_>) -> io::Result<()> {
        let id = self.put(path, parts.concat())?;
        let mut model = self.model();
        if model.syncs(Location::caller())
            && let Node::File { seen, durable } = &mut model.nodes[id]
        {
            durable.clone_from(seen);
        }
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let mut model = self.model();
        let ((dir, from), (into, to)) = (model.parent(from)?, model.parent(to)?);
        assert_eq!(dir, into, "no rename moves anything to another directory");
        let id = *model.seen(dir)?.get(&from).ok_or_else(|| error(io::ErrorKind::NotFound))?;
        if let Some(&old) = model.seen(dir)?.get(&to)
            && model.seen(old).is_ok_and(|entries| !entries.is_empty())
        {
            return Err(error(io::ErrorKind::DirectoryNotEmpty));
        }
        model.change(dir, Change::Rename(from, to, id))
    }

    fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let mut model = self.model();
        let id = model.find(path)?;
        if model.syncs(Location::caller()) {
            let Node::Dir { seen, durable, unsynced } = &mut model.nodes[id] else {
                return Err(error(io::ErrorKind::NotADirectory));
            };
            durable.clone_from(seen);
            unsynced.clear();
        }
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        let mut model = self.model();
        let (dir, name) = model.parent(path)?;
        let id = *model.seen(dir)?.get(&name).ok_or_else(|| error(io::ErrorKind::NotFound))?;
        model.clear(id);
        model.change(dir, Change::Remove(name))
    }

    fn free_space(&mut self, _: &Path) -> io::Result<Option<u64>> {
        Ok(None)
    }

    fn open(&self, path: &Path) -> io::Result<OpenFile> {
        let contents = self.contents(path)?;
        Ok(OpenFile { length: contents.len() as u64, contents: Box::new(Cursor::new(contents)) })
    }

    fn entries(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let model = self.model();
        let entries = model.seen(model.find(dir)?)?;
        let entry = |(name, &id): (&OsString, &usize)| DirEntry {
            name: name.clone(),
            is_dir: matches!(model.nodes[id], Node::Dir { .. }),
        };
        Ok(entries.iter().map(entry).collect())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.model().find(path) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }
}

mod tests {
    use super::*;
    use std::borrow::Cow;

    const PARTS: &Parts<'static> = &[Cow::Borrowed(b"ab"), Cow::Borrowed(b"cd")];

    #[test]
    fn unsynced_writes_are_lost() {
        let (dir, file) = (Path::new("/d"), Path::new("/d/f"));
        let disk = CrashDisk::new(dir);
        let after = |sync: bool, leaves: Leaves| {
            let mut disk = disk.copy();
            disk.write(file, PARTS).unwrap();
            if sync {
                disk.sync_dir(dir).unwrap();
            }
            disk.crash(leaves);
            disk.contents(file).ok()
        };
        assert_eq!(after(true, Leaves::Nothing).as_deref(), Some(&b"abcd"[..]));
        assert_eq!(after(false, Leaves::Nothing), None);
        assert_eq!(after(false, Leaves::Everything).as_deref(), Some(&b"abcd"[..]));
        let left: BTreeSet<_> = (0..20).map(|seed| after(false, Leaves::Some(seed))).collect();
        assert_eq!(left.len(), 2, "the entry survives or it does not: {left:?}");
    }

    #[test]
    fn contents_that_are_not_synced_are_torn() {
        let (dir, file) = (Path::new("/d"), Path::new("/d/f"));
        let mut disk = CrashDisk::new(dir);
        disk.write(file, PARTS).unwrap();
        disk.sync_dir(dir).unwrap();
        let site = *disk.sites().iter().find(|s| s.1 == line!() - 2).expect("the call site of `write`");
        disk.break_sync(site);
        disk.write_half(file, &[Cow::Borrowed(b"0123456789")]).unwrap();
        let left: BTreeSet<Vec<u8>> = (0..60)
            .map(|seed| {
                let disk = disk.copy();
                disk.crash(Leaves::Some(seed));
                disk.contents(file).unwrap()
            })
            .collect();
        assert!(left.contains(&b"abcd"[..]) && left.contains(&b"01234"[..]) && left.contains(&b"01"[..]));
        assert!(left.contains(&[0; 5][..]));
    }

    #[test]
    fn later_renames_may_survive_earlier_ones() {
        let dir = Path::new("/d");
        let disk = CrashDisk::new(dir);
        let left: BTreeSet<Vec<OsString>> = (0..60)
            .map(|seed| {
                let mut disk = disk.copy();
                for name in ["a", "b"] {
                    disk.write(&dir.join(name), PARTS).unwrap();
                }
                disk.sync_dir(dir).unwrap();
                disk.rename(&dir.join("a"), &dir.join("c")).unwrap();
                disk.rename(&dir.join("b"), &dir.join("e")).unwrap();
                disk.crash(Leaves::Some(seed));
                disk.entries(dir).unwrap().into_iter().map(|e| e.name).collect()
            })
            .collect();
        let names = |names: &[&str]| names.iter().map(OsString::from).collect::<Vec<_>>();
        let all = [names(&["a", "b"]), names(&["a", "e"]), names(&["b", "c"]), names(&["c", "e"])];
        assert_eq!(left, all.into_iter().collect());
    }
}
