//! Writes PyTorch files as `torch.save` does, in both of its formats.

/// A storage: its class in `torch`, the size of an element, and the bytes.
#[derive(Clone)]
pub(crate) struct Storage {
    pub(crate) class: &'static str,
    pub(crate) size: usize,
    pub(crate) bytes: Vec<u8>,
}

impl Storage {
    pub(crate) fn f32(values: &[f32]) -> Storage {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Storage { class: "FloatStorage", size: 4, bytes }
    }
}

/// A view of the storage with this index.
#[derive(Clone)]
pub(crate) struct View<'a> {
    pub(crate) storage: usize,
    pub(crate) offset: usize,
    pub(crate) sizes: &'a [usize],
    pub(crate) strides: &'a [usize],
}

/// A value of a pickle.
#[derive(Clone)]
pub(crate) enum Item<'a> {
    Tensor(View<'a>),
    Dict(Vec<(&'a str, Item<'a>)>),
    Int(i32),
    /// A call of `module`, `name` with a text.
    Call(&'a str, &'a str, &'a str),
}

/// Returns the contents of `data.pkl`.
pub(crate) fn pickle(root: &Item<'_>, storages: &[Storage], is_legacy: bool) -> Vec<u8> {
    let mut out = vec![0x80, 2];
    item(&mut out, root, storages, is_legacy);
    out.push(b'.');
    out
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.push(b'X');
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

fn int(out: &mut Vec<u8>, value: usize) {
    match i32::try_from(value) {
        Ok(value) => {
            out.push(b'J');
            out.extend(value.to_le_bytes());
        }
        Err(_) => {
            out.extend([0x8a, 9]);
            out.extend((value as u64).to_le_bytes());
            out.push(0);
        }
    }
}

fn item(out: &mut Vec<u8>, value: &Item<'_>, storages: &[Storage], is_legacy: bool) {
    match value {
        Item::Int(value) => {
            out.push(b'J');
            out.extend(value.to_le_bytes());
        }
        Item::Dict(entries) => {
            out.extend(b"ccollections\nOrderedDict\n)R(");
            for (key, value) in entries {
                text(out, key);
                item(out, value, storages, is_legacy);
            }
            out.push(b'u');
        }
        Item::Call(module, name, argument) => {
            out.extend(format!("c{module}\n{name}\n").as_bytes());
            text(out, argument);
            out.extend(b"\x85R");
        }
        Item::Tensor(view) => {
            let storage = &storages[view.storage];
            out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
            text(out, "storage");
            out.extend(format!("ctorch\n{}\n", storage.class).as_bytes());
            text(out, &view.storage.to_string());
            text(out, "cpu");
            int(out, storage.bytes.len() / storage.size);
            if is_legacy {
                out.push(b'N');
            }
            out.extend(b"tQ");
            int(out, view.offset);
            for list in [view.sizes, view.strides] {
                out.push(b'(');
                list.iter().for_each(|&n| int(out, n));
                out.push(b't');
            }
            out.extend(b"\x89ccollections\nOrderedDict\n)RtR");
        }
    }
}

/// Returns a file of the zip format.
pub(crate) fn archive(root: &Item<'_>, storages: &[Storage]) -> Vec<u8> {
    let data = pickle(root, storages, false);
    let mut entries = vec![("archive/data.pkl".to_string(), data)];
    entries.push(("archive/byteorder".into(), b"little".to_vec()));
    for (i, storage) in storages.iter().enumerate() {
        entries.push((format!("archive/data/{i}"), storage.bytes.clone()));
    }
    entries.push(("archive/version".into(), b"3\n".to_vec()));
    zip(&entries)
}

/// Returns a file of the format before PyTorch 1.6.
pub(crate) fn legacy(root: &Item<'_>, storages: &[Storage]) -> Vec<u8> {
    let mut out = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.".to_vec();
    out.extend(b"\x80\x02}(X\x0d\x00\x00\x00little_endian\x88u.");
    out.extend(pickle(root, storages, true));
    out.extend(b"\x80\x02](");
    (0..storages.len()).for_each(|i| text(&mut out, &i.to_string()));
    out.extend(b"e.");
    for storage in storages {
        out.extend((storage.bytes.len() as u64 / storage.size as u64).to_le_bytes());
        out.extend(&storage.bytes);
    }
    out
}

/// Returns a zip archive of uncompressed entries.
pub(crate) fn zip(entries: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in entries {
        let start = out.len() as u32;
        let mut fields = vec![0; 10];
        fields.extend(crc32(bytes).to_le_bytes());
        fields.extend((bytes.len() as u32).to_le_bytes());
        fields.extend((bytes.len() as u32).to_le_bytes());
        fields.extend((name.len() as u16).to_le_bytes());
        out.extend(b"PK\x03\x04");
        out.extend(&fields);
        out.extend([0; 2]);
        out.extend(name.as_bytes());
        out.extend(bytes);
        directory.extend(b"PK\x01\x02\0\0");
        directory.extend(&fields);
        directory.extend([0; 12]);
        directory.extend(start.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let start = out.len() as u32;
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend([(entries.len() as u16).to_le_bytes(); 2].concat());
    out.extend((directory.len() as u32).to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0; 2]);
    out
}

/// The checksum of zip archives.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}
