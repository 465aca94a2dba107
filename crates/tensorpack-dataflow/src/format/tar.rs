//! Tar shards in the style of WebDataset.
//!
//! Adjacent files that differ only in their extension form a sample: `a/0001.jpg` and `a/0001.cls`
//! are the components of sample `a/0001`. The extension is everything after the first dot of the
//! file name. Gzip-compressed archives are decompressed into memory; others are read in place.

use super::atomic_file::AtomicFile;
use super::check_index::check_index;
use super::gzip::{MAX_DECOMPRESSED, decompress, decompress_within};
use super::serialized::for_each_sample;
use super::tar_archive::{ByteRange, Tar, file_header};
use super::{ByteSource, RandomAccess, npy};
use crate::{DataFlow, Sample};
use std::path::Path;
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// The samples of tar shards. Each component holds the bytes of a file.
#[derive(Clone, Debug)]
#[doc(alias = "WebDataset")]
pub struct TarShards {
    extensions: Arc<[String]>,
    shards: Arc<[ByteSource]>,
    samples: Arc<[TarSample]>,
}

#[derive(Debug)]
struct TarSample {
    shard: usize,
    key: String,
    /// One entry per requested component; `None` if the file is missing.
    components: Vec<Option<ByteRange>>,
}

impl TarShards {
    /// Opens the archives and concatenates their samples. Every sample has one component per entry
    /// of `extensions`; alternatives are separated by semicolons, as in `"jpg;png"`. A missing
    /// component is an error when the sample is read.
    ///
    /// The decompressed size of all compressed archives together is limited to 4 GiB; see
    /// [`open_with_limit`](TarShards::open_with_limit).
    pub fn open(paths: impl IntoIterator<Item = impl AsRef<Path>>, extensions: &[&str]) -> Result<TarShards> {
        TarShards::parse(paths.into_iter().map(ByteSource::open).collect::<Result<_>>()?, extensions)
    }

    /// Like [`open`](TarShards::open), but limits the decompressed size of all compressed archives
    /// together, which are held in memory, to `max` bytes.
    pub fn open_with_limit(
        paths: impl IntoIterator<Item = impl AsRef<Path>>,
        extensions: &[&str],
        max: u64,
    ) -> Result<TarShards> {
        let archives = paths.into_iter().map(ByteSource::open).collect::<Result<_>>()?;
        TarShards::parse_with_limit(archives, extensions, max)
    }

    /// Parses `archives` and concatenates their samples.
    pub fn parse(archives: Vec<ByteSource>, extensions: &[&str]) -> Result<TarShards> {
        TarShards::parse_with_limit(archives, extensions, MAX_DECOMPRESSED)
    }

    /// Like [`parse`](TarShards::parse), but limits the decompressed size of all compressed
    /// archives together to `max` bytes.
    pub fn parse_with_limit(archives: Vec<ByteSource>, extensions: &[&str], max: u64) -> Result<TarShards> {
        let (mut shards, mut samples) = (Vec::new(), Vec::new());
        let mut left = max;
        for (shard, archive) in archives.into_iter().enumerate() {
            let decompressed = decompress_within(archive, &mut left).map_err(|e| match e.kind() {
                ErrorKind::Memory => e.note("or raise the limit with TarShards::open_with_limit"),
                _ => e,
            })?;
            let tar = Tar::parse(decompressed)?;
            for (key, files) in groups(&tar) {
                let find = |wanted: &&str| {
                    wanted.split(';').find_map(|w| files.iter().find(|(extension, _)| *extension == w))
                };
                let components = extensions.iter().map(|e| find(e).map(|&(_, range)| range)).collect();
                samples.push(TarSample { shard, key, components });
            }
            shards.push(tar.source);
        }
        let extensions = extensions.iter().map(|e| e.to_string()).collect();
        Ok(TarShards { extensions, shards: shards.into(), samples: samples.into() })
    }

    /// Returns the common file name of a sample.
    pub fn key(&self, index: u64) -> Option<&str> {
        self.samples.get(index as usize).map(|s| &s.key[..])
    }
}

impl RandomAccess for TarShards {
    fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    fn get(&self, index: u64) -> Result<Sample> {
        let TarSample { shard, key, components } = &self.samples[check_index(index, self.samples.len())?];
        let shard = &self.shards[*shard];
        let component = |(range, extension): (&Option<ByteRange>, &String)| {
            let Some(ByteRange { offset, size }) = *range else {
                let why = format!("{}: sample {key} has no file with extension {extension}", shard.name());
                return Err(Error::new(ErrorKind::Data, why));
            };
            let bytes = shard.read(offset, size)?;
            HostTensor::new([bytes.len()], bytes)
        };
        components.iter().zip(&*self.extensions).map(component).collect()
    }
}

/// Groups adjacent files by their common name, in order.
fn groups(tar: &Tar) -> Vec<(String, Vec<(&str, ByteRange)>)> {
    let mut groups: Vec<(String, Vec<(&str, ByteRange)>)> = Vec::new();
    for (name, range) in &tar.files {
        let base = name.rfind('/').map_or(0, |slash| slash + 1);
        // A file without an extension or without a name before it belongs to no sample.
        let Some(dot) = name[base..].find('.').filter(|&dot| dot > 0) else { continue };
        let (key, extension) = (&name[..base + dot], &name[base + dot + 1..]);
        match groups.last_mut() {
            Some((last, files)) if last == key => files.push((extension, *range)),
            _ => groups.push((key.to_string(), vec![(extension, *range)])),
        }
    }
    groups
}

/// Saves one pass of a dataflow to a new archive and returns the number of samples. Component 1 of
/// the first sample is `00000000.1.npy`.
pub fn save(flow: &dyn DataFlow, path: impl AsRef<Path>) -> Result<u64> {
    let mut builder = tar::Builder::new(AtomicFile::create(path)?);
    let mut index = 0u64;
    let count = for_each_sample(flow, |sample| {
        if sample.is_empty() {
            let why = format!("sample {index} has no components and cannot be stored in a tar archive");
            return Err(Error::argument(why));
        }
        for (i, tensor) in sample.iter().enumerate() {
            let bytes = npy::encode(tensor);
            let name = format!("{index:08}.{i}.npy");
            builder.append_data(&mut file_header(bytes.len() as u64), name, &bytes[..])?;
        }
        index += 1;
        Ok(())
    })?;
    builder.into_inner()?.finish()?;
    Ok(count)
}

/// Opens samples written by [`save`].
pub fn load(path: impl AsRef<Path>) -> Result<NpyTar> {
    NpyTar::parse(ByteSource::open(path)?)
}

/// The samples of an archive of `.npy` files written by [`save`].
#[doc(alias = "SavedTar")]
#[derive(Clone, Debug)]
pub struct NpyTar {
    source: ByteSource,
    samples: Arc<[(String, Vec<ByteRange>)]>,
}

impl NpyTar {
    /// Parses the samples in `source`.
    pub fn parse(source: ByteSource) -> Result<NpyTar> {
        let tar = Tar::parse(decompress(source, MAX_DECOMPRESSED)?)?;
        let mut samples = Vec::new();
        for (key, files) in groups(&tar) {
            let numbered = files.iter().enumerate().all(|(i, (e, _))| *e == format!("{i}.npy"));
            if !numbered {
                let names: Vec<_> = files.iter().map(|(e, _)| e).collect();
                let why = format!(
                    "{}: sample {key} has the extensions {names:?} instead of 0.npy, 1.npy, ...",
                    tar.source.name()
                );
                return Err(
                    Error::new(ErrorKind::Data, why).note("use TarShards for archives of other files")
                );
            }
            samples.push((key, files.into_iter().map(|(_, range)| range).collect()));
        }
        Ok(NpyTar { source: tar.source.clone(), samples: samples.into() })
    }
}

impl RandomAccess for NpyTar {
    fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    fn get(&self, index: u64) -> Result<Sample> {
        let (key, components) = &self.samples[check_index(index, self.samples.len())?];
        let component = |range: &ByteRange| {
            let bytes = self.source.read(range.offset, range.size)?;
            npy::decode(&bytes).map_err(|e| self.source.error_at(range.offset, format!("sample {key}: {e}")))
        };
        components.iter().map(component).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::assert_round_trip;

    #[test]
    fn samples_round_trip() {
        assert_round_trip(save, load);
    }

    fn archive(files: &[(&str, &[u8])]) -> ByteSource {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, data) in files {
            builder.append_data(&mut file_header(data.len() as u64), name, *data).unwrap();
        }
        ByteSource::from_bytes("shard.tar", builder.into_inner().unwrap())
    }

    #[test]
    fn adjacent_files_with_one_key_form_a_sample() {
        let shard = archive(&[
            ("a/1.cls", b"7"),
            ("a/1.seg.png", b"mask"),
            ("a/1.png", b"picture"),
            ("README", b""),
            ("a/2.jpg", b"photograph"),
            ("a/2.cls", b"8"),
            ("b/2.cls", b"9"),
            ("b/.hidden", b""),
        ]);
        let shards = TarShards::parse(vec![shard.clone(), shard], &["jpg;png", "cls"]).unwrap();
        assert_eq!(shards.len(), 6);
        let texts = |i| -> Vec<String> {
            let sample = shards.get(i).unwrap();
            sample.iter().map(|t| String::from_utf8(t.as_slice().unwrap().to_vec()).unwrap()).collect()
        };
        assert_eq!(texts(0), ["picture", "7"]);
        assert_eq!(texts(4), ["photograph", "8"]);
        assert_eq!(shards.key(4), Some("a/2"));
        let e = shards.get(2).unwrap_err();
        assert!(["shard.tar", "b/2", "jpg;png"].iter().all(|term| e.message().contains(term)), "{e}");
    }

    #[test]
    fn reads_archives_written_by_python() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/tar");
        // Written by Python's tarfile, with arrays from numpy.save.
        let saved = load(corpus.join("saved-packed")).unwrap();
        let numbers = HostTensor::new([3], vec![0i32, 1, 2]).unwrap();
        assert_eq!(saved.get(0).unwrap(), [numbers.clone(), HostTensor::scalar(1i64)]);
        assert_eq!(saved.get(1).unwrap(), [numbers]);
        let long = TarShards::open([corpus.join("pax-long-name-packed")], &["jpg"]).unwrap();
        assert_eq!(long.key(0), Some(&*("d/".repeat(150) + "a")));
    }

    #[test]
    fn corrupt_component_error_names_the_sample() {
        let files = [("00000000.0.npy", &b"no array"[..])];
        let saved = NpyTar::parse(archive(&files)).unwrap();
        let e = saved.get(0).unwrap_err();
        assert!(e.message().starts_with("shard.tar, byte 512: sample 00000000"), "{e}");
        assert!(NpyTar::parse(archive(&[("0.jpg", b"")])).is_err());
    }
}
