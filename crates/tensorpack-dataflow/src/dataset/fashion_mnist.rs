//! Fashion-MNIST: images of clothing in the format of MNIST.

use super::archive::{deb_contents, gunzip_all};
use super::checksum::Checksum::Md5;
use super::download::{DatasetFile, DatasetFiles, Mirror};
use super::mnist::{GZIPPED_FILES, Mnist};
use super::package_client::Origin;
use crate::format::ByteSource;
use tensorpack_tensor::Result;

const FILES: DatasetFiles<4> = DatasetFiles {
    name: "fashion-mnist",
    files: [
        DatasetFile("train-images-idx3-ubyte", 47_040_016, Md5("f4a8712d7a061bf5bd6d2ca38dc4d50a")),
        DatasetFile("train-labels-idx1-ubyte", 60_008, Md5("9018921c3c673c538a1fc5bad174d6f9")),
        DatasetFile("t10k-images-idx3-ubyte", 7_840_016, Md5("8181f5470baa50b63fa0f6fddb340f0a")),
        DatasetFile("t10k-labels-idx1-ubyte", 10_008, Md5("15d484375f8d13e6eb1aabb0c3f46965")),
    ],
    mirrors: &[
        Mirror {
            origin: Origin::Web {
                base: "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                files: GZIPPED_FILES,
            },
            checksum: None,
            extract: gunzip_all,
        },
        Mirror {
            origin: Origin::Apt("dataset-fashion-mnist"),
            // The package may be rebuilt; the checksums of the files decide.
            checksum: None,
            extract: |fetched| {
                let package = deb_contents(fetched)?;
                let file = |name: &&str| {
                    let path = format!("usr/share/datasets/fashion-mnist/{name}");
                    Ok(ByteSource::from_bytes(*name, package.read(&path)?))
                };
                gunzip_all(&GZIPPED_FILES.iter().map(file).collect::<Result<Vec<_>>>()?)
            },
        },
    ],
};

/// Class names by label.
pub const CLASSES: [&str; 10] = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
];

/// Opens the 60,000 training images: `[image 28x28 f32 in 0..1, label i32]`.
#[doc(alias = "FashionMnist")]
pub fn train() -> Result<Mnist> {
    let [images, labels, ..] = FILES.ensure_downloaded()?;
    Mnist::open(images, labels)
}

/// Opens the 10,000 test images: `[image 28x28 f32 in 0..1, label i32]`.
pub fn test() -> Result<Mnist> {
    let [.., images, labels] = FILES.ensure_downloaded()?;
    Mnist::open(images, labels)
}
