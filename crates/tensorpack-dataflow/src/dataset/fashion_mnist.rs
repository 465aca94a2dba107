//! Fashion-MNIST: articles of clothing, in the form of MNIST.

use super::archive::{debian, unpacked};
use super::checksum::Checksum::Md5;
use super::client::Origin;
use super::install::{Files, Piece, Source};
use super::mnist::{Mnist, PACKED};
use crate::format::Contents;
use tensorpack_tensor::Result;

const FILES: Files<4> = Files {
    name: "fashion-mnist",
    files: [
        Piece("train-images-idx3-ubyte", 47_040_016, Md5("f4a8712d7a061bf5bd6d2ca38dc4d50a")),
        Piece("train-labels-idx1-ubyte", 60_008, Md5("9018921c3c673c538a1fc5bad174d6f9")),
        Piece("t10k-images-idx3-ubyte", 7_840_016, Md5("8181f5470baa50b63fa0f6fddb340f0a")),
        Piece("t10k-labels-idx1-ubyte", 10_008, Md5("15d484375f8d13e6eb1aabb0c3f46965")),
    ],
    sources: &[
        Source {
            origin: Origin::Web {
                base: "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                files: PACKED,
            },
            checksum: None,
            unpack: unpacked,
        },
        Source {
            origin: Origin::Apt("dataset-fashion-mnist"),
            // The package may be built anew: the files' checksums tell.
            checksum: None,
            unpack: |fetched| {
                let package = debian(fetched)?;
                let file = |name: &&str| {
                    let path = format!("usr/share/datasets/fashion-mnist/{name}");
                    Ok(Contents::memory(*name, package.read(&path)?))
                };
                unpacked(&PACKED.iter().map(file).collect::<Result<Vec<_>>>()?)
            },
        },
    ],
};

/// The names of the classes, by label.
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

/// The 60,000 training images: `[image 28x28 f32 from 0 to 1, label i32]`.
#[doc(alias = "FashionMnist")]
pub fn train() -> Result<Mnist> {
    let [images, labels, ..] = FILES.ready()?;
    Mnist::open(images, labels)
}

/// The 10,000 test images: `[image 28x28 f32 from 0 to 1, label i32]`.
pub fn test() -> Result<Mnist> {
    let [.., images, labels] = FILES.ready()?;
    Mnist::open(images, labels)
}
