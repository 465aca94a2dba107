//! A disk that calls a function before it writes, and a gate at which it waits until it may go on. With
//! them every moment of training meets a known moment of a write, at any speed of the machine.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tensorpack::io::{DirEntry, Disk, OpenFile, Parts, RealDisk};

/// Longer than any machine takes to come to the other side of a wait.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where a writer waits until it is let go.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Default)]
struct GateState {
    reached: bool,
    open: bool,
}

impl Gate {
    fn wait_until(&self, what: &str, is: impl Fn(&GateState) -> bool) {
        let (state, changed) = &*self.0;
        let guard = state.lock().unwrap();
        let (_guard, wait) = changed.wait_timeout_while(guard, PATIENCE, |s| !is(s)).unwrap();
        assert!(!wait.timed_out(), "{what}: one waits for the other");
    }

    fn change(&self, change: impl Fn(&mut GateState)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    /// The writer is here: waits until it may go on.
    pub(crate) fn pass(&self) {
        self.change(|s| s.reached = true);
        self.wait_until("the writer", |s| s.open);
    }

    /// Waits until the writer is here.
    pub(crate) fn wait_for_writer(&self) {
        self.wait_until("training", |s| s.reached);
    }

    pub(crate) fn open(&self) {
        self.change(|s| s.open = true);
    }
}

type Hook = Box<dyn FnMut(&Path, &Parts<'_>) -> io::Result<()> + Send>;

/// The real disk; calls a function before it writes a file.
pub(crate) struct HookedDisk(Hook);

impl HookedDisk {
    pub(crate) fn new(
        hook: impl FnMut(&Path, &Parts<'_>) -> io::Result<()> + Send + 'static,
    ) -> Box<HookedDisk> {
        Box::new(HookedDisk(Box::new(hook)))
    }

    /// Waits at the gate before it writes a file of the checkpoint of a step.
    pub(crate) fn waiting_at(step: u64, file: &'static str, gate: &Gate) -> Box<HookedDisk> {
        let (gate, folder) = (gate.clone(), format!("step-{step:010}"));
        HookedDisk::new(move |path, _| {
            if path.to_string_lossy().contains(&folder) && path.ends_with(file) {
                gate.pass();
            }
            Ok(())
        })
    }
}

impl Disk for HookedDisk {
    fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir(path)
    }
    fn write(&mut self, path: &Path, parts: &Parts<'_>) -> io::Result<()> {
        (self.0)(path, parts)?;
        RealDisk.write(path, parts)
    }
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }
    fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        RealDisk.sync_dir(path)
    }
    fn remove(&mut self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }
    fn free_space(&mut self, dir: &Path) -> io::Result<Option<u64>> {
        RealDisk.free_space(dir)
    }
    fn open(&self, path: &Path) -> io::Result<OpenFile> {
        RealDisk.open(path)
    }
    fn entries(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        RealDisk.entries(dir)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        RealDisk.exists(path)
    }
}
