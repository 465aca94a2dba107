//! PyTorch's `.pt` and `.pth` files, read without Python.
//!
//! Both formats of `torch.save` are supported: the zip archive of PyTorch 1.6 and later, and the
//! sequence of pickles before. A pickle lists the tensors with their shapes and strides, and refers
//! to *storages*, the memory that tensors are views of. No code of a file is run: names
//! other than those of tensors and plain containers are errors.
//!
//! Elements are read at their offset in the file straight into the tensor. This is as fast as a
//! memory map, and a file that is truncated meanwhile is an error instead of a signal.

use super::pickle::{self, Container, Heap, Input, Resolver, Value};
use super::safetensors::Named;
use half::{bf16, f16};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;
use tensorpack_dataflow::format::{ByteSource, StoredEntry, for_each_zip_entry};
use tensorpack_tensor::{DType, Element, Error, ErrorKind, HostTensor, Result, element_count};

/// The names that a file may contain, other than those of storages and dtypes.
const KNOWN: [&str; 19] = [
    "collections.OrderedDict",
    "builtins.set",
    "builtins.frozenset",
    "builtins.bytearray",
    "__builtin__.set",
    "__builtin__.frozenset",
    "__builtin__.bytearray",
    "_codecs.encode",
    "torch.Size",
    "torch.device",
    "torch.Tensor",
    "torch.nn.parameter.Parameter",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._tensor._rebuild_from_type_v2",
    UNTYPED,
];
const UNTYPED: &str = "torch.storage.UntypedStorage";
/// The number that files before PyTorch 1.6 begin with.
const MAGIC: i128 = 0x1950_a86a_20f9_469c_fc6c;
/// Keys under which training programs keep the state dict, where the file has others beside it.
const STATE_DICT_KEYS: [&str; 8] =
    ["state_dict", "model_state_dict", "model_state", "model", "net", "network", "module", "params"];
/// The maximum nesting of dictionaries and lists.
const MAX_DEPTH: usize = 32;
/// The name of the tensor in a file that holds nothing else.
const SINGLE: &str = "tensor";

/// Reads the tensors of a file's state dict, in its order.
///
/// If the file has other entries beside the state dict, such as those of an optimizer, the state
/// dict is the one under `state_dict`, `model`, or a similar key, or the only dictionary with
/// tensors. If there are several, the error lists them; choose one with [`read_key`]. Names in
/// nested dictionaries are joined by dots.
///
/// Integers of 8 and 16 bits become i32, and unsigned ones of 32 bits i64.
pub fn read(path: impl AsRef<Path>) -> Result<Named> {
    load(path.as_ref(), File::find_state_dict)
}

/// Reads the tensors under `key`, such as `model_ema` or `checkpoint.model`. Their names begin
/// after the key.
pub fn read_key(path: impl AsRef<Path>, key: &str) -> Result<Named> {
    load(path.as_ref(), |file| file.find_key(key))
}

/// Reads all tensors of a file, including those of optimizers.
pub fn read_all(path: impl AsRef<Path>) -> Result<Named> {
    load(path.as_ref(), |_| Ok(Vec::new()))
}

fn load(path: &Path, choose: impl FnOnce(&File) -> Result<Vec<Rc<str>>>) -> Result<Named> {
    let source = ByteSource::open(path)?;
    let read = || {
        let file = File::open(&source)?;
        let prefix = choose(&file)?;
        file.tensors(&source, &prefix)
    };
    read().map_err(|e| match e.message().contains(source.name()) {
        true => e,
        false => e.within(source.name()),
    })
}

/// The type of elements in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elements {
    I8,
    I16,
    U16,
    U32,
    /// The types that tensors have too.
    As(DType),
}

impl Elements {
    fn from_storage(name: &str) -> Option<Elements> {
        Some(match name.strip_prefix("torch.")? {
            "FloatStorage" => Elements::As(DType::F32),
            "DoubleStorage" => Elements::As(DType::F64),
            "BFloat16Storage" => Elements::As(DType::Bf16),
            "HalfStorage" => Elements::As(DType::F16),
            "LongStorage" => Elements::As(DType::I64),
            "IntStorage" => Elements::As(DType::I32),
            "ShortStorage" => Elements::I16,
            "CharStorage" => Elements::I8,
            "ByteStorage" | "storage.UntypedStorage" => Elements::As(DType::U8),
            "BoolStorage" => Elements::As(DType::Bool),
            _ => return None,
        })
    }

    fn from_dtype(name: &str) -> Option<Elements> {
        Some(match name.strip_prefix("torch.")? {
            "float32" => Elements::As(DType::F32),
            "float64" => Elements::As(DType::F64),
            "bfloat16" => Elements::As(DType::Bf16),
            "float16" => Elements::As(DType::F16),
            "int64" => Elements::As(DType::I64),
            "int32" => Elements::As(DType::I32),
            "int16" => Elements::I16,
            "int8" => Elements::I8,
            "uint16" => Elements::U16,
            "uint32" => Elements::U32,
            "uint8" => Elements::As(DType::U8),
            "bool" => Elements::As(DType::Bool),
            _ => return None,
        })
    }

    fn size(self) -> usize {
        match self {
            Elements::I8 => 1,
            Elements::I16 | Elements::U16 => 2,
            Elements::U32 => 4,
            Elements::As(dtype) => dtype.size(),
        }
    }

    /// The dtype after loading.
    fn dtype(self) -> DType {
        match self {
            Elements::I8 | Elements::I16 | Elements::U16 => DType::I32,
            Elements::U32 => DType::I64,
            Elements::As(dtype) => dtype,
        }
    }
}

/// Memory that tensors are views of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Storage {
    key: Rc<str>,
    /// The part of the file's storage, in bytes.
    offset: u64,
    bytes: u64,
}

/// A tensor: a strided view of a storage, in elements.
#[derive(Clone, Debug)]
struct View {
    storage: Storage,
    elements: Elements,
    offset: u64,
    sizes: Vec<usize>,
    strides: Vec<u64>,
}

impl View {
    /// Returns whether the elements are consecutive and in row-major order.
    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.sizes.iter().zip(&self.strides).rev().all(|(&size, &stride)| {
            let ok = size == 1 || stride == expected;
            expected = expected.saturating_mul(size as u64);
            ok
        })
    }

    /// Checks that all elements are inside the storage.
    fn check(&self) -> Result<()> {
        let count = element_count(&self.sizes)?;
        let available = self.storage.bytes / self.elements.size() as u64;
        let reach = self.sizes.iter().zip(&self.strides).try_fold(self.offset, |reach, (&size, &stride)| {
            reach.checked_add((size as u64).saturating_sub(1).checked_mul(stride)?)
        });
        match count == 0 || reach.is_some_and(|last| last < available) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Data,
                format!(
                    "a view of shape {:?} and strides {:?} at {} exceeds its storage of {available} elements",
                    self.sizes, self.strides, self.offset
                ),
            )),
        }
    }
}

/// An object of a file's pickle.
#[derive(Clone, Debug)]
enum Object {
    Storage(Storage, Elements),
    Tensor(View),
}

/// The objects of a file's pickle.
#[derive(Debug, Default)]
struct Objects {
    objects: Vec<Object>,
    /// The storages by key: their lengths, and the size of an element, in bytes.
    storages: BTreeMap<Rc<str>, (u64, u64)>,
}

impl Objects {
    fn add(&mut self, object: Object) -> Value {
        self.objects.push(object);
        Value::Object(self.objects.len() - 1)
    }

    fn get(&self, value: &Value) -> Option<&Object> {
        match value {
            Value::Object(index) => self.objects.get(*index),
            _ => None,
        }
    }

    /// Makes a tensor of the arguments that all versions of `_rebuild_tensor` begin with.
    fn rebuild(&mut self, heap: &Heap, args: &[Value], elements: Option<Elements>) -> Result<Value> {
        let [storage, offset, sizes, strides, ..] = args else { return Err(arguments()) };
        let Some(Object::Storage(storage, stored)) = self.get(storage).cloned() else {
            return Err(arguments());
        };
        let integers = |value| -> Option<Vec<u64>> { heap.sequence(value)?.iter().map(unsigned).collect() };
        let (Some(offset), Some(sizes), Some(strides)) =
            (unsigned(offset), integers(sizes), integers(strides))
        else {
            return Err(arguments());
        };
        let sizes: Vec<usize> =
            sizes.into_iter().map(|n| usize::try_from(n).map_err(|_| arguments())).collect::<Result<_>>()?;
        if sizes.len() != strides.len() {
            return Err(arguments());
        }
        let view = View { storage, elements: elements.unwrap_or(stored), offset, sizes, strides };
        view.check()?;
        Ok(self.add(Object::Tensor(view)))
    }

    /// Returns `value` if it is a tensor.
    fn tensor(&self, value: Option<&Value>) -> Result<Value> {
        match value {
            Some(value) if matches!(self.get(value), Some(Object::Tensor(_))) => Ok(value.clone()),
            _ => Err(arguments()),
        }
    }
}

fn arguments() -> Error {
    Error::new(ErrorKind::Data, "the arguments are not those that torch.save writes")
}

fn unsigned(value: &Value) -> Option<u64> {
    match value {
        Value::Int(n) => u64::try_from(*n).ok(),
        _ => None,
    }
}

impl Resolver for Objects {
    fn knows(&self, name: &str) -> bool {
        KNOWN.contains(&name)
            || Elements::from_storage(name).is_some()
            || Elements::from_dtype(name).is_some()
    }

    fn is_element_type(&self, name: &str) -> bool {
        let types = ["complex", "float8", "float4", "uint64", "uint4", "int4", "qint", "quint", "bits"];
        let storages = ["Complex", "Q", "Float8"];
        let is_type = |name: &str| types.iter().any(|t| name.starts_with(t)) && !name.contains('.');
        let is_storage =
            |name: &str| storages.iter().any(|s| name.starts_with(s)) && name.ends_with("Storage");
        !self.knows(name) && name.strip_prefix("torch.").is_some_and(|name| is_type(name) || is_storage(name))
    }

    fn call(&mut self, heap: &mut Heap, name: &str, args: &[Value]) -> Result<Value> {
        let items = |heap: &Heap, value: Option<&Value>| match value {
            Some(value) => heap.sequence(value).map(<[Value]>::to_vec).ok_or_else(arguments),
            None => Ok(Vec::new()),
        };
        match name {
            "collections.OrderedDict" => {
                let pair = |item: &Value| match heap.sequence(item) {
                    Some([key, value]) => Ok((key.clone(), value.clone())),
                    _ => Err(arguments()),
                };
                let entries = items(heap, args.first())?.iter().map(pair).collect::<Result<_>>()?;
                Ok(heap.add(Container::Dict(entries)))
            }
            "builtins.set" | "builtins.frozenset" | "__builtin__.set" | "__builtin__.frozenset" => {
                let items = items(heap, args.first())?;
                Ok(heap.add(Container::Set(items)))
            }
            "torch.Size" => {
                let items = items(heap, args.first())?;
                Ok(heap.add(Container::Tuple(items)))
            }
            // Where tensors were, and bytes, have no meaning here.
            "torch.device" | "_codecs.encode" | "builtins.bytearray" | "__builtin__.bytearray" => {
                Ok(Value::None)
            }
            "torch._utils._rebuild_tensor" => self.rebuild(heap, args, None),
            "torch._utils._rebuild_tensor_v2" => {
                check_metadata(heap, args.get(6))?;
                self.rebuild(heap, args, None)
            }
            "torch._utils._rebuild_tensor_v3" => {
                check_metadata(heap, args.get(7))?;
                let Some(Value::Global(dtype)) = args.get(6) else { return Err(arguments()) };
                let elements = Elements::from_dtype(dtype).ok_or_else(arguments)?;
                self.rebuild(heap, args, Some(elements))
            }
            "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state" => {
                self.tensor(args.first())
            }
            "torch._tensor._rebuild_from_type_v2" => {
                let [Value::Global(function), Value::Global(_), inner, ..] = args else {
                    return Err(arguments());
                };
                // A call of itself would recurse as deep as the file likes.
                if **function == *name {
                    return Err(arguments());
                }
                let inner = items(heap, Some(inner))?;
                self.call(heap, function, &inner)
            }
            _ => Err(Error::new(ErrorKind::Data, format!("{name} cannot be called"))),
        }
    }

    /// A storage: `("storage", type, key, location, elements)`, and in old files a view of one:
    /// `(key, offset, elements)` or `None`.
    fn persistent(&mut self, heap: &mut Heap, id: &Value) -> Result<Value> {
        let parse = || -> Option<(Storage, Elements, u64)> {
            let [Value::Text(kind), Value::Global(class), Value::Text(key), _, count, rest @ ..] =
                heap.sequence(id)?
            else {
                return None;
            };
            let elements = Elements::from_storage(class).filter(|_| **kind == *"storage")?;
            let in_bytes = |count| unsigned(count)?.checked_mul(elements.size() as u64);
            let bytes = in_bytes(count)?;
            let whole = Storage { key: key.clone(), offset: 0, bytes };
            match rest {
                [] | [Value::None] => Some((whole, elements, bytes)),
                [view] => {
                    let [_, offset, count] = heap.sequence(view)? else { return None };
                    let part = Storage { offset: in_bytes(offset)?, bytes: in_bytes(count)?, ..whole };
                    let fits = part.offset.checked_add(part.bytes).is_some_and(|end| end <= bytes);
                    fits.then_some((part, elements, bytes))
                }
                _ => None,
            }
        };
        let invalid = || Error::new(ErrorKind::Data, "a persistent id that is not that of a storage");
        let (storage, elements, bytes) = parse().ok_or_else(invalid)?;
        let described = (bytes, elements.size() as u64);
        if *self.storages.entry(storage.key.clone()).or_insert(described) != described {
            let why = format!("storage {} has two different sizes", storage.key);
            return Err(Error::new(ErrorKind::Data, why));
        }
        Ok(self.add(Object::Storage(storage, elements)))
    }
}

/// Checks that a tensor has no metadata, such as a pending conjugation or negation.
fn check_metadata(heap: &Heap, metadata: Option<&Value>) -> Result<()> {
    match metadata {
        None | Some(Value::None) => Ok(()),
        Some(value) if heap.dict(value).is_some_and(<[_]>::is_empty) => Ok(()),
        Some(_) => {
            Err(Error::new(ErrorKind::Unsupported, "a tensor with metadata, such as a pending negation")
                .note("save tensor.resolve_neg().resolve_conj()"))
        }
    }
}

/// Where the bytes of a storage are.
#[derive(Clone, Copy, Debug)]
struct Record {
    offset: u64,
    len: u64,
    /// The entry of the archive, for its checksum. Old files have none.
    entry: Option<StoredEntry>,
}

/// The contents of a file, without the elements.
struct File {
    objects: Objects,
    /// The tensors with the keys that lead to them.
    paths: Vec<(Vec<Rc<str>>, usize)>,
    records: HashMap<Rc<str>, Record>,
    big_endian: bool,
}

impl File {
    fn open(source: &ByteSource) -> Result<File> {
        let start = source.read(0, source.len().min(512))?;
        if start.starts_with(b"PK") {
            return File::from_archive(source);
        }
        if start.get(257..262) == Some(b"ustar") {
            let why = "a tar file of PyTorch 0.1, which is not supported";
            return Err(Error::new(ErrorKind::Unsupported, why).note("load and save it with a newer PyTorch"));
        }
        File::from_pickles(source)
    }

    /// Reads the format of PyTorch 1.6 and later: a zip archive of a pickle, `data.pkl`, and one
    /// uncompressed entry for each storage.
    fn from_archive(source: &ByteSource) -> Result<File> {
        let (mut pickle, mut byte_order) = (None, Vec::new());
        let mut stored: HashMap<String, StoredEntry> = HashMap::new();
        let mut is_script = false;
        for_each_zip_entry(source, |entry| {
            // All entries are in one folder, whose name varies.
            let name = entry.name().split_once('/').map_or("", |(_, name)| name).to_string();
            match &name[..] {
                "data.pkl" => pickle = Some(entry.read(source.len())?),
                "byteorder" => byte_order = entry.read(16)?,
                "constants.pkl" => is_script = true,
                name => {
                    if let Some(key) = name.strip_prefix("data/") {
                        stored.insert(key.to_string(), entry.stored()?);
                    }
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if is_script {
            let why = "a TorchScript archive, which contains code";
            return Err(Error::new(ErrorKind::Unsupported, why)
                .note("save its weights: torch.save(torch.jit.load(path).state_dict(), ..)"));
        }
        let Some(pickle) = pickle else {
            return Err(Error::new(ErrorKind::Data, "a zip archive without data.pkl is not a PyTorch file"));
        };
        let (mut heap, mut objects) = (Heap::default(), Objects::default());
        let mut input = Input::new(&pickle[..], pickle.len() as u64);
        let root = pickle::load(&mut input, &mut heap, &mut objects)?;
        let mut records = HashMap::new();
        for (key, &(bytes, _)) in &objects.storages {
            let entry = stored.get(&**key).filter(|entry| entry.len == bytes).ok_or_else(|| {
                let found = stored.get(&**key).map_or("no entry".into(), |e| format!("{} bytes", e.len));
                let why = format!("storage {key} should have {bytes} bytes, but the archive has {found}");
                Error::new(ErrorKind::Data, why)
            })?;
            records.insert(key.clone(), Record { offset: entry.offset, len: entry.len, entry: Some(*entry) });
        }
        let paths = paths(&heap, &objects, &root, pickle.len())?;
        Ok(File { objects, paths, records, big_endian: byte_order == b"big" })
    }

    /// Reads the format before PyTorch 1.6: pickles of a magic number, a version, the properties of
    /// the machine, the contents, and the keys of the storages, then the storages.
    fn from_pickles(source: &ByteSource) -> Result<File> {
        let (mut heap, mut objects) = (Heap::default(), Objects::default());
        let mut input = Input::new(BufReader::new(source.reader_at(0)), source.len());
        let not_torch = || Error::new(ErrorKind::Data, "not a PyTorch file");
        let mut next = |objects: &mut Objects| {
            let value = pickle::load(&mut input, &mut heap, objects)?;
            Ok::<_, Error>((value, input.position()))
        };
        match next(&mut objects).map_err(|e| e.within("not a PyTorch file"))? {
            (Value::Int(MAGIC), _) => {}
            _ => return Err(not_torch()),
        }
        let ((_version, _), (machine, _)) = (next(&mut objects)?, next(&mut objects)?);
        let ((root, end_of_root), (keys, mut at)) = (next(&mut objects)?, next(&mut objects)?);
        let little = Value::Text("little_endian".into());
        let entries = heap.dict(&machine).unwrap_or_default();
        let big_endian = entries.iter().any(|(key, value)| *key == little && *value == Value::Bool(false));
        let mut records = HashMap::new();
        for key in heap.sequence(&keys).ok_or_else(not_torch)? {
            let Value::Text(key) = key else { return Err(not_torch()) };
            let Some(&(len, size)) = objects.storages.get(key) else {
                let why = format!("storage {key} is not used by any tensor");
                return Err(Error::new(ErrorKind::Data, why));
            };
            let mut count = [0; 8];
            source.read_into(at, &mut count)?;
            at += 8;
            let count = u64::from_le_bytes(count);
            let fits = at.checked_add(len).is_some_and(|end| end <= source.len());
            if count.checked_mul(size) != Some(len) || !fits {
                let why =
                    format!("storage {key} should have {len} bytes, but has {count} elements of {size}");
                return Err(source.error_at(at, why));
            }
            records.insert(key.clone(), Record { offset: at, len, entry: None });
            at += len;
        }
        let paths = paths(&heap, &objects, &root, end_of_root as usize)?;
        Ok(File { objects, paths, records, big_endian })
    }

    /// Returns the keys that lead to the state dict.
    fn find_state_dict(&self) -> Result<Vec<Rc<str>>> {
        let mut prefix: Vec<Rc<str>> = Vec::new();
        loop {
            let depth = prefix.len();
            let inside: Vec<&[Rc<str>]> = self
                .paths
                .iter()
                .map(|(path, _)| &path[..])
                .filter(|path| path.starts_with(&prefix))
                .collect();
            if inside.is_empty() || inside.iter().any(|path| path.len() <= depth + 1) {
                return Ok(prefix);
            }
            let mut counts: BTreeMap<&Rc<str>, usize> = BTreeMap::new();
            inside.iter().for_each(|path| *counts.entry(&path[depth]).or_default() += 1);
            let usual: Vec<&Rc<str>> =
                counts.keys().copied().filter(|key| STATE_DICT_KEYS.contains(&&***key)).collect();
            let candidates = if usual.is_empty() { counts.keys().copied().collect() } else { usual };
            let [key] = candidates[..] else {
                let error = Error::new(ErrorKind::Name, "the file has several dictionaries of tensors");
                let error = counts.iter().fold(error, |error, (key, count)| {
                    error.note(format!("{}: {count} tensors", join(&prefix, key)))
                });
                return Err(error.note("choose one by its key"));
            };
            prefix.push(key.clone());
        }
    }

    /// Returns the keys that make up `key` when they are joined by dots.
    fn find_key(&self, key: &str) -> Result<Vec<Rc<str>>> {
        let mut available = BTreeSet::new();
        for (path, _) in &self.paths {
            for depth in 1..path.len() {
                let name = path[..depth].join(".");
                if name == key {
                    return Ok(path[..depth].to_vec());
                }
                available.insert(name);
            }
        }
        let names: Vec<&String> = available.iter().take(20).collect();
        let error =
            Error::new(ErrorKind::Name, format!("the file has no dictionary of tensors under {key:?}"));
        Err(error.note(format!("available: {names:?}")))
    }

    /// Reads the tensors under these keys.
    fn tensors(&self, source: &ByteSource, prefix: &[Rc<str>]) -> Result<Named> {
        let mut loader = Loader::new(source, self);
        let mut names = BTreeSet::new();
        let mut tensors = Vec::new();
        for (path, index) in self.paths.iter().filter(|(path, _)| path.starts_with(prefix)) {
            let name = match &path[prefix.len()..] {
                [] => SINGLE.to_string(),
                rest => rest.join("."),
            };
            if !names.insert(name.clone()) {
                return Err(Error::new(ErrorKind::Name, format!("the name {name:?} occurs twice")));
            }
            let tensor = loader.tensor(*index).map_err(|e| e.within(&name))?;
            tensors.push((name, tensor));
        }
        if tensors.is_empty() {
            return Err(Error::new(ErrorKind::Data, "the file contains no tensors"));
        }
        Ok(tensors)
    }
}

fn join(prefix: &[Rc<str>], key: &str) -> String {
    prefix.iter().map(|part| format!("{part}.")).collect::<String>() + key
}

/// Returns the tensors in `root` with the keys that lead to them, in order. `length` is that of the
/// pickle: containers that contain each other must not lead to many more names than it has bytes.
fn paths(heap: &Heap, objects: &Objects, root: &Value, length: usize) -> Result<Vec<(Vec<Rc<str>>, usize)>> {
    let mut left = length.saturating_mul(8).saturating_add(1 << 16);
    let mut found = Vec::new();
    collect(heap, objects, root, &mut Vec::new(), &mut left, &mut found)?;
    Ok(found)
}

fn collect(
    heap: &Heap,
    objects: &Objects,
    value: &Value,
    path: &mut Vec<Rc<str>>,
    left: &mut usize,
    found: &mut Vec<(Vec<Rc<str>>, usize)>,
) -> Result<()> {
    let cost = 1 + path.iter().map(|key| key.len()).sum::<usize>();
    let too_many = || Error::new(ErrorKind::Data, "its dictionaries contain each other too many times");
    *left = left.checked_sub(cost).ok_or_else(too_many)?;
    if let (Value::Object(index), Some(Object::Tensor(_))) = (value, objects.get(value)) {
        found.push((path.clone(), *index));
        return Ok(());
    }
    if path.len() == MAX_DEPTH {
        let why = format!("dictionaries are nested deeper than {MAX_DEPTH}");
        return Err(Error::new(ErrorKind::Data, why));
    }
    match heap.container(value) {
        Some(Container::Dict(entries)) => {
            // As in Python, the last value of a key counts.
            let mut last: BTreeMap<Rc<str>, usize> = BTreeMap::new();
            let mut keys = Vec::with_capacity(entries.len());
            for (i, (key, _)) in entries.iter().enumerate() {
                let key: Option<Rc<str>> = match key {
                    Value::Text(text) => Some(text.clone()),
                    Value::Int(n) => Some(n.to_string().into()),
                    _ => None,
                };
                if let Some(key) = &key {
                    last.insert(key.clone(), i);
                }
                keys.push(key);
            }
            for (i, (key, (_, value))) in keys.into_iter().zip(entries).enumerate() {
                // Keys of other types lead to no tensor of a state dict.
                if let Some(key) = key.filter(|key| last[key] == i) {
                    path.push(key);
                    collect(heap, objects, value, path, left, found)?;
                    path.pop();
                }
            }
        }
        Some(Container::List(items) | Container::Tuple(items)) => {
            for (i, value) in items.iter().enumerate() {
                path.push(i.to_string().into());
                collect(heap, objects, value, path, left, found)?;
                path.pop();
            }
        }
        Some(Container::Set(_)) | None => {}
    }
    Ok(())
}

/// Reads the elements of tensors.
struct Loader<'a> {
    source: &'a ByteSource,
    file: &'a File,
    /// Bytes that may still be allocated. Views of one storage may have more elements than it.
    left: u64,
    /// Storages of which some tensor is only a part, in full.
    storages: HashMap<Rc<str>, Rc<[u8]>>,
    /// Tensors by object: weights that are tied share their elements here, too.
    loaded: HashMap<usize, HostTensor>,
}

impl<'a> Loader<'a> {
    fn new(source: &'a ByteSource, file: &'a File) -> Loader<'a> {
        let left = source.len().saturating_mul(4).saturating_add(1 << 20);
        Loader { source, file, left, storages: HashMap::new(), loaded: HashMap::new() }
    }

    fn tensor(&mut self, index: usize) -> Result<HostTensor> {
        if let Some(tensor) = self.loaded.get(&index) {
            return Ok(tensor.clone());
        }
        let Some(Object::Tensor(view)) = self.file.objects.objects.get(index) else {
            return Err(Error::new(ErrorKind::Data, "not a tensor"));
        };
        let tensor = self.read(view)?;
        self.loaded.insert(index, tensor.clone());
        Ok(tensor)
    }

    fn read(&mut self, view: &View) -> Result<HostTensor> {
        let count = element_count(&view.sizes)?;
        let dtype = view.elements.dtype();
        self.reserve((count as u64).saturating_mul(dtype.size() as u64))?;
        if count == 0 {
            return HostTensor::zeros(dtype, view.sizes.clone());
        }
        let key = &view.storage.key;
        let record = *self.file.records.get(key).ok_or_else(|| {
            Error::new(ErrorKind::Data, format!("the elements of storage {key} are missing"))
        })?;
        let bytes = (count * view.elements.size()) as u64;
        let is_whole = bytes == record.len || record.entry.is_none();
        let native = !self.file.big_endian && cfg!(target_endian = "little");
        let mut tensor = HostTensor::zeros(dtype, view.sizes.clone())?;
        if native
            && is_whole
            && view.is_contiguous()
            && view.elements == Elements::As(dtype)
            && let Some(room) = bytes_mut(&mut tensor)
        {
            let offset = view.storage.offset + view.offset * view.elements.size() as u64;
            self.source.read_into(record.offset + offset, room)?;
            check(&record, room, key)?;
            return Ok(tensor);
        }
        let storage = self.storage(key, record)?;
        gather(view, &storage[view.storage.offset as usize..], self.file.big_endian)
    }

    /// Returns all bytes of a storage.
    fn storage(&mut self, key: &Rc<str>, record: Record) -> Result<Rc<[u8]>> {
        if let Some(bytes) = self.storages.get(key) {
            return Ok(bytes.clone());
        }
        self.reserve(record.len.saturating_mul(2))?;
        let bytes = self.source.read(record.offset, record.len)?;
        check(&record, &bytes, key)?;
        let bytes: Rc<[u8]> = bytes.into();
        self.storages.insert(key.clone(), bytes.clone());
        Ok(bytes)
    }

    fn reserve(&mut self, bytes: u64) -> Result<()> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            let why =
                format!("the tensors need more memory than a file of {} bytes explains", self.source.len());
            Error::new(ErrorKind::Memory, why).note("save expanded tensors with .contiguous()")
        })?;
        Ok(())
    }
}

fn check(record: &Record, bytes: &[u8], key: &str) -> Result<()> {
    match record.entry {
        Some(entry) if !entry.matches(bytes) => {
            let why = format!("the checksum of storage {key} is wrong");
            Err(Error::new(ErrorKind::Data, why).note("the file is corrupt; download or save it again"))
        }
        _ => Ok(()),
    }
}

/// Returns the memory of a tensor, or `None` if not every byte is a valid element.
fn bytes_mut(tensor: &mut HostTensor) -> Option<&mut [u8]> {
    fn cast<T: Element + bytemuck::Pod>(tensor: &mut HostTensor) -> Option<&mut [u8]> {
        tensor.as_mut_slice::<T>().ok().map(bytemuck::cast_slice_mut)
    }
    match tensor.dtype() {
        DType::F32 => cast::<f32>(tensor),
        DType::F64 => cast::<f64>(tensor),
        DType::Bf16 => cast::<bf16>(tensor),
        DType::F16 => cast::<f16>(tensor),
        DType::I32 => cast::<i32>(tensor),
        DType::I64 => cast::<i64>(tensor),
        DType::U8 => cast::<u8>(tensor),
        DType::Bool => None,
    }
}

/// Collects the elements of a view of `storage`, which [`View::check`] found to be inside.
fn gather(view: &View, storage: &[u8], big_endian: bool) -> Result<HostTensor> {
    /// Reads every element with `decode`.
    fn all<const N: usize, T: Element>(
        view: &View,
        storage: &[u8],
        big_endian: bool,
        decode: impl Fn([u8; N]) -> T,
    ) -> Result<HostTensor> {
        let count = element_count(&view.sizes)?;
        let mut values = Vec::with_capacity(count);
        let mut index = vec![0usize; view.sizes.len()];
        let mut at = view.offset as usize;
        for _ in 0..count {
            let mut element = [0; N];
            element.copy_from_slice(&storage[at * N..][..N]);
            if big_endian {
                element.reverse();
            }
            values.push(decode(element));
            for ((i, &size), &stride) in index.iter_mut().zip(&view.sizes).zip(&view.strides).rev() {
                *i += 1;
                // A dim of size 1 may have any stride.
                at = at.wrapping_add(stride as usize);
                if *i < size {
                    break;
                }
                at = at.wrapping_sub(i.wrapping_mul(stride as usize));
                *i = 0;
            }
        }
        HostTensor::new(view.sizes.clone(), values)
    }
    match view.elements {
        Elements::I8 => all(view, storage, big_endian, |b| i32::from(i8::from_le_bytes(b))),
        Elements::I16 => all(view, storage, big_endian, |b| i32::from(i16::from_le_bytes(b))),
        Elements::U16 => all(view, storage, big_endian, |b| i32::from(u16::from_le_bytes(b))),
        Elements::U32 => all(view, storage, big_endian, |b| i64::from(u32::from_le_bytes(b))),
        Elements::As(DType::F32) => all(view, storage, big_endian, f32::from_le_bytes),
        Elements::As(DType::F64) => all(view, storage, big_endian, f64::from_le_bytes),
        Elements::As(DType::Bf16) => all(view, storage, big_endian, bf16::from_le_bytes),
        Elements::As(DType::F16) => all(view, storage, big_endian, f16::from_le_bytes),
        Elements::As(DType::I32) => all(view, storage, big_endian, i32::from_le_bytes),
        Elements::As(DType::I64) => all(view, storage, big_endian, i64::from_le_bytes),
        Elements::As(DType::U8) => all(view, storage, big_endian, u8::from_le_bytes),
        Elements::As(DType::Bool) => all(view, storage, big_endian, |[b]: [u8; 1]| b != 0),
    }
}
