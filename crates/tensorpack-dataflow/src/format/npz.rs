//! NumPy `.npz` files: named arrays in a zip archive, stored or compressed (`savez_compressed`).

use super::check_index::check_index;
use super::gzip::MAX_DECOMPRESSED;
use super::npy;
use super::serialized::{Serialized, encode, for_each_sample};
use super::zip_archive::{ZipWriter, for_each_entry};
use super::{ByteSource, RandomAccess, Rows};
use crate::{DataFlow, Sample};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// Reads all arrays of the file at `path` by name. Together they may take 4 GiB decompressed, or
/// the length of the file if that is more.
pub fn read(path: impl AsRef<Path>) -> Result<BTreeMap<String, HostTensor>> {
    let source = ByteSource::open(path)?;
    let max = source.len().max(MAX_DECOMPRESSED);
    parse(source, max)
}

/// Reads all arrays of the file at `path`, limited to `max` bytes decompressed. A small file can
/// expand to a lot of zeros.
#[doc(alias = "read_up_to")]
pub fn read_with_limit(path: impl AsRef<Path>, max: u64) -> Result<BTreeMap<String, HostTensor>> {
    parse(ByteSource::open(path)?, max)
}

/// Parses all arrays in `source`, limited to `max` bytes decompressed.
pub fn parse(source: ByteSource, max: u64) -> Result<BTreeMap<String, HostTensor>> {
    let mut left = max;
    let mut arrays = BTreeMap::new();
    for_each_entry(&source, |entry| {
        let file_name = entry.name().to_string();
        let bytes = entry.read(left).map_err(|e| match e.kind() {
            ErrorKind::Memory => e.note("raise the limit with npz::read_with_limit"),
            _ => e,
        })?;
        left -= bytes.len() as u64;
        let name = file_name.strip_suffix(".npy").unwrap_or(&file_name);
        let array = npy::decode(&bytes).map_err(|e| e.within(format!("{}, {name}", source.name())))?;
        arrays.insert(name.to_string(), array);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(arrays)
}

/// Reads the arrays `names` of one file. Sample `i` is row `i` of each, in this order.
pub fn rows(path: impl AsRef<Path>, names: &[&str]) -> Result<Rows> {
    let path = path.as_ref();
    let mut arrays = read(path)?;
    let chosen = names.iter().map(|&name| {
        arrays.remove(name).ok_or_else(|| {
            let available: Vec<_> = arrays.keys().collect();
            let why = format!("{} has no array {name:?}; available: {available:?}", path.display());
            Error::new(ErrorKind::Name, why)
        })
    });
    let chosen = chosen.collect::<Result<_>>()?;
    Rows::new(chosen).map_err(|e| e.within(path.display()))
}

/// Writes arrays to a new file like `numpy.savez`.
pub fn write<'a>(
    path: impl AsRef<Path>,
    arrays: impl IntoIterator<Item = (&'a str, &'a HostTensor)>,
) -> Result<()> {
    let mut zip = ZipWriter::create(path)?;
    for (name, array) in arrays {
        zip.add(&format!("{name}.npy"), &npy::encode(array))?;
    }
    zip.finish()
}

/// Saves one pass of a dataflow to a new file and returns the number of samples.
///
/// The array `buffer` holds the bytes of all samples, and `ends` the end offset of each. Samples
/// are collected in memory, because the size of an array precedes its elements.
#[doc(alias = "NumpySerializer")]
pub fn save(flow: &dyn DataFlow, path: impl AsRef<Path>) -> Result<u64> {
    let mut zip = ZipWriter::create(path)?;
    let (mut buffer, mut ends) = (Vec::new(), Vec::new());
    let count = for_each_sample(flow, |sample| {
        buffer.extend(encode(&sample)?);
        ends.push(buffer.len() as i64);
        Ok(())
    })?;
    zip.add("buffer.npy", &npy::encode(&HostTensor::new([buffer.len()], buffer)?))?;
    zip.add("ends.npy", &npy::encode(&HostTensor::new([ends.len()], ends)?))?;
    zip.finish()?;
    Ok(count)
}

/// Loads samples written by [`save`] into memory.
pub fn load(path: impl AsRef<Path>) -> Result<Serialized<BufferRecords>> {
    let path = path.as_ref();
    let records = read(path).and_then(BufferRecords::new).map_err(|e| e.within(path.display()))?;
    Ok(Serialized::new(records, path.display().to_string()))
}

/// Consecutive slices of one buffer.
#[doc(alias = "Slices")]
#[derive(Clone, Debug)]
pub struct BufferRecords {
    buffer: HostTensor,
    ends: Arc<[usize]>,
}

impl BufferRecords {
    fn new(mut arrays: BTreeMap<String, HostTensor>) -> Result<BufferRecords> {
        let (Some(buffer), Some(ends)) = (arrays.remove("buffer"), arrays.remove("ends")) else {
            let why = "not written by npz::save: the arrays \"buffer\" and \"ends\" are missing";
            return Err(Error::new(ErrorKind::Name, why).note("use npz::rows to read arrays row by row"));
        };
        let bytes = buffer.as_slice::<u8>()?.len();
        let mut last = 0;
        let ends = ends.as_slice::<i64>()?.iter().map(|&end| {
            let end = usize::try_from(end).ok().filter(|&end| last <= end && end <= bytes);
            last = end.unwrap_or(last);
            end
        });
        let ends = ends
            .collect::<Option<_>>()
            .ok_or_else(|| Error::new(ErrorKind::Data, "the array \"ends\" does not match \"buffer\""))?;
        Ok(BufferRecords { buffer, ends })
    }
}

impl RandomAccess for BufferRecords {
    fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    fn get(&self, index: u64) -> Result<Sample> {
        let index = check_index(index, self.ends.len())?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        let bytes = self.buffer.as_slice::<u8>()?[start..self.ends[index]].to_vec();
        Ok(vec![HostTensor::new([bytes.len()], bytes)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{assert_round_trip, test_samples};

    #[test]
    fn samples_round_trip() {
        assert_round_trip(save, load);
    }

    #[test]
    fn arrays_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npz");
        let arrays: Vec<_> = test_samples().into_iter().flatten().collect();
        let names: Vec<_> = (0..arrays.len()).map(|i| format!("array {i}")).collect();
        write(&path, names.iter().map(|n| &n[..]).zip(&arrays)).unwrap();
        let read = read(&path).unwrap();
        assert_eq!(read.len(), arrays.len());
        names.iter().zip(&arrays).for_each(|(name, array)| assert_eq!(&read[name], array));
    }

    #[test]
    fn reads_what_numpy_writes() {
        // np.savez_compressed(x=np.arange(3, dtype="i4"), y=np.arange(3) > 1)
        let arrays = read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/npz/packed")).unwrap();
        assert_eq!(arrays["x"], HostTensor::new([3], vec![0i32, 1, 2]).unwrap());
        assert_eq!(arrays["y"], HostTensor::new([3], vec![false, false, true]).unwrap());
    }

    #[test]
    fn rows_select_arrays_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npz");
        let x = HostTensor::new([2, 2], vec![1f32, 2.0, 3.0, 4.0]).unwrap();
        let y = HostTensor::new([2], vec![5i64, 6]).unwrap();
        write(&path, [("x", &x), ("y", &y)]).unwrap();
        let rows = super::rows(&path, &["y", "x"]).unwrap();
        assert_eq!(rows.get(1).unwrap()[0], HostTensor::scalar(6i64));
        assert_eq!(rows.get(1).unwrap()[1].as_slice::<f32>().unwrap(), [3.0, 4.0]);
        assert!(super::rows(&path, &["z"]).unwrap_err().message().contains("no array \"z\""));
    }

    #[test]
    fn arrays_over_the_limit_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npz");
        let zeros = HostTensor::new([1000], vec![0u8; 1000]).unwrap();
        write(&path, [("x", &zeros), ("y", &zeros)]).unwrap();
        assert_eq!(read_with_limit(&path, 2 * 1128).unwrap().len(), 2);
        let e = read_with_limit(&path, 2 * 1128 - 1).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Memory);
        assert!(e.message().contains("y.npy") && e.message().contains("1127"), "{e}");
    }

    #[test]
    fn flipped_bytes_never_change_elements_silently() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npz");
        let array = HostTensor::new([3], vec![1i32, 2, 3]).unwrap();
        write(&path, [("x", &array)]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let mut refused = 0;
        for i in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[i] ^= 1;
            match parse(ByteSource::from_bytes("a", flipped), MAX_DECOMPRESSED) {
                // The flip hit a timestamp, an attribute or the name, never the elements.
                Ok(arrays) => assert!(arrays.values().all(|a| *a == array), "byte {i}"),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > array.as_bytes().len() + 128, "{refused}");
    }
}
