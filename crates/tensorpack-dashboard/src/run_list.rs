//! Finds runs below the folders, and keeps what was read of them up to date.

use crate::confined::Roots;
use crate::run::Run;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;

/// How deep below a folder runs are searched.
const MAX_DEPTH: usize = 8;
/// The most directories that one search opens.
const MAX_DIRS: usize = 20_000;

/// All runs.
#[derive(Debug)]
pub(crate) struct RunList {
    roots: Roots,
    runs: RwLock<Vec<Arc<Run>>>,
}

impl RunList {
    /// Creates a list without runs.
    pub(crate) fn new(roots: Roots) -> RunList {
        RunList { roots, runs: RwLock::default() }
    }

    /// Returns the folders.
    pub(crate) fn roots(&self) -> &Roots {
        &self.roots
    }

    /// Returns the runs, sorted by name.
    pub(crate) fn runs(&self) -> Vec<Arc<Run>> {
        self.runs.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the run with an id that [`RunList::runs`] has.
    pub(crate) fn run(&self, id: &str) -> Option<Arc<Run>> {
        self.runs.read().unwrap_or_else(PoisonError::into_inner).iter().find(|r| r.id == id).cloned()
    }

    /// Searches for runs. New ones are added, and those whose directory is gone are removed.
    pub(crate) fn search(&self) {
        let mut found = BTreeMap::new();
        let mut visited = HashSet::new();
        for root in self.roots.dirs() {
            let mut label = root.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            if label.is_empty() {
                label = "run".into();
            }
            self.search_dir(root, root, &label, 0, &mut visited, &mut found);
        }
        let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|run| found.remove(&run.dir).is_some());
        for (dir, name) in found {
            let mut id = fingerprint(&dir);
            while runs.iter().any(|r| r.id == id) {
                id.push('x');
            }
            runs.push(Arc::new(Run::new(id, name, dir)));
        }
        runs.sort_by(|a, b| natural(&a.name).cmp(&natural(&b.name)).then_with(|| a.dir.cmp(&b.dir)));
    }

    fn search_dir(
        &self,
        root: &Path,
        dir: &Path,
        label: &str,
        depth: usize,
        visited: &mut HashSet<PathBuf>,
        found: &mut BTreeMap<PathBuf, String>,
    ) {
        // A link that leads out of the folders is not followed, and none is followed in circles.
        let Ok(dir) = self.roots.resolve(dir) else { return };
        if visited.len() >= MAX_DIRS || !visited.insert(dir.clone()) {
            return;
        }
        let Ok(entries) = fs::read_dir(&dir) else { return };
        let mut below = Vec::new();
        let mut is_run = false;
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let Ok(kind) = entry.file_type() else { continue };
            if !kind.is_dir() {
                is_run |= name == "stats.jsonl"
                    || name == "steps.jsonl"
                    || name.starts_with("events.out.tfevents.");
            }
            // Checkpoints are large and have no runs.
            let skipped = name.starts_with('.') || name.starts_with("checkpoints");
            if (kind.is_dir() || kind.is_symlink()) && !skipped {
                below.push(entry.path());
            }
        }
        if is_run {
            let path = dir.strip_prefix(root).unwrap_or(&dir).to_string_lossy().into_owned();
            let several = self.roots.dirs().len() > 1;
            let name = match (path.is_empty(), several) {
                (true, _) => label.to_string(),
                (false, true) => format!("{label}/{path}"),
                (false, false) => path,
            };
            found.insert(dir, name);
        }
        if depth < MAX_DEPTH {
            below.sort();
            for path in below.into_iter().filter(|p| p.is_dir()) {
                self.search_dir(root, &path, label, depth + 1, visited, found);
            }
        }
    }

    /// Reads what is new in all runs, on all cores.
    pub(crate) fn update(&self) {
        let runs = self.runs();
        let next = AtomicUsize::new(0);
        let threads = thread::available_parallelism().map_or(1, usize::from).min(runs.len()).min(8);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut buffer = Vec::new();
                    while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                        while run.update(&self.roots, &mut buffer) {}
                    }
                });
            }
        });
    }
}

/// Returns a name that depends on the path only, so that links to a page stay valid.
fn fingerprint(path: &Path) -> String {
    // FNV-1a.
    let bytes = path.as_os_str().as_encoded_bytes();
    let hash =
        bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{:010x}", hash >> 24)
}

/// The sort key of a name in which numbers compare as numbers: `run2` precedes `run10`.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, number) = rest.split_at(digits);
        let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
        key.push((text.to_lowercase(), number[..end].parse().unwrap_or(u64::MAX)));
        rest = &number[end..];
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_appear_and_disappear() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().canonicalize().unwrap();
        let list = RunList::new(Roots::new(std::slice::from_ref(&dir)).unwrap());
        let names = || {
            list.search();
            list.runs().iter().map(|r| r.name.clone()).collect::<Vec<_>>()
        };
        assert!(names().is_empty());
        for run in ["run10", "run2", "group/a", ".hidden/b", "run2/checkpoints/step-1"] {
            fs::create_dir_all(dir.join(run)).unwrap();
            fs::write(dir.join(run).join("stats.jsonl"), "").unwrap();
        }
        assert_eq!(names(), ["group/a", "run2", "run10"]);
        let id = list.runs()[1].id.clone();
        fs::remove_dir_all(dir.join("group")).unwrap();
        assert_eq!(names(), ["run2", "run10"]);
        assert_eq!(list.run(&id).unwrap().name, "run2");
        assert!(list.run("../run2").is_none());
    }

    #[test]
    #[cfg(unix)]
    fn links_are_followed_inside_of_the_folders_only() {
        use std::os::unix::fs::symlink;
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().canonicalize().unwrap();
        for run in ["shown/a", "private"] {
            fs::create_dir_all(dir.join(run)).unwrap();
            fs::write(dir.join(run).join("stats.jsonl"), "").unwrap();
        }
        symlink(dir.join("private"), dir.join("shown/out")).unwrap();
        symlink(dir.join("shown"), dir.join("shown/loop")).unwrap();
        let list = RunList::new(Roots::new(&[dir.join("shown")]).unwrap());
        list.search();
        let names: Vec<_> = list.runs().iter().map(|r| r.name.clone()).collect();
        assert_eq!(names, ["a"]);
    }
}
