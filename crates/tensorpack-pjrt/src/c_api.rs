//! The C API of PJRT, as far as it is used: the table of functions that a plugin hands out, and their arguments.
//!
//! Every argument struct begins with its size and a pointer to extensions ([`Args`]), so old and new plugins mix: a
//! plugin takes a struct that is longer than the one it knows, and fields are only ever added at the end. The layouts
//! here are those of API 0.115; 0.57 is the oldest whose table has the same order.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

/// The major version that these layouts belong to.
pub(crate) const MAJOR: i32 = 0;
/// The oldest minor version whose table has this order.
pub(crate) const OLDEST_MINOR: i32 = 57;

/// A type of which all bytes zero is a value: what an argument struct holds before it is filled.
///
/// # Safety
/// All bytes zero must be a valid value.
pub(crate) unsafe trait Plain: Copy {}

/// The value of which all bytes are zero.
pub(crate) fn zero<T: Plain>() -> T {
    // SAFETY: that is what `Plain` promises.
    unsafe { std::mem::zeroed() }
}

macro_rules! plain {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: made of integers, floats, bools, pointers and optional functions, which may all be zero.
            unsafe impl Plain for $type {}
        )*
    };
}

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub(crate) struct $name {
                _private: [u8; 0],
            }
        )*
    };
}

opaque! {
    /// What a call returns where it failed.
    RawError,
    RawEvent,
    RawClient,
    RawDevice,
    RawDescription,
    RawMemory,
    /// What was compiled.
    RawExecutable,
    /// What was compiled, on the devices it runs on.
    RawLoaded,
    RawBuffer,
}

/// The arguments of a call: what every struct begins with, and the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Args<T> {
    struct_size: usize,
    extensions: *mut c_void,
    pub(crate) rest: T,
}

impl<T> Args<T> {
    pub(crate) fn new(rest: T) -> Args<T> {
        Args { struct_size: size_of::<Args<T>>(), extensions: ptr::null_mut(), rest }
    }
}

/// Most calls take one object, and many give one thing back.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Of<X, V = ()> {
    pub(crate) object: *mut X,
    pub(crate) value: V,
}

/// A text that is not ended by a zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Text {
    data: *const c_char,
    size: usize,
}

impl Text {
    pub(crate) fn new(text: &str) -> Text {
        Text { data: text.as_ptr().cast(), size: text.len() }
    }

    /// # Safety
    /// The text must still be there.
    pub(crate) unsafe fn to_text(self) -> String {
        if self.data.is_null() {
            return String::new();
        }
        // SAFETY: not null, and the caller says that it is there.
        let bytes = unsafe { std::slice::from_raw_parts(self.data.cast::<u8>(), self.size) };
        String::from_utf8_lossy(bytes).into_owned()
    }
}

/// Elements in a row.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct List<T> {
    data: *const T,
    size: usize,
}

impl<T: Copy> List<T> {
    pub(crate) fn new(elements: &[T]) -> List<T> {
        List { data: elements.as_ptr(), size: elements.len() }
    }

    /// # Safety
    /// The elements must still be there.
    pub(crate) unsafe fn to_vec(self) -> Vec<T> {
        if self.data.is_null() {
            return Vec::new();
        }
        // SAFETY: not null, and the caller says that they are there.
        unsafe { std::slice::from_raw_parts(self.data, self.size) }.to_vec()
    }
}

/// An option by name. Its value is 8 bytes, read according to `kind`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NamedValue {
    pub(crate) name: Text,
    pub(crate) kind: c_int,
    pub(crate) value: Value,
    /// The number of elements of a text or list; 1 for others.
    pub(crate) value_size: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Value {
    pub(crate) text: *const c_char,
    pub(crate) int: i64,
    pub(crate) ints: *const i64,
    pub(crate) float: f32,
    pub(crate) bool: bool,
}

pub(crate) type OnReadyCallback = unsafe extern "C" fn(*mut RawError, *mut c_void);

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct OnReady {
    pub(crate) event: *mut RawEvent,
    pub(crate) callback: Option<OnReadyCallback>,
    pub(crate) user_arg: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ClientCreate {
    pub(crate) options: List<Args<NamedValue>>,
    /// How processes of one run find each other: none.
    pub(crate) key_values: [*mut c_void; 4],
    pub(crate) client: *mut RawClient,
    pub(crate) more_key_values: [*mut c_void; 2],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Program {
    pub(crate) code: Text,
    pub(crate) format: Text,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ClientCompile {
    pub(crate) client: *mut RawClient,
    pub(crate) program: *const Args<Program>,
    pub(crate) options: List<u8>,
    pub(crate) executable: *mut RawLoaded,
}

/// How long a plugin may read host memory that a buffer is made of: until the transfer's event.
pub(crate) const UNTIL_TRANSFERRED: c_int = 1;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct BufferFromHost {
    pub(crate) client: *mut RawClient,
    pub(crate) data: *const c_void,
    pub(crate) dtype: c_int,
    pub(crate) dims: List<i64>,
    /// Empty: dense and row-major.
    pub(crate) byte_strides: List<i64>,
    pub(crate) semantics: c_int,
    pub(crate) device: *mut RawDevice,
    pub(crate) memory: *mut RawMemory,
    /// Null: dense and row-major.
    pub(crate) device_layout: *mut c_void,
    pub(crate) done_with_host: *mut RawEvent,
    pub(crate) buffer: *mut RawBuffer,
}

/// A layout in tiles; without tiles, the order of dims in memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    tiled_size: usize,
    tiled_extensions: *mut c_void,
    minor_to_major: List<i64>,
    tile_dims: *const i64,
    tile_dim_sizes: *const usize,
    tiles: usize,
    kind: c_int,
}

impl Layout {
    /// The layout whose dims are `minor_to_major`, from the one that varies fastest.
    pub(crate) fn new(minor_to_major: &[i64]) -> Layout {
        const TILED_SIZE: usize = std::mem::offset_of!(Layout, kind);
        Layout { tiled_size: TILED_SIZE, minor_to_major: List::new(minor_to_major), ..zero() }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ToHost {
    pub(crate) source: *mut RawBuffer,
    pub(crate) layout: *mut Args<Layout>,
    pub(crate) target: *mut c_void,
    pub(crate) target_size: usize,
    pub(crate) event: *mut RawEvent,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CopyToDevice {
    pub(crate) buffer: *mut RawBuffer,
    pub(crate) device: *mut RawDevice,
    pub(crate) copy: *mut RawBuffer,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ExecuteOptions {
    send_callbacks: *mut c_void,
    receive_callbacks: *mut c_void,
    sends: usize,
    receives: usize,
    launch_id: c_int,
    /// Arguments that stay the caller's, whatever the program says of them.
    pub(crate) not_donated: List<i64>,
    context: *mut c_void,
    call_location: *const c_char,
    tasks: usize,
    task_ids: *mut c_int,
    incarnation_ids: *mut i64,
    multi_slice: *mut c_void,
    row_major_callbacks: bool,
    output_callbacks: *mut c_void,
    output_callback_count: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Execute {
    pub(crate) executable: *mut RawLoaded,
    pub(crate) options: *mut Args<ExecuteOptions>,
    pub(crate) arguments: *const *const *mut RawBuffer,
    pub(crate) devices: usize,
    pub(crate) argument_count: usize,
    pub(crate) outputs: *const *mut *mut RawBuffer,
    pub(crate) done: *mut *mut RawEvent,
    /// Null: those it was compiled for.
    pub(crate) device: *mut RawDevice,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct OutputDims {
    pub(crate) executable: *mut RawExecutable,
    pub(crate) outputs: usize,
    /// The dims of all outputs in a row.
    pub(crate) dims: *const i64,
    /// How many each has.
    pub(crate) ranks: *const usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CompiledMemory {
    pub(crate) executable: *mut RawExecutable,
    pub(crate) code: i64,
    pub(crate) arguments: i64,
    pub(crate) outputs: i64,
    /// What of the outputs lies in place of arguments.
    pub(crate) aliased: i64,
    pub(crate) temporary: i64,
    pub(crate) host: [i64; 5],
    pub(crate) peak: i64,
    pub(crate) newer: [i64; 4],
}

/// A number that a plugin may not know.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Known {
    value: i64,
    known: bool,
}

impl Known {
    pub(crate) fn get(self) -> Option<u64> {
        self.known.then_some(self.value).and_then(|value| value.try_into().ok())
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DeviceMemory {
    pub(crate) device: *mut RawDevice,
    pub(crate) in_use: i64,
    pub(crate) peak: Known,
    pub(crate) allocations: Known,
    pub(crate) largest: Known,
    pub(crate) limit: Known,
    pub(crate) others: [Known; 7],
}

plain!((), bool, i32, usize, Text, NamedValue, OnReady, ClientCreate, Program, ClientCompile, BufferFromHost);
plain!(Layout, ToHost, CopyToDevice, ExecuteOptions, Execute, OutputDims, CompiledMemory, DeviceMemory);

// SAFETY: a pointer may be null.
unsafe impl<T> Plain for *mut T {}
// SAFETY: the object is null, and the value may be zero.
unsafe impl<X: Copy, V: Plain> Plain for Of<X, V> {}
// SAFETY: a null pointer and no elements.
unsafe impl<T: Copy> Plain for List<T> {}

/// A function of the table; plugins leave out what they cannot do.
pub(crate) type Function<T> = Option<unsafe extern "C" fn(*mut Args<T>) -> *mut RawError>;
/// One that cannot fail.
pub(crate) type SureFunction<T> = Option<unsafe extern "C" fn(*mut Args<T>)>;
/// A function that nothing here calls.
type Unused = Option<unsafe extern "C" fn()>;

/// What `GetPjrtApi` returns begins with this.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Head {
    /// The size of the whole table.
    pub(crate) struct_size: usize,
    extensions: *mut c_void,
    version_size: usize,
    version_extensions: *mut c_void,
    pub(crate) major: c_int,
    pub(crate) minor: c_int,
}

/// The table, as far as the last function that is used.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub(crate) head: Head,
    pub(crate) error_destroy: SureFunction<Of<RawError>>,
    pub(crate) error_message: SureFunction<Of<RawError, Text>>,
    pub(crate) error_code: Function<Of<RawError, c_int>>,
    pub(crate) plugin_initialize: Function<()>,
    plugin_attributes: Unused,
    pub(crate) event_destroy: Function<Of<RawEvent>>,
    pub(crate) event_is_ready: Function<Of<RawEvent, bool>>,
    pub(crate) event_error: Function<Of<RawEvent>>,
    event_await: Unused,
    pub(crate) event_on_ready: Function<OnReady>,
    pub(crate) client_create: Function<ClientCreate>,
    pub(crate) client_destroy: Function<Of<RawClient>>,
    pub(crate) client_platform_name: Function<Of<RawClient, Text>>,
    client_process_index: Unused,
    pub(crate) client_platform_version: Function<Of<RawClient, Text>>,
    client_devices: Unused,
    pub(crate) client_addressable_devices: Function<Of<RawClient, List<*mut RawDevice>>>,
    client_lookup_device: Unused,
    client_lookup_addressable_device: Unused,
    client_addressable_memories: Unused,
    pub(crate) client_compile: Function<ClientCompile>,
    client_default_device_assignment: Unused,
    pub(crate) client_buffer_from_host: Function<BufferFromHost>,
    pub(crate) description_id: Function<Of<RawDescription, c_int>>,
    description_process_index: Unused,
    description_attributes: Unused,
    pub(crate) description_kind: Function<Of<RawDescription, Text>>,
    description_debug_string: Unused,
    pub(crate) description_to_string: Function<Of<RawDescription, Text>>,
    pub(crate) device_description: Function<Of<RawDevice, *mut RawDescription>>,
    device_is_addressable: Unused,
    device_local_hardware_id: Unused,
    device_addressable_memories: Unused,
    device_default_memory: Unused,
    pub(crate) device_memory_stats: Function<DeviceMemory>,
    memory: [Unused; 5],
    pub(crate) executable_destroy: Function<Of<RawExecutable>>,
    executable_name: Unused,
    executable_replicas: Unused,
    executable_partitions: Unused,
    pub(crate) executable_output_count: Function<Of<RawExecutable, usize>>,
    executable_code_size: Unused,
    executable_cost_analysis: Unused,
    executable_output_memory_kinds: Unused,
    executable_optimized_program: Unused,
    executable_serialize: Unused,
    pub(crate) loaded_destroy: Function<Of<RawLoaded>>,
    pub(crate) loaded_executable: Function<Of<RawLoaded, *mut RawExecutable>>,
    pub(crate) loaded_addressable_devices: Function<Of<RawLoaded, List<*mut RawDevice>>>,
    loaded_delete: Unused,
    loaded_is_deleted: Unused,
    pub(crate) loaded_execute: Function<Execute>,
    executable_deserialize: Unused,
    loaded_fingerprint: Unused,
    pub(crate) buffer_destroy: Function<Of<RawBuffer>>,
    pub(crate) buffer_dtype: Function<Of<RawBuffer, c_int>>,
    pub(crate) buffer_dims: Function<Of<RawBuffer, List<i64>>>,
    buffer_unpadded_dims: Unused,
    buffer_dynamic_dims: Unused,
    buffer_layout: Unused,
    pub(crate) buffer_device_bytes: Function<Of<RawBuffer, usize>>,
    buffer_device: Unused,
    buffer_memory: Unused,
    buffer_delete: Unused,
    pub(crate) buffer_is_deleted: Function<Of<RawBuffer, bool>>,
    pub(crate) buffer_copy_to_device: Function<CopyToDevice>,
    pub(crate) buffer_to_host: Function<ToHost>,
    buffer_is_on_cpu: Unused,
    pub(crate) buffer_ready_event: Function<Of<RawBuffer, *mut RawEvent>>,
    buffer_pointers: [Unused; 4],
    copy_to_device_stream: [Unused; 5],
    topology: [Unused; 7],
    compile: Unused,
    pub(crate) executable_output_dtypes: Function<Of<RawExecutable, List<c_int>>>,
    pub(crate) executable_output_dims: Function<OutputDims>,
    buffer_copy_to_memory: Unused,
    client_view_of_device_buffer: Unused,
    executable_fingerprint: Unused,
    client_topology: Unused,
    pub(crate) executable_memory_stats: Function<CompiledMemory>,
}

plain!(Head, Table);
