//! A cache of compiled programs on disk, so that a program starts again without compiling.
//!
//! An entry is a file that is named after a hash of everything the compiler's result depends on, and
//! that holds the plugin's serialized executable with a checksum. Anything that goes wrong here (a
//! full disk, a folder that cannot be written, a damaged entry, a plugin that does not serialize) only
//! means that the program is compiled. Processes share the folder without locks: entries are written
//! to a temporary file and renamed.

use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tensorpack_pjrt::{Client, CompileOptions, Executable, plugin_folder};
use tensorpack_tensor::{Error, Result};

/// The environment variable with the size limit in bytes.
const LIMIT_VARIABLE: &str = "TENSORPACK_COMPILE_CACHE_BYTES";
/// The default size limit in bytes.
const DEFAULT_LIMIT: u64 = 2 << 30;
/// Programs that compile faster than this are not stored: reading them back would save little, and
/// they would displace those that matter.
const MIN_COMPILE_TIME: Duration = Duration::from_millis(200);
/// The first bytes of an entry. The number is the version of the format and of the key.
const MAGIC: &[u8; 24] = b"tensorpack-executable 1\n";
/// The bytes of an entry before the executable: magic, key, compile time, length, checksum.
const HEADER: usize = MAGIC.len() + 32 + 8 + 8 + 32;
const EXTENSION: &str = "xla";
/// Temporary files that are older than this were left behind by a process that died.
const ABANDONED: Duration = Duration::from_secs(3600);
/// The environment variables that change what plugins compile, or which libraries they load.
const VARIABLES: [&str; 2] = ["XLA_FLAGS", "LD_LIBRARY_PATH"];

/// The cache of one session.
#[derive(Debug)]
pub(super) struct CompileCache {
    folder: PathBuf,
    /// The most bytes that all entries may take up together.
    limit: u64,
    min_compile_time: Duration,
}

/// A program from the cache.
pub(super) struct Cached {
    pub(super) executable: Executable,
    /// The time that its compilation took.
    pub(super) compile_time: Duration,
}

/// The hash of everything that a compiled program depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key([u8; 32]);

impl Key {
    /// Returns the key of a module that a client compiles with these options. Returns `None` if the
    /// client does not tell which version of which plugin it is.
    pub(super) fn new(client: &Client, module: &str, options: &CompileOptions) -> Option<Key> {
        let plugin = client.plugin();
        let file = fs::metadata(plugin.path()).ok()?;
        let (major, minor) = plugin.api_version();
        let (platform, version) = (client.platform_name().ok()?, client.platform_version().ok()?);
        let mut hasher = Sha256::new();
        // Each part is preceded by its length, so that different lists of parts never look the same.
        let mut part = |bytes: &[u8]| {
            hasher.update((bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        part(MAGIC);
        part(module.as_bytes());
        // The options include the ids of the devices.
        part(&options.encode().ok()?);
        part(plugin.path().file_name()?.as_encoded_bytes());
        part(&file.len().to_le_bytes());
        part(format!("{major}.{minor}").as_bytes());
        part(platform.as_bytes());
        part(version.as_bytes());
        part(&(client.devices().len() as u64).to_le_bytes());
        client.devices().iter().for_each(|device| part(device.kind().as_bytes()));
        for name in VARIABLES {
            part(std::env::var_os(name).as_deref().unwrap_or(OsStr::new("")).as_encoded_bytes());
        }
        // XLA's CPU plugin compiles for the instructions of this processor.
        processor().iter().for_each(|line| part(line.as_bytes()));
        Some(Key(hasher.finalize().into()))
    }

    fn file_name(&self) -> String {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{hex}.{EXTENSION}")
    }
}

/// Returns the lines that describe the first processor of this machine, if the system tells.
fn processor() -> &'static [String] {
    const FIELDS: [&str; 8] =
        ["vendor_id", "cpu family", "model", "stepping", "flags", "CPU implementer", "CPU part", "Features"];
    static LINES: OnceLock<Vec<String>> = OnceLock::new();
    LINES.get_or_init(|| {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let first = text.lines().take_while(|line| !line.trim().is_empty());
        let is_told = |line: &&str| line.split(':').next().is_some_and(|name| FIELDS.contains(&name.trim()));
        first.filter(is_told).map(str::to_string).collect()
    })
}

impl CompileCache {
    /// Returns the cache with this size limit in bytes. The limit defaults to the one in the
    /// environment, and that to 2 GiB. Returns `None` if the limit is 0, or if the user has no folder
    /// for data. Returns an error if the environment variable is not a number.
    pub(super) fn open(limit: Option<u64>) -> Result<Option<CompileCache>> {
        let limit = match limit {
            Some(limit) => limit,
            None => match std::env::var_os(LIMIT_VARIABLE).filter(|text| !text.is_empty()) {
                None => DEFAULT_LIMIT,
                Some(text) => parse_limit(&text.to_string_lossy())?,
            },
        };
        let folder = plugin_folder().ok().filter(|_| limit > 0);
        Ok(folder.map(|plugins| CompileCache {
            folder: plugins.with_file_name("compiled"),
            limit,
            min_compile_time: MIN_COMPILE_TIME,
        }))
    }

    /// Loads a program. Returns `None` if there is no valid entry for it.
    pub(super) fn load(&self, key: &Key, client: &Client, options: &CompileOptions) -> Option<Cached> {
        let path = self.folder.join(key.file_name());
        let (serialized, compile_time) = match read_entry(&path, key) {
            Ok(entry) => entry,
            Err(e) => {
                if e.kind() != io::ErrorKind::NotFound {
                    log::debug!("the cached program {} cannot be read: {e}", path.display());
                }
                return None;
            }
        };
        // SAFETY: the key in the entry says that this version of the plugin serialized the program, and
        // the checksum that the bytes are unchanged. Only the user can write to the folder, which lies
        // beside the plugins themselves.
        let executable = unsafe { client.deserialize(&serialized) };
        match executable {
            Ok(executable) if executable.device_ids() == options.device_ids() => {
                // The time of the last use. If it cannot be written, the entry is removed earlier.
                let _ =
                    File::options().write(true).open(&path).and_then(|f| f.set_modified(SystemTime::now()));
                Some(Cached { executable, compile_time })
            }
            Ok(other) => {
                let ids = other.device_ids();
                log::debug!("the cached program {} is for the devices {ids:?}", path.display());
                None
            }
            Err(e) => {
                log::debug!("the cached program {} cannot be loaded: {e}", path.display());
                None
            }
        }
    }

    /// Stores a program that took `compile_time` to compile, and removes the entries that were not
    /// used for the longest time if there are too many.
    pub(super) fn store(&self, key: &Key, executable: &Executable, compile_time: Duration) {
        static REFUSED: AtomicBool = AtomicBool::new(false);
        if compile_time < self.min_compile_time {
            return;
        }
        let serialized = match executable.serialize() {
            Ok(serialized) => serialized,
            Err(e) => {
                if !REFUSED.swap(true, Ordering::Relaxed) {
                    log::debug!("compiled programs are not cached: {e}");
                }
                return;
            }
        };
        if let Err(e) = self.write_entry(key, &serialized, compile_time) {
            log::debug!("a compiled program cannot be cached in {}: {e}", self.folder.display());
        }
    }

    fn write_entry(&self, key: &Key, serialized: &[u8], compile_time: Duration) -> io::Result<()> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let length = (HEADER + serialized.len()) as u64;
        if length > self.limit {
            return Err(io::Error::other(format!("it takes {length} bytes, more than the size limit")));
        }
        fs::create_dir_all(&self.folder)?;
        // Make room first, so that a disk that is nearly full can take the entry.
        self.remove_oldest(self.limit - length)?;
        let counter = COUNTER.fetch_add(1, Ordering::Relaxed);
        let temporary = self.folder.join(format!("{}.{}-{counter}.tmp", key.file_name(), process::id()));
        let mut header = Vec::with_capacity(HEADER);
        header.extend(MAGIC);
        header.extend(key.0);
        header.extend((compile_time.as_millis() as u64).to_le_bytes());
        header.extend((serialized.len() as u64).to_le_bytes());
        header.extend(Sha256::digest(serialized));
        let write = || {
            // An entry that does not survive a power failure is found damaged, and is compiled again.
            let mut file = File::options().write(true).create_new(true).open(&temporary)?;
            file.write_all(&header)?;
            file.write_all(serialized)?;
            drop(file);
            fs::rename(&temporary, self.folder.join(key.file_name()))
        };
        write().inspect_err(|_| {
            // It may not exist.
            let _ = fs::remove_file(&temporary);
        })
    }

    /// Removes entries, those first that were not used for the longest time, until the rest takes up
    /// at most `bytes`. Also removes temporary files that were left behind.
    fn remove_oldest(&self, bytes: u64) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            // Another process may remove files at the same time.
            let Ok((path, metadata)) = entry.and_then(|e| Ok((e.path(), e.metadata()?))) else { continue };
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            match path.extension().and_then(OsStr::to_str) {
                Some(EXTENSION) if metadata.is_file() => entries.push((used, metadata.len(), path)),
                Some("tmp") if used.elapsed().is_ok_and(|age| age > ABANDONED) => {
                    let _ = fs::remove_file(&path);
                }
                _ => {}
            }
        }
        entries.sort();
        let mut total: u64 = entries.iter().map(|(_, length, _)| length).sum();
        for (_, length, path) in entries {
            if total <= bytes {
                break;
            }
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => total -= length,
            }
        }
        Ok(())
    }
}

fn parse_limit(text: &str) -> Result<u64> {
    text.trim().parse().map_err(|_| {
        Error::argument(format!("{LIMIT_VARIABLE}={text:?} is not a number of bytes"))
            .note("0 turns off the cache of compiled programs")
    })
}

/// Reads an entry. Returns the serialized program and its compile time, or an error if the entry is
/// damaged or belongs to another key.
fn read_entry(path: &Path, key: &Key) -> io::Result<(Vec<u8>, Duration)> {
    let damaged = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_string());
    let mut file = File::open(path)?;
    let mut header = [0; HEADER];
    file.read_exact(&mut header)?;
    let (magic, rest) = header.split_at(MAGIC.len());
    let (found, rest) = rest.split_at(32);
    let (time, rest) = rest.split_at(8);
    let (length, checksum) = rest.split_at(8);
    if magic != MAGIC || found != key.0 {
        return Err(damaged("it is not an entry for this program"));
    }
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    // Before the allocation, because a damaged length may be huge.
    if file.metadata()?.len() != (HEADER as u64).saturating_add(number(length)) {
        return Err(damaged("its length is wrong"));
    }
    let mut serialized = Vec::with_capacity(number(length) as usize);
    file.read_to_end(&mut serialized)?;
    if Sha256::digest(&serialized)[..] != *checksum {
        return Err(damaged("its checksum is wrong"));
    }
    Ok((serialized, Duration::from_millis(number(time))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use tensorpack_pjrt::OptionValue;
    use tensorpack_tensor::HostTensor;

    const LONG: Duration = Duration::from_secs(120);

    fn client() -> Option<Client> {
        let plugin = tensorpack_testing::plugin_for_tests("cpu")?;
        Some(Client::new(&plugin, &[("cpu_device_count", OptionValue::Int(2))]).unwrap())
    }

    fn cache(folder: &Path, limit: u64) -> CompileCache {
        CompileCache { folder: folder.join("compiled"), limit, min_compile_time: Duration::ZERO }
    }

    /// A module that multiplies by `factor`.
    fn module(factor: usize) -> String {
        format!(
            "module @m {{
              func.func public @main(%x: tensor<f32>) -> tensor<f32> {{
                %c = stablehlo.constant dense<{factor}.0> : tensor<f32>
                %y = stablehlo.multiply %x, %c : tensor<f32>
                return %y : tensor<f32>
              }}
            }}"
        )
    }

    fn on(device: i64) -> CompileOptions {
        CompileOptions::new().devices([device])
    }

    fn run(client: &Client, executable: &Executable, device: usize) -> f32 {
        let x = client.upload(&HostTensor::scalar(3f32), &client.devices()[device]).unwrap();
        let y = executable.execute(&[vec![&x]]).unwrap().outputs[0][0].download(LONG).unwrap();
        y.as_slice::<f32>().unwrap()[0]
    }

    /// Compiles and stores a program. Returns its key.
    fn store(cache: &CompileCache, client: &Client, factor: usize, options: &CompileOptions) -> Key {
        let module = module(factor);
        let key = Key::new(client, &module, options).unwrap();
        cache.store(&key, &client.compile(&module, options).unwrap(), Duration::from_millis(1234));
        key
    }

    fn files(cache: &CompileCache) -> Vec<PathBuf> {
        let entries = fs::read_dir(&cache.folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn a_stored_program_is_loaded_on_its_device() {
        let (Some(client), Some(other)) = (client(), client()) else { return };
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path(), DEFAULT_LIMIT);
        for device in [0, 1] {
            let key = Key::new(&client, &module(5), &on(device)).unwrap();
            assert!(cache.load(&key, &client, &on(device)).is_none());
            assert_eq!(store(&cache, &client, 5, &on(device)), key);
            let loaded = cache.load(&key, &other, &on(device)).unwrap();
            assert_eq!(loaded.compile_time, Duration::from_millis(1234));
            assert_eq!(run(&other, &loaded.executable, device as usize), 15.0);
            // The entry is not for other devices.
            assert!(cache.load(&key, &other, &on(1 - device)).is_none());
        }
        assert_eq!(files(&cache).len(), 2);
    }

    #[test]
    fn everything_that_a_program_depends_on_changes_its_key() {
        let Some(client) = client() else { return };
        let plugin = client.plugin().clone();
        let three = Client::new(&plugin, &[("cpu_device_count", OptionValue::Int(3))]).unwrap();
        let key = |client: &Client, factor, options: &CompileOptions| {
            Key::new(client, &module(factor), options).unwrap()
        };
        let first = key(&client, 2, &on(0));
        assert_eq!(first, key(&client, 2, &on(0)));
        assert_ne!(first, key(&client, 3, &on(0)));
        assert_ne!(first, key(&client, 2, &on(1)));
        assert_ne!(first, key(&client, 2, &on(0).setting("xla_allow_excess_precision", false)));
        assert_ne!(first, key(&three, 2, &on(0)));
        if cfg!(target_os = "linux") {
            assert!(!processor().is_empty());
        }
    }

    /// Every byte of an entry is covered: whatever is damaged, the entry is not used, and the next
    /// store replaces it.
    #[test]
    fn a_damaged_entry_is_not_loaded_and_is_replaced() {
        let Some(client) = client() else { return };
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path(), DEFAULT_LIMIT);
        let key = store(&cache, &client, 7, &on(0));
        let [path] = &files(&cache)[..] else { panic!("there is one entry") };
        let good = fs::read(path).unwrap();
        let loads = || cache.load(&key, &client, &on(0)).map(|c| run(&client, &c.executable, 0));
        assert_eq!(loads(), Some(21.0));
        let middle = HEADER + (good.len() - HEADER) / 2;
        // The compile time, which is only logged, is not checked.
        let time = MAGIC.len() + 32..MAGIC.len() + 40;
        for at in (0..HEADER).filter(|at| !time.contains(at)).chain([HEADER, middle, good.len() - 1]) {
            let mut damaged = good.clone();
            damaged[at] ^= 0x10;
            fs::write(path, damaged).unwrap();
            assert_eq!(loads(), None, "byte {at}");
        }
        let longer = [&good[..], &[0]].concat();
        for damaged in [&good[..0], &good[..HEADER - 1], &good[..HEADER], &good[..good.len() - 1], &longer] {
            fs::write(path, damaged).unwrap();
            assert_eq!(loads(), None, "{} bytes", damaged.len());
        }
        // The entry of another program under this name.
        let other = store(&cache, &client, 8, &on(0));
        fs::copy(cache.folder.join(other.file_name()), path).unwrap();
        assert_eq!(loads(), None);
        // A valid entry whose content the plugin does not understand.
        cache.write_entry(&key, b"not a program", Duration::ZERO).unwrap();
        assert_eq!(loads(), None);
        store(&cache, &client, 7, &on(0));
        assert_eq!(loads(), Some(21.0));
    }

    #[test]
    fn the_least_recently_used_entries_are_removed() {
        let Some(client) = client() else { return };
        let dir = tempfile::tempdir().unwrap();
        let unlimited = cache(dir.path(), DEFAULT_LIMIT);
        let keys = [1, 2, 3].map(|factor| store(&unlimited, &client, factor, &on(0)));
        let path = |key: &Key| unlimited.folder.join(key.file_name());
        // Entries differ in size by a few bytes.
        let size = |key: &Key| fs::metadata(path(key)).unwrap().len();
        let largest = keys.iter().map(size).max().unwrap();
        let set_age = |path: &Path, seconds: u64| {
            let then = SystemTime::now() - Duration::from_secs(seconds);
            File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
        };
        // The first was stored before the others, but is used now.
        for (key, age) in keys.iter().zip([3000, 2000, 1000]) {
            set_age(&path(key), age);
        }
        assert!(unlimited.load(&keys[0], &client, &on(0)).is_some());
        let abandoned = unlimited.folder.join("a.tmp");
        let being_written = unlimited.folder.join("b.tmp");
        let foreign = unlimited.folder.join("notes.txt");
        for file in [&abandoned, &being_written, &foreign] {
            fs::write(file, "x").unwrap();
        }
        set_age(&abandoned, 4000);
        // Room for three and a half.
        let limited = cache(dir.path(), largest * 7 / 2);
        let fourth = store(&limited, &client, 4, &on(0));
        let there = [keys[0], keys[1], keys[2], fourth].map(|key| path(&key).exists());
        assert_eq!(there, [true, false, true, true]);
        assert_eq!([&abandoned, &being_written, &foreign].map(|f| f.exists()), [false, true, true]);
        // An entry that is larger than the limit is not stored, and removes nothing.
        let small = cache(dir.path(), largest / 2);
        let fifth = store(&small, &client, 5, &on(0));
        assert!(!path(&fifth).exists() && path(&fourth).exists());
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_no_error() {
        let Some(client) = client() else { return };
        let dir = tempfile::tempdir().unwrap();
        // A file is where the folder should be; root may write to folders that are read-only.
        fs::write(dir.path().join("compiled"), "").unwrap();
        let blocked = cache(dir.path(), DEFAULT_LIMIT);
        let key = store(&blocked, &client, 2, &on(0));
        assert!(blocked.load(&key, &client, &on(0)).is_none());
        let e = blocked.write_entry(&key, &[1], Duration::ZERO).unwrap_err();
        assert_ne!(e.kind(), io::ErrorKind::NotFound);
        // What was written before a failure is removed.
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path(), DEFAULT_LIMIT);
        let name = cache.folder.join(key.file_name());
        fs::create_dir_all(name.join("in the way")).unwrap();
        assert!(cache.write_entry(&key, &[1], Duration::ZERO).is_err());
        assert_eq!(files(&cache), [name]);
    }

    /// Several writers and readers of one entry, with eviction: a reader finds the whole program or
    /// none.
    #[test]
    fn concurrent_stores_and_loads_see_whole_entries() {
        let Some(client) = client() else { return };
        let dir = tempfile::tempdir().unwrap();
        let key = Key::new(&client, &module(9), &on(0)).unwrap();
        let executable = client.compile(&module(9), &on(0)).unwrap();
        let size = HEADER as u64 + executable.serialize().unwrap().len() as u64;
        let other = Key([1; 32]);
        let found = AtomicU64::new(0);
        thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    // Room for one entry, so that each store removes the other one.
                    let cache = cache(dir.path(), size);
                    for _ in 0..30 {
                        cache.store(&key, &executable, LONG);
                        cache.store(&other, &executable, LONG);
                    }
                });
                s.spawn(|| {
                    let cache = cache(dir.path(), size);
                    for _ in 0..30 {
                        if let Some(cached) = cache.load(&key, &client, &on(0)) {
                            assert_eq!(run(&client, &cached.executable, 0), 27.0);
                            found.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let cache = cache(dir.path(), size);
        cache.store(&key, &executable, LONG);
        assert!(cache.load(&key, &client, &on(0)).is_some());
        let left: Vec<PathBuf> =
            files(&cache).into_iter().filter(|path| path.extension() == Some(OsStr::new("tmp"))).collect();
        assert!(left.is_empty(), "{left:?}; {found:?} loads found the entry");
    }

    #[test]
    fn fast_compilations_are_not_stored() {
        let Some(client) = client() else { return };
        let dir = tempfile::tempdir().unwrap();
        let cache = CompileCache { min_compile_time: LONG, ..cache(dir.path(), DEFAULT_LIMIT) };
        store(&cache, &client, 2, &on(0));
        assert!(files(&cache).is_empty());
    }

    #[test]
    fn the_limit_is_a_number_of_bytes() {
        assert_eq!(parse_limit(" 4096 ").unwrap(), 4096);
        for text in ["2GiB", "-1", "x"] {
            let e = parse_limit(text).unwrap_err();
            assert_eq!(e.kind(), tensorpack_tensor::ErrorKind::Argument);
            assert!(e.message().contains(LIMIT_VARIABLE) && e.message().contains(text), "{e}");
        }
        assert!(CompileCache::open(Some(0)).unwrap().is_none());
        assert_eq!(CompileCache::open(Some(5)).unwrap().unwrap().limit, 5);
    }
}
