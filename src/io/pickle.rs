//! A reader for pickles that runs no code.
//!
//! Python's `pickle` is a program for a stack machine, and one of its instructions calls any
//! function of any module. This machine calls nothing by itself: a [`Resolver`] decides which names
//! may appear and what a call of one returns, and every other name is an error.
//!
//! A pickle is not trusted. Lengths are checked against what is left of the file before memory is
//! allocated, values refer to containers by number (so a pickle can neither nest too deep for the
//! stack nor be dropped recursively), and an instruction creates at most one value. Calls may copy
//! their arguments; the values they copy are counted. So memory is proportional to the length of the
//! pickle.

use std::collections::HashMap;
use std::io::Read;
use std::rc::Rc;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The maximum length of a pickle. It holds names and shapes; elements are stored elsewhere.
const MAX_PICKLE: u64 = 64 << 20;
/// The longest line of a text instruction.
const MAX_LINE: usize = 1024;
/// The number of values that calls may copy, in addition to two for each byte of the pickle.
const MAX_COPIED: u64 = 1 << 12;

/// A value on the stack of a pickle.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Rc<str>),
    Bytes(Rc<[u8]>),
    /// A name that the resolver knows, such as `collections.OrderedDict`.
    Global(Rc<str>),
    /// A container: an index into [`Heap`].
    Container(usize),
    /// An object that the resolver made: an index into its own table.
    Object(usize),
}

/// A container of a pickle.
#[derive(Debug)]
pub(super) enum Container {
    List(Vec<Value>),
    Tuple(Vec<Value>),
    Set(Vec<Value>),
    Dict(Vec<(Value, Value)>),
}

/// All containers of a pickle. They may contain each other and themselves.
#[derive(Debug, Default)]
pub(super) struct Heap(Vec<Container>);

impl Heap {
    /// Adds a container and returns a reference to it.
    pub(super) fn add(&mut self, container: Container) -> Value {
        self.0.push(container);
        Value::Container(self.0.len() - 1)
    }

    /// Returns the container that a value refers to, or `None` for other values.
    pub(super) fn container(&self, value: &Value) -> Option<&Container> {
        match value {
            Value::Container(index) => self.0.get(*index),
            _ => None,
        }
    }

    /// Returns the elements of a tuple or a list.
    pub(super) fn sequence(&self, value: &Value) -> Option<&[Value]> {
        match self.container(value)? {
            Container::List(items) | Container::Tuple(items) => Some(items),
            Container::Set(_) | Container::Dict(_) => None,
        }
    }

    /// Returns the entries of a dictionary.
    pub(super) fn dict(&self, value: &Value) -> Option<&[(Value, Value)]> {
        match self.container(value)? {
            Container::Dict(entries) => Some(entries),
            _ => None,
        }
    }

    fn mutable(&mut self, value: &Value) -> Option<&mut Container> {
        match value {
            Value::Container(index) => self.0.get_mut(*index),
            _ => None,
        }
    }
}

/// Decides what names in a pickle mean.
pub(super) trait Resolver {
    /// Returns whether a pickle may contain this name, `module.name`.
    fn knows(&self, name: &str) -> bool;

    /// Returns whether a name that is not known is that of a type of elements.
    fn is_element_type(&self, name: &str) -> bool;

    /// Returns the result of calling the global `name` with the elements of the tuple `args`.
    fn call(&mut self, heap: &mut Heap, name: &str, args: &[Value]) -> Result<Value>;

    /// Returns the object that a persistent id stands for.
    fn persistent(&mut self, heap: &mut Heap, id: &Value) -> Result<Value>;
}

/// Bytes of a file, read from the start. Nothing is allocated for bytes that it does not have.
pub(super) struct Input<R> {
    reader: R,
    position: u64,
    length: u64,
}

impl<R: Read> Input<R> {
    /// Reads from a file of `length` bytes.
    pub(super) fn new(reader: R, length: u64) -> Input<R> {
        Input { reader, position: 0, length }
    }

    /// Returns the number of bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn bytes(&mut self, count: u64) -> Result<Vec<u8>> {
        self.check(count)?;
        let mut bytes = vec![0; count as usize];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn text(&mut self, count: u64) -> Result<Value> {
        let bytes = self.bytes(count)?;
        let text = String::from_utf8(bytes).map_err(|_| self.invalid("a text is not UTF-8"))?;
        Ok(Value::Text(text.into()))
    }

    /// Reads up to a line feed, which is not returned.
    fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        loop {
            match self.array::<1>()? {
                [b'\n'] => break,
                _ if line.len() == MAX_LINE => return Err(self.invalid("a line is too long")),
                [byte] => line.push(byte),
            }
        }
        String::from_utf8(line).map_err(|_| self.invalid("a line is not UTF-8"))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.check(bytes.len() as u64)?;
        self.reader.read_exact(bytes)?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn check(&self, count: u64) -> Result<()> {
        match count > self.length - self.position || count > MAX_PICKLE {
            true => Err(self.invalid(&format!("{count} more bytes are expected than the file has"))),
            false => Ok(()),
        }
    }

    fn invalid(&self, why: &str) -> Error {
        Error::new(ErrorKind::Data, format!("invalid pickle, byte {}: {why}", self.position))
    }
}

/// Reads one pickle and returns its value.
pub(super) fn load<R: Read>(
    input: &mut Input<R>,
    heap: &mut Heap,
    resolver: &mut impl Resolver,
) -> Result<Value> {
    let start = input.position;
    let (stack, marks, memo) = (Vec::new(), Vec::new(), HashMap::new());
    let mut machine = Machine { heap, resolver, stack, marks, memo, start, copied: 0 };
    loop {
        let [opcode] = input.array()?;
        if opcode == b'.' {
            return machine.pop().ok_or_else(|| input.invalid("it ends without a value"));
        }
        if input.position - start > MAX_PICKLE {
            return Err(input.invalid("it is longer than 64 MiB"));
        }
        machine.step(opcode, input)?;
    }
}

struct Machine<'a, R> {
    heap: &'a mut Heap,
    resolver: &'a mut R,
    stack: Vec<Value>,
    /// The heights of the stack at each mark.
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    /// Where the pickle begins.
    start: u64,
    /// The number of values in the arguments of all calls so far.
    copied: u64,
}

impl<T: Resolver> Machine<'_, T> {
    /// Pops a value. Values below the last mark are out of reach, as in Python.
    fn pop(&mut self) -> Option<Value> {
        match self.stack.len() > self.marks.last().copied().unwrap_or(0) {
            true => self.stack.pop(),
            false => None,
        }
    }

    fn popped<R: Read>(&mut self, input: &Input<R>) -> Result<Value> {
        self.pop().ok_or_else(|| input.invalid("the stack is empty"))
    }

    /// Pops the values above the last mark, and the mark.
    fn marked<R: Read>(&mut self, input: &Input<R>) -> Result<Vec<Value>> {
        let mark = self.marks.pop().ok_or_else(|| input.invalid("a mark is missing"))?;
        Ok(self.stack.split_off(mark))
    }

    fn top<R: Read>(&self, input: &Input<R>) -> Result<Value> {
        self.stack.last().cloned().ok_or_else(|| input.invalid("the stack is empty"))
    }

    fn push_container(&mut self, container: Container) {
        let value = self.heap.add(container);
        self.stack.push(value);
    }

    fn tuple<R: Read>(&mut self, count: usize, input: &Input<R>) -> Result<()> {
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(self.popped(input)?);
        }
        items.reverse();
        self.push_container(Container::Tuple(items));
        Ok(())
    }

    /// Adds items to the list or set on top of the stack.
    fn append<R: Read>(&mut self, items: Vec<Value>, input: &Input<R>) -> Result<()> {
        let target = self.top(input)?;
        match self.heap.mutable(&target) {
            Some(Container::List(list) | Container::Set(list)) => list.extend(items),
            _ => return Err(input.invalid("items are appended to something that is not a list")),
        }
        Ok(())
    }

    /// Adds keys and values, in turn, to the dictionary on top of the stack.
    fn set_items<R: Read>(&mut self, items: Vec<Value>, input: &Input<R>) -> Result<()> {
        let target = self.top(input)?;
        let Some(Container::Dict(entries)) = self.heap.mutable(&target) else {
            return Err(input.invalid("items are set in something that is not a dictionary"));
        };
        let pairs = pairs(items).ok_or_else(|| input.invalid("a key without a value"))?;
        entries.extend(pairs);
        Ok(())
    }

    fn global<R: Read>(&mut self, module: &str, name: &str, input: &Input<R>) -> Result<()> {
        let full = format!("{module}.{name}");
        if self.resolver.is_element_type(&full) {
            let why = format!("it contains a tensor of {full}, whose elements are not supported");
            return Err(Error::new(ErrorKind::Unsupported, why).note("save it as float32, or leave it out"));
        }
        if !self.resolver.knows(&full) {
            let why = format!("it refers to {full}, which is not a tensor or a plain container");
            return Err(input.invalid(&why).note(
                "nothing of the file was run; save only the state dict, with torch.save(model.state_dict(), ..)",
            ));
        }
        self.stack.push(Value::Global(full.into()));
        Ok(())
    }

    fn call<R: Read>(&mut self, input: &Input<R>) -> Result<()> {
        let (args, callee) = (self.popped(input)?, self.popped(input)?);
        let Value::Global(name) = callee else {
            return Err(input.invalid("a call of something that is not a name"));
        };
        // Copied, because a call may add containers to the heap.
        let Some(args) = self.heap.sequence(&args).map(<[Value]>::to_vec) else {
            return Err(input.invalid(&format!("{name} is called without a tuple of arguments")));
        };
        let length = |value: &Value| self.heap.sequence(value).map_or(0, <[Value]>::len);
        self.copied += (args.len() + args.iter().map(length).sum::<usize>()) as u64;
        if self.copied > 2 * (input.position - self.start) + MAX_COPIED {
            return Err(input.invalid("its calls repeat their arguments too many times"));
        }
        let result =
            self.resolver.call(self.heap, &name, &args).map_err(|e| e.within(format!("call of {name}")))?;
        self.stack.push(result);
        Ok(())
    }

    fn remember<R: Read>(&mut self, key: u32, input: &Input<R>) -> Result<()> {
        let value = self.top(input)?;
        self.memo.insert(key, value);
        Ok(())
    }

    fn recall<R: Read>(&mut self, key: u32, input: &Input<R>) -> Result<()> {
        let value = self.memo.get(&key).ok_or_else(|| input.invalid("an unknown memo key"))?;
        self.stack.push(value.clone());
        Ok(())
    }

    /// Executes one instruction. The names are those of Python's `pickletools`.
    fn step<R: Read>(&mut self, opcode: u8, input: &mut Input<R>) -> Result<()> {
        match opcode {
            // PROTO
            0x80 => match input.array()? {
                [2..=5] => {}
                [version] => return Err(input.invalid(&format!("protocol {version} is not supported"))),
            },
            // FRAME
            0x95 => drop(input.array::<8>()?),
            b'(' => self.marks.push(self.stack.len()),
            // POP and POP_MARK
            b'0' => drop(self.popped(input)?),
            b'1' => drop(self.marked(input)?),
            b'N' => self.stack.push(Value::None),
            // NEWTRUE and NEWFALSE
            0x88 => self.stack.push(Value::Bool(true)),
            0x89 => self.stack.push(Value::Bool(false)),
            // BININT, BININT1, BININT2
            b'J' => self.stack.push(Value::Int(i32::from_le_bytes(input.array()?).into())),
            b'K' => self.stack.push(Value::Int(u8::from_le_bytes(input.array()?).into())),
            b'M' => self.stack.push(Value::Int(u16::from_le_bytes(input.array()?).into())),
            // LONG1: two's complement of any length
            0x8a => {
                let [count] = input.array()?;
                let bytes = input.bytes(count.into())?;
                let value = long(&bytes).ok_or_else(|| input.invalid("an integer exceeds 128 bits"))?;
                self.stack.push(Value::Int(value));
            }
            b'G' => self.stack.push(Value::Float(f64::from_be_bytes(input.array()?))),
            // BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
            b'X' => {
                let count = u32::from_le_bytes(input.array()?);
                let text = input.text(count.into())?;
                self.stack.push(text);
            }
            0x8c => {
                let [count] = input.array()?;
                let text = input.text(count.into())?;
                self.stack.push(text);
            }
            0x8d => {
                let count = u64::from_le_bytes(input.array()?);
                let text = input.text(count)?;
                self.stack.push(text);
            }
            // BINSTRING and SHORT_BINSTRING: texts of Python 2, which are ASCII in PyTorch files
            b'T' => {
                let count = u32::from_le_bytes(input.array()?);
                let text = input.text(count.into())?;
                self.stack.push(text);
            }
            b'U' => {
                let [count] = input.array()?;
                let text = input.text(count.into())?;
                self.stack.push(text);
            }
            // BINBYTES, SHORT_BINBYTES, BINBYTES8 and BYTEARRAY8
            b'B' => {
                let count = u32::from_le_bytes(input.array()?);
                let bytes = input.bytes(count.into())?;
                self.stack.push(Value::Bytes(bytes.into()));
            }
            b'C' => {
                let [count] = input.array()?;
                let bytes = input.bytes(count.into())?;
                self.stack.push(Value::Bytes(bytes.into()));
            }
            0x8e | 0x96 => {
                let count = u64::from_le_bytes(input.array()?);
                let bytes = input.bytes(count)?;
                self.stack.push(Value::Bytes(bytes.into()));
            }
            b']' => self.push_container(Container::List(Vec::new())),
            b'l' => {
                let items = self.marked(input)?;
                self.push_container(Container::List(items));
            }
            b'a' => {
                let item = self.popped(input)?;
                self.append(vec![item], input)?;
            }
            // APPENDS and ADDITEMS
            b'e' | 0x90 => {
                let items = self.marked(input)?;
                self.append(items, input)?;
            }
            b')' => self.push_container(Container::Tuple(Vec::new())),
            b't' => {
                let items = self.marked(input)?;
                self.push_container(Container::Tuple(items));
            }
            // TUPLE1 to TUPLE3
            0x85..=0x87 => self.tuple(usize::from(opcode - 0x84), input)?,
            b'}' => self.push_container(Container::Dict(Vec::new())),
            b'd' => {
                let items = self.marked(input)?;
                let entries = pairs(items).ok_or_else(|| input.invalid("a key without a value"))?;
                self.push_container(Container::Dict(entries.collect()));
            }
            b's' => {
                let (value, key) = (self.popped(input)?, self.popped(input)?);
                self.set_items(vec![key, value], input)?;
            }
            b'u' => {
                let items = self.marked(input)?;
                self.set_items(items, input)?;
            }
            // EMPTY_SET and FROZENSET
            0x8f => self.push_container(Container::Set(Vec::new())),
            0x91 => {
                let items = self.marked(input)?;
                self.push_container(Container::Set(items));
            }
            b'c' => {
                let (module, name) = (input.line()?, input.line()?);
                self.global(&module, &name, input)?;
            }
            // STACK_GLOBAL
            0x93 => match (self.popped(input)?, self.popped(input)?) {
                (Value::Text(name), Value::Text(module)) => self.global(&module, &name, input)?,
                _ => return Err(input.invalid("a name that is not text")),
            },
            // REDUCE and NEWOBJ
            b'R' | 0x81 => self.call(input)?,
            // BUILD: sets attributes. Those of a state dict are versions of modules, which say
            // nothing about tensors.
            b'b' => {
                drop(self.popped(input)?);
                let target = self.top(input)?;
                if self.heap.dict(&target).is_none() {
                    return Err(input.invalid("attributes are set on something that is not a dictionary"));
                }
            }
            // BINPUT, LONG_BINPUT, MEMOIZE, BINGET, LONG_BINGET
            b'q' => {
                let [key] = input.array()?;
                self.remember(key.into(), input)?;
            }
            b'r' => {
                let key = u32::from_le_bytes(input.array()?);
                self.remember(key, input)?;
            }
            0x94 => self.remember(self.memo.len() as u32, input)?,
            b'h' => {
                let [key] = input.array()?;
                self.recall(key.into(), input)?;
            }
            b'j' => {
                let key = u32::from_le_bytes(input.array()?);
                self.recall(key, input)?;
            }
            // BINPERSID
            b'Q' => {
                let id = self.popped(input)?;
                let object = self.resolver.persistent(self.heap, &id)?;
                self.stack.push(object);
            }
            other => return Err(input.invalid(&format!("instruction {other:#04x} is not supported"))),
        }
        Ok(())
    }
}

/// Splits keys and values that take turns. Returns `None` if a value is missing.
fn pairs(items: Vec<Value>) -> Option<impl Iterator<Item = (Value, Value)>> {
    let is_even = items.len().is_multiple_of(2);
    let mut items = items.into_iter();
    is_even.then(|| std::iter::from_fn(move || Some((items.next()?, items.next()?))))
}

/// Returns the value of a little-endian integer in two's complement, or `None` if it is too large.
fn long(bytes: &[u8]) -> Option<i128> {
    let negative = bytes.last().is_some_and(|&b| b >= 0x80);
    let mut all = [if negative { 0xff } else { 0 }; 16];
    all.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i128::from_le_bytes(all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack_testing::assert_mentions;

    /// Knows `m.known`, which returns its first argument.
    struct Known;

    impl Resolver for Known {
        fn knows(&self, name: &str) -> bool {
            name == "m.known"
        }

        fn is_element_type(&self, name: &str) -> bool {
            name == "m.complex"
        }

        fn call(&mut self, _: &mut Heap, _: &str, args: &[Value]) -> Result<Value> {
            args.first().cloned().ok_or_else(|| Error::argument("no argument"))
        }

        fn persistent(&mut self, _: &mut Heap, id: &Value) -> Result<Value> {
            Ok(id.clone())
        }
    }

    fn run(bytes: &[u8]) -> Result<(Value, Heap)> {
        let mut heap = Heap::default();
        let value = load(&mut Input::new(bytes, bytes.len() as u64), &mut heap, &mut Known)?;
        Ok((value, heap))
    }

    #[test]
    fn plain_values_of_protocols_2_and_4_are_read() {
        // pickle.dumps({"a": [1, -2, 2.5, True, None], "b": (1 << 40,)}, protocol=2)
        let two = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffG@\x04\x00\x00\x00\x00\x00\x00\x88NeX\x01\x00\x00\x00bq\x03\x8a\x06\x00\x00\x00\x00\x00\x01\x85q\x04u.";
        // The same with protocol=4.
        let four = b"\x80\x04\x95-\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\xffG@\x04\x00\x00\x00\x00\x00\x00\x88Ne\x8c\x01b\x94\x8a\x06\x00\x00\x00\x00\x00\x01\x85\x94u.";
        for bytes in [&two[..], four] {
            let (root, heap) = run(bytes).unwrap();
            let entries = heap.dict(&root).unwrap();
            assert_eq!(entries[0].0, Value::Text("a".into()));
            let list = [Value::Int(1), Value::Int(-2), Value::Float(2.5), Value::Bool(true), Value::None];
            assert_eq!(heap.sequence(&entries[0].1).unwrap(), list);
            assert_eq!(heap.sequence(&entries[1].1).unwrap(), [Value::Int(1 << 40)]);
        }
    }

    #[test]
    fn unknown_names_are_refused_before_any_call() {
        // os.system("true"), by GLOBAL and by STACK_GLOBAL.
        for bytes in [
            &b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."[..],
            b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        ] {
            let e = run(bytes).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Data);
            assert_mentions(e.to_string(), &["os.system", "byte", "state_dict"]);
        }
        let (value, _) = run(b"\x80\x02cm\nknown\nK\x07\x85R.").unwrap();
        assert_eq!(value, Value::Int(7));
    }

    #[test]
    fn unsupported_elements_are_no_code() {
        let e = run(b"\x80\x02cm\ncomplex\n.").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert_mentions(e.to_string(), &["m.complex"]);
    }

    /// A short pickle must not make many copies of one long tuple.
    #[test]
    fn calls_cannot_multiply_their_arguments() {
        let pickle = |calls: usize| {
            let long = [&b"\x80\x02("[..], &[b'N'; 5000], b"tq\x00\x85q\x010cm\nknown\nq\x020"].concat();
            [long, b"h\x02h\x01R0".repeat(calls), b"N.".to_vec()].concat()
        };
        assert!(run(&pickle(1)).is_ok());
        let e = run(&pickle(10)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Data);
        assert_mentions(e.to_string(), &["arguments"]);
    }

    #[test]
    fn other_instructions_are_refused() {
        // INST, OBJ, NEWOBJ_EX, EXT1, PERSID, and a protocol that does not exist.
        for bytes in
            [&b"(ios\nsystem\n."[..], b"(cm\nknown\no.", b"\x92.", b"\x82\x01.", b"Pid\n.", b"\x80\x09N."]
        {
            assert_eq!(run(bytes).unwrap_err().kind(), ErrorKind::Data, "{bytes:?}");
        }
    }

    #[test]
    fn containers_may_contain_themselves() {
        // x = []; x.append(x)
        let (root, heap) = run(b"\x80\x02]q\x00h\x00a.").unwrap();
        assert_eq!(heap.sequence(&root).unwrap(), std::slice::from_ref(&root));
    }

    #[test]
    fn lengths_are_checked_against_the_file() {
        for bytes in [
            &b"X\xff\xff\xff\xffabc."[..],
            b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
            b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff.",
            b"\x8a\xff.",
        ] {
            assert_mentions(run(bytes).unwrap_err().message(), &["more bytes"]);
        }
    }

    #[test]
    fn values_below_a_mark_are_out_of_reach() {
        for bytes in [
            &b"N(0."[..],
            b".",
            b"0.",
            b"t.",
            b"N\x87.",
            b"(K\x01d.",
            b"Ns.",
            b"]K\x01u.",
            b"h\x00.",
            b"q\x00.",
        ] {
            assert!(run(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_million_nested_containers_are_dropped_without_recursion() {
        let mut bytes = vec![b']'; 1_000_000];
        bytes.extend(vec![b'a'; 999_999]);
        bytes.push(b'.');
        assert!(run(&bytes).is_ok());
    }
}
