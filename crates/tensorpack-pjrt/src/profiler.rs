//! Records what devices execute, with the profiler of their plugin.

use crate::c_struct::{CStruct, to_string, to_vec};
use crate::profiler_c_api::*;
use crate::{Plugin, XSpace};
use std::ptr::NonNull;
use std::sync::Arc;
use tensorpack_protobuf::Message;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The most extensions that a plugin's list is read for, should it be a circle.
const MAX_EXTENSIONS: usize = 1000;

/// A recording of all devices of a plugin, which ends when it is finished or dropped.
#[derive(Debug)]
pub struct Profiler {
    table: ProfilerTable,
    raw: NonNull<PLUGIN_Profiler>,
}

// SAFETY: one thread at a time uses a profiler, and the functions may be called from any.
unsafe impl Send for Profiler {}

/// The functions of a plugin's profiler. They live as long as the plugin, which is never unloaded.
#[derive(Clone)]
struct ProfilerTable {
    plugin: Arc<Plugin>,
    api: PLUGIN_Profiler_Api,
}

impl std::fmt::Debug for ProfilerTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.plugin.fmt(f)
    }
}

impl Profiler {
    /// Starts to record what the devices of a plugin execute. Returns `None` if the plugin has no
    /// profiler.
    ///
    /// Most plugins have one profiler only: starting another while it records is an error.
    pub fn start(plugin: &Arc<Plugin>) -> Result<Option<Profiler>> {
        // SAFETY: a plugin's list of extensions is never changed or freed.
        let Some(api) = (unsafe { find_table(plugin.api().extension_start.cast()) }) else { return Ok(None) };
        let table = ProfilerTable { plugin: plugin.clone(), api };
        // The host records itself; of the devices, their kernels and copies.
        let (version, host_tracer_level, device_tracer_level) = ((5, 1), (2, 0), (3, 1));
        let options = [version, host_tracer_level, device_tracer_level]
            .into_iter()
            .fold(Message::new(), |options, (field, value)| options.int64(field, value))
            .into_bytes();
        // SAFETY: the options outlive the call.
        let created = unsafe {
            table.call("create", table.api.create, |args: &mut PLUGIN_Profiler_Create_Args| {
                (args.options, args.options_size) = (options.as_ptr().cast(), options.len());
            })
        }?;
        let raw = NonNull::new(created.profiler).ok_or_else(|| table.unsupported("create"))?;
        let profiler = Profiler { table, raw };
        profiler.call("start", profiler.table.api.start)?;
        Ok(Some(profiler))
    }

    /// Ends the recording and returns it.
    pub fn finish(self) -> Result<XSpace> {
        self.call("stop", self.table.api.stop)?;
        let collect = |buffer: *mut u8, size: usize| {
            let function = self.table.api.collect_data;
            // SAFETY: the profiler is alive; the buffer is null or as large as the plugin has asked for.
            unsafe {
                self.table.call("collect_data", function, |args: &mut PLUGIN_Profiler_CollectData_Args| {
                    args.profiler = self.raw.as_ptr();
                    (args.buffer, args.buffer_size_in_bytes) = (buffer, size);
                })
            }
        };
        let first = collect(std::ptr::null_mut(), 0)?;
        let size = first.buffer_size_in_bytes;
        if !first.buffer.is_null() {
            // XLA's own plugins return their buffer at once. It lives as long as the profiler.
            // SAFETY: the plugin has set both.
            return XSpace::parse(&unsafe { to_vec(first.buffer, size) });
        }
        // Others are to write to the caller's buffer.
        let mut data = vec![0; size];
        if size > 0 {
            collect(data.as_mut_ptr(), size)?;
        }
        XSpace::parse(&data)
    }

    fn call(&self, name: &str, function: ProfilerFunction<PLUGIN_Profiler_Args>) -> Result<()> {
        // SAFETY: the profiler is alive.
        unsafe { self.table.call(name, function, |args| args.profiler = self.raw.as_ptr()) }.map(|_| ())
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        // A profiler that has stopped stays so.
        for (name, function) in [("stop", self.table.api.stop), ("destroy", self.table.api.destroy)] {
            if let Err(e) = self.call(name, function) {
                log::warn!("the profiler of {} failed: {e}", self.table.plugin.name());
            }
        }
    }
}

impl ProfilerTable {
    fn unsupported(&self, name: &str) -> Error {
        let why = format!("the profiler of the plugin {} does not support {name}", self.plugin.name());
        Error::new(ErrorKind::Unsupported, why)
    }

    /// # Safety
    /// `fill` must set what the function requires.
    unsafe fn call<A: CStruct>(
        &self,
        name: &str,
        function: ProfilerFunction<A>,
        fill: impl FnOnce(&mut A),
    ) -> Result<A> {
        let function = function.ok_or_else(|| self.unsupported(name))?;
        let mut args = A::new();
        fill(&mut args);
        // SAFETY: the size is set; the rest is the caller's promise.
        let failed = unsafe { function(&mut args) };
        if failed.is_null() {
            return Ok(args);
        }
        let mut message = PLUGIN_Profiler_Error_Message_Args { error: failed, ..CStruct::new() };
        let mut destroyed = PLUGIN_Profiler_Error_Destroy_Args { error: failed, ..CStruct::new() };
        // SAFETY: the error lives until it is destroyed, as does its message, which is copied before.
        let text = unsafe {
            self.api.error_message.inspect(|function| function(&mut message));
            let text = to_string(message.message, message.message_size);
            self.api.error_destroy.inspect(|function| function(&mut destroyed));
            text
        };
        let why = format!("the profiler of the plugin {} says: {}", self.plugin.name(), text.trim_end());
        Err(Error::new(ErrorKind::Engine, why))
    }
}

/// Returns the functions of the profiler from a list of extensions. Those beyond the end of an older
/// plugin's table are `None`.
///
/// # Safety
/// `extension` must be null or the first extension of a valid list.
unsafe fn find_table(mut extension: *const ExtensionBase) -> Option<PLUGIN_Profiler_Api> {
    for _ in 0..MAX_EXTENSIONS {
        if extension.is_null() {
            return None;
        }
        // SAFETY: not null; every extension begins like this.
        let base = unsafe { *extension };
        if base.kind != PJRT_EXTENSION_TYPE_PROFILER {
            extension = base.next;
            continue;
        }
        if base.struct_size < size_of::<ProfilerExtension>() {
            return None;
        }
        // SAFETY: its type and size say that it is one.
        let table = unsafe { (*extension.cast::<ProfilerExtension>()).profiler_api };
        if table.is_null() {
            return None;
        }
        let mut api = PLUGIN_Profiler_Api::new();
        // SAFETY: a table begins with its size. No reference to the whole is made, since it may be
        // shorter than ours; zero, which missing functions stay, is `None`.
        unsafe {
            let size = (*table).struct_size.min(size_of::<PLUGIN_Profiler_Api>());
            std::ptr::copy_nonoverlapping(table.cast::<u8>(), (&raw mut api).cast::<u8>(), size);
        }
        return Some(api);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::c_api::PJRT_Api;
    use std::ffi::c_int;
    use std::sync::Mutex;
    use tensorpack_testing::{Requirement, skip};

    /// What a fake profiler does, and the calls that it has received.
    struct Fake {
        calls: Mutex<Vec<String>>,
        /// The function that fails.
        fails: &'static str,
        /// Whether it returns its own buffer, with a zero byte at the end, as XLA's plugins do.
        own_buffer: bool,
        data: Vec<u8>,
    }

    impl Fake {
        /// Notes a call. Returns null, or the fake itself as the error.
        fn note(&self, call: &str) -> *mut PLUGIN_Profiler_Error {
            self.calls.lock().unwrap().push(call.into());
            let is_error = !self.fails.is_empty() && call == self.fails;
            if is_error { (&raw const *self).cast_mut().cast() } else { std::ptr::null_mut() }
        }
    }

    // The functions below receive the fake as their profiler, or as their error.

    unsafe extern "C" fn create(args: *mut PLUGIN_Profiler_Create_Args) -> *mut PLUGIN_Profiler_Error {
        // SAFETY: the caller passes options that are alive. The test has put the fake here.
        unsafe {
            let fake = &**FAKE.lock().unwrap().as_ref().unwrap();
            let options = to_vec((*args).options.cast::<u8>(), (*args).options_size);
            (*args).profiler = (&raw const *fake).cast_mut().cast();
            fake.note(&format!("create {options:?}"));
        }
        std::ptr::null_mut()
    }

    macro_rules! calls {
        ($($name:ident),*) => {$(
            unsafe extern "C" fn $name(args: *mut PLUGIN_Profiler_Args) -> *mut PLUGIN_Profiler_Error {
                // SAFETY: the profiler is the fake.
                unsafe { (*(*args).profiler.cast::<Fake>()).note(stringify!($name)) }
            }
        )*};
    }
    calls!(start, stop, destroy);

    unsafe extern "C" fn collect(args: *mut PLUGIN_Profiler_CollectData_Args) -> *mut PLUGIN_Profiler_Error {
        // SAFETY: the profiler is the fake; a buffer is as large as was asked for.
        unsafe {
            let (args, fake) = (&mut *args, &*(*args).profiler.cast::<Fake>());
            match (args.buffer.is_null(), fake.own_buffer) {
                (true, true) => args.buffer = fake.data.as_ptr().cast_mut(),
                (true, false) => {}
                (false, _) => std::ptr::copy(fake.data.as_ptr(), args.buffer, fake.data.len()),
            }
            args.buffer_size_in_bytes = fake.data.len();
            fake.note("collect")
        }
    }

    unsafe extern "C" fn message(args: *mut PLUGIN_Profiler_Error_Message_Args) {
        let text = "CUPTI is busy\n";
        // SAFETY: the caller passes its arguments.
        unsafe { ((*args).message, (*args).message_size) = (text.as_ptr().cast(), text.len()) };
    }

    unsafe extern "C" fn destroy_error(args: *mut PLUGIN_Profiler_Error_Destroy_Args) {
        // SAFETY: the error is the fake.
        unsafe { (*(*args).error.cast::<Fake>()).note("error destroyed") };
    }

    /// The fake whose profiler is created next. `create` has no other way to know it.
    static FAKE: Mutex<Option<&'static Fake>> = Mutex::new(None);

    /// A plugin with an extension of another type, then a profiler that is the fake. The table ends
    /// `missing` functions early.
    fn plugin(missing: usize) -> Arc<Plugin> {
        let table = Box::leak(Box::new(PLUGIN_Profiler_Api {
            create: Some(create),
            start: Some(start),
            stop: Some(stop),
            destroy: Some(destroy),
            collect_data: Some(collect),
            error_message: Some(message),
            error_destroy: Some(destroy_error),
            ..CStruct::new()
        }));
        table.struct_size -= missing * size_of::<usize>();
        let base = |kind: c_int, next: *const ExtensionBase| ExtensionBase {
            struct_size: size_of::<ProfilerExtension>(),
            kind,
            next,
        };
        let profiler: &ProfilerExtension = Box::leak(Box::new(ProfilerExtension {
            base: base(PJRT_EXTENSION_TYPE_PROFILER, std::ptr::null()),
            profiler_api: table,
        }));
        let layouts: &ExtensionBase = Box::leak(Box::new(base(4, &raw const profiler.base)));
        let mut api = PJRT_Api::new();
        api.extension_start = (&raw const *layouts).cast_mut().cast();
        Arc::new(Plugin::from_table("/there/fake.so", api))
    }

    fn with_fake<T>(fake: Fake, body: impl FnOnce(&'static Fake) -> T) -> T {
        // Tests of one process take turns.
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
        let fake: &'static Fake = Box::leak(Box::new(fake));
        *FAKE.lock().unwrap() = Some(fake);
        body(fake)
    }

    fn space() -> Vec<u8> {
        let plane = Message::new().string(2, "/device:GPU:0");
        Message::new().message(1, &plane).string(3, "lost 2 kernels").into_bytes()
    }

    const OPTIONS: &str = "create [40, 1, 16, 0, 24, 1]";

    #[test]
    fn a_recording_is_started_stopped_collected_and_destroyed() {
        let with_zero = [space(), vec![0]].concat();
        for (own_buffer, data) in [(true, with_zero), (true, space()), (false, space())] {
            with_fake(Fake { calls: Mutex::default(), fails: "", own_buffer, data }, |fake| {
                let space = Profiler::start(&plugin(0)).unwrap().unwrap().finish().unwrap();
                assert_eq!(space.devices().next().unwrap().name, "/device:GPU:0");
                assert_eq!(space.warnings, ["lost 2 kernels"]);
                let calls = fake.calls.lock().unwrap();
                let collects = if own_buffer { vec!["collect"] } else { vec!["collect"; 2] };
                let expected = [vec![OPTIONS, "start", "stop"], collects, vec!["stop", "destroy"]].concat();
                assert_eq!(*calls, expected);
            });
        }
    }

    #[test]
    fn an_error_has_the_plugin_s_message_and_is_destroyed_as_is_the_profiler() {
        let fake = |fails| Fake { calls: Mutex::default(), fails, own_buffer: true, data: space() };
        with_fake(fake("start"), |fake| {
            let e = Profiler::start(&plugin(0)).unwrap_err();
            assert_eq!(e.message(), "the profiler of the plugin fake says: CUPTI is busy");
            let calls = fake.calls.lock().unwrap();
            assert_eq!(*calls, [OPTIONS, "start", "error destroyed", "stop", "destroy"]);
        });
        with_fake(fake("collect"), |fake| {
            let e = Profiler::start(&plugin(0)).unwrap().unwrap().finish().unwrap_err();
            assert!(e.message().contains("CUPTI is busy"), "{e}");
            assert_eq!(fake.calls.lock().unwrap().last().unwrap(), "destroy");
        });
        with_fake(fake(""), |_| {
            let e = Profiler::start(&plugin(1)).unwrap().unwrap().finish().unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unsupported);
            assert!(e.message().contains("does not support collect_data"), "{e}");
        });
    }

    #[test]
    fn a_plugin_without_a_profiler_has_none() {
        let none = Arc::new(Plugin::from_table("/there/old.so", PJRT_Api::new()));
        assert!(Profiler::start(&none).unwrap().is_none());
        let Ok(path) = crate::find_plugin("cpu") else {
            skip(Requirement::Plugin, "there is no CPU plugin");
            return;
        };
        // XLA's CPU plugin has extensions, but no profiler. Should a later one have it, it records.
        let cpu = Plugin::open(&path).unwrap();
        assert!(!cpu.api().extension_start.is_null());
        if let Some(profiler) = Profiler::start(&cpu).unwrap() {
            assert_eq!(profiler.finish().unwrap().errors, [""; 0]);
        }
    }
}
