//! Caching a pass on disk.

use crate::format::serialized::{decode, encode};
use crate::format::tfrecord::{TfRecord, TfRecordWriter};
use crate::indexed_reader::{SequentialReader, sample_error};
use crate::{DataFlow, Flow, IndexedReader, RandomAccess, Reader, Resume, Seed, State};
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tensorpack_tensor::{Error, Result};

/// The prefix of the first record.
const MAGIC: &[u8] = b"tensorpack cache 1\n";

/// Caches the samples of the input's first pass in a file: [`DataFlow::cache_on_disk`].
///
/// The file is written when the dataflow is first opened and gets its name only when it is
/// complete. A failed sample aborts writing. The file is rebuilt if its seed or number of samples
/// differs, or if it is truncated. Changes to the functions before the cache are not detected:
/// remove the file when they change. Every sample has a checksum; a corrupt one is an error.
///
/// The file consists of TFRecords: a header, one record per sample, and the sample count.
#[derive(Clone)]
#[doc(alias = "DiskCache")]
pub struct CacheOnDisk {
    inner: Flow,
    path: PathBuf,
    opened: Arc<Mutex<Option<(Seed, Samples)>>>,
}

impl CacheOnDisk {
    pub(crate) fn new(inner: impl DataFlow + 'static, path: PathBuf) -> CacheOnDisk {
        CacheOnDisk { inner: Arc::new(inner), path, opened: Arc::default() }
    }

    /// Returns the samples of the file, writing it first if necessary.
    fn samples(&self, seed: Seed) -> Result<Samples> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, samples)) = &*opened
            && *of == seed
        {
            return Ok(samples.clone());
        }
        let header = self.header(seed);
        let samples = match self.open_existing(&header)? {
            Some(samples) => samples,
            None => {
                self.write(seed, &header)
                    .map_err(|e| e.within(format!("the cache {}", self.path.display())))?;
                self.open_existing(&header)?.ok_or_else(|| {
                    Error::argument(format!(
                        "the cache {} was modified by another process",
                        self.path.display()
                    ))
                })?
            }
        };
        *opened = Some((seed, samples.clone()));
        Ok(samples)
    }

    /// Returns the first record, which identifies the cache.
    fn header(&self, seed: Seed) -> Vec<u8> {
        let size = self.inner.size().map_or("unknown".to_string(), |n| n.to_string());
        [MAGIC, format!("{seed:?}, size {size}").as_bytes()].concat()
    }

    /// Opens an existing file. A stale or incomplete cache is removed; a file that is not a cache
    /// is an error.
    fn open_existing(&self, header: &[u8]) -> Result<Option<Samples>> {
        if !self.path.exists() {
            return Ok(None);
        }
        let name = self.path.display();
        let (records, lost_bytes) = TfRecord::salvage(&self.path)?;
        let first = if records.is_empty() { Vec::new() } else { record(&records, 0)? };
        if !first.starts_with(MAGIC) {
            let why = format!(
                "{name} exists but is not a cache file (or its header is corrupt); it is not overwritten"
            );
            return Err(Error::argument(why).note("remove it, or choose another path"));
        }
        let count = records.len().saturating_sub(2);
        let complete = lost_bytes == 0 && record(&records, records.len() - 1)? == count.to_le_bytes();
        if complete && first == header {
            return Ok(Some(Samples { records, count }));
        }
        let why = if complete { "was built for a different seed or size" } else { "is incomplete" };
        // The reader may have closed the pipe.
        let _ = writeln!(std::io::stderr(), "rebuilding cache {name}: it {why}");
        fs::remove_file(&self.path).map_err(|e| Error::from(e).within(name))?;
        Ok(None)
    }

    fn write(&self, seed: Seed, header: &[u8]) -> Result<()> {
        let mut file = TfRecordWriter::create(&self.path)?;
        file.write(header)?;
        let mut reader = self.inner.open(seed, &State::start())?;
        let mut count = 0u64;
        while let Some(sample) = reader
            .read()
            .map_err(|e| e.note("add skip_errors() before the cache to skip samples that fail"))?
        {
            file.write(&encode(&sample)?)?;
            count += 1;
        }
        file.write(&count.to_le_bytes())?;
        file.finish()
    }
}

fn record(records: &TfRecord, index: u64) -> Result<Vec<u8>> {
    let sample = records.get(index)?;
    Ok(sample.first().map_or(&[][..], |bytes| bytes.as_bytes()).to_vec())
}

/// The records between header and count.
#[derive(Clone)]
struct Samples {
    records: TfRecord,
    count: u64,
}

impl Samples {
    fn indexed_reader(self) -> Arc<dyn IndexedReader> {
        Arc::new(move |epoch, index| {
            let read = self.records.get(index + 1).and_then(|record| decode(record[0].as_bytes()));
            read.map_err(|e| sample_error(e, epoch, index).note("remove the cache file to rebuild it"))
        })
    }
}

impl DataFlow for CacheOnDisk {
    fn size(&self) -> Option<u64> {
        self.inner.size()
    }

    fn resume(&self) -> Resume {
        Resume::Seek
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let samples = self.samples(seed)?;
        let count = samples.count;
        Ok(SequentialReader::open(samples.indexed_reader(), Some(count), at))
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        // Without a size it would count as infinite.
        if self.size().is_none() { Ok(None) } else { Ok(Some(self.samples(seed)?.indexed_reader())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FromFn, Sample};
    use std::sync::atomic::{AtomicU64, Ordering};
    use tensorpack_tensor::HostTensor;

    fn read(flow: &impl DataFlow, epoch: u64) -> Result<Vec<Sample>> {
        let mut reader = flow.open(Seed::new(4), &State::at(epoch, 0))?;
        std::iter::from_fn(|| reader.read().transpose()).collect()
    }

    #[test]
    fn cache_file_is_written_once_and_rebuilt_when_stale() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let made = Arc::new(AtomicU64::new(0));
        let flow = |size| {
            let counter = made.clone();
            let source = FromFn::new(size, move |i| {
                counter.fetch_add(1, Ordering::Relaxed);
                Ok(vec![HostTensor::scalar(i as i64), HostTensor::new([2], vec![0.5f32, i as f32])?])
            });
            source.map_random(|mut sample, rng| {
                sample.push(HostTensor::scalar(rng.uniform()));
                Ok(sample)
            })
        };
        let made = || made.swap(0, Ordering::Relaxed);
        let cached = flow(7).cache_on_disk(&path);
        let all = read(&cached, 3).unwrap();
        assert_eq!((made(), all.len()), (7, 7));
        assert_eq!(all, read(&flow(7), 0).unwrap());
        made();
        // A second process would find the file too.
        assert_eq!((read(&flow(7).cache_on_disk(&path), 0).unwrap(), made()), (all.clone(), 0));
        let mut reader = cached.clone().shuffle().open(Seed::new(4), &State::at(2, 6)).unwrap();
        assert!(reader.read().unwrap().is_some() && reader.read().unwrap().is_none());
        made();
        // A different seed (the shuffle's) rebuilt the file. So do a different size and a truncated
        // file.
        assert_eq!((read(&flow(7).cache_on_disk(&path), 0).unwrap(), made()), (all.clone(), 7));
        assert_eq!((read(&flow(5).cache_on_disk(&path), 0).unwrap().len(), made()), (5, 5));
        read(&flow(7).cache_on_disk(&path), 0).unwrap();
        made();
        let whole = fs::read(&path).unwrap();
        for cut in [whole.len() - 1, whole.len() - 24, whole.len() - 60] {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!((read(&flow(7).cache_on_disk(&path), 0).unwrap(), made()), (all.clone(), 7));
            assert_eq!(fs::read(&path).unwrap(), whole);
        }
    }

    #[test]
    fn corrupt_and_foreign_files_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let flow =
            || FromFn::new(3, |i| Ok(vec![HostTensor::new([50], vec![i as f32; 50])?])).cache_on_disk(&path);
        read(&flow(), 0).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let mut reader = flow().open(Seed::new(4), &State::start()).unwrap();
        assert!(reader.read().is_ok());
        let e = reader.read().unwrap_err().to_string();
        assert!(
            e.starts_with("sample 1 of epoch 0: ") && e.contains("cache") && e.contains("checksum"),
            "{e}"
        );
        assert!(e.ends_with("remove the cache file to rebuild it"), "{e}");
        assert!(reader.read().is_ok_and(|sample| sample.is_some()));

        fs::write(&path, b"a letter").unwrap();
        let e = read(&flow(), 0).unwrap_err();
        assert!(e.message().contains("not a cache"), "{e}");
        assert_eq!(fs::read(&path).unwrap(), b"a letter");
    }

    #[test]
    fn failed_sample_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let flow = FromFn::new(3, |i| {
            if i == 1 { Err(Error::argument("bad")) } else { Ok(vec![HostTensor::scalar(i as i64)]) }
        });
        let e = read(&flow.clone().cache_on_disk(&path), 0).unwrap_err();
        assert!(e.message().ends_with("sample 1 of epoch 0: bad"), "{e}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(read(&flow.skip_errors(1).cache_on_disk(&path), 0).unwrap().len(), 2);
    }
}
