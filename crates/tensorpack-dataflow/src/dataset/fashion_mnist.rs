//! Fashion-MNIST: images of clothing in the format of MNIST.

use super::archive::{deb_contents, gunzip_all};
use super::checksum::Checksum;
use super::download::{DatasetFile, DatasetFiles, Mirror};
use super::mnist::{GZIPPED_FILES, Mnist};
use super::package_client::Origin;
use crate::format::ByteSource;
use tensorpack_tensor::Result;

const FILES: DatasetFiles<4> = DatasetFiles {
    name: "fashion-mnist",
    files: [
        DatasetFile(
            "train-images-idx3-ubyte",
            47_040_016,
            Checksum("c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
        ),
        DatasetFile(
            "train-labels-idx1-ubyte",
            60_008,
            Checksum("bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        ),
        DatasetFile(
            "t10k-images-idx3-ubyte",
            7_840_016,
            Checksum("5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        ),
        DatasetFile(
            "t10k-labels-idx1-ubyte",
            10_008,
            Checksum("0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
        ),
    ],
    mirrors: &[
        Mirror {
            origin: Origin::Web {
                base: "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
                files: GZIPPED_FILES,
            },
            checksum: None,
            extract: gunzip_all,
        },
        Mirror {
            origin: Origin::Web {
                base: "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
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
