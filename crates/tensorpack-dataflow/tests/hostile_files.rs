//! Files made to waste time or memory: loops of links, devices, and headers with sizes that the
//! data does not have. Each must be an error within seconds and without much memory.

use std::fs;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tensorpack_dataflow::RandomAccess;
use tensorpack_dataflow::format::image_folder::ImageFolder;
use tensorpack_dataflow::format::tar::TarShards;
use tensorpack_dataflow::format::{ByteSource, npy};
use tensorpack_dataflow::image::{Channels, decode};
use tensorpack_dataflow::tensor::{Error, ErrorKind};
use tensorpack_testing::PeakAllocator;

/// Held by each test, because the allocations of a concurrent test would be counted, too.
static MEASURING: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    MEASURING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator::new();

/// Runs `work` on another thread and fails if it takes more than ten seconds.
fn with_time_limit<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = channel();
    std::thread::spawn(move || send.send(work()));
    receive.recv_timeout(Duration::from_secs(10)).expect("the work takes more than ten seconds")
}

/// Like [`with_time_limit`], with the peak memory use.
fn measured<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> (T, usize) {
    ALLOCATOR.measure(|| with_time_limit(work))
}

#[cfg(unix)]
fn fifo(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo can be run");
    assert!(made.success());
}

#[cfg(unix)]
fn image_folder(files: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in files {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
    dir
}

#[cfg(unix)]
fn open_folder(dir: &tempfile::TempDir) -> Result<ImageFolder, Error> {
    let root = dir.path().to_path_buf();
    with_time_limit(move || ImageFolder::open(root))
}

#[cfg(unix)]
#[test]
fn loops_of_links_in_an_image_folder_are_an_error() {
    let _alone = alone();
    use std::os::unix::fs::symlink;
    // Two links to the folder itself: 2^40 paths before the system gives up.
    let dir = image_folder(&["cat/a.jpg"]);
    symlink(".", dir.path().join("cat/loop")).unwrap();
    symlink(".", dir.path().join("cat/again")).unwrap();
    let e = open_folder(&dir).unwrap_err();
    assert!(e.kind() == ErrorKind::Data && e.message().contains("cat/again"), "{e}");

    // No loop, but two links on each of 30 levels: 2^30 paths.
    let dir = image_folder(&["store/a.jpg"]);
    let mut inner = dir.path().join("store");
    for level in 0..30 {
        let folder = dir.path().join(format!("{}{level}", if level == 29 { "cat" } else { ".level" }));
        fs::create_dir(&folder).unwrap();
        symlink(&inner, folder.join("a")).unwrap();
        symlink(&inner, folder.join("b")).unwrap();
        inner = folder;
    }
    let e = open_folder(&dir).unwrap_err();
    assert!(e.kind() == ErrorKind::Data && e.message().contains("twice"), "{e}");

    // Links are otherwise followed, also from two classes to one folder.
    let dir = image_folder(&[".all/a.jpg"]);
    for class in ["cat", "dog"] {
        fs::create_dir(dir.path().join(class)).unwrap();
        symlink("../.all", dir.path().join(class).join("images")).unwrap();
    }
    assert_eq!(open_folder(&dir).unwrap().len(), 2);
}

/// Found when the folder is opened, not when a training run comes to that image. A link to a class
/// that is gone would otherwise shift the labels of the others.
#[cfg(unix)]
#[test]
fn dangling_links_in_an_image_folder_are_errors() {
    let _alone = alone();
    use std::os::unix::fs::symlink;
    for link in ["cat/b.jpg", "cat/more", "ape"] {
        let dir = image_folder(&["cat/a.jpg", "dog/c.jpg"]);
        symlink("/no/such/target", dir.path().join(link)).unwrap();
        let e = open_folder(&dir).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Data, "{link}: {e}");
        assert!(e.message().contains(link) && e.message().contains("/no/such/target"), "{link}: {e}");
    }
    // A file that is no image anyway.
    let dir = image_folder(&["cat/a.jpg"]);
    symlink("/no/such/target", dir.path().join("cat/notes.txt")).unwrap();
    assert_eq!(open_folder(&dir).unwrap().files().len(), 1);
    // A list names the file, and reading it is the error.
    fs::write(dir.path().join("list.txt"), "cat/notes.txt 0\n").unwrap();
    let listed = ImageFolder::from_list(dir.path(), dir.path().join("list.txt")).unwrap();
    let e = listed.get(0).unwrap_err();
    assert!(e.message().contains("cat/notes.txt"), "{e}");
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_in_an_image_folder_are_errors() {
    let _alone = alone();
    use std::os::unix::fs::symlink;
    let dir = image_folder(&["cat/a.jpg"]);
    fifo(&dir.path().join("cat/b.jpg"));
    let e = open_folder(&dir).unwrap_err();
    assert!(e.message().contains("b.jpg") && e.message().contains("not a regular file"), "{e}");

    let dir = image_folder(&["cat/a.jpg"]);
    symlink("/dev/zero", dir.path().join("cat/b.jpg")).unwrap();
    let e = open_folder(&dir).unwrap_err();
    assert!(e.message().contains("b.jpg") && e.message().contains("not a regular file"), "{e}");

    // A list is not checked in advance, so reading must be safe, too.
    let dir = image_folder(&["a.jpg", "list"]);
    fifo(&dir.path().join("pipe.jpg"));
    fs::write(dir.path().join("list"), "pipe.jpg 1\n/dev/zero 2\na.jpg 3\n").unwrap();
    let files = ImageFolder::from_list(dir.path(), dir.path().join("list")).unwrap();
    for index in 0..2 {
        let files = files.clone();
        let e = with_time_limit(move || files.get(index)).unwrap_err();
        assert!(e.message().contains("not a regular file"), "{e}");
    }
    assert!(files.get(2).is_ok());
}

#[cfg(unix)]
#[test]
fn a_pipe_is_never_opened() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    fifo(&pipe);
    let path = pipe.clone();
    let e = with_time_limit(move || ByteSource::open(path)).unwrap_err();
    assert!(e.kind() == ErrorKind::Argument && e.message().contains("not a regular file"), "{e}");
    let e = with_time_limit(move || ImageFolder::from_list(".", pipe)).unwrap_err();
    assert!(e.message().contains("not a regular file"), "{e}");
}

#[test]
fn only_images_that_can_be_decoded_are_listed() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("cat")).unwrap();
    for extension in ["jpg", "JPEG", "png", "bmp", "gif", "webp", "tif", "tiff", "ppm", "pgm", "pnm"] {
        fs::write(dir.path().join(format!("cat/a.{extension}")), "").unwrap();
    }
    assert_eq!(ImageFolder::open(dir.path()).unwrap().len(), 3);
}

#[test]
fn column_major_arrays_of_high_rank_take_linear_time() {
    let _alone = alone();
    // 2^20 elements, 20 dims of two and 20,000 of one: 2 * 10^10 steps if each element visits them
    // all.
    let shape = "2,".repeat(20) + &"1,".repeat(20_000);
    let header = format!("{{'descr': '|u1', 'fortran_order': True, 'shape': ({shape}), }}");
    let mut file = b"\x93NUMPY\x02\0".to_vec();
    file.extend((header.len() as u32).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend((0..1usize << 20).map(|i| (i % 251) as u8));
    let (array, _) = measured(move || npy::decode(&file).unwrap());
    let values = array.as_slice::<u8>().unwrap();
    // The first index varies fastest in the file, and slowest in the result: bits are reversed.
    for i in [0usize, 1, 2, 12_345, (1 << 20) - 1] {
        let stored = i.reverse_bits() >> (usize::BITS - 20);
        assert_eq!(usize::from(values[i]), stored % 251);
    }
}

/// A progressive JPEG file that claims a size, with `data` as its only scan.
fn progressive(height: u16, width: u16, data: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut encoded, 90);
    encoder.set_progressive(true);
    encoder.encode(&[128; 3 * 64], 8, 8, jpeg_encoder::ColorType::Rgb).unwrap();
    let frame = encoded.windows(2).position(|w| w == [0xFF, 0xC2]).unwrap();
    encoded[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
    encoded[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
    encoded.extend(data);
    encoded
}

#[test]
fn a_progressive_jpeg_without_data_takes_no_memory() {
    let _alone = alone();
    for (height, width) in [(11_000, 11_000), (2, 65_500), (65_500, 2_000)] {
        let file = progressive(height, width, &[0; 100]);
        let (decoded, peak) = measured(move || decode(&file, Channels::Rgb));
        let e = decoded.unwrap_err();
        assert!(e.message().contains("truncated"), "{e}");
        assert!(peak < 1 << 20, "{height}x{width} takes {peak} bytes");
    }
    let file = progressive(65_500, 65_500, &[0; 100]);
    assert_eq!(decode(&file, Channels::Rgb).unwrap_err().kind(), ErrorKind::Memory);
    assert!(decode(&progressive(8, 8, &[]), Channels::Rgb).is_ok());
}

/// A PNG file that claims an image, with `data` in a text chunk or as the compressed image.
fn png(height: u32, width: u32, chunk: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut add = |kind: &[u8; 4], body: &[u8]| {
        file.extend((body.len() as u32).to_be_bytes());
        let start = file.len();
        file.extend(kind);
        file.extend(body);
        let crc = !file[start..].iter().fold(!0u32, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |c, _| if c & 1 == 1 { c >> 1 ^ 0xEDB8_8320 } else { c >> 1 })
        });
        file.extend(crc.to_be_bytes());
    };
    let [h, w] = [height, width].map(u32::to_be_bytes);
    // 16 bits for each of red, green, blue and alpha.
    add(b"IHDR", &[&w[..], &h, &[16, 6, 0, 0, 0]].concat());
    add(chunk, data);
    add(b"IDAT", &[0x78, 0x9c, 3, 0, 0, 0, 0, 1]);
    add(b"IEND", &[]);
    file
}

#[test]
fn a_png_without_data_takes_no_memory() {
    let _alone = alone();
    for (height, width, chunk) in
        [(11_000, 11_000, b"tEXt"), (400, 400, b"tEXt"), (65_500, 2_000, b"teSt"), (1, 60_000, b"tEXt")]
    {
        let data = [&b"Comment\0"[..], &[b' '; 40_000]].concat();
        let file = png(height, width, chunk, &data);
        let (decoded, peak) = measured(move || decode(&file, Channels::Rgb));
        let e = decoded.unwrap_err();
        assert!(e.message().contains("truncated"), "{e}");
        assert!(peak < 1 << 18, "{height}x{width} takes {peak} bytes");
    }
    let file = png(65_500, 65_500, b"tEXt", b"Comment\0");
    assert_eq!(decode(&file, Channels::Rgb).unwrap_err().kind(), ErrorKind::Memory);
}

#[test]
fn compressed_shards_share_one_limit() {
    let _alone = alone();
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;
    // An empty archive of 1 MiB, in about 1 kB.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&vec![0; 1 << 20]).unwrap();
    let shard = ByteSource::from_bytes("shard.tar.gz", encoder.finish().unwrap());
    let open = |shards: usize, max: u64| TarShards::parse_with_limit(vec![shard.clone(); shards], &[], max);
    assert!(open(4, 4 << 20).is_ok());
    let (opened, peak) = {
        let shards = vec![shard.clone(); 64];
        measured(move || TarShards::parse_with_limit(shards, &[], 4 << 20))
    };
    let e = opened.unwrap_err();
    assert!(e.kind() == ErrorKind::Memory && e.message().contains("shard.tar.gz"), "{e}");
    assert!(peak < 12 << 20, "{peak} bytes");
    // Uncompressed archives stay on disk and count for nothing.
    let plain = ByteSource::from_bytes("plain.tar", vec![0; 1 << 20]);
    assert!(TarShards::parse_with_limit(vec![plain; 9], &[], 0).is_ok());
}
