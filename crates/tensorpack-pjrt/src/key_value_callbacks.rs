//! The functions through which a plugin calls a [`KeyValueStore`].
//!
//! A plugin passes back the `user_arg` that it was given. It is the number of a store, not its
//! address: a call that comes after the client is gone finds no store and gets an error.

use crate::KeyValueStore;
use crate::c_api::*;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The stores of all clients of the process, by number.
static STORES: RwLock<Option<HashMap<usize, Arc<Shared>>>> = RwLock::new(None);

struct Shared {
    store: Arc<dyn KeyValueStore>,
    /// No wait is longer, whatever the plugin asks for.
    longest_wait: Duration,
    /// The first error of the store. What a plugin makes of it has lost its kind.
    error: Mutex<Option<Error>>,
}

/// A store that a plugin can call. Dropping it ends its use: later calls get an error.
pub(crate) struct RegisteredStore {
    number: usize,
    shared: Arc<Shared>,
}

impl RegisteredStore {
    /// Registers a store. No call waits longer than `longest_wait`.
    pub(crate) fn new(store: Arc<dyn KeyValueStore>, longest_wait: Duration) -> RegisteredStore {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(Shared { store, longest_wait, error: Mutex::new(None) });
        let mut stores = STORES.write().unwrap_or_else(PoisonError::into_inner);
        stores.get_or_insert_default().insert(number, shared.clone());
        RegisteredStore { number, shared }
    }

    /// The `user_arg` of this store for all callbacks.
    pub(crate) fn user_arg(&self) -> *mut c_void {
        ptr::without_provenance_mut(self.number)
    }

    /// The first error that the store returned, apart from values that came too late.
    pub(crate) fn error(&self) -> Option<Error> {
        self.shared.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for RegisteredStore {
    fn drop(&mut self) {
        let mut stores = STORES.write().unwrap_or_else(PoisonError::into_inner);
        let removed = stores.as_mut().and_then(|stores| stores.remove(&self.number));
        // The store's own `drop` may take time, and may use another store.
        drop(stores);
        drop(removed);
    }
}

impl fmt::Debug for RegisteredStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredStore({})", self.number)
    }
}

/// Why a callback fails, as a plugin learns it.
struct Failure {
    code: PJRT_Error_Code,
    message: String,
}

impl Failure {
    fn new(code: PJRT_Error_Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }

    /// Creates the plugin's error.
    ///
    /// # Safety
    /// `create` must be null or point to a function of a plugin that creates errors.
    unsafe fn create(&self, create: *const Option<PJRT_CallbackError>) -> *mut PJRT_Error {
        // SAFETY: the caller's promise; null is checked.
        match unsafe { create.as_ref() } {
            // SAFETY: the message has that many bytes; the function copies them.
            Some(Some(create)) => unsafe {
                create(self.code, self.message.as_ptr().cast(), self.message.len())
            },
            // Without the function there is no way to create an error, and null means success. The
            // outputs are those of an empty value, so nothing invalid is read.
            _ => {
                log::error!("a plugin takes no errors of its key-value store: {}", self.message);
                ptr::null_mut()
            }
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match error.kind() {
            ErrorKind::Deadline => PJRT_Error_Code_DEADLINE_EXCEEDED,
            ErrorKind::Peer => PJRT_Error_Code_UNAVAILABLE,
            ErrorKind::Argument => PJRT_Error_Code_INVALID_ARGUMENT,
            ErrorKind::Memory => PJRT_Error_Code_RESOURCE_EXHAUSTED,
            ErrorKind::Interrupted => PJRT_Error_Code_CANCELLED,
            _ => PJRT_Error_Code_INTERNAL,
        };
        Failure::new(code, error.message())
    }
}

/// Gets a value, waiting for it.
///
/// # Safety
/// `args` must be arguments as a plugin passes them: the key has the stated size, and
/// `callback_error` points to the function that creates errors. Size and extensions are not read,
/// because plugins do not set them.
pub(crate) unsafe extern "C" fn get(args: *mut PJRT_KeyValueGetCallback_Args) -> *mut PJRT_Error {
    // SAFETY: the caller's promise. No reference is made: plugins leave fields uninitialized.
    let (user_arg, timeout, error, key) = unsafe {
        let key = Bytes { data: (*args).key, size: (*args).key_size };
        ((*args).user_arg, (*args).timeout_in_ms, (*args).callback_error, key)
    };
    let got = call_store(user_arg, |shared| {
        // SAFETY: the caller's promise.
        let key = unsafe { key.text() }?;
        shared.store.get(key, capped(timeout, shared.longest_wait))
    });
    let (value, failure) = Value::of(got);
    // SAFETY: the caller's promise.
    unsafe {
        (*args).value = value.data;
        (*args).value_size = value.size;
        (*args).value_deleter_callback = Some(free_value);
        failure.map_or(ptr::null_mut(), |failure| failure.create(error))
    }
}

/// Gets a value if there is one. Otherwise the error is `NOT_FOUND`, which plugins rely on.
///
/// # Safety
/// As for [`get`].
pub(crate) unsafe extern "C" fn try_get(args: *mut PJRT_KeyValueTryGetCallback_Args) -> *mut PJRT_Error {
    // SAFETY: as in `get`.
    let (user_arg, error, key) = unsafe {
        let key = Bytes { data: (*args).key, size: (*args).key_size };
        ((*args).user_arg, (*args).callback_error, key)
    };
    // SAFETY: the caller's promise.
    let got = call_store(user_arg, |shared| shared.store.try_get(unsafe { key.text() }?));
    let missing = || Failure::new(PJRT_Error_Code_NOT_FOUND, "the key has no value");
    let (value, failure) = Value::of(got.and_then(|value| value.ok_or_else(missing)));
    // SAFETY: the caller's promise.
    unsafe {
        (*args).value = value.data;
        (*args).value_size = value.size;
        (*args).value_deleter_callback = Some(free_value);
        failure.map_or(ptr::null_mut(), |failure| failure.create(error))
    }
}

/// Stores a value. If the key has one already, the error is `ALREADY_EXISTS`, which plugins rely
/// on.
///
/// # Safety
/// As for [`get`]; the value has the stated size, too.
pub(crate) unsafe extern "C" fn put(args: *mut PJRT_KeyValuePutCallback_Args) -> *mut PJRT_Error {
    // SAFETY: as in `get`.
    let (user_arg, error, key, value) = unsafe {
        let key = Bytes { data: (*args).key, size: (*args).key_size };
        let value = Bytes { data: (*args).value, size: (*args).value_size };
        ((*args).user_arg, (*args).callback_error, key, value)
    };
    // SAFETY: the caller's promise.
    let put = call_store(user_arg, |shared| unsafe { shared.store.put(key.text()?, value.slice("value")?) });
    let exists = || Failure::new(PJRT_Error_Code_ALREADY_EXISTS, "the key has a value already");
    match put.and_then(|stored| stored.then_some(()).ok_or_else(exists)) {
        Ok(()) => ptr::null_mut(),
        // SAFETY: the caller's promise.
        Err(failure) => unsafe { failure.create(error) },
    }
}

/// Runs `call` with the store that `user_arg` is the number of. A panic must not unwind into the
/// plugin; it becomes an error.
fn call_store<T>(
    user_arg: *mut c_void,
    call: impl FnOnce(&Shared) -> Result<T>,
) -> std::result::Result<T, Failure> {
    let stores = STORES.read().unwrap_or_else(PoisonError::into_inner);
    let found = stores.as_ref().and_then(|stores| stores.get(&user_arg.addr())).cloned();
    // Other threads may register a store while this call waits for a value.
    drop(stores);
    let Some(shared) = found else {
        return Err(Failure::new(PJRT_Error_Code_FAILED_PRECONDITION, "the client of this store is gone"));
    };
    let called = catch_unwind(AssertUnwindSafe(|| call(&shared))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Error::new(ErrorKind::Engine, format!("the key-value store panicked: {text}")))
    });
    called.map_err(|error| {
        // A value that comes too late may be asked for again; all other errors are final.
        if error.kind() != ErrorKind::Deadline {
            let mut first = shared.error.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert_with(|| error.clone());
        }
        error.into()
    })
}

/// The time to wait for a value, at most `longest`. A negative number of milliseconds stands for no
/// limit: XLA casts an infinite duration to an `int`.
fn capped(milliseconds: c_int, longest: Duration) -> Duration {
    u64::try_from(milliseconds).map_or(longest, |ms| Duration::from_millis(ms).min(longest))
}

/// Bytes of a plugin.
#[derive(Clone, Copy)]
struct Bytes {
    data: *const c_char,
    size: usize,
}

impl Bytes {
    /// # Safety
    /// `data` must be null or point to `size` bytes for as long as the result is used.
    unsafe fn slice<'a>(self, what: &str) -> Result<&'a [u8]> {
        match (self.data.is_null(), self.size) {
            (_, 0) => Ok(&[]),
            (true, size) => Err(Error::argument(format!("the {what} of {size} bytes is null"))),
            (false, size) if size > isize::MAX as usize => {
                Err(Error::argument(format!("the {what} cannot have {size} bytes")))
            }
            // SAFETY: not null, and no larger than memory can be, as just checked; the rest is the
            // caller's promise.
            (false, size) => Ok(unsafe { std::slice::from_raw_parts(self.data.cast(), size) }),
        }
    }

    /// # Safety
    /// As for [`Bytes::slice`].
    unsafe fn text<'a>(self) -> Result<&'a str> {
        // SAFETY: the caller's promise.
        let key = unsafe { self.slice("key") }?;
        match std::str::from_utf8(key) {
            Ok("") => Err(Error::argument("the key is empty")),
            Ok(key) => Ok(key),
            Err(_) => Err(Error::argument(format!("the key {:?} is not text", String::from_utf8_lossy(key)))),
        }
    }
}

/// A copy of a value for a plugin, which frees it with [`free_value`].
struct Value {
    data: *mut c_char,
    size: usize,
}

unsafe extern "C" {
    fn malloc(size: usize) -> *mut c_void;
    fn free(memory: *mut c_void);
}

impl Value {
    /// Copies a value. Without one, returns an empty value and the failure.
    fn of(got: std::result::Result<Vec<u8>, Failure>) -> (Value, Option<Failure>) {
        let empty = Value { data: ptr::null_mut(), size: 0 };
        let value = match got {
            Ok(value) => value,
            Err(failure) => return (empty, Some(failure)),
        };
        // The function that frees a value gets only its address, so it comes from `malloc`. One byte
        // at least: `malloc(0)` may be null.
        // SAFETY: may be called at any time.
        let data = unsafe { malloc(value.len().max(1)) };
        if data.is_null() {
            let why = format!("there is no memory for a value of {} bytes", value.len());
            return (empty, Some(Failure::new(PJRT_Error_Code_RESOURCE_EXHAUSTED, why)));
        }
        // SAFETY: both have that many bytes, and the new memory overlaps nothing.
        unsafe { ptr::copy_nonoverlapping(value.as_ptr(), data.cast(), value.len()) };
        (Value { data: data.cast(), size: value.len() }, None)
    }
}

/// Frees a value.
///
/// # Safety
/// `value` must be null or come from [`get`] or [`try_get`], and nobody may use it afterwards.
unsafe extern "C" fn free_value(value: *mut c_char) {
    // SAFETY: `Value::of` allocated it with `malloc`, or it is null, which `free` ignores.
    unsafe { free(value.cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;
    use std::sync::Condvar;
    use std::thread;

    /// Longer than anything takes that succeeds.
    const LONG: Duration = Duration::from_secs(60);

    /// A store in memory. A key that begins with `panic` panics, one with `dead` names a dead peer.
    #[derive(Default)]
    struct Memory {
        values: Mutex<HashMap<String, Vec<u8>>>,
        changed: Condvar,
        /// The timeouts of all gets.
        timeouts: Mutex<Vec<Duration>>,
    }

    fn peculiar(key: &str) -> Result<()> {
        assert!(!key.starts_with("panic"), "the test asked for it");
        match key.starts_with("dead") {
            true => Err(Error::new(ErrorKind::Peer, "rank 1 on node7: its connection ended")),
            false => Ok(()),
        }
    }

    impl KeyValueStore for Memory {
        fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
            peculiar(key)?;
            self.timeouts.lock().unwrap().push(timeout);
            let values = self.values.lock().unwrap();
            let waited = self.changed.wait_timeout_while(values, timeout, |v| !v.contains_key(key)).unwrap();
            let value = waited.0.get(key).cloned();
            value.ok_or_else(|| Error::new(ErrorKind::Deadline, format!("no value for {key:?}")))
        }

        fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
            peculiar(key)?;
            Ok(self.values.lock().unwrap().get(key).cloned())
        }

        fn put(&self, key: &str, value: &[u8]) -> Result<bool> {
            peculiar(key)?;
            let mut values = self.values.lock().unwrap();
            let stored = !values.contains_key(key);
            values.entry(key.into()).or_insert_with(|| value.into());
            self.changed.notify_all();
            Ok(stored)
        }
    }

    /// An error of the plugin that these tests play.
    type PluginError = (PJRT_Error_Code, String);

    unsafe extern "C" fn create_error(
        code: PJRT_Error_Code,
        message: *const c_char,
        size: usize,
    ) -> *mut PJRT_Error {
        // SAFETY: the callbacks pass a message of that size.
        let message = unsafe { crate::c_struct::to_string(message, size) };
        Box::into_raw(Box::new((code, message))).cast()
    }

    fn taken(error: *mut PJRT_Error) -> std::result::Result<(), PluginError> {
        match error.is_null() {
            true => Ok(()),
            // SAFETY: `create_error` made it, and it is taken once.
            false => Err(*unsafe { Box::from_raw(error.cast::<PluginError>()) }),
        }
    }

    /// Copies a value as a plugin does, and frees it.
    fn copied(value: *mut c_char, size: usize, free: Option<unsafe extern "C" fn(*mut c_char)>) -> Vec<u8> {
        // SAFETY: the callbacks return a value of that size, and the function that frees it.
        unsafe {
            let copy = crate::c_struct::to_vec(value.cast::<u8>(), size);
            free.unwrap()(value);
            copy
        }
    }

    /// Calls `get` as a plugin does, which leaves most of the arguments uninitialized.
    fn call_get(
        store: *mut c_void,
        key: &[u8],
        timeout_in_ms: c_int,
    ) -> std::result::Result<Vec<u8>, PluginError> {
        let mut callback_error: Option<PJRT_CallbackError> = Some(create_error);
        let mut args = MaybeUninit::<PJRT_KeyValueGetCallback_Args>::uninit();
        let args = args.as_mut_ptr();
        // SAFETY: the fields that a plugin sets are set; those that are read afterwards are outputs.
        unsafe {
            (&raw mut (*args).key).write(key.as_ptr().cast());
            (&raw mut (*args).key_size).write(key.len());
            (&raw mut (*args).timeout_in_ms).write(timeout_in_ms);
            (&raw mut (*args).callback_error).write(&mut callback_error);
            (&raw mut (*args).user_arg).write(store);
            taken(get(args))?;
            Ok(copied((*args).value, (*args).value_size, (*args).value_deleter_callback))
        }
    }

    fn try_get_args(store: *mut c_void, key: &[u8]) -> PJRT_KeyValueTryGetCallback_Args {
        static CREATE: Option<PJRT_CallbackError> = Some(create_error);
        let callback_error = (&raw const CREATE).cast_mut();
        let (key, key_size) = (key.as_ptr().cast(), key.len());
        let new = <PJRT_KeyValueTryGetCallback_Args as crate::c_struct::CStruct>::new();
        PJRT_KeyValueTryGetCallback_Args { key, key_size, callback_error, user_arg: store, ..new }
    }

    fn call_try_get(store: *mut c_void, key: &[u8]) -> std::result::Result<Vec<u8>, PluginError> {
        let mut args = try_get_args(store, key);
        // SAFETY: the arguments are those of a plugin.
        taken(unsafe { try_get(&mut args) })?;
        Ok(copied(args.value, args.value_size, args.value_deleter_callback))
    }

    fn call_put(store: *mut c_void, key: &[u8], value: &[u8]) -> std::result::Result<(), PluginError> {
        let mut callback_error: Option<PJRT_CallbackError> = Some(create_error);
        let mut args = PJRT_KeyValuePutCallback_Args {
            key: key.as_ptr().cast(),
            key_size: key.len(),
            value: value.as_ptr().cast(),
            value_size: value.len(),
            callback_error: &mut callback_error,
            user_arg: store,
            ..crate::c_struct::CStruct::new()
        };
        // SAFETY: the arguments are those of a plugin.
        taken(unsafe { put(&mut args) })
    }

    fn registered(longest_wait: Duration) -> RegisteredStore {
        RegisteredStore::new(Arc::new(Memory::default()), longest_wait)
    }

    fn code<T>(result: std::result::Result<T, PluginError>) -> PJRT_Error_Code {
        result.err().map_or(PJRT_Error_Code_OK, |(code, _)| code)
    }

    #[test]
    fn values_are_bytes_and_written_once() {
        let (store, other) = (registered(LONG), registered(LONG));
        let (arg, value) = (store.user_arg(), [0, 1, 255, 0]);
        assert_eq!(code(call_try_get(arg, b"k")), PJRT_Error_Code_NOT_FOUND);
        call_put(arg, b"k", &value).unwrap();
        assert_eq!(call_try_get(arg, b"k").unwrap(), value);
        assert_eq!(call_get(arg, b"k", 0).unwrap(), value);
        assert_eq!(code(call_put(arg, b"k", b"other")), PJRT_Error_Code_ALREADY_EXISTS);
        assert_eq!(call_get(arg, b"k", 0).unwrap(), value);
        call_put(arg, "clé".as_bytes(), b"").unwrap();
        assert_eq!(call_get(arg, "clé".as_bytes(), 0).unwrap(), b"");
        let large = vec![7; 3 << 20];
        call_put(arg, b"large", &large).unwrap();
        assert_eq!(call_try_get(arg, b"large").unwrap(), large);
        assert_eq!(code(call_try_get(other.user_arg(), b"k")), PJRT_Error_Code_NOT_FOUND);
        assert!(store.error().is_none(), "these outcomes are no errors of the store");
    }

    #[test]
    fn a_get_waits_while_others_use_the_store() {
        let store = registered(LONG);
        let arg = store.user_arg().addr();
        let get = move || call_get(ptr::without_provenance_mut(arg), b"id", -1);
        let waits: Vec<_> = (0..4).map(|_| thread::spawn(get)).collect();
        thread::sleep(Duration::from_millis(50));
        // Registering takes the lock that a call holds only to find its store.
        drop(registered(LONG));
        assert!(waits.iter().all(|wait| !wait.is_finished()));
        call_put(store.user_arg(), b"id", b"clique").unwrap();
        for wait in waits {
            assert_eq!(wait.join().unwrap().unwrap(), b"clique");
        }
    }

    #[test]
    fn waits_are_capped() {
        let (memory, longest) = (Arc::<Memory>::default(), Duration::from_millis(30));
        let store = RegisteredStore::new(memory.clone(), longest);
        for timeout_in_ms in [c_int::MAX, 86_400_000, -1, c_int::MIN, 30, 7, 0] {
            let e = call_get(store.user_arg(), b"never", timeout_in_ms).unwrap_err();
            assert_eq!(e.0, PJRT_Error_Code_DEADLINE_EXCEEDED, "{}", e.1);
        }
        let [mut expected, short] = [vec![longest; 5], vec![Duration::from_millis(7), Duration::ZERO]];
        expected.extend(short);
        assert_eq!(*memory.timeouts.lock().unwrap(), expected);
        assert!(store.error().is_none());
    }

    #[test]
    fn keys_that_are_no_text_are_errors() {
        let store = registered(LONG);
        let arg = store.user_arg();
        for key in [&b""[..], b"\xff\xfe"] {
            assert_eq!(code(call_get(arg, key, 0)), PJRT_Error_Code_INVALID_ARGUMENT);
            assert_eq!(code(call_try_get(arg, key)), PJRT_Error_Code_INVALID_ARGUMENT);
            assert_eq!(code(call_put(arg, key, b"v")), PJRT_Error_Code_INVALID_ARGUMENT);
        }
        // Sizes that no memory can have, and no memory at all.
        for (data, size) in [(ptr::null(), 3), (c"key".as_ptr(), usize::MAX)] {
            let mut args =
                PJRT_KeyValueTryGetCallback_Args { key: data, key_size: size, ..try_get_args(arg, b"") };
            // SAFETY: the size is refused before the key is read.
            assert_eq!(code(taken(unsafe { try_get(&mut args) })), PJRT_Error_Code_INVALID_ARGUMENT);
            assert!(args.value.is_null() && args.value_size == 0 && args.value_deleter_callback.is_some());
        }
    }

    #[test]
    fn a_panic_is_an_error() {
        let store = registered(LONG);
        let arg = store.user_arg();
        let e = call_get(arg, b"panic", 0).unwrap_err();
        assert_eq!(e.0, PJRT_Error_Code_INTERNAL);
        assert!(e.1.contains("the test asked for it"), "{}", e.1);
        assert_eq!(code(call_try_get(arg, b"panic")), PJRT_Error_Code_INTERNAL);
        assert_eq!(code(call_put(arg, b"panic", b"")), PJRT_Error_Code_INTERNAL);
        assert_eq!(store.error().unwrap().kind(), ErrorKind::Engine);
        call_put(arg, b"k", b"v").unwrap();
        assert_eq!(call_get(arg, b"k", 0).unwrap(), b"v");
    }

    #[test]
    fn the_error_of_a_dead_peer_keeps_its_kind_and_name() {
        let store = registered(LONG);
        let e = call_get(store.user_arg(), b"dead", -1).unwrap_err();
        assert_eq!(e.0, PJRT_Error_Code_UNAVAILABLE);
        assert!(e.1.contains("rank 1 on node7"), "{}", e.1);
        let error = store.error().unwrap();
        assert_eq!(error.kind(), ErrorKind::Peer);
        assert!(error.message().contains("rank 1 on node7"), "{error}");
    }

    #[test]
    fn calls_after_the_client_is_gone_are_errors() {
        let store = registered(LONG);
        let arg = store.user_arg();
        call_put(arg, b"k", b"v").unwrap();
        drop(store);
        for arg in [arg, ptr::null_mut()] {
            assert_eq!(code(call_get(arg, b"k", -1)), PJRT_Error_Code_FAILED_PRECONDITION);
            assert_eq!(code(call_try_get(arg, b"k")), PJRT_Error_Code_FAILED_PRECONDITION);
            assert_eq!(code(call_put(arg, b"k", b"v")), PJRT_Error_Code_FAILED_PRECONDITION);
        }
    }

    #[test]
    fn without_a_function_for_errors_the_value_is_empty() {
        let store = registered(LONG);
        let mut none = None;
        for callback_error in [ptr::null_mut(), &raw mut none] {
            let args = try_get_args(store.user_arg(), b"missing");
            let mut args = PJRT_KeyValueTryGetCallback_Args { callback_error, ..args };
            // SAFETY: the arguments are those of a plugin, apart from the function.
            taken(unsafe { try_get(&mut args) }).unwrap();
            assert_eq!(copied(args.value, args.value_size, args.value_deleter_callback), b"");
        }
    }
}
