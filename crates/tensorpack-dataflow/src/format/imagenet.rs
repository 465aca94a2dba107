//! The directory layout of ImageNet (ILSVRC 2012).
//!
//! ```text
//! ROOT/train/n01440764/n01440764_18.JPEG
//! ROOT/val/n01440764/ILSVRC2012_val_00000293.JPEG    a folder per class, as for training
//! ROOT/val/ILSVRC2012_val_00000293.JPEG              or flat, and ROOT/val.txt: name, label
//! ```
//!
//! Labels are 0 to 999 in the order of the synset names, as in Caffe.

use super::image_folder::ImageFolder;
use std::path::Path;
use tensorpack_tensor::{Error, Result};

/// Opens the training images below `root`: `[file contents u8, label i32]`.
#[doc(alias = "ILSVRC12")]
pub fn train(root: impl AsRef<Path>) -> Result<ImageFolder> {
    ImageFolder::open(root.as_ref().join("train"))
}

/// Opens the validation images below `root`: `[file contents u8, label i32]`.
#[doc(alias = "ILSVRC12")]
pub fn val(root: impl AsRef<Path>) -> Result<ImageFolder> {
    let (folder, list) = (root.as_ref().join("val"), root.as_ref().join("val.txt"));
    if list.is_file() {
        return ImageFolder::from_list(folder, list);
    }
    ImageFolder::open(&folder).map_err(|e| {
        let why = format!("{} has no class folders, and {} does not exist", folder.display(), list.display());
        Error::argument(why).note(e.message())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn validation_images_in_folders_or_with_val_txt() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for folder in ["train/n02", "train/n01", "val"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("train/n02/a.JPEG"), b"a").unwrap();
        fs::write(root.join("val/v.JPEG"), b"v").unwrap();
        let train = train(root).unwrap();
        assert_eq!(train.files(), [(root.join("train/n02/a.JPEG"), 1)]);
        assert!(val(root).unwrap_err().message().contains("val.txt"));
        fs::write(root.join("val.txt"), "v.JPEG 65\n").unwrap();
        assert_eq!(val(root).unwrap().files(), [(root.join("val/v.JPEG"), 65)]);
    }
}
