//! Injects the fault of a task, in the process of a rank.

use crate::task::{Fault, Kind, Place};
use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tensorpack::graph::{GradCx, OpDef, Spec};
use tensorpack::io::{DirEntry, Disk, OpenFile, Parts, RealDisk};
use tensorpack::kir::{CustomKernel, LowerCx, View};
use tensorpack::prelude::*;

/// The file that says when a rank began its fault.
pub(crate) const BEGUN: &str = "fault";
/// The message of an error that is injected.
pub(crate) const MESSAGE: &str = "the sensor is unplugged";

/// The fault of this process, if it has one, and the folder to report it to.
static FAULT: OnceLock<(Fault, PathBuf, Duration)> = OnceLock::new();
static STEP: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicBool = AtomicBool::new(false);

/// Chooses the fault of this process. It happens `delay` after its place is reached, so that
/// heartbeats have told the others where this rank is.
pub(crate) fn set(fault: Fault, folder: &Path, delay: Duration) {
    assert!(FAULT.set((fault, folder.to_owned(), delay)).is_ok(), "a process has one fault");
}

/// Notes the step that begins.
pub(crate) fn begin_step(step: u64) {
    STEP.store(step, Ordering::Relaxed);
}

/// Returns the nanoseconds since 1970.
pub(crate) fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()
}

/// Returns whether the fault of this process, of this kind, happens here and now.
fn is_due(place: Place) -> Option<Kind> {
    let (fault, folder, delay) = FAULT.get()?;
    if fault.place != place || STEP.load(Ordering::Relaxed) < fault.step || DONE.swap(true, Ordering::Relaxed)
    {
        return None;
    }
    thread::sleep(*delay);
    let partial = folder.join(".fault");
    std::fs::write(&partial, now().to_string()).unwrap();
    std::fs::rename(partial, folder.join(BEGUN)).unwrap();
    Some(fault.kind)
}

/// Fails here, if this is where the fault of this process happens.
pub(crate) fn inject(place: Place) -> Result<()> {
    match is_due(place) {
        Some(Kind::Error) => Err(Error::argument(MESSAGE)),
        Some(Kind::Panic) => panic!("{MESSAGE}"),
        Some(Kind::Kill) => signal(libc::SIGKILL),
        Some(Kind::Stop) => signal(libc::SIGSTOP),
        Some(Kind::Hang) => loop {
            thread::sleep(Duration::from_secs(3600));
        },
        Some(Kind::Pause) => {
            thread::sleep(Duration::from_secs(1));
            Ok(())
        }
        Some(Kind::NotFinite) | None => Ok(()),
    }
}

/// Sends this process a signal, and returns if it goes on.
fn signal(number: i32) -> Result<()> {
    // SAFETY: takes the id of this process and a signal that every process may send itself.
    unsafe { libc::kill(libc::getpid(), number) };
    Ok(())
}

/// The identity, in which the fault of the forward pass, the backward pass or the update happens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FaultOp(Place);

impl OpDef for FaultOp {
    fn name(&self) -> &str {
        "Fault"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(at(Place::Backward, cx.dy()))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(cx.custom(Arc::new(self.clone())))
    }
}

impl CustomKernel for FaultOp {
    fn run(&self, inputs: &[HostTensor], outputs: &mut [HostTensor]) -> Result<()> {
        outputs[0].clone_from(&inputs[0]);
        let fault = FAULT.get().map(|(fault, ..)| fault);
        if let Some(fault) = fault.filter(|fault| fault.kind == Kind::NotFinite) {
            // In the whole step: the search for the tensor repeats it.
            if fault.place == self.0 && fault.step == STEP.load(Ordering::Relaxed) {
                outputs[0].as_mut_slice::<f32>()?[0] = f32::NAN;
            }
            return Ok(());
        }
        inject(self.0)
    }
}

/// Returns a tensor of the same values, in whose computation the fault may happen.
#[track_caller]
pub(crate) fn at(place: Place, x: &Tensor) -> Tensor {
    Tensor::apply_one(FaultOp(place), &[x])
}

/// The disk of rank 0, which may be full.
#[derive(Default)]
pub(crate) struct FaultyDisk {
    inner: RealDisk,
}

impl Disk for FaultyDisk {
    fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        self.inner.create_dir(path)
    }

    /// The fault happens when half of a file is written; an error says that the disk is full.
    fn write(&mut self, path: &Path, parts: &Parts<'_>) -> io::Result<()> {
        let whole = parts.concat();
        self.inner.write(path, &[Cow::Borrowed(&whole[..whole.len() / 2])])?;
        inject(Place::Save).map_err(|_| io::Error::from(io::ErrorKind::StorageFull))?;
        self.inner.write(path, parts)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        self.inner.sync_dir(path)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }

    fn free_space(&mut self, dir: &Path) -> io::Result<Option<u64>> {
        self.inner.free_space(dir)
    }

    fn open(&self, path: &Path) -> io::Result<OpenFile> {
        self.inner.open(path)
    }

    fn entries(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.inner.entries(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }
}
