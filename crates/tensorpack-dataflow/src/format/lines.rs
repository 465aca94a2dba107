//! Text files, one sample per line.

use super::check_index::check_index;
use super::{ByteSource, RandomAccess};
use crate::Sample;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use tensorpack_tensor::{Error, HostTensor, Result};

/// The lines of a text file. A sample is one component: the bytes of the line without its
/// terminator (`\n` or `\r\n`). The last line may lack one. The text stays on disk.
#[derive(Clone, Debug)]
pub struct Lines {
    source: ByteSource,
    /// The offset of every line, followed by the end of the file.
    starts: Arc<[u64]>,
}

impl Lines {
    /// Opens the file at `path` and scans it once for line breaks.
    pub fn open(path: impl AsRef<Path>) -> Result<Lines> {
        Lines::parse(ByteSource::open(path)?)
    }

    /// Scans `source` for line breaks.
    pub fn parse(source: ByteSource) -> Result<Lines> {
        let mut starts = vec![0];
        let mut reader = source.reader_at(0);
        let mut buffer = vec![0; 1 << 16];
        let mut at = 0;
        loop {
            let n = reader.read(&mut buffer).map_err(|e| Error::from(e).within(source.name()))?;
            if n == 0 {
                break;
            }
            let ends = buffer[..n].iter().enumerate().filter(|(_, b)| **b == b'\n');
            starts.extend(ends.map(|(i, _)| at + i as u64 + 1));
            at += n as u64;
        }
        if starts.last() != Some(&at) {
            starts.push(at);
        }
        Ok(Lines { source, starts: starts.into() })
    }
}

impl RandomAccess for Lines {
    fn len(&self) -> u64 {
        self.starts.len() as u64 - 1
    }

    fn get(&self, index: u64) -> Result<Sample> {
        let i = check_index(index, self.starts.len() - 1)?;
        let (start, end) = (self.starts[i], self.starts[i + 1]);
        let mut line = self.source.read(start, end - start)?;
        if line.pop_if(|b| *b == b'\n').is_some() {
            line.pop_if(|b| *b == b'\r');
        }
        Ok(vec![HostTensor::new([line.len()], line)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        let lines = Lines::parse(ByteSource::from_bytes("t", text.as_bytes().to_vec())).unwrap();
        let line = |i| String::from_utf8(lines.get(i).unwrap()[0].as_slice().unwrap().to_vec()).unwrap();
        (0..lines.len()).map(line).collect()
    }

    #[test]
    fn lines_match_str_lines() {
        let long = "x".repeat(70_000) + "\nend";
        for text in ["", "a", "a\n", "\n", "\n\n", "a\r\nb\rc\n\nd", "a\r", &long] {
            assert_eq!(lines(text), text.lines().collect::<Vec<_>>(), "{text:?}");
        }
    }
}
