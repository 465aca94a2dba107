//! Model folders as on the Hugging Face hub: weights in one file or in shards, in a plain copy of a
//! repository or in the hub's cache.

use super::disk::{self, RealDisk, failed};
use super::safetensors::{self, Named};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The end of the name of a file that lists shards.
pub(super) const INDEX: &str = ".safetensors.index.json";
/// The files that hold the weights of a repository, best first.
pub(super) const FILES: [&str; 3] =
    ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"];
/// The maximum length of an index. Those of the largest models have a few megabytes.
const MAX_INDEX: u64 = 100 << 20;
/// The maximum length of a file in `refs`, which contains the name of a commit.
const MAX_REF: u64 = 200;

/// The contents of an index.
#[derive(Deserialize)]
struct Index {
    /// The file of each tensor.
    weight_map: BTreeMap<String, String>,
}

/// Returns the file of weights in a folder, or `None` if it is not a model folder. In the hub's
/// cache (`models--OWNER--NAME`), it is that of the revision `main`.
pub(super) fn weights_file(folder: &Path) -> Result<Option<PathBuf>> {
    let reference = folder.join("refs").join("main");
    let snapshot = match reference.is_file() {
        true => {
            let text = disk::read(&RealDisk, &reference, MAX_REF).map_err(failed("read", &reference))?;
            let commit = String::from_utf8_lossy(&text).trim().to_string();
            folder.join("snapshots").join(plain_name(&commit).map_err(|e| e.within(reference.display()))?)
        }
        false => folder.to_path_buf(),
    };
    Ok(FILES.iter().map(|name| snapshot.join(name)).find(|path| path.is_file()))
}

/// Returns the names of the shards that an index lists.
#[cfg(feature = "hub")]
pub(super) fn shard_names(path: &Path) -> Result<BTreeSet<String>> {
    let text = disk::read(&RealDisk, path, MAX_INDEX).map_err(failed("read", path))?;
    let invalid = |e| Error::new(ErrorKind::Data, format!("{}: invalid index: {e}", path.display()));
    let index: Index = serde_json::from_slice(&text).map_err(invalid)?;
    Ok(index.weight_map.into_values().collect())
}

/// Reads the tensors of all shards that an index lists.
///
/// Each shard must hold exactly the tensors that the index places there.
pub(super) fn read_shards(path: &Path) -> Result<Named> {
    let text = disk::read(&RealDisk, path, MAX_INDEX).map_err(failed("read", path))?;
    let invalid = |why: String| Error::new(ErrorKind::Data, format!("{}: {why}", path.display()));
    let index: Index = serde_json::from_slice(&text).map_err(|e| invalid(format!("invalid index: {e}")))?;
    let mut shards: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, shard) in &index.weight_map {
        shards.entry(shard).or_default().insert(name);
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let (mut tensors, mut problems) = (Vec::new(), Vec::new());
    for (shard, expected) in shards {
        let shard = folder.join(plain_name(shard).map_err(|e| e.within(path.display()))?);
        let found = safetensors::read(&shard)?;
        let names: BTreeSet<&str> = found.iter().map(|(name, _)| &name[..]).collect();
        let shard = shard.display();
        problems.extend(expected.difference(&names).map(|name| format!("{name} is missing in {shard}")));
        problems
            .extend(names.difference(&expected).map(|name| format!("{name} in {shard} is not in the index")));
        tensors.extend(found);
    }
    match problems.is_empty() {
        true => Ok(tensors),
        false => {
            let error = invalid("the shards do not match the index".into());
            Err(problems.into_iter().fold(error, Error::note))
        }
    }
}

/// Checks that `name` is that of a file in the same folder.
pub(super) fn plain_name(name: &str) -> Result<&Path> {
    let path = Path::new(name);
    match path.components().collect::<Vec<_>>()[..] {
        [Component::Normal(only)] if only == name => Ok(path),
        _ => {
            Err(Error::new(ErrorKind::Data, format!("{name:?} is not the name of a file in the same folder")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_tensors;
    use super::*;
    use std::fs;
    use tensorpack_tensor::HostTensor;
    use tensorpack_testing::assert_mentions;

    fn tensor(value: f32) -> HostTensor {
        HostTensor::scalar(value)
    }

    /// Writes two shards and their index.
    fn sharded(folder: &Path, weight_map: &str) -> PathBuf {
        fs::create_dir_all(folder).unwrap();
        let one = |name: &str, value| vec![(name.to_string(), tensor(value))];
        safetensors::write(folder.join("model-00001-of-00002.safetensors"), &one("a", 1.0)).unwrap();
        safetensors::write(folder.join("model-00002-of-00002.safetensors"), &one("b", 2.0)).unwrap();
        let index = folder.join("model.safetensors.index.json");
        fs::write(&index, format!(r#"{{"metadata": {{"total_size": 8}}, "weight_map": {{{weight_map}}}}}"#))
            .unwrap();
        index
    }

    const BOTH: &str = r#""a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors""#;

    #[test]
    fn shards_are_read_by_their_index_and_their_folder() {
        let dir = tempfile::tempdir().unwrap();
        let index = sharded(dir.path(), BOTH);
        for path in [&index, dir.path()] {
            let tensors = read_tensors(path, None).unwrap();
            assert_eq!(tensors, [("a".to_string(), tensor(1.0)), ("b".to_string(), tensor(2.0))]);
        }
    }

    #[test]
    fn the_main_revision_of_the_hub_cache_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("models--owner--net");
        fs::create_dir_all(cache.join("refs")).unwrap();
        fs::write(cache.join("refs/main"), "abc123\n").unwrap();
        sharded(&cache.join("snapshots/abc123"), BOTH);
        fs::create_dir_all(cache.join("snapshots/old")).unwrap();
        assert_eq!(read_tensors(&cache, None).unwrap().len(), 2);
        fs::write(cache.join("refs/main"), "../../secret").unwrap();
        assert_eq!(read_tensors(&cache, None).unwrap_err().kind(), ErrorKind::Data);
    }

    #[test]
    fn shards_that_do_not_match_the_index_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let first = r#""a": "model-00001-of-00002.safetensors""#;
        let path = sharded(dir.path(), &format!(r#"{first}, "c": "model-00002-of-00002.safetensors""#));
        let e = read_tensors(&path, None).unwrap_err();
        assert_mentions(e.to_string(), &["c is missing", "b in", "model-00002-of-00002.safetensors"]);
        let path = sharded(dir.path(), &format!(r#"{first}, "b": "missing.safetensors""#));
        assert_mentions(read_tensors(&path, None).unwrap_err().to_string(), &["missing.safetensors"]);
        for outside in ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "", ".."] {
            let path = sharded(dir.path(), &format!(r#""a": "{outside}""#));
            assert_eq!(read_tensors(&path, None).unwrap_err().kind(), ErrorKind::Data, "{outside}");
        }
        fs::write(&path, "{").unwrap();
        assert_eq!(read_tensors(&path, None).unwrap_err().kind(), ErrorKind::Data);
    }
}
