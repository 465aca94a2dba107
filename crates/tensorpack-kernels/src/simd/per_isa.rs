//! Multiversioning: one loop, compiled once per instruction set.

/// Defines a function that dispatches on its first argument, an [`Isa`], to a copy of `$body`
/// compiled for that instruction set. The body must be `#[inline(always)]`, so that the compiler
/// vectorizes it in each copy. Its const parameter says whether fused multiply-add is an
/// instruction there.
///
/// [`Isa`]: crate::Isa
macro_rules! per_isa {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident $(<$t:ident: $bound:path>)? ($($arg:ident: $ty:ty),* $(,)?)
        $(-> $ret:ty)? = $body:ident) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "kernels take what they read and write")]
        $vis unsafe fn $name $(<$t: $bound>)? (isa: $crate::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[allow(clippy::too_many_arguments, reason = "as above")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2 $(<$t: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller upholds the contract of the body.
                unsafe { $body::<$($t,)? true>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[allow(clippy::too_many_arguments, reason = "as above")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            unsafe fn avx512 $(<$t: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller upholds the contract of the body.
                unsafe { $body::<$($t,)? true>($($arg),*) }
            }
            match isa {
                // SAFETY: the caller has checked that the CPU supports the instruction set, and
                // upholds the contract of the body.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: the caller upholds the contract of the body.
                _ => unsafe { $body::<$($t,)? false>($($arg),*) },
            }
        }
    };
}
pub(crate) use per_isa;
