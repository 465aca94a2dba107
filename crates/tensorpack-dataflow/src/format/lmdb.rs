//! LMDB databases (cargo feature `lmdb`).
//!
//! The C library maps the file into memory without validating it. Only open files from sources you
//! trust.

use super::RandomAccess;
use super::check_index::check_index;
use super::serialized::{Serialized, decode, encode, for_each_sample};
use crate::{DataFlow, Sample};
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, MdbError, RoTxn, WithoutTls};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// The key of the key list that [`save`] writes.
const KEYS: &[u8] = b"__keys__";
/// Approximate size of a write transaction in bytes.
const BATCH: usize = 1 << 24;

/// The entries of a database. A sample is `[key, value]`, both u8.
#[derive(Clone)]
#[doc(alias = "LMDBData")]
pub struct Lmdb {
    env: Arc<Env<WithoutTls>>,
    name: String,
    keys: Arc<[Box<[u8]>]>,
}

impl Lmdb {
    /// Opens the database at `path`, a file or a directory with `data.mdb`.
    ///
    /// Entries are in the order of the list under `__keys__` if [`save`] wrote it. Otherwise they
    /// are in key order, which takes one scan of the database.
    pub fn open(path: impl AsRef<Path>) -> Result<Lmdb> {
        let path = path.as_ref();
        let within = |e| lmdb_error(e, path);
        let env = shared_env(path)?;
        let keys = list_keys(&env).map_err(within)?;
        Ok(Lmdb { env, name: path.display().to_string(), keys: keys.into() })
    }

    /// Returns the keys.
    pub fn keys(&self) -> &[Box<[u8]>] {
        &self.keys
    }
}

impl RandomAccess for Lmdb {
    fn len(&self) -> u64 {
        self.keys.len() as u64
    }

    fn get(&self, index: u64) -> Result<Sample> {
        let key = &self.keys[check_index(index, self.keys.len())?];
        let value = (|| {
            let txn = self.env.read_txn()?;
            let value = entries(&self.env, &txn)?.map(|db| db.get(&txn, key).map(|v| v.map(<[u8]>::to_vec)));
            Ok(value.transpose()?.flatten())
        })();
        let value = value.map_err(|e| lmdb_error(e, Path::new(&self.name)))?.ok_or_else(|| {
            let why = format!("{}: no entry with key {}", self.name, key.escape_ascii());
            Error::new(ErrorKind::Data, why)
        })?;
        Ok(vec![HostTensor::new([key.len()], key.to_vec())?, HostTensor::new([value.len()], value)?])
    }
}

/// Saves one pass of a dataflow to a new single-file database and returns the number of samples.
/// Keys are eight-digit sample indices.
#[doc(alias = "LMDBSerializer")]
pub fn save(flow: &dyn DataFlow, path: impl AsRef<Path>) -> Result<u64> {
    let path = path.as_ref();
    if path.exists() {
        let why = format!("{} already exists and would be overwritten", path.display());
        return Err(Error::argument(why).note("remove it, or choose another path"));
    }
    let within = |e| lmdb_error(e, path);
    let partial = PartialFile::new(path).map_err(|e| Error::from(e).within(path.display()))?;
    // No lock: nobody else sees the file before it is renamed. It is synced once, at the end.
    let env = open_env(&partial.0, EnvFlags::NO_LOCK | EnvFlags::NO_SYNC, BATCH).map_err(within)?;
    let (mut batch, mut bytes) = (Vec::new(), 0);
    let (mut keys, mut ends) = (Vec::<u8>::new(), Vec::new());
    let count = for_each_sample(flow, |sample| {
        let key = format!("{:08}", ends.len()).into_bytes();
        keys.extend(&key);
        ends.push(keys.len() as i64);
        let value = encode(&sample)?;
        bytes += value.len();
        batch.push((key, value));
        if bytes > BATCH {
            write_batch(&env, &batch).map_err(within)?;
            (batch, bytes) = (Vec::new(), 0);
        }
        Ok(())
    })?;
    let list = [HostTensor::new([keys.len()], keys)?, HostTensor::new([ends.len()], ends)?];
    batch.push((KEYS.to_vec(), encode(&list)?));
    write_batch(&env, &batch).and_then(|()| env.force_sync()).map_err(within)?;
    env.prepare_for_closing().wait();
    fs::rename(&partial.0, path).map_err(|e| Error::from(e).within(path.display()))?;
    Ok(count)
}

/// Opens samples written by [`save`].
pub fn load(path: impl AsRef<Path>) -> Result<Serialized<Lmdb>> {
    let records = Lmdb::open(path)?;
    let name = records.name.clone();
    Ok(Serialized::new(records, name))
}

/// A temporary file that is removed on drop unless it has been renamed.
struct PartialFile(PathBuf);

impl PartialFile {
    /// Creates an empty file beside `path`. It is new: LMDB does not validate what it maps, and
    /// what a killed process with the same id left behind may be damaged.
    fn new(path: &Path) -> io::Result<PartialFile> {
        let (name, id) = (path.file_name().unwrap_or_default().to_string_lossy(), std::process::id());
        let mut attempt = 0u64;
        loop {
            let partial = path.with_file_name(format!(".{name}.{id}.{attempt}.partial"));
            match fs::File::create_new(&partial) {
                Ok(_) => return Ok(PartialFile(partial)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => attempt += 1,
                Err(e) => return Err(e),
            }
        }
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // After `save` there is no such file, and an error in a destructor helps nobody.
        let _ = fs::remove_file(&self.0);
    }
}

/// Opens a database for reading. LMDB allows one environment per process and file, so readers share
/// it.
fn shared_env(path: &Path) -> Result<Arc<Env<WithoutTls>>> {
    static OPEN: Mutex<Vec<(PathBuf, Weak<Env<WithoutTls>>)>> = Mutex::new(Vec::new());
    let io = |e| Error::from(e).within(path.display());
    let file = data_file(path).canonicalize().map_err(io)?;
    let meta = fs::metadata(&file).map_err(io)?;
    if !meta.is_file() {
        // Opening a pipe would wait for a writer.
        return Err(Error::argument(format!("{} is not a regular file", file.display())));
    }
    let size = meta.len();
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|(_, env)| env.strong_count() > 0);
    if let Some(env) = open.iter().find(|(f, _)| *f == file).and_then(|(_, env)| env.upgrade()) {
        return Ok(env);
    }
    let env = open_env(path, EnvFlags::READ_ONLY | EnvFlags::NO_LOCK, size as usize);
    let env = Arc::new(env.map_err(|e| lmdb_error(e, path))?);
    open.push((file, Arc::downgrade(&env)));
    Ok(env)
}

fn open_env(path: &Path, flags: EnvFlags, size: usize) -> heed::Result<Env<WithoutTls>> {
    let flags = if path.is_dir() { flags } else { flags | EnvFlags::NO_SUB_DIR };
    // The map size must be a multiple of the page size, which is at most 64 KiB.
    let size = size.next_multiple_of(1 << 16).max(1 << 20);
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    // SAFETY: a file opened for reading must not be modified meanwhile, as the module documentation
    // requires, and `shared_env` opens it once. `PartialFile::new` has just created the file opened
    // for writing, so nobody else knows its name.
    unsafe { options.flags(flags).map_size(size).open(path) }
}

fn entries(env: &Env<WithoutTls>, txn: &RoTxn<'_>) -> heed::Result<Option<Database<Bytes, Bytes>>> {
    env.open_database(txn, None)
}

fn list_keys(env: &Env<WithoutTls>) -> heed::Result<Vec<Box<[u8]>>> {
    let txn = env.read_txn()?;
    let Some(db) = entries(env, &txn)? else { return Ok(Vec::new()) };
    // Other programs store a list in their own format there; ignore it.
    if let Some(keys) = db.get(&txn, KEYS)?.and_then(parse_keys) {
        return Ok(keys);
    }
    let keys = db.iter(&txn)?.map(|entry| entry.map(|(key, _)| key));
    keys.filter(|key| !matches!(key, Ok(KEYS))).map(|key| key.map(Box::from)).collect()
}

/// Parses the list under `__keys__`: a sample of the concatenated keys and their end offsets.
fn parse_keys(list: &[u8]) -> Option<Vec<Box<[u8]>>> {
    let list = decode(list).ok()?;
    let [keys, ends] = &list[..] else { return None };
    let (keys, ends) = (keys.as_slice::<u8>().ok()?, ends.as_slice::<i64>().ok()?);
    let mut start = 0;
    let key = |&end: &i64| {
        let end = usize::try_from(end).ok()?;
        let key = keys.get(start..end)?;
        start = end;
        Some(key.into())
    };
    ends.iter().map(key).collect()
}

/// Writes a batch in one transaction, growing the map as needed.
fn write_batch(env: &Env<WithoutTls>, batch: &[(Vec<u8>, Vec<u8>)]) -> heed::Result<()> {
    loop {
        let written = (|| {
            let mut txn = env.write_txn()?;
            let db: Database<Bytes, Bytes> = env.create_database(&mut txn, None)?;
            batch.iter().try_for_each(|(key, value)| db.put(&mut txn, key, value))?;
            txn.commit()
        })();
        match written {
            Err(heed::Error::Mdb(MdbError::MapFull)) => {
                // SAFETY: the failed transaction has ended with the closure above, and no other one
                // is open: `save` shares its environment with nobody.
                unsafe { env.resize(2 * env.info().map_size)? }
            }
            other => return other,
        }
    }
}

fn data_file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("data.mdb") } else { path.to_path_buf() }
}

fn lmdb_error(error: heed::Error, path: &Path) -> Error {
    Error::new(ErrorKind::Io, format!("{}: LMDB: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FromList;
    use crate::format::assert_round_trip;

    #[test]
    fn samples_round_trip() {
        assert_round_trip(save, load);
    }

    #[test]
    fn keys_are_eight_digits_and_the_map_grows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.lmdb");
        let sample = |i: usize| vec![HostTensor::new([1 << 20], vec![i as u8; 1 << 20]).unwrap()];
        save(&FromList::new((0..40).map(sample).collect()), &path).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing but the file is left");
        let raw = Lmdb::open(&path).unwrap();
        assert_eq!(Lmdb::open(&path).unwrap().len(), 40, "opened twice");
        assert_eq!(raw.len(), 40);
        assert_eq!(&*raw.keys()[39], b"00000039");
        let entry = raw.get(7).unwrap();
        assert_eq!(entry[0].as_slice::<u8>().unwrap(), b"00000007");
        assert_eq!(decode(entry[1].as_slice().unwrap()).unwrap(), sample(7));
    }

    /// Process ids repeat, in containers above all.
    #[test]
    fn what_a_killed_process_left_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.lmdb");
        let left = dir.path().join(format!(".a.lmdb.{}.0.partial", std::process::id()));
        fs::write(&left, vec![7; 1 << 16]).unwrap();
        let samples = vec![vec![HostTensor::new([2], vec![1u8, 2]).unwrap()]];
        assert_eq!(save(&FromList::new(samples.clone()), &path).unwrap(), 1);
        assert_eq!(load(&path).unwrap().get(0).unwrap(), samples[0]);
    }

    #[test]
    fn without_a_key_list_all_entries_are_scanned() {
        let dir = tempfile::tempdir().unwrap();
        let env = open_env(dir.path(), EnvFlags::empty(), 0).unwrap();
        let entries = [(&b"b"[..], &b"2"[..]), (b"a", b"1"), (KEYS, b"a pickled list")];
        write_batch(&env, &entries.map(|(k, v)| (k.to_vec(), v.to_vec()))).unwrap();
        env.prepare_for_closing().wait();
        let raw = Lmdb::open(dir.path()).unwrap();
        let keys: Vec<_> = raw.keys().iter().map(|k| &k[..]).collect();
        assert_eq!(keys, [b"a", b"b"]);
        assert!(Lmdb::open(dir.path().join("missing")).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("data.mdb");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [dir.path(), &pipe] {
            let e = Lmdb::open(path).err().unwrap();
            assert!(e.message().contains("not a regular file"), "{e}");
        }
    }
}
