//! Reads the lines of a file while another process appends to it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// The most bytes that one call reads, so that a large file shows up piece by piece.
const MAX_READ: usize = 8 << 20;
/// The longest line. A longer one is skipped.
const MAX_LINE: usize = 1 << 20;
/// The number of bytes before the position that are compared with the file.
const MARK: usize = 64;

/// The position in a growing file: everything up to the last newline was read.
#[derive(Debug, Default)]
pub(crate) struct LineFile {
    offset: u64,
    identity: Option<Identity>,
    /// The last bytes before `offset`.
    mark: Vec<u8>,
    /// Whether `offset` is inside of a line that is too long.
    skipping: bool,
}

/// What tells a file from the one that replaced it.
type Identity = (u64, u64);

/// What a file looks like at a look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// There are no new lines.
    None,
    /// There may be new lines.
    Appended,
    /// The file was truncated or replaced. Reading begins again; drop what was read before.
    Restarted,
}

impl LineFile {
    /// Compares the file with what was read. A resumed run truncates its files, and may have
    /// written other lines since, so the last bytes that were read are compared as well.
    pub(crate) fn change(&mut self, file: &mut File) -> io::Result<Change> {
        let metadata = file.metadata()?;
        let identity = Some(identity(&metadata));
        let restarted = self.offset > 0
            && (self.identity != identity || metadata.len() < self.offset || !self.mark_is_there(file)?);
        if restarted {
            *self = LineFile::default();
        }
        self.identity = identity;
        Ok(match (restarted, metadata.len() > self.offset) {
            (true, _) => Change::Restarted,
            (false, true) => Change::Appended,
            (false, false) => Change::None,
        })
    }

    fn mark_is_there(&self, file: &mut File) -> io::Result<bool> {
        let mut there = vec![0; self.mark.len()];
        file.seek(SeekFrom::Start(self.offset - self.mark.len() as u64))?;
        match file.read_exact(&mut there) {
            Ok(()) => Ok(there == self.mark),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Calls `line` with each new line, up to a few megabytes. A last line without a newline is
    /// still being written, and is left for later. Returns whether there may be more.
    pub(crate) fn read(
        &mut self,
        file: &mut File,
        buffer: &mut Vec<u8>,
        mut line: impl FnMut(&[u8]),
    ) -> io::Result<bool> {
        file.seek(SeekFrom::Start(self.offset))?;
        buffer.clear();
        let read = file.take(MAX_READ as u64).read_to_end(buffer)?;
        let mut bytes = &buffer[..];
        let mut consumed = 0;
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            if !self.skipping && end <= MAX_LINE {
                line(&bytes[..end]);
            }
            self.skipping = false;
            consumed += end + 1;
            bytes = &bytes[end + 1..];
        }
        if bytes.len() > MAX_LINE {
            self.skipping = true;
            consumed += bytes.len();
        }
        if consumed > 0 {
            self.offset += consumed as u64;
            self.mark = buffer[consumed.saturating_sub(MARK)..consumed].to_vec();
        }
        Ok(read == MAX_READ)
    }
}

#[cfg(unix)]
pub(crate) fn identity(metadata: &std::fs::Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

#[cfg(not(unix))]
pub(crate) fn identity(metadata: &std::fs::Metadata) -> Identity {
    let created = metadata.created().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
    (0, created.map_or(0, |t| t.as_nanos() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::path::Path;

    /// Reads what is new, and returns it with the change.
    fn poll(lines: &mut LineFile, path: &Path) -> (Change, Vec<String>) {
        let mut file = File::open(path).unwrap();
        let change = lines.change(&mut file).unwrap();
        let (mut buffer, mut got) = (Vec::new(), Vec::new());
        while lines
            .read(&mut file, &mut buffer, |l| got.push(String::from_utf8_lossy(l).into_owned()))
            .unwrap()
        {}
        (change, got)
    }

    fn append(path: &Path, text: &str) {
        File::options().append(true).create(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn only_whole_new_lines_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stats.jsonl");
        let mut lines = LineFile::default();
        append(&path, "one\ntw");
        assert_eq!(poll(&mut lines, &path), (Change::Appended, vec!["one".into()]));
        assert_eq!(poll(&mut lines, &path).1, Vec::<String>::new());
        append(&path, "o\nthree\n");
        assert_eq!(poll(&mut lines, &path), (Change::Appended, vec!["two".into(), "three".into()]));
        assert_eq!(poll(&mut lines, &path), (Change::None, vec![]));
    }

    #[test]
    fn a_truncated_file_is_read_again_even_if_it_has_grown_since() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("timing.jsonl");
        let mut lines = LineFile::default();
        append(&path, "a\nb\nc\n");
        poll(&mut lines, &path);
        File::options().write(true).open(&path).unwrap().set_len(2).unwrap();
        assert_eq!(poll(&mut lines, &path), (Change::Restarted, vec!["a".into()]));
        append(&path, "B\nC\n");
        assert_eq!(poll(&mut lines, &path), (Change::Appended, vec!["B".into(), "C".into()]));
        // Truncated, and longer than before at the next look.
        File::options().write(true).open(&path).unwrap().set_len(2).unwrap();
        append(&path, "x\ny\nz\n");
        assert_eq!(poll(&mut lines, &path).0, Change::Restarted);
        assert_eq!(poll(&mut LineFile::default(), &path).1, ["a", "x", "y", "z"]);
    }

    #[test]
    #[cfg(unix)]
    fn a_replaced_file_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, next) = (dir.path().join("stats.jsonl"), dir.path().join("next"));
        append(&path, "a\nb\n");
        let mut lines = LineFile::default();
        poll(&mut lines, &path);
        append(&next, "a\nb\n");
        fs::rename(&next, &path).unwrap();
        assert_eq!(poll(&mut lines, &path), (Change::Restarted, vec!["a".into(), "b".into()]));
    }

    #[test]
    fn a_line_without_an_end_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stats.jsonl");
        let mut lines = LineFile::default();
        append(&path, &"x".repeat(3 * MAX_LINE));
        assert_eq!(poll(&mut lines, &path).1, Vec::<String>::new());
        append(&path, "still\nshort\n");
        assert_eq!(poll(&mut lines, &path).1, ["short"]);
    }
}
