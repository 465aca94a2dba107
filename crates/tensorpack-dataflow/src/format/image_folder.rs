//! Labeled image files: a folder per class, or a list of paths and labels.

use super::check_index::check_index;
use super::{ByteSource, RandomAccess};
use crate::Sample;
use std::collections::HashSet;
use std::fs::{self, FileType};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// The extensions of the formats that [`decode`](crate::image::decode) reads.
const IMAGE_EXTENSIONS: [&str; 3] = ["jpg", "jpeg", "png"];

/// The largest file that is read as one sample: 1 GiB.
const MAX_FILE: u64 = 1 << 30;

/// Labeled files. A sample is `[file contents u8, label i32]`; decode it with a map.
#[doc(alias = "LabelledFiles")]
#[derive(Clone, Debug)]
pub struct ImageFolder {
    files: Arc<[(PathBuf, i32)]>,
    classes: Arc<[String]>,
}

impl ImageFolder {
    /// Finds the images (`.jpg`, `.jpeg`, `.png`) below `root`, which has one folder per class.
    /// Classes are numbered in alphabetical order of the folder names; files are sorted by path.
    ///
    /// Symbolic links are followed. Links that lead to the same folder twice within a class are an
    /// error, and so are links to nothing and images that are not regular files.
    #[doc(alias = "folders")]
    pub fn open(root: impl AsRef<Path>) -> Result<ImageFolder> {
        let root = root.as_ref();
        let mut classes = Vec::new();
        let mut files = Vec::new();
        for (folder, kind) in read_dir_sorted(root)? {
            match kind {
                Kind::Folder => {}
                // It may be a class, without which others would have another label.
                Kind::Dangling => return Err(dangling(&folder)),
                Kind::File | Kind::Other => continue,
            }
            let label = classes.len() as i32;
            classes.push(file_name(&folder));
            let mut images = Vec::new();
            find_images(&folder, &mut images, &mut HashSet::new())?;
            files.extend(images.into_iter().map(|path| (path, label)));
        }
        if files.is_empty() {
            let why = format!("{} contains no folders with images", root.display());
            return Err(Error::argument(why)
                .note("expected a layout like ROOT/CLASS/IMAGE.jpg, with extensions jpg, jpeg or png"));
        }
        Ok(ImageFolder { files: files.into(), classes: classes.into() })
    }

    /// Reads a list of files below `root` from the text file `list`: one path and label per line,
    /// separated by a space.
    #[doc(alias = "list")]
    pub fn from_list(root: impl AsRef<Path>, list: impl AsRef<Path>) -> Result<ImageFolder> {
        let list = list.as_ref();
        let text = String::from_utf8(ByteSource::open(list)?.read_all()?).map_err(|_| {
            Error::new(ErrorKind::Data, format!("{} is not a text file in UTF-8", list.display()))
        })?;
        let mut files = parse_list(&text).map_err(|e| e.within(list.display()))?;
        files.iter_mut().for_each(|(path, _)| *path = root.as_ref().join(&path));
        Ok(ImageFolder { files: files.into(), classes: Arc::new([]) })
    }

    /// Returns the paths and labels.
    pub fn files(&self) -> &[(PathBuf, i32)] {
        &self.files
    }

    /// Returns the class names, which are empty for a list.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl RandomAccess for ImageFolder {
    fn len(&self) -> u64 {
        self.files.len() as u64
    }

    fn get(&self, index: u64) -> Result<Sample> {
        let (path, label) = &self.files[check_index(index, self.files.len())?];
        let source = ByteSource::open(path)?;
        if source.len() > MAX_FILE {
            let why = format!("{} has {} bytes; the limit is {MAX_FILE}", source.name(), source.len());
            return Err(Error::new(ErrorKind::Memory, why).note("remove it from the images"));
        }
        let bytes = source.read_all()?;
        Ok(vec![HostTensor::new([bytes.len()], bytes)?, HostTensor::scalar(*label)])
    }
}

/// Parses lines of a path and a label.
pub fn parse_list(text: &str) -> Result<Vec<(PathBuf, i32)>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parsed = lines.map(|(i, line)| {
        let fields = line.trim_end().rsplit_once([' ', '\t']);
        let file = fields.and_then(|(path, label)| Some((path.trim().into(), label.parse().ok()?)));
        file.ok_or_else(|| {
            let why = format!("line {}: expected a path and a label, got {line:?}", i + 1);
            Error::new(ErrorKind::Data, why)
        })
    });
    parsed.collect()
}

/// Adds the images in `folder` and below. `visited` holds the folders seen so far, without links in
/// their paths: links may form loops, or lead to one folder in exponentially many ways.
fn find_images(folder: &Path, images: &mut Vec<PathBuf>, visited: &mut HashSet<PathBuf>) -> Result<()> {
    let real = folder.canonicalize().map_err(|e| Error::from(e).within(folder.display()))?;
    if !visited.insert(real) {
        let why =
            format!("symbolic links lead twice to the same folder, the second time as {}", folder.display());
        return Err(Error::new(ErrorKind::Data, why).note("remove the link"));
    }
    for (path, kind) in read_dir_sorted(folder)? {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_lowercase();
        match kind {
            Kind::Folder => find_images(&path, images, visited)?,
            // It may be a folder.
            Kind::Dangling if extension.is_empty() => return Err(dangling(&path)),
            _ if !IMAGE_EXTENSIONS.contains(&&extension[..]) => {}
            Kind::File => images.push(path),
            Kind::Dangling => return Err(dangling(&path)),
            Kind::Other => {
                let why = format!("{} is not a regular file", path.display());
                return Err(Error::argument(why).note("remove it from the images"));
            }
        }
    }
    Ok(())
}

/// Returns the error for a symbolic link to nothing.
fn dangling(link: &Path) -> Error {
    let target = fs::read_link(link).unwrap_or_default();
    let why = format!("{} is a symbolic link to {}, which cannot be read", link.display(), target.display());
    Error::new(ErrorKind::Data, why).note("restore what it points to, or remove the link")
}

/// The kind of a directory entry, with symbolic links followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Folder,
    File,
    /// A pipe, a socket or a device.
    Other,
    /// A symbolic link to nothing.
    Dangling,
}

impl From<FileType> for Kind {
    fn from(kind: FileType) -> Kind {
        match (kind.is_dir(), kind.is_file()) {
            (true, _) => Kind::Folder,
            (_, true) => Kind::File,
            _ => Kind::Other,
        }
    }
}

/// Returns the entries of a directory, sorted and without hidden files.
fn read_dir_sorted(folder: &Path) -> Result<Vec<(PathBuf, Kind)>> {
    let within = |e| Error::from(e).within(folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(within)? {
        let entry = entry.map_err(within)?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(within)?);
        if file_name(&path).starts_with('.') {
            continue;
        }
        // `file_type` comes with the listing, which saves a `stat` per file; only symbolic links
        // need one.
        let kind = match kind.is_symlink() {
            true => fs::metadata(&path).map_or(Kind::Dangling, |meta| meta.file_type().into()),
            false => kind.into(),
        };
        paths.push((path, kind));
    }
    paths.sort();
    Ok(paths)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        dir
    }

    #[test]
    fn each_folder_is_a_class() {
        let dir = tree(&["dog/b.JPG", "dog/a.png", "cat/x/c.jpeg", "cat/notes.txt", "top.jpg", ".git/d.jpg"]);
        let files = ImageFolder::open(dir.path()).unwrap();
        assert_eq!(files.classes(), ["cat", "dog"]);
        let found: Vec<_> = (0..files.len())
            .map(|i| {
                let sample = files.get(i).unwrap();
                let text = String::from_utf8(sample[0].as_slice().unwrap().to_vec()).unwrap();
                (text, sample[1].as_slice::<i32>().unwrap()[0])
            })
            .collect();
        let expected = [("cat/x/c.jpeg", 0), ("dog/a.png", 1), ("dog/b.JPG", 1)];
        assert_eq!(found, expected.map(|(name, label)| (name.to_string(), label)));
        assert!(ImageFolder::open(dir.path().join("dog")).is_err());
    }

    #[test]
    fn reads_path_label_lists() {
        let dir = tree(&["a b.jpg"]);
        let list = dir.path().join("list.txt");
        fs::write(&list, "a b.jpg 3\n\nmissing.jpg\t4\n").unwrap();
        let files = ImageFolder::from_list(dir.path(), &list).unwrap();
        assert_eq!(files.get(0).unwrap()[1], HostTensor::scalar(3i32));
        assert!(files.get(1).unwrap_err().message().contains("missing.jpg: "));
        assert!(parse_list("a.jpg one").unwrap_err().message().starts_with("line 1: "));
    }
}
