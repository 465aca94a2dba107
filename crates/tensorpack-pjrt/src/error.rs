//! Errors of plugins, as Rust errors.

use crate::c_api::*;
use crate::c_struct::{CStruct, to_string};
use tensorpack_tensor::{Error, ErrorKind};

/// The name of a status code.
#[allow(non_upper_case_globals, reason = "the names are the C API's")]
fn code_name(code: PJRT_Error_Code) -> &'static str {
    match code {
        PJRT_Error_Code_OK => "OK",
        PJRT_Error_Code_CANCELLED => "CANCELLED",
        PJRT_Error_Code_INVALID_ARGUMENT => "INVALID_ARGUMENT",
        PJRT_Error_Code_DEADLINE_EXCEEDED => "DEADLINE_EXCEEDED",
        PJRT_Error_Code_NOT_FOUND => "NOT_FOUND",
        PJRT_Error_Code_ALREADY_EXISTS => "ALREADY_EXISTS",
        PJRT_Error_Code_PERMISSION_DENIED => "PERMISSION_DENIED",
        PJRT_Error_Code_RESOURCE_EXHAUSTED => "RESOURCE_EXHAUSTED",
        PJRT_Error_Code_FAILED_PRECONDITION => "FAILED_PRECONDITION",
        PJRT_Error_Code_ABORTED => "ABORTED",
        PJRT_Error_Code_OUT_OF_RANGE => "OUT_OF_RANGE",
        PJRT_Error_Code_UNIMPLEMENTED => "UNIMPLEMENTED",
        PJRT_Error_Code_INTERNAL => "INTERNAL",
        PJRT_Error_Code_UNAVAILABLE => "UNAVAILABLE",
        PJRT_Error_Code_DATA_LOSS => "DATA_LOSS",
        PJRT_Error_Code_UNAUTHENTICATED => "UNAUTHENTICATED",
        _ => "UNKNOWN",
    }
}

#[allow(non_upper_case_globals, reason = "the names are the C API's")]
fn kind(code: PJRT_Error_Code) -> ErrorKind {
    match code {
        PJRT_Error_Code_INVALID_ARGUMENT | PJRT_Error_Code_OUT_OF_RANGE => ErrorKind::Argument,
        PJRT_Error_Code_DEADLINE_EXCEEDED => ErrorKind::Deadline,
        PJRT_Error_Code_RESOURCE_EXHAUSTED => ErrorKind::Memory,
        PJRT_Error_Code_UNIMPLEMENTED => ErrorKind::Unsupported,
        _ => ErrorKind::Engine,
    }
}

/// An error with the plugin's own message.
fn error(code: PJRT_Error_Code, message: &str) -> Error {
    Error::new(kind(code), message.trim_end()).within(format!("XLA says {}", code_name(code)))
}

/// Converts what a call returned: `None` for null, else the error, which is destroyed.
///
/// # Safety
/// `raw` must be null or an error of the plugin with this table, and nobody may use it afterwards.
pub(crate) unsafe fn take(api: &PJRT_Api, raw: *mut PJRT_Error) -> Option<Error> {
    if raw.is_null() {
        return None;
    }
    let mut message = PJRT_Error_Message_Args { error: raw, ..CStruct::new() };
    let mut code = PJRT_Error_GetCode_Args { error: raw, code: PJRT_Error_Code_UNKNOWN, ..CStruct::new() };
    // SAFETY: the error is the plugin's and lives until it is destroyed, as does its message, which
    // is copied before.
    unsafe {
        if let Some(function) = api.PJRT_Error_Message {
            function(&mut message);
        }
        if let Some(function) = api.PJRT_Error_GetCode {
            // If this fails the code stays UNKNOWN; that error is destroyed, too.
            let failed = function(&mut code);
            destroy(api, failed);
        }
        let error = error(code.code, &to_string(message.message, message.message_size));
        destroy(api, raw);
        Some(error)
    }
}

/// # Safety
/// As for [`take`].
unsafe fn destroy(api: &PJRT_Api, raw: *mut PJRT_Error) {
    if let (false, Some(function)) = (raw.is_null(), api.PJRT_Error_Destroy) {
        // SAFETY: the caller gives up the error.
        unsafe { function(&mut PJRT_Error_Destroy_Args { error: raw, ..CStruct::new() }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_kinds() {
        let e = error(PJRT_Error_Code_RESOURCE_EXHAUSTED, "Out of memory allocating 12 bytes.\n");
        assert_eq!(e.kind(), ErrorKind::Memory);
        assert_eq!(e.message(), "XLA says RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes.");
        assert_eq!(error(3, "x").kind(), ErrorKind::Argument);
        assert_eq!(error(12, "x").kind(), ErrorKind::Unsupported);
        assert_eq!(error(99, "x").message(), "XLA says UNKNOWN: x");
        assert_eq!(error(-1, "x").kind(), ErrorKind::Engine);
    }
}
