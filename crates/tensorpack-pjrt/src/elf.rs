//! Checks of shared libraries in the ELF format, before they are loaded.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// The first bytes of a 64-bit little-endian file.
const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
/// The length of the header, and of an entry of the program header table.
const HEADER: usize = 64;
const ENTRY: usize = 56;
/// The type of a segment that is loaded.
const LOAD: u64 = 1;

/// Checks that a library has all bytes of the segments that it loads. The loader maps them without
/// checking, and the first access to a missing page ends the process. Accepts files of other formats:
/// the loader rejects them.
pub(crate) fn check_complete(path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut header = [0; HEADER];
    let read = file.by_ref().take(HEADER as u64).read(&mut header)?;
    if read < HEADER || header[..MAGIC.len()] != MAGIC || number(&header[54..56]) != ENTRY as u64 {
        return Ok(());
    }
    let (table, count) = (number(&header[32..40]), number(&header[56..58]) as usize);
    file.seek(SeekFrom::Start(table))?;
    let mut entries = vec![0; count * ENTRY];
    file.read_exact(&mut entries).map_err(|_| incomplete(length))?;
    let end = |entry: &[u8]| number(&entry[8..16]).saturating_add(number(&entry[32..40]));
    let segments = entries.chunks(ENTRY).filter(|entry| number(&entry[..4]) == LOAD);
    match segments.map(end).max() {
        Some(end) if end > length => Err(incomplete(length)),
        _ => Ok(()),
    }
}

fn incomplete(length: u64) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("its end is missing; it has {length} bytes only"))
}

/// Returns a little-endian number.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
