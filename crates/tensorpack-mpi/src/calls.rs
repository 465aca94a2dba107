//! The functions of an MPI library, with one type of handles or the other.

use crate::abi::{Abi, Handles, MPICH_HANDLES, STANDARD_HANDLES};
use libloading::Library;
use std::ffi::{c_char, c_int, c_void};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A request in the library's own form, as bits: a pointer or an integer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawRequest(usize);

/// A type of handles: pointers in the MPI 5 ABI and Open MPI, integers in MPICH.
pub(crate) trait Handle: Copy + 'static {
    fn into_raw(self) -> RawRequest;
    fn from_raw(raw: RawRequest) -> Self;
}

impl Handle for *mut c_void {
    fn into_raw(self) -> RawRequest {
        RawRequest(self.expose_provenance())
    }

    fn from_raw(raw: RawRequest) -> Self {
        std::ptr::with_exposed_provenance_mut(raw.0)
    }
}

impl Handle for c_int {
    fn into_raw(self) -> RawRequest {
        RawRequest(self as u32 as usize)
    }

    fn from_raw(raw: RawRequest) -> Self {
        raw.0 as u32 as c_int
    }
}

/// Counts and displacements in bytes, one each per rank. The library reads them until the request
/// is complete.
pub(crate) struct Layout {
    pub(crate) counts: Vec<c_int>,
    pub(crate) displacements: Vec<c_int>,
}

/// Calls of MPI on `MPI_COMM_WORLD` with `MPI_BYTE`. All return MPI's code.
///
/// # Safety
/// The functions must be called by one thread at a time, those that are not marked as "any time"
/// between a successful [`init_thread`](Calls::init_thread) and [`finalize`](Calls::finalize).
/// Buffers and layouts passed to a nonblocking collective must have the sizes that the call says,
/// stay valid and, if the library writes them, unused until the request is complete.
pub(crate) trait Calls: Send {
    /// Any time.
    unsafe fn library_version(&self, text: *mut c_char, length: &mut c_int) -> c_int;
    /// Any time.
    unsafe fn initialized(&self, flag: &mut c_int) -> c_int;
    /// Once.
    unsafe fn init_thread(&self, required: c_int, provided: &mut c_int) -> c_int;
    unsafe fn finalize(&self) -> c_int;
    unsafe fn return_errors(&self) -> c_int;
    unsafe fn rank(&self, rank: &mut c_int) -> c_int;
    unsafe fn size(&self, size: &mut c_int) -> c_int;
    unsafe fn error_string(&self, code: c_int, text: *mut c_char, length: &mut c_int) -> c_int;
    unsafe fn test(&self, request: &mut RawRequest, done: &mut c_int) -> c_int;
    unsafe fn ibarrier(&self, request: &mut RawRequest) -> c_int;
    unsafe fn ibcast(&self, buffer: *mut c_void, len: c_int, root: c_int, request: &mut RawRequest) -> c_int;
    unsafe fn iallgatherv(
        &self,
        send: *const c_void,
        len: c_int,
        receive: *mut c_void,
        layout: &Layout,
        request: &mut RawRequest,
    ) -> c_int;
    unsafe fn ialltoallv(
        &self,
        send: *const c_void,
        send_layout: &Layout,
        receive: *mut c_void,
        receive_layout: &Layout,
        request: &mut RawRequest,
    ) -> c_int;
    unsafe fn iallgather(
        &self,
        send: *const c_void,
        len: c_int,
        receive: *mut c_void,
        request: &mut RawRequest,
    ) -> c_int;
    unsafe fn ialltoall(
        &self,
        send: *const c_void,
        len: c_int,
        receive: *mut c_void,
        request: &mut RawRequest,
    ) -> c_int;
}

/// Declares a struct of functions and how it is loaded.
macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),* $(,)?);)*) => {
        /// The library's functions.
        struct Functions<H> {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl<H: Handle> Functions<H> {
            /// # Safety
            /// The library must be an MPI whose handles are `H`.
            unsafe fn load(library: &Library) -> Result<Functions<H>> {
                Ok(Functions {
                    $(
                        // SAFETY: MPI defines the function with these arguments; the caller knows
                        // the type of handles.
                        $field: unsafe { symbol(library, $symbol) }?,
                    )*
                })
            }
        }
    };
}

functions! {
    library_version = "MPI_Get_library_version": fn(*mut c_char, *mut c_int);
    initialized = "MPI_Initialized": fn(*mut c_int);
    init_thread = "MPI_Init_thread": fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    finalize = "MPI_Finalize": fn();
    set_errhandler = "MPI_Comm_set_errhandler": fn(H, H);
    comm_rank = "MPI_Comm_rank": fn(H, *mut c_int);
    comm_size = "MPI_Comm_size": fn(H, *mut c_int);
    error_string = "MPI_Error_string": fn(c_int, *mut c_char, *mut c_int);
    test = "MPI_Test": fn(*mut H, *mut c_int, *mut c_void);
    ibarrier = "MPI_Ibarrier": fn(H, *mut H);
    ibcast = "MPI_Ibcast": fn(*mut c_void, c_int, H, c_int, H, *mut H);
    iallgather = "MPI_Iallgather": fn(*const c_void, c_int, H, *mut c_void, c_int, H, H, *mut H);
    iallgatherv = "MPI_Iallgatherv":
        fn(*const c_void, c_int, H, *mut c_void, *const c_int, *const c_int, H, H, *mut H);
    ialltoall = "MPI_Ialltoall": fn(*const c_void, c_int, H, *mut c_void, c_int, H, H, *mut H);
    ialltoallv = "MPI_Ialltoallv":
        fn(*const c_void, *const c_int, *const c_int, H, *mut c_void, *const c_int, *const c_int, H, H, *mut H);
}

/// Looks a symbol up.
///
/// # Safety
/// `T` must be the type of the symbol: a function pointer, or a pointer to a variable.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T> {
    // SAFETY: as the caller promises. The library is never unloaded (`Library::open`).
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|e| {
        let why = format!("the library has no {name}, so it is no MPI that can be used: {e}");
        Error::new(ErrorKind::Unsupported, why)
    })
}

struct Table<H> {
    functions: Functions<H>,
    handles: Handles<H>,
    abi: Abi,
}

// SAFETY: a table holds addresses of functions and of the library's own variables, which are not
// tied to a thread. It is not `Sync`: MPI is called by one thread at a time.
unsafe impl<H> Send for Table<H> {}

/// Loads the functions of a library.
///
/// # Safety
/// The library must be an MPI with this binary interface.
pub(crate) unsafe fn load(library: &Library, abi: Abi) -> Result<Box<dyn Calls>> {
    match abi {
        Abi::Standard => {
            let Handles { world, byte, errors_return, request_null } = STANDARD_HANDLES;
            let handle = std::ptr::without_provenance_mut;
            let handles = Handles {
                world: handle(world),
                byte: handle(byte),
                errors_return: handle(errors_return),
                request_null: handle(request_null),
            };
            // SAFETY: the handles of the MPI 5 ABI are pointers.
            let functions = unsafe { Functions::<*mut c_void>::load(library) }?;
            Ok(Box::new(Table { functions, handles, abi }))
        }
        Abi::OpenMpi => {
            // SAFETY: these are variables, whose addresses are the handles.
            let handles = unsafe {
                Handles {
                    world: symbol(library, "ompi_mpi_comm_world")?,
                    byte: symbol(library, "ompi_mpi_byte")?,
                    errors_return: symbol(library, "ompi_mpi_errors_return")?,
                    request_null: symbol(library, "ompi_request_null")?,
                }
            };
            // SAFETY: the handles of Open MPI are pointers.
            let functions = unsafe { Functions::<*mut c_void>::load(library) }?;
            Ok(Box::new(Table { functions, handles, abi }))
        }
        Abi::Mpich => {
            // SAFETY: the handles of MPICH are integers.
            let functions = unsafe { Functions::<c_int>::load(library) }?;
            Ok(Box::new(Table { functions, handles: MPICH_HANDLES, abi }))
        }
    }
}

impl<H: Handle> Table<H> {
    /// Starts a nonblocking call.
    fn start(&self, request: &mut RawRequest, call: impl FnOnce(&mut H) -> c_int) -> c_int {
        let mut handle = self.handles.request_null;
        let code = call(&mut handle);
        *request = handle.into_raw();
        code
    }
}

// SAFETY of every call below: the trait's contract, which its callers keep; the addresses were
// looked up in a library of this interface (`load`), and `byte` and `world` are its own.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one comment, above, for all of them")]
impl<H: Handle> Calls for Table<H> {
    unsafe fn library_version(&self, text: *mut c_char, length: &mut c_int) -> c_int {
        unsafe { (self.functions.library_version)(text, length) }
    }

    unsafe fn initialized(&self, flag: &mut c_int) -> c_int {
        unsafe { (self.functions.initialized)(flag) }
    }

    unsafe fn init_thread(&self, required: c_int, provided: &mut c_int) -> c_int {
        let none = std::ptr::null_mut();
        unsafe { (self.functions.init_thread)(none, none.cast(), required, provided) }
    }

    unsafe fn finalize(&self) -> c_int {
        unsafe { (self.functions.finalize)() }
    }

    unsafe fn return_errors(&self) -> c_int {
        unsafe { (self.functions.set_errhandler)(self.handles.world, self.handles.errors_return) }
    }

    unsafe fn rank(&self, rank: &mut c_int) -> c_int {
        unsafe { (self.functions.comm_rank)(self.handles.world, rank) }
    }

    unsafe fn size(&self, size: &mut c_int) -> c_int {
        unsafe { (self.functions.comm_size)(self.handles.world, size) }
    }

    unsafe fn error_string(&self, code: c_int, text: *mut c_char, length: &mut c_int) -> c_int {
        unsafe { (self.functions.error_string)(code, text, length) }
    }

    unsafe fn test(&self, request: &mut RawRequest, done: &mut c_int) -> c_int {
        let mut handle = H::from_raw(*request);
        let code = unsafe { (self.functions.test)(&mut handle, done, self.abi.status_ignore()) };
        *request = handle.into_raw();
        code
    }

    unsafe fn ibarrier(&self, request: &mut RawRequest) -> c_int {
        self.start(request, |handle| unsafe { (self.functions.ibarrier)(self.handles.world, handle) })
    }

    unsafe fn ibcast(&self, buffer: *mut c_void, len: c_int, root: c_int, request: &mut RawRequest) -> c_int {
        let Handles { world, byte, .. } = self.handles;
        self.start(request, |handle| unsafe {
            (self.functions.ibcast)(buffer, len, byte, root, world, handle)
        })
    }

    unsafe fn iallgatherv(
        &self,
        send: *const c_void,
        len: c_int,
        receive: *mut c_void,
        layout: &Layout,
        request: &mut RawRequest,
    ) -> c_int {
        let Handles { world, byte, .. } = self.handles;
        let (counts, displacements) = (layout.counts.as_ptr(), layout.displacements.as_ptr());
        self.start(request, |handle| unsafe {
            (self.functions.iallgatherv)(send, len, byte, receive, counts, displacements, byte, world, handle)
        })
    }

    unsafe fn ialltoallv(
        &self,
        send: *const c_void,
        send_layout: &Layout,
        receive: *mut c_void,
        receive_layout: &Layout,
        request: &mut RawRequest,
    ) -> c_int {
        let Handles { world, byte, .. } = self.handles;
        let (counts, displacements) = (send_layout.counts.as_ptr(), send_layout.displacements.as_ptr());
        let (their_counts, their_displacements) =
            (receive_layout.counts.as_ptr(), receive_layout.displacements.as_ptr());
        self.start(request, |handle| unsafe {
            (self.functions.ialltoallv)(
                send,
                counts,
                displacements,
                byte,
                receive,
                their_counts,
                their_displacements,
                byte,
                world,
                handle,
            )
        })
    }

    unsafe fn iallgather(
        &self,
        send: *const c_void,
        len: c_int,
        receive: *mut c_void,
        request: &mut RawRequest,
    ) -> c_int {
        let Handles { world, byte, .. } = self.handles;
        self.start(request, |handle| unsafe {
            (self.functions.iallgather)(send, len, byte, receive, len, byte, world, handle)
        })
    }

    unsafe fn ialltoall(
        &self,
        send: *const c_void,
        len: c_int,
        receive: *mut c_void,
        request: &mut RawRequest,
    ) -> c_int {
        let Handles { world, byte, .. } = self.handles;
        self.start(request, |handle| unsafe {
            (self.functions.ialltoall)(send, len, byte, receive, len, byte, world, handle)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_survive_the_raw_form() {
        for handle in [0, 1, -1, c_int::MIN, 0x2c00_0000] {
            assert_eq!(c_int::from_raw(handle.into_raw()), handle);
        }
        let mut variable = 5;
        let pointer: *mut c_void = (&raw mut variable).cast();
        assert_eq!(<*mut c_void>::from_raw(pointer.into_raw()), pointer);
    }
}
