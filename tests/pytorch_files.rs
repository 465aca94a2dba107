//! PyTorch files: both formats, views, hostile contents.

#[path = "torch/file_writer.rs"]
mod file_writer;

use file_writer::{Item, Storage, View, archive, crc32, legacy, zip};
use proptest::prelude::*;
use std::fs;
use tensorpack::io::{SaverRestore, SessionInit, dump_model_variables, pytorch, safetensors::Named};
use tensorpack::prelude::*;
use tensorpack::{DType, ErrorKind};
use tensorpack_testing::assert_mentions;

type Read = fn(&std::path::Path) -> Result<Named>;

fn read_with(bytes: &[u8], read: impl FnOnce(&std::path::Path) -> Result<Named>) -> Result<Named> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.pth");
    fs::write(&path, bytes).unwrap();
    read(&path)
}

fn read(bytes: &[u8]) -> Result<Named> {
    read_with(bytes, |path| pytorch::read(path))
}

fn whole<'a>(storage: usize, sizes: &'a [usize], strides: &'a [usize]) -> Item<'a> {
    Item::Tensor(View { storage, offset: 0, sizes, strides })
}

/// The same contents in both formats.
fn both(root: &Item<'_>, storages: &[Storage]) -> [Vec<u8>; 2] {
    [archive(root, storages), legacy(root, storages)]
}

fn tensor(tensors: &Named, name: &str) -> HostTensor {
    tensors.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no tensor {name}")).1.clone()
}

/// A class of storages, the size and bytes of two elements, and what they are read as.
type Case<'a> = (&'static str, usize, [&'a [u8]; 2], DType, [f64; 2]);

#[test]
fn every_dtype_is_read_in_both_formats() {
    let cases: [Case<'_>; 10] = [
        ("FloatStorage", 4, [&1.5f32.to_le_bytes(), &(-2f32).to_le_bytes()], DType::F32, [1.5, -2.0]),
        ("DoubleStorage", 8, [&1.5f64.to_le_bytes(), &(-2f64).to_le_bytes()], DType::F64, [1.5, -2.0]),
        ("HalfStorage", 2, [&[0, 0x3c], &[0, 0xc0]], DType::F16, [1.0, -2.0]),
        ("BFloat16Storage", 2, [&[0x80, 0x3f], &[0, 0xc0]], DType::Bf16, [1.0, -2.0]),
        ("LongStorage", 8, [&5i64.to_le_bytes(), &(-6i64).to_le_bytes()], DType::I64, [5.0, -6.0]),
        ("IntStorage", 4, [&5i32.to_le_bytes(), &(-6i32).to_le_bytes()], DType::I32, [5.0, -6.0]),
        ("ShortStorage", 2, [&5i16.to_le_bytes(), &(-6i16).to_le_bytes()], DType::I32, [5.0, -6.0]),
        ("CharStorage", 1, [&[5], &[250]], DType::I32, [5.0, -6.0]),
        ("ByteStorage", 1, [&[5], &[250]], DType::U8, [5.0, 250.0]),
        ("BoolStorage", 1, [&[1], &[0]], DType::Bool, [1.0, 0.0]),
    ];
    let storages: Vec<Storage> =
        cases.iter().map(|c| Storage { class: c.0, size: c.1, bytes: c.2.concat() }).collect();
    let entries = cases.iter().enumerate().map(|(i, c)| (c.0, whole(i, &[2, 1], &[1, 1]))).collect();
    for bytes in both(&Item::Dict(entries), &storages) {
        let tensors = read(&bytes).unwrap();
        for (name, _, _, dtype, values) in &cases {
            let expected = HostTensor::from_f64(*dtype, [2, 1], values).unwrap();
            assert_eq!(tensor(&tensors, name), expected, "{name}");
        }
    }
}

#[test]
fn strided_views_of_shared_storages_are_collected() {
    let storages = [Storage::f32(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])];
    let view = |offset, sizes, strides| Item::Tensor(View { storage: 0, offset, sizes, strides });
    let root = Item::Dict(vec![
        ("whole", view(0, &[2, 3], &[3, 1])),
        ("transposed", view(0, &[3, 2], &[1, 3])),
        ("column", view(1, &[2], &[3])),
        ("part", view(2, &[2, 2], &[2, 1])),
        ("expanded", view(5, &[3], &[0])),
        ("scalar", view(4, &[], &[])),
        ("empty", view(0, &[0, 7], &[7, 1])),
    ]);
    for bytes in both(&root, &storages) {
        let tensors = read(&bytes).unwrap();
        let values = |name: &str| tensor(&tensors, name).to_f64_vec();
        assert_eq!(values("whole"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(values("transposed"), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(values("column"), [1.0, 4.0]);
        assert_eq!(values("part"), [2.0, 3.0, 4.0, 5.0]);
        assert_eq!(values("expanded"), [5.0; 3]);
        assert_eq!((values("scalar"), tensor(&tensors, "scalar").sizes().len()), (vec![4.0], 0));
        assert_eq!(tensor(&tensors, "empty").sizes(), [0, 7]);
    }
}

/// A dim of size 1 may have any stride, as in files of other programs.
#[test]
fn the_stride_of_a_dim_of_size_one_does_not_matter() {
    let storages = [Storage { class: "BoolStorage", size: 1, bytes: vec![1, 0, 1, 1] }];
    let root = Item::Dict(vec![("w", whole(0, &[2, 1, 2], &[2, usize::MAX, 1]))]);
    for bytes in both(&root, &storages) {
        assert_eq!(tensor(&read(&bytes).unwrap(), "w").to_f64_vec(), [1.0, 0.0, 1.0, 1.0]);
    }
}

/// An error about elements is not one about code.
#[test]
fn unsupported_elements_are_named() {
    for class in ["ComplexFloatStorage", "QInt8Storage"] {
        let storages = [Storage { class, size: 8, bytes: vec![0; 8] }];
        for bytes in both(&Item::Dict(vec![("w", whole(0, &[1], &[1]))]), &storages) {
            let e = read(&bytes).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
            assert_mentions(e.to_string(), &[class]);
            assert!(!e.to_string().contains("nothing of the file was run"), "{e}");
        }
    }
}

#[test]
fn the_state_dict_is_found_among_other_entries() {
    let storages = [Storage::f32(&[1.0]), Storage::f32(&[2.0])];
    let weights = |storage| Item::Dict(vec![("fc.weight", whole(storage, &[1], &[1]))]);
    let nested =
        Item::Dict(vec![("epoch", Item::Int(3)), ("optimizer", weights(1)), ("state_dict", weights(0))]);
    let deeper = Item::Dict(vec![("checkpoint", nested.clone())]);
    for (root, used) in [(weights(0), 1), (nested.clone(), 2), (deeper.clone(), 2)] {
        for bytes in both(&root, &storages[..used]) {
            let tensors = read(&bytes).unwrap();
            assert_eq!(tensors, [("fc.weight".to_string(), HostTensor::new([1], vec![1f32]).unwrap())]);
        }
    }
    let bytes = archive(&deeper, &storages);
    let by_key = |key: &str| read_with(&bytes, |path| pytorch::read_key(path, key));
    assert_eq!(tensor(&by_key("checkpoint.optimizer").unwrap(), "fc.weight").to_f64_vec(), [2.0]);
    assert_mentions(by_key("ema").unwrap_err().to_string(), &["ema", "checkpoint.optimizer"]);
    let read_all: Read = |path| pytorch::read_all(path);
    let names: Vec<String> = read_with(&bytes, read_all).unwrap().into_iter().map(|(n, _)| n).collect();
    assert_eq!(names, ["checkpoint.optimizer.fc.weight", "checkpoint.state_dict.fc.weight"]);
    // Two candidates: the error lists them.
    let two = Item::Dict(vec![("encoder", weights(0)), ("decoder", weights(1))]);
    let e = read(&archive(&two, &storages)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Name);
    assert_mentions(e.to_string(), &["encoder: 1 tensors", "decoder: 1 tensors", "key"]);
}

#[test]
fn tied_weights_share_their_elements() {
    let storages = [Storage::f32(&[1.0, 2.0])];
    // The pickle refers to one object twice, as torch.save does for one tensor under two names.
    let mut pickle = b"\x80\x02}(X\x01\x00\x00\x00a".to_vec();
    let one = file_writer::pickle(&whole(0, &[2], &[1]), &storages, false);
    pickle.extend(&one[2..one.len() - 1]);
    pickle.extend(b"q\x05X\x01\x00\x00\x00bh\x05u.");
    let entries = [("m/data.pkl".to_string(), pickle), ("m/data/0".to_string(), storages[0].bytes.clone())];
    let tensors = read(&zip(&entries)).unwrap();
    assert!(tensor(&tensors, "a").shares_elements(&tensor(&tensors, "b")));
}

#[test]
fn code_in_a_file_is_refused_by_name() {
    let storages = [Storage::f32(&[1.0])];
    let marker = std::env::temp_dir().join(format!("tensorpack-code-ran-{}", std::process::id()));
    let command = format!("touch {}", marker.display());
    for (module, name) in [("os", "system"), ("posix", "system"), ("builtins", "eval"), ("torch.jit", "load")]
    {
        let evil = Item::Call(module, name, &command);
        let root = Item::Dict(vec![("w", whole(0, &[1], &[1])), ("evil", evil)]);
        for bytes in both(&root, &storages) {
            let e = read(&bytes).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Data);
            assert_mentions(e.to_string(), &[&format!("{module}.{name}"), "model.pth"]);
        }
    }
    assert!(!marker.exists());
}

#[test]
fn torchscript_and_other_archives_are_refused() {
    let file = |name: &str| vec![(format!("m/{name}"), b"\x80\x02}.".to_vec())];
    let script = [file("data.pkl"), file("constants.pkl")].concat();
    let e = read(&zip(&script)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert_mentions(e.to_string(), &["TorchScript", "state_dict"]);
    assert_mentions(read(&zip(&file("word/document.xml"))).unwrap_err().to_string(), &["data.pkl"]);
    assert_mentions(read(b"\x80\x04K\x01.").unwrap_err().to_string(), &["not a PyTorch file"]);
    assert_mentions(read(b"").unwrap_err().to_string(), &["not a PyTorch file"]);
    assert_mentions(read(&zip(&file("data.pkl"))).unwrap_err().to_string(), &["no tensors"]);
}

#[test]
fn sizes_are_checked_before_memory_is_allocated() {
    let storages = [Storage::f32(&[1.0, 2.0])];
    let huge = 1 << 30;
    for (offset, sizes, strides) in [
        (0, &[3][..], &[1][..]),
        (1, &[2], &[1]),
        (0, &[2, 2], &[1, 1]),
        (0, &[huge, huge, huge, huge], &[0, 0, 0, 0]),
        // Inside the storage, but far larger.
        (0, &[huge, 1], &[0, 1]),
        (0, &[2], &[1, 1]),
    ] {
        let root = Item::Dict(vec![("w", Item::Tensor(View { storage: 0, offset, sizes, strides }))]);
        for bytes in both(&root, &storages) {
            let e = read(&bytes).expect_err(&format!("{sizes:?} {strides:?}"));
            assert!(matches!(e.kind(), ErrorKind::Data | ErrorKind::Memory | ErrorKind::Shape), "{e}");
        }
    }
}

#[test]
fn a_wrong_checksum_is_an_error() {
    let root = Item::Dict(vec![("w", whole(0, &[2], &[1])), ("v", whole(0, &[1], &[1]))]);
    let mut bytes = archive(&root, &[Storage::f32(&[1.0, 2.0])]);
    let pattern = [1f32.to_le_bytes(), 2f32.to_le_bytes()].concat();
    let at = bytes.windows(8).position(|w| w == pattern).unwrap();
    bytes[at] ^= 1;
    let e = read(&bytes).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Data);
    assert_mentions(e.to_string(), &["checksum", "storage 0"]);
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
}

#[test]
fn dictionaries_that_contain_each_other_are_errors() {
    // x0 = {}; x1 = {"a": x0, "b": x0}; ...: 2^40 paths.
    let mut pickle = b"\x80\x02}q\x00".to_vec();
    for i in 0..25u8 {
        pickle.extend(b"}(X\x01\x00\x00\x00a");
        pickle.extend([b'h', i]);
        pickle.extend(b"X\x01\x00\x00\x00b");
        pickle.extend([b'h', i, b'u', b'q', i + 1]);
    }
    pickle.push(b'.');
    let cycle = b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.".to_vec();
    for pickle in [pickle, cycle] {
        let e = read(&zip(&[("m/data.pkl".to_string(), pickle)])).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Data, "{e}");
    }
}

#[test]
fn a_session_is_initialized_from_a_pytorch_file() {
    let net = || {
        let graph = Graph::new();
        let t = TowerContext::inference(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(2)]));
        Linear::new(1).apply(&t, "fc", &x);
        Session::new(graph.freeze().unwrap()).unwrap()
    };
    let storages = [Storage::f32(&[3.0, 4.0]), Storage::f32(&[5.0])];
    let root = Item::Dict(vec![("fc/W", whole(0, &[2, 1], &[1, 1])), ("fc/b", whole(1, &[1], &[1]))]);
    let dir = tempfile::tempdir().unwrap();
    for (i, bytes) in both(&root, &storages).iter().enumerate() {
        let path = dir.path().join(format!("{i}.pth"));
        fs::write(&path, bytes).unwrap();
        let session = net();
        SaverRestore::new(&path).init(&session).unwrap();
        assert_eq!(session.read("fc/W").unwrap().to_f64_vec(), [3.0, 4.0]);
    }
    assert!(
        dump_model_variables(&net(), dir.path().join("out.pth"))
            .unwrap_err()
            .to_string()
            .contains("safetensors")
    );
}

fn sample() -> [Vec<u8>; 2] {
    let storages =
        [Storage::f32(&[1.0, 2.0, 3.0, 4.0]), Storage { class: "HalfStorage", size: 2, bytes: vec![0; 4] }];
    let weights = Item::Dict(vec![
        ("a.weight", whole(0, &[2, 2], &[1, 2])),
        ("b", whole(1, &[2], &[1])),
        ("c", whole(0, &[4], &[1])),
    ]);
    both(&Item::Dict(vec![("epoch", Item::Int(3)), ("model", weights)]), &storages)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(tensorpack_testing::test_cases(256)))]
    #[test]
    fn damaged_files_never_panic(at in 0usize..2000, byte in any::<u8>(), cut in 0usize..2000) {
        for bytes in sample() {
            let n = bytes.len();
            prop_assert!(read(&bytes[..cut % n]).is_err());
            let mut damaged = bytes.clone();
            damaged[at % n] = byte;
            let _ = read(&damaged);
        }
    }
}
