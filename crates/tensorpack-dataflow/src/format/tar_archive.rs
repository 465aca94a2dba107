//! Indexing the files of a tar archive, on top of the crate `tar`.

use super::ByteSource;
use std::io;
use tensorpack_tensor::Result;

/// The position of a file's bytes in its archive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteRange {
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// The regular files of an archive, in order.
pub(crate) struct Tar {
    pub(crate) source: ByteSource,
    pub(crate) files: Vec<(String, ByteRange)>,
}

impl Tar {
    /// Reads the headers. File contents are skipped.
    pub(crate) fn parse(source: ByteSource) -> Result<Tar> {
        let mut files = Vec::new();
        // The offset of the next header, for errors.
        let mut at = 0;
        let corrupt =
            |at: u64, e: &dyn std::fmt::Display| source.error_at(at, format!("invalid tar header: {e}"));
        let mut archive = tar::Archive::new(source.reader_at(0));
        for entry in archive.entries_with_seek().map_err(|e: io::Error| corrupt(0, &e))? {
            let entry = entry.map_err(|e| corrupt(at, &e))?;
            let (offset, size) = (entry.raw_file_position(), entry.size());
            let end = offset.checked_add(size).filter(|&end| end <= source.len()).ok_or_else(|| {
                let left = source.len().saturating_sub(offset);
                source.error_at(at, format!("expected a file of {size} bytes, but only {left} remain"))
            })?;
            let kind = entry.header().entry_type();
            // The bytes of a sparse file are not contiguous.
            if kind.is_gnu_sparse() {
                return Err(corrupt(at, &"sparse files are not supported"));
            }
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            if (kind.is_file() || kind.is_contiguous()) && !name.ends_with('/') {
                files.push((name, ByteRange { offset, size }));
            }
            at = end.next_multiple_of(512);
        }
        Ok(Tar { source, files })
    }

    /// Reads the file called `name`.
    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>> {
        let file = self.files.iter().find(|(n, _)| n.trim_start_matches("./") == name);
        let (_, range) =
            file.ok_or_else(|| self.source.error_at(0, format!("the archive does not contain {name}")))?;
        self.source.read(range.offset, range.size)
    }
}

/// Returns the header of a regular file, with a fixed time stamp and owner.
pub(crate) fn file_header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(size);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(builder: &mut tar::Builder<Vec<u8>>, name: &str, data: &[u8]) {
        builder.append_data(&mut file_header(data.len() as u64), name, data).unwrap();
    }

    #[test]
    fn reads_gnu_and_pax_long_names() {
        let long = "d/".repeat(99) + "x.txt";
        let mut builder = tar::Builder::new(Vec::new());
        let mut folder = file_header(0);
        folder.set_entry_type(tar::EntryType::Directory);
        builder.append_data(&mut folder, "folder/", &[][..]).unwrap();
        append(&mut builder, &long, b"gnu");
        builder.append_pax_extensions([("path", &b"yz"[..]), ("size", b"3")]).unwrap();
        append(&mut builder, "replaced", b"posix");
        let mut link = file_header(0);
        link.set_entry_type(tar::EntryType::Symlink);
        builder.append_link(&mut link, "link", "folder").unwrap();
        append(&mut builder, "last", b"");
        let tar = Tar::parse(ByteSource::from_bytes("t", builder.into_inner().unwrap())).unwrap();
        let names: Vec<_> = tar.files.iter().map(|(n, s)| (&n[..], s.size)).collect();
        assert_eq!(names, [(&long[..], 3), ("yz", 3), ("last", 0)]);
        assert_eq!(tar.read("yz").unwrap(), b"pos");
    }

    #[test]
    fn corrupt_header_error_names_the_offset() {
        let mut builder = tar::Builder::new(Vec::new());
        append(&mut builder, "a", b"abc");
        append(&mut builder, "b", b"");
        let mut bytes = builder.into_inner().unwrap();
        bytes[1024] ^= 1;
        let e = Tar::parse(ByteSource::from_bytes("t", bytes.clone())).err().unwrap();
        assert!(e.message().starts_with("t, byte 1024: ") && e.message().contains("checksum"), "{e}");
        let e = Tar::parse(ByteSource::from_bytes("t", bytes[..514].to_vec())).err().unwrap();
        assert!(e.message().starts_with("t, byte 0: ") && e.message().contains("3 bytes"), "{e}");
    }
}
