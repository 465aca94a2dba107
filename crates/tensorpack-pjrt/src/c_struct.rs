//! Functions and structs of PJRT's C API: their types and their common header.
//!
//! Every struct begins with its size. So old and new plugins mix: fields are only ever added at the
//! end, and a plugin accepts a struct that is longer than the one it was built with.

use crate::c_api::PJRT_Error;
use std::ffi::c_char;

/// A function of the table. Plugins leave out what they do not support.
pub(crate) type Function<A> = Option<unsafe extern "C" fn(*mut A) -> *mut PJRT_Error>;
/// A function that cannot fail.
pub(crate) type VoidFunction<A> = Option<unsafe extern "C" fn(*mut A)>;
/// A function that this crate does not call.
pub(crate) type UntypedFunction = Option<unsafe extern "C" fn()>;

/// A struct of the C API.
///
/// # Safety
/// The struct must be `repr(C)` and begin with a `usize`, and zero must be a valid value of all its
/// bytes.
pub(crate) unsafe trait CStruct: Copy {
    /// The struct with its size set and all other fields zero.
    fn new() -> Self {
        // SAFETY: the trait promises that zero is valid.
        let mut new: Self = unsafe { std::mem::zeroed() };
        // SAFETY: the trait promises that it begins with a `usize`.
        unsafe { (&raw mut new).cast::<usize>().write(size_of::<Self>()) };
        new
    }
}

/// Implements [`CStruct`] for generated structs that begin with `struct_size`.
macro_rules! c_structs {
    ($($name:ident),* $(,)?) => {
        $(
            const _: () = assert!(std::mem::offset_of!($name, struct_size) == 0);
            // SAFETY: it begins with its size, as just checked, and consists of integers, floats,
            // bools, pointers, optional functions, and structs and unions of those, which may all
            // be zero.
            unsafe impl $crate::c_struct::CStruct for $name {}
        )*
    };
}
pub(crate) use c_structs;

/// Declares types that are only ever pointed to.
macro_rules! opaque {
    ($($name:ident),* $(,)?) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub(crate) struct $name {
                _private: [u8; 0],
            }
        )*
    };
}
pub(crate) use opaque;

/// Declares `LAYOUTS`: the size of each struct, and the offsets of its fields.
#[cfg(test)]
macro_rules! layouts {
    ($($name:ident { $($field:ident),* } $(| { $($member:ident),* })?)*) => {
        pub(crate) const LAYOUTS: &[$crate::c_struct::tests::Layout] = &[$(
            (
                stringify!($name),
                size_of::<$name>(),
                &[
                    $((stringify!($field), std::mem::offset_of!($name, $field)),)*
                    $($((stringify!($member), std::mem::offset_of!($name, union)),)*)?
                ],
            ),
        )*];
    };
}
#[cfg(test)]
pub(crate) use layouts;

/// Copies a string that the C API returns as a pointer and a length.
///
/// # Safety
/// `data` must be null or point to `size` bytes.
pub(crate) unsafe fn to_string(data: *const c_char, size: usize) -> String {
    // SAFETY: the caller's promise; a `u8` is as large as a `c_char`.
    String::from_utf8_lossy(&unsafe { to_vec(data.cast::<u8>(), size) }).into_owned()
}

/// Copies an array that the C API returns as a pointer and a length.
///
/// # Safety
/// `data` must be null or point to `size` elements.
pub(crate) unsafe fn to_vec<T: Copy>(data: *const T, size: usize) -> Vec<T> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: not null, as just checked; the rest is the caller's promise.
    unsafe { std::slice::from_raw_parts(data, size) }.to_vec()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::c_api::{LAYOUTS, PJRT_API_MAJOR, PJRT_API_MINOR, PJRT_Api, PJRT_Client_Create_Args};
    use std::env;
    use std::fs;
    use std::path::PathBuf;
    use std::process::Command;
    use tensorpack_testing::{Requirement, skip};

    /// The name and size of a struct, and the names and offsets of its fields.
    pub(crate) type Layout = (&'static str, usize, &'static [(&'static str, usize)]);

    /// The header beside an installed plugin, or the one that `TENSORPACK_PJRT_HEADER` names.
    fn header() -> Option<PathBuf> {
        if let Some(path) = env::var_os("TENSORPACK_PJRT_HEADER") {
            return Some(path.into());
        }
        let plugin = crate::find_plugin("cpu").ok()?;
        Some(plugin.parent()?.join("include/pjrt_c_api.h")).filter(|path| path.is_file())
    }

    /// The fields of a struct that a header declares, between its braces.
    fn body<'a>(header: &'a str, name: &str) -> Option<&'a str> {
        let start = header.find(&format!("struct {name} {{"))?;
        let end =
            header[start..].find("\nPJRT_DEFINE_STRUCT_TRAITS").or(header[start..].find("\n} PJRT_Api;"));
        Some(&header[start..start + end?])
    }

    fn has_word(text: &str, word: &str) -> bool {
        text.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|w| w == word)
    }

    #[test]
    fn a_new_struct_is_zeroed_except_for_its_size() {
        let new = PJRT_Client_Create_Args::new();
        assert_eq!((new.struct_size, new.num_options), (size_of::<PJRT_Client_Create_Args>(), 0));
        assert!(new.client.is_null() && new.kv_get_callback.is_none());
    }

    #[test]
    fn strings_and_arrays_are_copied() {
        let text = "plugin";
        // SAFETY: points to as many bytes as it says, or is null.
        unsafe {
            assert_eq!(to_string(text.as_ptr().cast(), 4), "plug");
            assert_eq!(to_string(std::ptr::null(), 4), "");
            assert_eq!(to_vec([1, 2, 3].as_ptr(), 2), [1, 2]);
        }
    }

    /// Sizes and offsets are those that a C compiler computes from a header. One of an older API
    /// declares fewer fields and functions, but those in the same places.
    #[test]
    fn layouts_are_those_of_the_header() {
        let Some(path) = header() else {
            skip(Requirement::Plugin, "there is no pjrt_c_api.h");
            return;
        };
        let text = fs::read_to_string(&path).unwrap();
        let (mut program, mut expected) = (String::new(), Vec::new());
        for (name, size, fields) in LAYOUTS {
            let Some(body) = body(&text, name) else { continue };
            let declared: Vec<_> = fields
                .iter()
                .map(|(field, offset)| (field.strip_prefix("r#").unwrap_or(field), *offset))
                .filter(|(field, _)| has_word(body, field))
                .collect();
            program += &format!("  printf(\"%zu\\n\", sizeof({name}));\n");
            expected.push((name.to_string(), *size, declared.len() == fields.len()));
            for (field, offset) in declared {
                program += &format!("  printf(\"%zu\\n\", offsetof({name}, {field}));\n");
                expected.push((format!("{name}.{field}"), offset, true));
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let (source, binary) = (dir.path().join("layout.c"), dir.path().join("layout"));
        let includes = format!("#include <stdio.h>\n#include {:?}\n", path.display().to_string());
        let versions = "  printf(\"%d\\n%d\\n\", PJRT_API_MAJOR, PJRT_API_MINOR);\n";
        fs::write(&source, format!("{includes}int main(void) {{\n{versions}{program}  return 0;\n}}\n"))
            .unwrap();
        let Ok(compiled) = Command::new("cc").arg(&source).arg("-o").arg(&binary).output() else {
            skip(Requirement::Tool, "there is no C compiler");
            return;
        };
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let output = Command::new(&binary).output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let mut numbers = output.lines().map(|line| line.parse::<usize>().unwrap());
        let version = (numbers.next().unwrap() as i32, numbers.next().unwrap() as i32);
        assert_eq!(version.0, PJRT_API_MAJOR);
        assert!(version.1 <= PJRT_API_MINOR, "the header is newer: run generate_c_api.py with it");
        assert!(expected.len() > 150, "only {} layouts were compared", expected.len());
        for ((name, ours, whole), theirs) in expected.into_iter().zip(numbers) {
            match whole {
                true => assert_eq!(ours, theirs, "{name}"),
                false => assert!(ours > theirs, "{name}: {ours} should have grown from {theirs}"),
            }
        }
        assert!(size_of::<PJRT_Api>() > 800);
    }
}
