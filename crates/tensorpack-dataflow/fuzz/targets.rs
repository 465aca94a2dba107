//! Every parser as a function of bytes. None may panic or allocate memory that the bytes cannot
//! account for. `tests/corpus.rs` replays the corpus through these functions, and `cargo fuzz`
//! searches for new inputs.

use tensorpack_dataflow::RandomAccess;
use tensorpack_dataflow::format::cifar::{Cifar, Labels};
use tensorpack_dataflow::format::lines::Lines;
use tensorpack_dataflow::format::tar::{NpyTar, TarShards};
use tensorpack_dataflow::format::tfrecord::TfRecord;
use tensorpack_dataflow::format::{ByteSource, gzip, idx, image_folder, npy, npz, serialized};
use tensorpack_dataflow::image::{Channels, ImageFile, Interpolation, Rect};

/// A parser.
type Target = fn(&[u8]);

/// The parsers by name, which is also the name of their corpus directory.
pub(crate) const TARGETS: [(&str, Target); 11] = [
    ("cifar", cifar),
    ("gzip", gzip),
    ("idx", idx),
    ("image", image),
    ("lines", lines),
    ("list", list),
    ("npy", npy),
    ("npz", npz),
    ("serialized", serialized),
    ("tar", tar),
    ("tfrecord", tfrecord),
];

/// Decompression limit.
const MAX_DECOMPRESSED: u64 = 1 << 20;

pub(crate) fn cifar(bytes: &[u8]) {
    for labels in [Labels::Cifar10, Labels::Cifar100, Labels::Cifar100Coarse] {
        read_all(Cifar::parse(&[source(bytes)], labels));
    }
}

pub(crate) fn gzip(bytes: &[u8]) {
    if let Ok(decompressed) = gzip::decompress(source(bytes), MAX_DECOMPRESSED) {
        assert!(decompressed.len() <= MAX_DECOMPRESSED.max(bytes.len() as u64));
    }
}

pub(crate) fn idx(bytes: &[u8]) {
    let _ = idx::parse(source(bytes));
}

/// Decodes the bytes as they are and, if they are a PNG file, with corrected checksums; otherwise
/// few mutations would get past them.
pub(crate) fn image(bytes: &[u8]) {
    decode_image(bytes);
    if bytes.starts_with(b"\x89PNG") {
        let mut fixed = bytes.to_vec();
        let mut at = 8;
        while let Some(length) = fixed.get(at..at + 4) {
            let end = at + 8 + u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
            let Some(chunk) = fixed.get(at + 4..end) else { break };
            let sum = crc(0xEDB8_8320, chunk).to_be_bytes();
            let Some(stored) = fixed.get_mut(end..end + 4) else { break };
            stored.copy_from_slice(&sum);
            at = end + 4;
        }
        decode_image(&fixed);
    }
}

/// Decodes the whole image, and a part at reduced scale.
fn decode_image(bytes: &[u8]) {
    let Ok(file) = ImageFile::open(bytes) else { return };
    let (height, width) = file.size();
    // Larger images may legitimately need more memory than the test allows.
    if height * width > 1 << 16 {
        return;
    }
    if let Ok(picture) = file.decode(Channels::Rgb) {
        assert_eq!(picture.sizes(), [height, width, 3]);
    }
    let part = Rect { x: 0, y: height / 3, width, height: height - height / 3 };
    let mut out = [0; 4 * 4 * 3];
    let _ = file.decode_crop(part, (4, 4), Channels::Rgb, Interpolation::Linear, &mut out);
}

pub(crate) fn lines(bytes: &[u8]) {
    read_all(Lines::parse(source(bytes)));
}

pub(crate) fn list(bytes: &[u8]) {
    let _ = image_folder::parse_list(&String::from_utf8_lossy(bytes));
}

pub(crate) fn npy(bytes: &[u8]) {
    if let Ok(array) = npy::decode(bytes) {
        assert_eq!(
            npy::decode(&npy::encode(&array)).map(|a| a.as_bytes().to_vec()).ok(),
            Some(array.as_bytes().into())
        );
    }
}

pub(crate) fn npz(bytes: &[u8]) {
    let _ = npz::parse(source(bytes), MAX_DECOMPRESSED);
}

pub(crate) fn serialized(bytes: &[u8]) {
    if let Ok(sample) = serialized::decode(bytes) {
        // Any nonzero byte is read as `true` and written as 1.
        let again = serialized::encode(&sample).expect("a sample that was read can be written");
        assert_eq!(again.len(), bytes.len());
    }
}

/// Parses the bytes as they are and with corrected header checksums; otherwise few mutations would
/// get past them.
pub(crate) fn tar(bytes: &[u8]) {
    let mut fixed = bytes.to_vec();
    for header in fixed.chunks_exact_mut(512) {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&b| u32::from(b)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    for bytes in [bytes, &fixed] {
        read_all(TarShards::parse(vec![source(bytes)], &["jpg;png", "cls"]));
        read_all(NpyTar::parse(source(bytes)));
    }
}

/// Parses the bytes as they are and with corrected checksums.
pub(crate) fn tfrecord(bytes: &[u8]) {
    let mut fixed = bytes.to_vec();
    let masked = |bytes: &[u8]| crc(0x82F6_3B78, bytes).rotate_right(15).wrapping_add(0xa282_ead8);
    let mut at = 0;
    while let Some(length) = fixed.get(at..at + 8) {
        let (sum, length) = (masked(length), u64::from_le_bytes(length.try_into().expect("eight bytes")));
        let Some(stored) = fixed.get_mut(at + 8..at + 12) else { break };
        stored.copy_from_slice(&sum.to_le_bytes());
        let end = usize::try_from(length).ok().and_then(|n| (at + 12).checked_add(n));
        let Some((end, data)) = end.and_then(|end| Some((end, fixed.get(at + 12..end)?))) else { break };
        let sum = masked(data);
        let Some(stored) = fixed.get_mut(end..end.saturating_add(4)) else { break };
        stored.copy_from_slice(&sum.to_le_bytes());
        at = end + 4;
    }
    for bytes in [bytes, &fixed] {
        read_all(TfRecord::parse(source(bytes)));
    }
}

/// A CRC of 32 bits with this reflected polynomial.
fn crc(polynomial: u32, bytes: &[u8]) -> u32 {
    let bit = |c: u32, _| if c & 1 == 1 { c >> 1 ^ polynomial } else { c >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), bit))
}

fn source(bytes: &[u8]) -> ByteSource {
    ByteSource::from_bytes("fuzz", bytes.to_vec())
}

/// Reads every sample (the first 64 if there are more) and one past the end.
fn read_all<S: RandomAccess, E>(source: Result<S, E>) {
    let Ok(source) = source else { return };
    for index in 0..source.len().min(64) {
        let _ = source.get(index);
    }
    assert!(source.get(source.len()).is_err());
}
