//! Whether AMX can be used: the CPU and the operating system offer it, the process has permission,
//! and a trial in a child process succeeded. Some virtual machines offer AMX and kill processes
//! that use it.

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Set to 1, this environment variable turns AMX off.
const OFF: &str = "TENSORPACK_NO_AMX";

/// Returns whether this process may use AMX. The first call finds out, for the whole process.
pub(crate) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let off = std::env::var_os(OFF).is_some_and(|value| value == "1");
        !off && offered() && trial_succeeds() && request_permission()
    })
}

/// Returns whether the CPU has AMX with bf16, and the operating system saves its registers.
fn offered() -> bool {
    const TILES_AND_BF16: u32 = 1 << 24 | 1 << 22;
    const TILE_STATE: u64 = 1 << 17 | 1 << 18;
    const OSXSAVE: u32 = 1 << 27;
    #[target_feature(enable = "xsave")]
    fn saved_state() -> u64 {
        // SAFETY: reads the register of the states that the operating system saves.
        unsafe { _xgetbv(0) }
    }
    if __cpuid_count(0, 0).eax < 7 || __cpuid_count(1, 0).ecx & OSXSAVE == 0 {
        return false;
    }
    // SAFETY: with OSXSAVE, the instruction is enabled.
    let saved = unsafe { saved_state() };
    __cpuid_count(7, 0).edx & TILES_AND_BF16 == TILES_AND_BF16 && saved & TILE_STATE == TILE_STATE
}

/// System calls of Linux.
mod call {
    pub(super) const CLONE: usize = 56;
    pub(super) const WAIT4: usize = 61;
    pub(super) const KILL: usize = 62;
    pub(super) const PRCTL: usize = 157;
    pub(super) const ARCH_PRCTL: usize = 158;
    pub(super) const EXIT_GROUP: usize = 231;
}

/// Makes a system call. Returns its result, negative for errors.
///
/// # Safety
/// The call must be safe with these arguments.
#[inline(always)]
unsafe fn system_call(number: usize, [a, b, c, d]: [usize; 4]) -> isize {
    let result: isize;
    // SAFETY: guaranteed by the caller; a system call clobbers rcx and r11.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b, in("rdx") c,
            in("r10") d, in("r8") 0usize, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// Asks Linux for the permission to use tile registers, which holds for all threads from then on.
fn request_permission() -> bool {
    const REQUEST: usize = 0x1023;
    const TILE_DATA: usize = 18;
    // SAFETY: changes only what the process may use.
    cfg!(target_os = "linux") && unsafe { system_call(call::ARCH_PRCTL, [REQUEST, TILE_DATA, 0, 0]) == 0 }
}

/// Multiplies tiles in a child process. Returns whether it ended well, with the right result.
fn trial_succeeds() -> bool {
    if !cfg!(target_os = "linux") {
        return false;
    }
    // SAFETY: like `fork`, but without a signal to this process at the child's end. The child
    // shares no memory, and only makes system calls and computes on its stack: no lock that another
    // thread held can stop it.
    let child = unsafe { system_call(call::CLONE, [0; 4]) };
    if child == 0 {
        const SET_DUMPABLE: usize = 4;
        // SAFETY: in the child, which ends here; it writes no core file if it is killed.
        unsafe {
            system_call(call::PRCTL, [SET_DUMPABLE, 0, 0, 0]);
            let right = request_permission() && multiplies_correctly();
            system_call(call::EXIT_GROUP, [usize::from(!right), 0, 0, 0]);
            std::process::abort()
        }
    }
    child > 0 && ends_well(child as usize)
}

/// Waits for a child process. Returns whether it ended with status 0, within some seconds.
fn ends_well(child: usize) -> bool {
    const NO_HANG: usize = 1;
    const ALL_CHILDREN: usize = 1 << 30;
    const SIGKILL: usize = 9;
    const PATIENCE: Duration = Duration::from_secs(5);
    let began = Instant::now();
    let mut patient = true;
    loop {
        let mut status = 0i32;
        let options = ALL_CHILDREN | if patient { NO_HANG } else { 0 };
        // SAFETY: writes the status to a local.
        let ended = unsafe { system_call(call::WAIT4, [child, (&raw mut status).addr(), options, 0]) };
        match ended {
            0 => std::thread::sleep(Duration::from_micros(200)),
            ended => return ended == child as isize && status == 0,
        }
        if patient && began.elapsed() > PATIENCE {
            patient = false;
            // SAFETY: the child of this function, which has not been waited for yet.
            unsafe { system_call(call::KILL, [child, SIGKILL, 0, 0]) };
        }
    }
}

/// The shapes of the eight tile registers.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes per row of each tile.
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileConfig {
    /// Makes a configuration of tiles with these numbers of rows, and of bytes per row.
    pub(crate) fn new(tiles: [(usize, usize); 8]) -> TileConfig {
        let mut config =
            TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (i, (rows, bytes)) in tiles.into_iter().enumerate() {
            (config.rows[i], config.row_bytes[i]) = (rows as u8, bytes as u16);
        }
        config
    }

    /// Configures this thread's tiles, which become zero.
    ///
    /// # Safety
    /// [`available`] has returned true, and the shapes are valid.
    #[inline(always)]
    pub(crate) unsafe fn load(&self) {
        // SAFETY: guaranteed by the caller; compiled code never uses tiles.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, preserves_flags, readonly)) }
    }
}

/// Multiplies tiles of ones: every sum is 32.
#[inline(never)]
fn multiplies_correctly() -> bool {
    let ones = [0x3f80u16; 16 * 32];
    let mut sums = [0.0f32; 16 * 16];
    // SAFETY: whole tiles of 16 rows of 64 bytes, from and to locals; if there are no such
    // instructions, the child process ends.
    unsafe {
        TileConfig::new([(16, 64); 8]).load();
        asm!(
            "tilezero tmm0", "tileloadd tmm4, [{a} + {row}]", "tileloadd tmm5, [{a} + {row}]",
            "tdpbf16ps tmm0, tmm4, tmm5", "tilestored [{c} + {row}], tmm0", "tilerelease",
            a = in(reg) ones.as_ptr(), c = in(reg) sums.as_mut_ptr(), row = in(reg) 64usize,
            options(nostack, preserves_flags)
        );
    }
    sums.iter().all(|&sum| sum == 32.0)
}
