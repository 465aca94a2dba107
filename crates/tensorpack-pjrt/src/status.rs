//! Errors as plugins report them.

use crate::c_api::{Args, Of, RawError, Table, zero};
use tensorpack_tensor::{Error, ErrorKind};

/// The status codes, by number.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

fn kind(code: &str) -> ErrorKind {
    match code {
        "INVALID_ARGUMENT" | "OUT_OF_RANGE" => ErrorKind::Argument,
        "DEADLINE_EXCEEDED" => ErrorKind::Deadline,
        "RESOURCE_EXHAUSTED" => ErrorKind::Memory,
        "UNIMPLEMENTED" => ErrorKind::Unsupported,
        _ => ErrorKind::Engine,
    }
}

/// An error in a plugin's words.
fn error(code: i32, message: &str) -> Error {
    let code = usize::try_from(code).ok().and_then(|code| CODES.get(code)).unwrap_or(&"UNKNOWN");
    Error::new(kind(code), message.trim_end()).within(format!("XLA says {code}"))
}

/// What a call returned: nothing if it went well, else an error, which is freed.
///
/// # Safety
/// `raw` must be null or an error of the plugin with this table, which nobody uses afterwards.
pub(crate) unsafe fn take(table: &Table, raw: *mut RawError) -> Option<Error> {
    if raw.is_null() {
        return None;
    }
    let mut message = Args::new(Of { object: raw, value: zero() });
    let mut code = Args::new(Of { object: raw, value: 2 });
    // SAFETY: the error is the plugin's and lives until the last call; the message lives as long, and is copied.
    unsafe {
        if let Some(read) = table.error_message {
            read(&mut message);
        }
        if let Some(read) = table.error_code {
            // Where even this fails the code stays unknown; the error about the error is freed, too.
            let failed = read(&mut code);
            free(table, failed);
        }
        let error = error(code.rest.value, &message.rest.value.to_text());
        free(table, raw);
        Some(error)
    }
}

/// # Safety
/// As for [`take`].
unsafe fn free(table: &Table, raw: *mut RawError) {
    if let (false, Some(destroy)) = (raw.is_null(), table.error_destroy) {
        // SAFETY: the caller gives the error away.
        unsafe { destroy(&mut Args::new(Of { object: raw, value: () })) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_kinds() {
        let e = error(8, "Out of memory allocating 12 bytes.\n");
        assert_eq!(e.kind(), ErrorKind::Memory);
        assert_eq!(e.message(), "XLA says RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes.");
        assert_eq!(error(3, "x").kind(), ErrorKind::Argument);
        assert_eq!(error(12, "x").kind(), ErrorKind::Unsupported);
        assert_eq!(error(99, "x").message(), "XLA says UNKNOWN: x");
        assert_eq!(error(-1, "x").kind(), ErrorKind::Engine);
    }
}
