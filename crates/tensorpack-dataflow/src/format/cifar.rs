//! The binary files of CIFAR-10 and CIFAR-100. Each record consists of labels and a planar image.

use super::check_index::check_index;
use super::{ByteSource, RandomAccess};
use crate::Sample;
use std::path::Path;
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

const SIDE: usize = 32;
const PLANE: usize = SIDE * SIDE;

/// The samples `[image 32x32x3 u8, label i32]` of one or more files, held in memory in their
/// on-disk form.
#[derive(Clone, Debug)]
pub struct Cifar {
    records: Arc<[u8]>,
    labels: Labels,
}

/// The label layout of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labels {
    /// One label of 10 classes: `data_batch_1.bin` to `data_batch_5.bin`, `test_batch.bin`.
    Cifar10,
    /// The fine label of 100 classes, in the second byte: `train.bin`, `test.bin`.
    Cifar100,
    /// The coarse label of 20 classes, in the first byte of the same files.
    Cifar100Coarse,
}

impl Labels {
    /// Returns the number of label bytes, the index of the label to use and its number of classes.
    fn layout(self) -> (usize, usize, u8) {
        match self {
            Labels::Cifar10 => (1, 0, 10),
            Labels::Cifar100 => (2, 1, 100),
            Labels::Cifar100Coarse => (2, 0, 20),
        }
    }

    fn record_size(self) -> usize {
        self.layout().0 + 3 * PLANE
    }
}

impl Cifar {
    /// Opens the files and concatenates their samples.
    pub fn open(paths: impl IntoIterator<Item = impl AsRef<Path>>, labels: Labels) -> Result<Cifar> {
        let files = paths.into_iter().map(ByteSource::open).collect::<Result<Vec<_>>>()?;
        Cifar::parse(&files, labels)
    }

    /// Parses `files` and concatenates their samples.
    pub fn parse(files: &[ByteSource], labels: Labels) -> Result<Cifar> {
        let (_, which, classes) = labels.layout();
        let mut records = Vec::new();
        for file in files {
            let bytes = file.read_all()?;
            if bytes.len() % labels.record_size() != 0 {
                let why = format!(
                    "{}: the length of {} bytes is not a multiple of the record size {}",
                    file.name(),
                    bytes.len(),
                    labels.record_size()
                );
                return Err(
                    Error::new(ErrorKind::Data, why).note("check that it is the binary version and complete")
                );
            }
            let wrong = bytes.chunks_exact(labels.record_size()).position(|record| record[which] >= classes);
            if let Some(i) = wrong {
                let at = i * labels.record_size() + which;
                let why = format!("label {} is out of range for {classes} classes", bytes[at]);
                return Err(file.error_at(at as u64, why));
            }
            records.extend(bytes);
        }
        Ok(Cifar { records: records.into(), labels })
    }

    /// Returns the mean image over all samples, `[32, 32, 3]` f32.
    #[doc(alias = "get_per_pixel_mean")]
    pub fn per_pixel_mean(&self) -> Result<HostTensor> {
        let mut sums = vec![0u64; 3 * PLANE];
        for record in self.records.chunks_exact(self.labels.record_size()) {
            let planes = &record[self.labels.layout().0..];
            sums.iter_mut().zip(pixels(planes)).for_each(|(sum, x)| *sum += u64::from(x));
        }
        let count = self.len().max(1) as f64;
        HostTensor::new([SIDE, SIDE, 3], sums.iter().map(|&sum| (sum as f64 / count) as f32).collect())
    }

    /// Returns the mean of the red, green and blue channels over all images.
    #[doc(alias = "get_per_channel_mean")]
    pub fn per_channel_mean(&self) -> Result<[f32; 3]> {
        let means = self.per_pixel_mean()?.to_f64_vec();
        Ok([0, 1, 2].map(|c| (means.iter().skip(c).step_by(3).sum::<f64>() / PLANE as f64) as f32))
    }
}

/// Interleaves the planes of red, green and blue.
fn pixels(planes: &[u8]) -> impl Iterator<Item = u8> {
    (0..PLANE).flat_map(|i| [planes[i], planes[PLANE + i], planes[2 * PLANE + i]])
}

impl RandomAccess for Cifar {
    fn len(&self) -> u64 {
        (self.records.len() / self.labels.record_size()) as u64
    }

    fn get(&self, index: u64) -> Result<Sample> {
        let size = self.labels.record_size();
        let index = check_index(index, self.records.len() / size)?;
        let (labels, which, _) = self.labels.layout();
        let (label, planes) = self.records[index * size..][..size].split_at(labels);
        Ok(vec![
            HostTensor::new([SIDE, SIDE, 3], pixels(planes).collect())?,
            HostTensor::scalar(i32::from(label[which])),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(labels: &[u8]) -> Vec<u8> {
        let mut record = labels.to_vec();
        record.extend((0..3 * PLANE).map(|i| (i / PLANE * 100 + i % PLANE / SIDE) as u8));
        record
    }

    #[test]
    fn planar_records_become_interleaved_pixels() {
        let file = ByteSource::from_bytes("a", [record(&[7]), record(&[9])].concat());
        let cifar = Cifar::parse(&[file.clone(), file], Labels::Cifar10).unwrap();
        assert_eq!(cifar.len(), 4);
        let sample = cifar.get(3).unwrap();
        assert_eq!(sample[1], HostTensor::scalar(9i32));
        assert_eq!(sample[0].sizes(), [32, 32, 3]);
        // Row 5 of plane p holds 100 p + 5.
        assert_eq!(sample[0].as_slice::<u8>().unwrap()[5 * 32 * 3..][..6], [5, 105, 205, 5, 105, 205]);
    }

    #[test]
    fn fine_and_coarse_labels() {
        let file = ByteSource::from_bytes("a", record(&[19, 99]));
        let label = |labels| {
            Cifar::parse(std::slice::from_ref(&file), labels).unwrap().get(0).unwrap()[1].to_scalar()
        };
        assert_eq!(label(Labels::Cifar100).unwrap(), 99.0);
        assert_eq!(label(Labels::Cifar100Coarse).unwrap(), 19.0);
    }

    #[test]
    fn per_pixel_and_per_channel_means() {
        let mut files = [record(&[0]), record(&[1])];
        files[1][1..].iter_mut().for_each(|x| *x += 1);
        let cifar = Cifar::parse(&[ByteSource::from_bytes("a", files.concat())], Labels::Cifar10).unwrap();
        let mean = cifar.per_pixel_mean().unwrap();
        assert_eq!(mean.as_slice::<f32>().unwrap()[5 * 32 * 3..][..3], [5.5, 105.5, 205.5]);
        assert_eq!(cifar.per_channel_mean().unwrap(), [16.0, 116.0, 216.0]);
    }

    #[test]
    fn corrupt_input_is_an_error() {
        let mut bytes = [record(&[7]), record(&[10])].concat();
        let e = Cifar::parse(&[ByteSource::from_bytes("a", bytes.clone())], Labels::Cifar10).unwrap_err();
        assert!(e.message().starts_with("a, byte 3073: label 10"), "{e}");
        bytes.pop();
        assert!(Cifar::parse(&[ByteSource::from_bytes("a", bytes)], Labels::Cifar10).is_err());
    }
}
