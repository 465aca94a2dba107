//! The parsers, each with files that it accepts.

use super::model_files::{Checkpoints, ExportedModels, OnnxModels, safetensors_files};
use super::targets;
use std::path::{Path, PathBuf};

/// A parser as a function of the bytes of a file.
pub(crate) type Parse = Box<dyn FnMut(&[u8])>;

/// A parser, which must neither panic, nor hang, nor use memory that the bytes cannot
/// account for.
pub(crate) struct Parser {
    pub(crate) name: &'static str,
    /// The memory that it may use, in bytes.
    pub(crate) max_memory: usize,
    /// Makes the files to mutate.
    make_seeds: fn() -> Vec<Vec<u8>>,
    /// Makes the function.
    pub(crate) make: fn() -> Parse,
}

impl Parser {
    /// Returns the files to mutate. They depend on nothing but this binary and, if it is found, the
    /// corpus in the repository.
    pub(crate) fn seeds(&self) -> Vec<Vec<u8>> {
        let mut seeds = (self.make_seeds)();
        let corpus = match self.name {
            "jpeg" | "png" => "image",
            name => name,
        };
        let folder = corpus_folder().map(|folder| folder.join(corpus));
        let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten();
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let is_ours = |path: &&PathBuf| match self.name {
            "jpeg" => path.extension().is_some_and(|e| e == "jpg"),
            "png" => path.extension().is_some_and(|e| e == "png"),
            _ => true,
        };
        seeds.extend(paths.iter().filter(is_ours).filter_map(|path| std::fs::read(path).ok()));
        seeds
    }
}

/// `$TENSORPACK_FUZZ_CORPUS`, or the corpus of the repository, where this was built or is run.
fn corpus_folder() -> Option<PathBuf> {
    const CORPUS: &str = "crates/tensorpack-dataflow/fuzz/corpus";
    let named = std::env::var_os("TENSORPACK_FUZZ_CORPUS").map(PathBuf::from);
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join(CORPUS);
    named.into_iter().chain([built, CORPUS.into()]).find(|folder| folder.is_dir())
}

/// A parser of data files, with files of the corpus that are part of the binary.
macro_rules! data_file {
    ($name:literal, $parser:ident, $folder:literal: $($file:literal),+) => {
        Parser {
            name: $name,
            // A file may decompress to 1 MiB (`targets.rs`), which is held several times while it grows
            // and is converted.
            max_memory: 8 << 20,
            make_seeds: || vec![$(include_bytes!(concat!(
                "../../crates/tensorpack-dataflow/fuzz/corpus/", $folder, "/", $file
            )).to_vec()),+],
            make: || Box::new(targets::$parser),
        }
    };
}

pub(crate) const PARSERS: [Parser; 18] = [
    data_file!("cifar", cifar, "cifar": "ten", "hundred"),
    data_file!("gzip", gzip, "gzip": "two-members", "empty", "bomb"),
    data_file!("idx", idx, "idx": "bytes", "ints", "doubles-packed"),
    data_file!("jpeg", image, "image": "420_17x9.jpg", "420_restart_40x35.jpg", "progressive_25x31.jpg",
        "grey_21x30.jpg", "orientation6_18x26.jpg"),
    data_file!("png", image, "image": "png_alpha.png", "png_16.png", "png_grey.png"),
    data_file!("lines", lines, "lines": "ends", "windows"),
    data_file!("list", list, "list": "one", "spaces"),
    data_file!("npy", npy, "npy": "f4", "fortran", "version-2"),
    data_file!("npz", npz, "npz": "stored", "packed"),
    data_file!("serialized", serialized, "serialized": "all-types", "image-and-label"),
    data_file!("tar", tar, "tar": "sample", "saved-packed", "gnu-long-name", "pax-long-name-packed"),
    data_file!("tfrecord", tfrecord, "tfrecord": "three", "serialized", "many-empty"),
    Parser {
        name: "safetensors",
        max_memory: 6 << 20,
        make_seeds: safetensors_files,
        make: super::model_files::safetensors_parser,
    },
    Parser {
        name: "pytorch",
        max_memory: 8 << 20,
        make_seeds: super::model_files::pytorch_files,
        make: super::model_files::pytorch_parser,
    },
    Parser {
        name: "checkpoint",
        max_memory: 16 << 20,
        make_seeds: || Checkpoints::new().seeds(),
        make: || {
            let mut files = Checkpoints::new();
            Box::new(move |bytes| files.load(bytes))
        },
    },
    Parser {
        name: "exported_model",
        max_memory: 256 << 20,
        make_seeds: || ExportedModels::new().seeds(),
        make: || {
            let mut files = ExportedModels::new();
            Box::new(move |bytes| files.load(bytes))
        },
    },
    Parser {
        name: "onnx",
        max_memory: 256 << 20,
        make_seeds: || OnnxModels::new().seeds(),
        make: || {
            let mut files = OnnxModels::new();
            Box::new(move |bytes| files.load(bytes))
        },
    },
    Parser {
        name: "rendezvous",
        max_memory: 8 << 20,
        make_seeds: tensorpack_rendezvous::sample_messages,
        make: || Box::new(tensorpack_rendezvous::check_decoding),
    },
];
