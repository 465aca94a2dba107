//! The C API of PJRT's profiler extension: `pjrt_c_api_profiler_extension.h` and `profiler_c_api.h` of
//! the OpenXLA project. Functions added to the table after `collect_data` are not used.

#![allow(non_camel_case_types, reason = "the names are the C API's")]

use crate::c_struct::{c_structs, opaque};
use std::ffi::{c_char, c_int, c_void};

/// The type of the profiler's extension in a plugin's list of extensions.
pub(crate) const PJRT_EXTENSION_TYPE_PROFILER: c_int = 1;

opaque!(PLUGIN_Profiler, PLUGIN_Profiler_Error);

/// The beginning of every extension.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ExtensionBase {
    pub(crate) struct_size: usize,
    pub(crate) kind: c_int,
    pub(crate) next: *const ExtensionBase,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProfilerExtension {
    pub(crate) base: ExtensionBase,
    pub(crate) profiler_api: *const PLUGIN_Profiler_Api,
}

/// A function of the table that may fail.
pub(crate) type ProfilerFunction<A> = Option<unsafe extern "C" fn(*mut A) -> *mut PLUGIN_Profiler_Error>;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PLUGIN_Profiler_Api {
    pub(crate) struct_size: usize,
    pub(crate) private: *mut c_void,
    pub(crate) error_destroy: Option<unsafe extern "C" fn(*mut PLUGIN_Profiler_Error_Destroy_Args)>,
    pub(crate) error_message: Option<unsafe extern "C" fn(*mut PLUGIN_Profiler_Error_Message_Args)>,
    pub(crate) error_get_code: ProfilerFunction<PLUGIN_Profiler_Error_GetCode_Args>,
    pub(crate) create: ProfilerFunction<PLUGIN_Profiler_Create_Args>,
    pub(crate) destroy: ProfilerFunction<PLUGIN_Profiler_Args>,
    pub(crate) start: ProfilerFunction<PLUGIN_Profiler_Args>,
    pub(crate) stop: ProfilerFunction<PLUGIN_Profiler_Args>,
    pub(crate) collect_data: ProfilerFunction<PLUGIN_Profiler_CollectData_Args>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PLUGIN_Profiler_Error_Destroy_Args {
    pub(crate) struct_size: usize,
    pub(crate) private: *mut c_void,
    pub(crate) error: *mut PLUGIN_Profiler_Error,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PLUGIN_Profiler_Error_Message_Args {
    pub(crate) struct_size: usize,
    pub(crate) private: *mut c_void,
    pub(crate) error: *const PLUGIN_Profiler_Error,
    pub(crate) message: *const c_char,
    pub(crate) message_size: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PLUGIN_Profiler_Error_GetCode_Args {
    pub(crate) struct_size: usize,
    pub(crate) private: *mut c_void,
    pub(crate) error: *const PLUGIN_Profiler_Error,
    pub(crate) code: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PLUGIN_Profiler_Create_Args {
    pub(crate) struct_size: usize,
    /// A serialized `ProfileOptions`.
    pub(crate) options: *const c_char,
    pub(crate) options_size: usize,
    pub(crate) profiler: *mut PLUGIN_Profiler,
}

/// The arguments of `destroy`, `start` and `stop`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PLUGIN_Profiler_Args {
    pub(crate) struct_size: usize,
    pub(crate) profiler: *mut PLUGIN_Profiler,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PLUGIN_Profiler_CollectData_Args {
    pub(crate) struct_size: usize,
    pub(crate) profiler: *mut PLUGIN_Profiler,
    pub(crate) buffer: *mut u8,
    pub(crate) buffer_size_in_bytes: usize,
}

c_structs!(
    PLUGIN_Profiler_Api,
    PLUGIN_Profiler_Error_Destroy_Args,
    PLUGIN_Profiler_Error_Message_Args,
    PLUGIN_Profiler_Error_GetCode_Args,
    PLUGIN_Profiler_Create_Args,
    PLUGIN_Profiler_Args,
    PLUGIN_Profiler_CollectData_Args,
);
