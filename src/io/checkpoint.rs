//! A checkpoint and its format on disk: a folder with the tensors, the rest of the state as JSON,
//! and a manifest with the lengths and checksums of the other files.
//!
//! The checksum is CRC-32C: processors compute it at memory speed, it detects bit flips and torn
//! pages, and event files need it anyway. It guards against accidents, not against forgery.

use super::disk::{self, Disk, Parts, RealDisk, failed, is_missing, length};
use super::safetensors::{self, Metadata};
use crate::graph::{Frozen, MODEL_VARIABLES, TRAINABLE_VARIABLES, VariableInfo, split_tower};
use crate::runtime::{CapturedValue, Session};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::time::{Duration, SystemTime};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// Everything needed to resume a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The number of finished steps.
    pub global_step: u64,
    /// Variables by name.
    pub tensors: Vec<(String, HostTensor)>,
    /// The tensors of the input's state, by name, such as the content of a replay buffer. Empty for
    /// most runs.
    pub input_tensors: Vec<(String, HostTensor)>,
    /// Everything else: counters, seeds, the position in the data, the state of callbacks and
    /// monitors.
    pub state: Value,
}

/// Why a checkpoint cannot be loaded.
#[derive(Debug)]
pub(super) enum LoadError {
    /// A file is missing, has another length or fails its checksum, and always will.
    Damaged(Error),
    /// Anything else, such as a read error: the checkpoint may be intact.
    Failed(Error),
}

impl LoadError {
    /// Classifies an error of reading the file at `path`.
    fn reading(path: &Path) -> impl FnOnce(io::Error) -> LoadError {
        move |e| match is_missing(&e) {
            true => LoadError::Damaged(failed("read", path)(e)),
            false => LoadError::Failed(failed("read", path)(e)),
        }
    }
}

impl From<LoadError> for Error {
    fn from(e: LoadError) -> Error {
        match e {
            LoadError::Damaged(e) | LoadError::Failed(e) => e,
        }
    }
}

/// The contents of files by name.
pub(super) type Files<'a> = Vec<(&'static str, Vec<Cow<'a, [u8]>>)>;

const TENSORS: &str = "tensors.safetensors";
/// Only in checkpoints of runs whose input has tensors in its state.
const INPUT_TENSORS: &str = "input.safetensors";
/// The prefix of these tensors' names in [`Checkpoint::to_bytes`].
const INPUT_PREFIX: &str = "input:";
const STATE: &str = "state.json";
const MANIFEST: &str = "manifest.json";
const STEP: &str = "global_step";
/// The format version. Incremented when older programs cannot read the files of newer ones.
const FORMAT: u64 = 1;
/// The key of the state for the names of variables that only training needs.
const TRAINING_ONLY: &str = "training_only_variables";
/// The maximum length of a manifest in bytes.
const MAX_MANIFEST: u64 = 1 << 20;

impl Checkpoint {
    /// Captures the current values of the variables that `which` selects, and `state`, a JSON
    /// object. Adds the names of the variables that only training needs to the state, so that an
    /// inference graph can load the rest without warnings.
    pub fn capture(
        session: &Session,
        global_step: u64,
        state: Map<String, Value>,
        which: impl Fn(&VariableInfo) -> bool,
    ) -> Result<Checkpoint> {
        let read = |v: &VariableInfo| which(v).then(|| session.read(&v.name)).transpose();
        let (tensors, state) = of_graph(session.graph(), state, read)?;
        Ok(Checkpoint { global_step, tensors, input_tensors: Vec::new(), state })
    }

    /// Restores the variables that `which` selects, bit for bit. Returns an error and changes
    /// nothing if names, shapes or dtypes of checkpoint and graph differ. Local variables of towers
    /// other than the first may be missing on either side, so the number of towers may change.
    pub fn restore(&self, session: &Session, which: impl Fn(&VariableInfo) -> bool) -> Result<()> {
        let variables: Vec<&VariableInfo> = session.graph().variables().iter().filter(|v| which(v)).collect();
        let mut wrong = Vec::new();
        for v in &variables {
            let here = format!("{}{:?}", v.dtype, v.sizes);
            match self.tensor(&v.name) {
                None if v.tower.is_some_and(|tower| tower > 0) => {}
                None => wrong.push(format!("{} {here} is missing in the checkpoint", v.name)),
                Some(t) if (t.dtype(), t.sizes()) != (v.dtype, &v.sizes) => {
                    let there = format!("{}{:?}", t.dtype(), t.sizes());
                    wrong.push(format!("{} is {there} in the checkpoint, but {here} in the graph", v.name));
                }
                Some(_) => {}
            }
        }
        let (known, unknown): (Vec<_>, Vec<_>) =
            self.tensors.iter().partition(|(name, _)| variables.iter().any(|v| v.name == *name));
        for (name, t) in unknown.into_iter().filter(|(name, _)| split_tower(name).0.is_empty()) {
            wrong.push(format!("{name} {}{:?} is missing in the graph", t.dtype(), t.sizes()));
        }
        if !wrong.is_empty() {
            wrong.sort();
            let error = Error::new(ErrorKind::Name, "the checkpoint belongs to a different model");
            return Err(wrong.into_iter().fold(error, Error::note));
        }
        known.into_iter().try_for_each(|(name, value)| session.write(name, value))
    }

    /// Returns whether a path is the folder of a checkpoint. The directory of a run has a file of
    /// the same name, which lists the starts of the run.
    pub(super) fn is_at(path: &Path) -> Result<bool> {
        let manifest = path.join(MANIFEST);
        let is_of_run = |text: &[u8]| {
            serde_json::from_slice::<Value>(text).is_ok_and(|manifest| manifest.get("starts").is_some())
        };
        match std::fs::metadata(&manifest).map(|about| about.is_file()) {
            Ok(true) => {
                std::fs::read(&manifest).map(|text| !is_of_run(&text)).map_err(failed("read", &manifest))
            }
            Ok(false) => Ok(false),
            Err(e) if is_missing(&e) => Ok(false),
            Err(e) => Err(failed("read", &manifest)(e)),
        }
    }

    /// Returns the names of tensors that only training needs, if [`Checkpoint::capture`] recorded
    /// them.
    pub(super) fn training_only(&self) -> Option<BTreeSet<String>> {
        let names = self.state[TRAINING_ONLY].as_array()?;
        Some(names.iter().filter_map(Value::as_str).map(str::to_string).collect())
    }

    /// Loads the checkpoint in a folder such as `checkpoints/step-0000001234`. Returns an error
    /// that names the file if one is missing, truncated or corrupted.
    pub fn load(folder: impl AsRef<Path>) -> Result<Checkpoint> {
        Ok(Checkpoint::load_from(&RealDisk, folder.as_ref())?)
    }

    /// Like [`Checkpoint::load`], from another disk, and tells damage from other errors.
    pub(super) fn load_from(disk: &dyn Disk, folder: &Path) -> Result<Checkpoint, LoadError> {
        let manifest = Manifest::load(disk, folder)?;
        let (tensors, _) = manifest.read(disk, folder, TENSORS, safetensors::parse)?;
        let input_tensors = match manifest.lists(INPUT_TENSORS) {
            true => manifest.read(disk, folder, INPUT_TENSORS, safetensors::parse)?.0,
            false => Vec::new(),
        };
        let state = manifest.read(disk, folder, STATE, |from, _| {
            serde_json::from_reader(from).map_err(|e| Error::new(ErrorKind::Io, e.to_string()))
        })?;
        Ok(Checkpoint { global_step: manifest.global_step, tensors, input_tensors, state })
    }

    /// Returns the checkpoint as bytes, for another process.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let metadata = Metadata::from([
            (STATE.into(), self.state.to_string()),
            (STEP.into(), self.global_step.to_string()),
        ]);
        let of_input = self.input_tensors.iter().map(|(n, t)| (format!("{INPUT_PREFIX}{n}"), t.clone()));
        let tensors: Vec<_> = self.tensors.iter().cloned().chain(of_input).collect();
        Ok(safetensors::encode(&tensors, &metadata)?.concat())
    }

    /// Returns the checkpoint of [`Checkpoint::to_bytes`].
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Checkpoint> {
        let malformed = |what: &str| Error::new(ErrorKind::Io, format!("the checkpoint has no valid {what}"));
        let (tensors, metadata) = safetensors::parse(&mut &bytes[..], bytes.len() as u64)?;
        let text = |key: &str| metadata.get(key).map_or("", String::as_str);
        let global_step = text(STEP).parse().map_err(|_| malformed(STEP))?;
        let state = serde_json::from_str(text(STATE)).map_err(|_| malformed(STATE))?;
        let (mut of_variables, mut of_input) = (Vec::new(), Vec::new());
        for (name, value) in tensors {
            match name.strip_prefix(INPUT_PREFIX) {
                Some(name) => of_input.push((name.to_string(), value)),
                None => of_variables.push((name, value)),
            }
        }
        Ok(Checkpoint { global_step, tensors: of_variables, input_tensors: of_input, state })
    }

    /// Returns the tensor `name`.
    pub fn tensor(&self, name: &str) -> Option<&HostTensor> {
        self.tensors.iter().find(|(n, _)| n == name).map(|(_, t)| t)
    }

    /// Returns the files of the folder in the order to write them: the manifest comes last.
    pub(super) fn encode(&self, sequence: u64) -> Result<Files<'_>> {
        let state = vec![Cow::Owned(format!("{}\n", self.state).into_bytes())];
        let mut files =
            vec![(TENSORS, safetensors::encode(&self.tensors, &Metadata::new())?), (STATE, state)];
        if !self.input_tensors.is_empty() {
            files.push((INPUT_TENSORS, safetensors::encode(&self.input_tensors, &Metadata::new())?));
        }
        let manifest = Manifest {
            sequence,
            global_step: self.global_step,
            saved_at: SystemTime::now(),
            files: files.iter().map(|(name, parts)| (name.to_string(), FileDigest::new(parts))).collect(),
        };
        files.push((MANIFEST, vec![Cow::Owned(manifest.to_text().into_bytes())]));
        Ok(files)
    }
}

/// A checkpoint whose variables may still be on their devices.
pub(crate) struct CapturedCheckpoint {
    global_step: u64,
    variables: Vec<(String, CapturedValue)>,
    input_tensors: Vec<(String, HostTensor)>,
    state: Value,
}

impl CapturedCheckpoint {
    /// Captures all variables of a graph, with the values that `value` returns, and `state` as in
    /// [`Checkpoint::capture`].
    pub(crate) fn new(
        graph: &Frozen,
        global_step: u64,
        state: Map<String, Value>,
        input_tensors: Vec<(String, HostTensor)>,
        mut value: impl FnMut(&VariableInfo) -> Result<CapturedValue>,
    ) -> Result<CapturedCheckpoint> {
        let (variables, state) = of_graph(graph, state, |v| value(v).map(Some))?;
        Ok(CapturedCheckpoint { global_step, variables, input_tensors, state })
    }

    /// Returns whether no variable is still on a device.
    pub(crate) fn is_on_host(&self) -> bool {
        self.variables.iter().all(|(_, value)| matches!(value, CapturedValue::OnHost(_)))
    }

    /// Returns the checkpoint, and downloads what is still on a device.
    pub(crate) fn into_host(self) -> Result<Checkpoint> {
        let CapturedCheckpoint { global_step, variables, input_tensors, state } = self;
        let read = |(name, value): (String, CapturedValue)| Ok((name, value.into_host()?));
        let tensors = variables.into_iter().map(read).collect::<Result<_>>()?;
        Ok(Checkpoint { global_step, tensors, input_tensors, state })
    }
}

impl From<Checkpoint> for CapturedCheckpoint {
    fn from(checkpoint: Checkpoint) -> CapturedCheckpoint {
        let Checkpoint { global_step, tensors, input_tensors, state } = checkpoint;
        let variables =
            tensors.into_iter().map(|(name, value)| (name, CapturedValue::OnHost(value))).collect();
        CapturedCheckpoint { global_step, variables, input_tensors, state }
    }
}

/// Returns the values of a graph's variables by name, and `state` with the names of those that only
/// training needs.
fn of_graph<T>(
    graph: &Frozen,
    mut state: Map<String, Value>,
    mut value: impl FnMut(&VariableInfo) -> Result<Option<T>>,
) -> Result<(Vec<(String, T)>, Value)> {
    let mut model = graph.collection(MODEL_VARIABLES).variables;
    model.extend(graph.collection(TRAINABLE_VARIABLES).variables);
    let mut training_only = Vec::new();
    let mut values = Vec::new();
    for (i, v) in graph.variables().iter().enumerate() {
        let Some(value) = value(v)? else { continue };
        values.push((v.name.clone(), value));
        if !model.iter().any(|id| id.0 as usize == i) {
            training_only.push(v.name.clone());
        }
    }
    state.insert(TRAINING_ONLY.into(), training_only.into());
    Ok((values, Value::Object(state)))
}

/// The manifest of a checkpoint folder.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Manifest {
    /// Monotonic commit number of the run. Steps alone do not tell which of two commits is newer.
    pub(super) sequence: u64,
    pub(super) global_step: u64,
    pub(super) saved_at: SystemTime,
    pub(super) files: Vec<(String, FileDigest)>,
}

/// Length and checksum of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FileDigest {
    pub(super) bytes: u64,
    crc32c: u32,
}

impl FileDigest {
    fn new(parts: &Parts<'_>) -> FileDigest {
        let crc32c = parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part));
        FileDigest { bytes: length(parts), crc32c }
    }
}

impl Manifest {
    /// Loads and verifies the manifest of a folder.
    pub(super) fn load(disk: &dyn Disk, folder: &Path) -> Result<Manifest, LoadError> {
        let path = folder.join(MANIFEST);
        let text = disk::read(disk, &path, MAX_MANIFEST).map_err(LoadError::reading(&path))?;
        Manifest::parse(&text).map_err(|e| match e.kind() {
            // An older checkpoint would silently undo the work of the newer program.
            ErrorKind::Unsupported => LoadError::Failed(e.within(path.display())),
            _ => LoadError::Damaged(e.within(path.display())),
        })
    }

    fn to_text(&self) -> String {
        let since = self.saved_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let files: Map<String, Value> = self
            .files
            .iter()
            .map(|(name, d)| (name.clone(), json!({"bytes": d.bytes, "crc32c": d.crc32c})))
            .collect();
        let manifest = json!({
            "format": FORMAT,
            "sequence": self.sequence,
            "global_step": self.global_step,
            "saved_at": since.as_secs(),
            "files": files,
        });
        let crc32c = crc32c::crc32c(manifest.to_string().as_bytes());
        format!("{:#}\n", json!({"manifest": manifest, "crc32c": crc32c}))
    }

    fn parse(text: &[u8]) -> Result<Manifest> {
        let corrupted = |why: &str| Error::new(ErrorKind::Io, format!("the manifest is corrupted: {why}"));
        let envelope: Value = serde_json::from_slice(text).map_err(|e| corrupted(&e.to_string()))?;
        let manifest = &envelope["manifest"];
        let number = |of: &Value, key: &str| of[key].as_u64().ok_or_else(|| corrupted(&format!("no {key}")));
        let format = number(manifest, "format")?;
        // Checked before the checksum, which a later format may compute differently.
        if format > FORMAT {
            let why = format!("format version {format} is newer than the supported version {FORMAT}");
            return Err(Error::new(ErrorKind::Unsupported, why).note("update tensorpack"));
        }
        // Keys are sorted and numbers are integers, so serializing again yields the checksummed
        // text.
        if number(&envelope, "crc32c")? != u64::from(crc32c::crc32c(manifest.to_string().as_bytes())) {
            return Err(corrupted("checksum mismatch"));
        }
        let files = manifest["files"].as_object().ok_or_else(|| corrupted("no files"))?;
        let files = files.iter().map(|(name, about)| {
            let crc32c = number(about, "crc32c")? as u32;
            Ok((name.clone(), FileDigest { bytes: number(about, "bytes")?, crc32c }))
        });
        Ok(Manifest {
            sequence: number(manifest, "sequence")?,
            global_step: number(manifest, "global_step")?,
            saved_at: SystemTime::UNIX_EPOCH
                .checked_add(Duration::from_secs(number(manifest, "saved_at")?))
                .ok_or_else(|| corrupted("saved_at is out of range"))?,
            files: files.collect::<Result<_>>()?,
        })
    }

    /// Returns whether the checkpoint has this file.
    fn lists(&self, name: &str) -> bool {
        self.files.iter().any(|(n, _)| n == name)
    }

    /// Reads and parses a file, and verifies its length and checksum.
    fn read<T>(
        &self,
        disk: &dyn Disk,
        folder: &Path,
        name: &str,
        parse: impl FnOnce(&mut ChecksumReader<BufReader<Box<dyn Read>>>, u64) -> Result<T>,
    ) -> Result<T, LoadError> {
        let path = folder.join(name);
        let corrupted = |why: String| {
            LoadError::Damaged(Error::new(ErrorKind::Io, format!("{} is corrupted: {why}", path.display())))
        };
        let Some((_, digest)) = self.files.iter().find(|(n, _)| n == name) else {
            return Err(corrupted("the manifest does not list it".into()));
        };
        let disk::OpenFile { length, contents } = disk.open(&path).map_err(LoadError::reading(&path))?;
        if length != digest.bytes {
            return Err(corrupted(format!("it has {length} bytes instead of {}", digest.bytes)));
        }
        let inner = BufReader::with_capacity(1 << 18, contents);
        let mut from = ChecksumReader { inner, crc32c: 0, failed: None };
        let parsed = parse(&mut from, length);
        // Read what the parser left: the checksum covers the entire file. After an error of the
        // disk there is no checksum to compare; the parser may have hidden that error.
        let rest = io::copy(&mut from, &mut io::sink());
        if let Some(e) = from.failed.take().or(rest.err()) {
            return Err(LoadError::reading(&path)(e));
        }
        if from.crc32c != digest.crc32c {
            return Err(corrupted("checksum mismatch".into()));
        }
        parsed.map_err(|e| LoadError::Failed(e.within(path.display())))
    }
}

/// A reader that computes the checksum of everything read, and keeps the first error.
struct ChecksumReader<R> {
    inner: R,
    crc32c: u32,
    failed: Option<io::Error>,
}

impl<R: Read> Read for ChecksumReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.inner.read(into) {
            Ok(n) => {
                self.crc32c = crc32c::crc32c_append(self.crc32c, &into[..n]);
                Ok(n)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Err(e),
            Err(e) => {
                let kind = e.kind();
                self.failed.get_or_insert(e);
                Err(kind.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_flip_in_a_manifest_is_detected_or_harmless() {
        let manifest = Manifest {
            sequence: 7,
            global_step: 1234,
            saved_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
            files: vec![(STATE.into(), FileDigest { bytes: 3, crc32c: 5 })],
        };
        let text = manifest.to_text().into_bytes();
        assert_eq!(Manifest::parse(&text).unwrap(), manifest);
        for (at, bit) in (0..text.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut flipped = text.clone();
            flipped[at] ^= 1 << bit;
            // Whitespace can turn into other whitespace.
            assert!(Manifest::parse(&flipped).map_or(true, |m| m == manifest), "bit {bit} of byte {at}");
        }
    }

    /// A checkpoint of version 0.1.0. All later versions must read it, and write the same bytes.
    #[test]
    fn a_checkpoint_of_version_0_1_0_is_read_and_written_unchanged() {
        let tensors = b"\xa8\0\0\0\0\0\0\0\
            {\"flag\":{\"data_offsets\":[16,17],\"dtype\":\"BOOL\",\"shape\":[1]},\
            \"n\":{\"data_offsets\":[0,8],\"dtype\":\"I64\",\"shape\":[]},\
            \"w\":{\"data_offsets\":[8,16],\"dtype\":\"F32\",\"shape\":[2]}}  \
            \xfe\xff\xff\xff\xff\xff\xff\xff\0\0\x80\x3f\0\0\0\xc0\x01";
        let state = b"{\"epoch\":1}\n";
        let manifest = r#"{
  "crc32c": 1589694657,
  "manifest": {
    "files": {
      "state.json": {
        "bytes": 12,
        "crc32c": 733695792
      },
      "tensors.safetensors": {
        "bytes": 193,
        "crc32c": 1477060743
      }
    },
    "format": 1,
    "global_step": 3,
    "saved_at": 1700000000,
    "sequence": 1
  }
}
"#;
        let folder = tempfile::tempdir().unwrap();
        let files = [(TENSORS, &tensors[..]), (STATE, state), (MANIFEST, manifest.as_bytes())];
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        let expected = Checkpoint {
            global_step: 3,
            tensors: vec![
                ("n".into(), HostTensor::scalar(-2i64)),
                ("w".into(), HostTensor::new([2], vec![1.0f32, -2.0]).unwrap()),
                ("flag".into(), HostTensor::new([1], vec![true]).unwrap()),
            ],
            input_tensors: Vec::new(),
            state: json!({"epoch": 1}),
        };
        assert_eq!(Checkpoint::load(folder.path()).unwrap(), expected);
        assert_eq!(Manifest::load(&RealDisk, folder.path()).unwrap().to_text(), manifest);
        let written = expected.encode(1).unwrap();
        for ((name, bytes), (written_name, parts)) in files[..2].iter().zip(&written) {
            assert_eq!((*name, &parts.concat()[..]), (*written_name, *bytes), "{name}");
        }
    }

    #[test]
    fn a_newer_format_is_unsupported() {
        let e = Manifest::parse(br#"{"manifest": {"format": 2}}"#).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(e.message().contains("format version 2"), "{e}");
    }
}
