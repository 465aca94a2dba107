//! The source of a plugin whose clients belong to several processes. Like XLA's CUDA plugin, it
//! exchanges topologies through the key-value store, leaves the arguments of callbacks partly
//! uninitialized, and numbers devices in another order than processes.
//!
//! SAFETY of all functions below: the caller passes the arguments that the C API prescribes, with
//! objects that this plugin made and that are alive, and callbacks that keep to the C API.

use std::mem::MaybeUninit;
use std::sync::Mutex;

#[repr(C)]
pub struct Table {
    size: usize,
    more: usize,
    version: [usize; 2],
    major: i32,
    minor: i32,
    functions: [usize; 300],
}

const OK: usize = 0;
const NOT_FOUND: i32 = 5;
const ALREADY_EXISTS: i32 = 6;
const INTERNAL: i32 = 13;

struct Error {
    code: i32,
    message: String,
}

type CreateError = unsafe extern "C" fn(i32, *const u8, usize) -> *mut Error;
static CREATE_ERROR: CreateError = create_error;

unsafe extern "C" fn create_error(code: i32, message: *const u8, size: usize) -> *mut Error {
    let message = unsafe { std::slice::from_raw_parts(message, size) };
    Box::into_raw(Box::new(Error { code, message: String::from_utf8(message.to_vec()).unwrap() }))
}

fn fail(code: i32, message: String) -> usize {
    Box::into_raw(Box::new(Error { code, message })) as usize
}

unsafe extern "C" fn error_destroy(args: *mut [usize; 3]) {
    drop(unsafe { Box::from_raw((*args)[2] as *mut Error) });
}

unsafe extern "C" fn error_message(args: *mut [usize; 5]) {
    unsafe {
        let error = &*((*args)[2] as *const Error);
        ((*args)[3], (*args)[4]) = (error.message.as_ptr() as usize, error.message.len());
    }
}

unsafe extern "C" fn error_code(args: *mut [usize; 4]) -> usize {
    unsafe { (*args)[3] = (*((*args)[2] as *const Error)).code as usize };
    OK
}

#[repr(C)]
struct GetArgs {
    size: usize,
    more: usize,
    key: *const u8,
    key_size: usize,
    timeout: i32,
    create_error: *const CreateError,
    user_arg: usize,
    value: *mut u8,
    value_size: usize,
    delete: unsafe extern "C" fn(*mut u8),
}

#[repr(C)]
struct TryGetArgs {
    size: usize,
    more: usize,
    key: *const u8,
    key_size: usize,
    create_error: *const CreateError,
    user_arg: usize,
    value: *mut u8,
    value_size: usize,
    delete: unsafe extern "C" fn(*mut u8),
}

#[repr(C)]
struct PutArgs {
    size: usize,
    more: usize,
    key: *const u8,
    key_size: usize,
    value: *const u8,
    value_size: usize,
    create_error: *const CreateError,
    user_arg: usize,
}

#[repr(C)]
struct NamedValue {
    size: usize,
    more: usize,
    name: *const u8,
    name_size: usize,
    kind: i32,
    value: i64,
    value_size: usize,
}

#[repr(C)]
struct CreateArgs {
    size: usize,
    more: usize,
    options: *const NamedValue,
    option_count: usize,
    get: Option<unsafe extern "C" fn(*mut GetArgs) -> *mut Error>,
    get_arg: usize,
    put: Option<unsafe extern "C" fn(*mut PutArgs) -> *mut Error>,
    put_arg: usize,
    client: *mut Client,
    try_get: Option<unsafe extern "C" fn(*mut TryGetArgs) -> *mut Error>,
    try_get_arg: usize,
}

struct Device {
    id: i32,
    process: i32,
    is_local: bool,
}

struct Client {
    node: i32,
    all: Vec<*const Device>,
    local: Vec<*const Device>,
}

impl CreateArgs {
    unsafe fn get(&self, key: &str) -> Result<Vec<u8>, *mut Error> {
        let mut args = MaybeUninit::<GetArgs>::uninit();
        let args = args.as_mut_ptr();
        unsafe {
            (&raw mut (*args).key).write(key.as_ptr());
            (&raw mut (*args).key_size).write(key.len());
            (&raw mut (*args).timeout).write(86_400_000);
            (&raw mut (*args).create_error).write(&CREATE_ERROR);
            (&raw mut (*args).user_arg).write(self.get_arg);
            let error = self.get.unwrap()(args);
            if !error.is_null() {
                return Err(error);
            }
            let value = std::slice::from_raw_parts((*args).value, (*args).value_size).to_vec();
            ((*args).delete)((*args).value);
            Ok(value)
        }
    }

    /// The code of the outcome.
    unsafe fn try_get(&self, key: &str) -> i32 {
        let mut args = MaybeUninit::<TryGetArgs>::uninit();
        let args = args.as_mut_ptr();
        unsafe {
            (&raw mut (*args).key).write(key.as_ptr());
            (&raw mut (*args).key_size).write(key.len());
            (&raw mut (*args).create_error).write(&CREATE_ERROR);
            (&raw mut (*args).user_arg).write(self.try_get_arg);
            match self.try_get.unwrap()(args) {
                error if !error.is_null() => Box::from_raw(error).code,
                _ => {
                    ((*args).delete)((*args).value);
                    0
                }
            }
        }
    }

    /// The code of the outcome.
    unsafe fn put(&self, key: &str, value: &[u8]) -> i32 {
        let mut args = PutArgs {
            size: usize::MAX,
            more: usize::MAX,
            key: key.as_ptr(),
            key_size: key.len(),
            value: value.as_ptr(),
            value_size: value.len(),
            create_error: &CREATE_ERROR,
            user_arg: self.put_arg,
        };
        let error = unsafe { self.put.unwrap()(&mut args) };
        if error.is_null() { 0 } else { unsafe { Box::from_raw(error).code } }
    }

    unsafe fn option(&self, name: &str) -> Option<i64> {
        let options = unsafe { std::slice::from_raw_parts(self.options, self.option_count) };
        let is = |o: &&NamedValue| unsafe { std::slice::from_raw_parts(o.name, o.name_size) } == name.as_bytes();
        options.iter().find(is).map(|o| o.value)
    }
}

unsafe extern "C" fn client_create(args: *mut CreateArgs) -> usize {
    let args = unsafe { &mut *args };
    let (node, nodes) = unsafe { (args.option("node_id").unwrap(), args.option("num_nodes").unwrap()) };
    unsafe {
        let key = |node: i64| format!("local_topology/{node}");
        let outcomes = [args.put(&key(node), &[0, node as u8]), args.put(&key(node), b"again"), args.try_get("none")];
        if outcomes != [0, ALREADY_EXISTS, NOT_FOUND] {
            return fail(INTERNAL, format!("the store returned {outcomes:?}"));
        }
        for other in 0..nodes {
            match args.get(&key(other)) {
                Ok(value) if value == [0, other as u8] => {}
                Ok(value) => return fail(INTERNAL, format!("the store returned {value:?}")),
                Err(error) => return error as usize,
            }
        }
    }
    // The last process has the first device.
    let device = |id: i64| {
        let process = nodes - 1 - id;
        let device = Device { id: id as i32, process: process as i32, is_local: process == node };
        Box::leak(Box::new(device)) as *const Device
    };
    let all: Vec<*const Device> = (0..nodes).map(device).collect();
    let local = all.iter().copied().filter(|&d| unsafe { (*d).is_local }).collect();
    args.client = Box::into_raw(Box::new(Client { node: node as i32, all, local }));
    OK
}

unsafe extern "C" fn process_index(args: *mut [usize; 4]) -> usize {
    unsafe { (*args)[3] = (*((*args)[2] as *const Client)).node as usize };
    OK
}

unsafe extern "C" fn devices(args: *mut [usize; 5]) -> usize {
    unsafe {
        let client = &*((*args)[2] as *const Client);
        ((*args)[3], (*args)[4]) = (client.all.as_ptr() as usize, client.all.len());
    }
    OK
}

unsafe extern "C" fn addressable_devices(args: *mut [usize; 5]) -> usize {
    unsafe {
        let client = &*((*args)[2] as *const Client);
        ((*args)[3], (*args)[4]) = (client.local.as_ptr() as usize, client.local.len());
    }
    OK
}

/// A device is its own description.
unsafe extern "C" fn description(args: *mut [usize; 4]) -> usize {
    unsafe { (*args)[3] = (*args)[2] };
    OK
}

unsafe extern "C" fn device_id(args: *mut [usize; 4]) -> usize {
    unsafe { (*args)[3] = (*((*args)[2] as *const Device)).id as usize };
    OK
}

unsafe extern "C" fn device_process(args: *mut [usize; 4]) -> usize {
    unsafe { (*args)[3] = (*((*args)[2] as *const Device)).process as usize };
    OK
}

unsafe extern "C" fn is_addressable(args: *mut [usize; 4]) -> usize {
    unsafe { (*args)[3] = (*((*args)[2] as *const Device)).is_local as usize };
    OK
}

unsafe extern "C" fn text(args: *mut [usize; 5]) -> usize {
    let text = "fake device";
    unsafe { ((*args)[3], (*args)[4]) = (text.as_ptr() as usize, text.len()) };
    OK
}

#[repr(C)]
struct ProcessInfo {
    size: usize,
    task_id: i32,
    incarnation: u64,
    state: i32,
    error_code: i32,
    message: *const u8,
    message_size: usize,
}

static UPDATES: Mutex<String> = Mutex::new(String::new());

/// Writes one line: process, incarnation, state and message of each process.
unsafe extern "C" fn update_global_process_info(args: *mut [usize; 5]) -> usize {
    let infos = unsafe { std::slice::from_raw_parts((*args)[3] as *const ProcessInfo, (*args)[4]) };
    let mut updates = UPDATES.lock().unwrap();
    for info in infos {
        let message = unsafe { std::slice::from_raw_parts(info.message, info.message_size) };
        let message = std::str::from_utf8(message).unwrap();
        *updates += &format!("{} {} {} {message};", info.task_id, info.incarnation, info.state);
    }
    updates.push('\n');
    OK
}

/// Returns what was written, which stays valid until the next update.
#[unsafe(no_mangle)]
pub extern "C" fn updates(size: &mut usize) -> *const u8 {
    let updates = UPDATES.lock().unwrap();
    *size = updates.len();
    updates.as_ptr()
}

unsafe extern "C" fn nothing() -> usize {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const Table {
    let mut functions = [nothing as *const () as usize; 300];
    functions[0] = error_destroy as *const () as usize;
    functions[1] = error_message as *const () as usize;
    functions[2] = error_code as *const () as usize;
    functions[10] = client_create as *const () as usize;
    functions[13] = process_index as *const () as usize;
    functions[15] = devices as *const () as usize;
    functions[16] = addressable_devices as *const () as usize;
    functions[23] = device_id as *const () as usize;
    functions[24] = device_process as *const () as usize;
    functions[26] = text as *const () as usize;
    functions[28] = text as *const () as usize;
    functions[29] = description as *const () as usize;
    functions[30] = is_addressable as *const () as usize;
    functions[UPDATE_GLOBAL_PROCESS_INFO] = update_global_process_info as *const () as usize;
    Box::into_raw(Box::new(Table { size: 40 + 8 * 300, more: 0, version: [24, 0], major: 0, minor: 114, functions }))
}

/// The position of `PJRT_Client_UpdateGlobalProcessInfo` in the table.
const UPDATE_GLOBAL_PROCESS_INFO: usize = 113;
