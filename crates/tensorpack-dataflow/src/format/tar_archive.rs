//! The files of a tar archive: ustar, with GNU's and POSIX's ways to say long names and sizes.

use super::ByteSource;
use std::ops::Range;
use tensorpack_tensor::Result;

const BLOCK: u64 = 512;
/// Long names are read into memory: this is enough for any.
const MAX_NOTE: u64 = 1 << 20;

/// Where a file's bytes are in its archive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// The regular files of an archive, in order.
pub(crate) struct Tar {
    pub(crate) source: ByteSource,
    pub(crate) files: Vec<(String, Span)>,
}

impl Tar {
    /// Reads the headers alone.
    pub(crate) fn parse(source: ByteSource) -> Result<Tar> {
        let mut files = Vec::new();
        let (mut long_name, mut long_size) = (None, None);
        let mut at = 0;
        while at < source.len() {
            let block = source.read(at, BLOCK)?;
            if block.iter().all(|&b| b == 0) {
                break;
            }
            let damaged = |why: &str| source.error_at(at, format!("not a tar header: {why}"));
            let stated = number(&block[148..156]);
            let sum = |b: Range<usize>| block[b].iter().map(|&b| u64::from(b)).sum::<u64>();
            if stated != Some(sum(0..148) + sum(156..512) + 8 * u64::from(b' ')) {
                return Err(damaged("its checksum is wrong"));
            }
            let size = number(&block[124..136]).ok_or_else(|| damaged("its size is no number"))?;
            let kind = block[156];
            let size =
                if matches!(kind, b'L' | b'K' | b'x' | b'g') { size } else { long_size.unwrap_or(size) };
            let offset = at + BLOCK;
            let end = offset.checked_add(size).filter(|&end| end <= source.len());
            let end = end.ok_or_else(|| {
                let why =
                    format!("a file of {size} bytes should follow, but {} are left", source.len() - offset);
                source.error_at(at, why)
            })?;
            let note = || match size {
                0..=MAX_NOTE => source.read(offset, size),
                _ => Err(damaged("its name is too long")),
            };
            match kind {
                b'L' => long_name = Some(text(&note()?)),
                b'x' => {
                    let note = note()?;
                    long_name = pax(&note, "path").map(text).or(long_name);
                    long_size = match pax(&note, "size").map(|s| text(s).parse()) {
                        Some(Err(_)) => return Err(damaged("its extended size is no number")),
                        Some(Ok(size)) => Some(size),
                        None => long_size,
                    };
                }
                b'S' => return Err(damaged("sparse files are not read")),
                b'K' | b'g' => (),
                _ => {
                    let name = long_name.take().unwrap_or_else(|| short_name(&block));
                    long_size = None;
                    if matches!(kind, b'0' | b'7' | 0) && !name.ends_with('/') {
                        files.push((name, Span { offset, size }));
                    }
                }
            }
            at = end.saturating_add(padding(size));
        }
        Ok(Tar { source, files })
    }

    /// The bytes of the file called `name`.
    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>> {
        let file = self.files.iter().find(|(n, _)| n.trim_start_matches("./") == name);
        let (_, span) =
            file.ok_or_else(|| self.source.error_at(0, format!("the archive has no file {name}")))?;
        self.source.read(span.offset, span.size)
    }
}

/// How many zeros follow so many bytes.
pub(crate) fn padding(size: u64) -> u64 {
    (BLOCK - size % BLOCK) % BLOCK
}

/// The header of a regular file; the name has at most 100 bytes.
pub(crate) fn header(name: &str, size: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK as usize];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, b"0000644\x000000000\x000000000\0");
    // Eleven octal digits, or the number itself behind a set bit.
    match size {
        0..0o100_000_000_000 => put(124, format!("{size:011o}").as_bytes()),
        _ => {
            put(124, &[0x80]);
            put(128, &size.to_be_bytes());
        }
    }
    put(136, b"00000000000");
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u64 = block.iter().map(|&b| u64::from(b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// An octal number, or one in base 256 behind a set bit.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] == 0x80 {
        return field[1..].iter().try_fold(0u64, |n, &b| n.checked_mul(256)?.checked_add(u64::from(b)));
    }
    let digits = std::str::from_utf8(field).ok()?.trim_matches(['\0', ' ']);
    if digits.is_empty() { Some(0) } else { u64::from_str_radix(digits, 8).ok() }
}

fn short_name(block: &[u8]) -> String {
    let name = text(&block[..100]);
    match text(&block[345..500]) {
        prefix if &block[257..263] == b"ustar\0" && !prefix.is_empty() => format!("{prefix}/{name}"),
        _ => name,
    }
}

/// The text before the first zero byte.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The value of a key in extended headers: lines of `length key=value`.
fn pax<'a>(mut note: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let mut found = None;
    while !note.is_empty() {
        let space = note.iter().position(|&b| b == b' ')?;
        let length: usize = std::str::from_utf8(&note[..space]).ok()?.parse().ok()?;
        let (line, rest) = note.split_at_checked(length)?;
        let line = line.get(space + 1..)?.strip_suffix(b"\n")?;
        if let Some(value) = line.strip_prefix(key.as_bytes()).and_then(|v| v.strip_prefix(b"=")) {
            found = Some(value);
        }
        note = rest;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_gnu_and_pax_long_names() {
        let block = |data: &[u8]| [data, &vec![0; padding(data.len() as u64) as usize]].concat();
        let typed = |name: &str, kind: u8, data: &[u8]| {
            let mut header = header(name, data.len() as u64);
            header[156] = kind;
            let sum: u64 = header.iter().map(|&b| u64::from(b)).sum::<u64>()
                - header[148..156].iter().map(|&b| u64::from(b)).sum::<u64>()
                + 256;
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            [header, block(data)].concat()
        };
        let long = "d/".repeat(99) + "x.txt";
        let bytes = [
            typed("folder/", b'5', b""),
            typed("././@LongLink", b'L', format!("{long}\0").as_bytes()),
            typed("cut", b'0', b"gnu"),
            typed("pax", b'x', b"11 path=yz\n9 size=3\n"),
            typed("cut", b'0', b"posix"),
            typed("link", b'2', b""),
            typed("last", b'0', b""),
        ]
        .concat();
        let tar = Tar::parse(ByteSource::from_bytes("t", bytes)).unwrap();
        let names: Vec<_> = tar.files.iter().map(|(n, s)| (&n[..], s.size)).collect();
        assert_eq!(names, [(&long[..], 3), ("yz", 3), ("last", 0)]);
        assert_eq!(tar.read("yz").unwrap(), b"pos");
    }

    #[test]
    fn corrupt_header_error_names_the_offset() {
        let mut bytes = [header("a", 3), b"abc".to_vec(), vec![0; 509], header("b", 0)].concat();
        bytes[1024] ^= 1;
        let e = Tar::parse(ByteSource::from_bytes("t", bytes.clone())).err().unwrap();
        assert_eq!(e.message(), "t, byte 1024: not a tar header: its checksum is wrong");
        let e = Tar::parse(ByteSource::from_bytes("t", bytes[..514].to_vec())).err().unwrap();
        assert_eq!(e.message(), "t, byte 0: a file of 3 bytes should follow, but 2 are left");
    }

    #[test]
    fn sizes_of_any_length() {
        for size in [0, 7, 0o77_777_777_777, 0o100_000_000_000, u64::MAX] {
            assert_eq!(number(&header("a", size)[124..136]), Some(size));
        }
    }
}
