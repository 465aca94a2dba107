//! Kernels over whole rows: concat, gather, cumsum, argsort and non-maximum suppression.

use super::compiled_kernel::Memory;
use crate::kir::{GatherKind, View};
use crate::runtime::value_errors::{division_by_zero, index_out_of_range};
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorpack_kernels::{Argsort, Concat, Cumsum, GatherScatter, Nms, Team};
use tensorpack_tensor::{DType, Result};

/// A kernel over whole rows.
#[derive(Debug)]
pub(super) enum RowKernel {
    Concat(Concat),
    Gather { kind: GatherKind, gather: GatherScatter, dtype: DType },
    Cumsum { cumsum: Cumsum, dtype: DType },
    Argsort { argsort: Argsort, dtype: DType },
    Nms(Nms),
}

impl RowKernel {
    pub(super) fn concat(parts: &[View], axis: usize) -> RowKernel {
        let sources: Vec<(&[usize], &[isize])> =
            parts.iter().map(|v| (&v.sizes[..], &v.strides[..])).collect();
        RowKernel::Concat(Concat::new(parts[0].dtype.size(), axis, &sources))
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            RowKernel::Concat(_) => "concat",
            RowKernel::Gather { .. } => "gather",
            RowKernel::Cumsum { .. } => "cumsum",
            RowKernel::Argsort { .. } => "argsort",
            RowKernel::Nms(_) => "nms",
        }
    }

    pub(super) fn scratch_bytes(&self) -> usize {
        match self {
            RowKernel::Argsort { argsort, .. } => argsort.scratch_bytes(),
            _ => 0,
        }
    }

    /// Runs on the whole team.
    ///
    /// # Safety
    /// The memory must be what this kernel was planned with.
    pub(super) unsafe fn run(&self, team: &mut Team, m: &Memory<'_>) -> Result<()> {
        let isa = m.isa;
        match self {
            RowKernel::Concat(k) => team.run(k.chunks(), &|chunk, _| {
                // SAFETY: as promised by the caller; chunks write apart from each other.
                unsafe { k.run(isa, chunk, m.reads(), m.write(0)) }
            }),
            RowKernel::Gather { kind, gather, dtype } => {
                let chunks = match kind {
                    GatherKind::Gather | GatherKind::NonZero => gather.gather_chunks(),
                    GatherKind::ScatterAdd => gather.scatter_chunks(),
                };
                // The first bad index, so that the error is the same for any number of threads.
                let bad = AtomicUsize::new(usize::MAX);
                team.run(chunks, &|chunk, _| {
                    let (rows, indices, out) = (m.read(0), m.read(1).cast::<i64>(), m.write(0));
                    // SAFETY: as above.
                    let position = unsafe {
                        match kind {
                            GatherKind::Gather => gather.gather(dtype.size(), chunk, rows, indices, out),
                            GatherKind::ScatterAdd => {
                                gather.scatter_add(isa, *dtype, chunk, rows, indices, out)
                            }
                            GatherKind::NonZero => gather.nonzero(chunk, indices, out.cast()),
                        }
                    };
                    bad.fetch_min(position.unwrap_or(usize::MAX), Ordering::Relaxed);
                });
                let position = bad.into_inner();
                if position != usize::MAX && *kind == GatherKind::NonZero {
                    return Err(division_by_zero(position));
                }
                if position != usize::MAX {
                    // SAFETY: the kernel found the index at this position, among those it read.
                    let index = unsafe { *m.read(1).cast::<i64>().add(position) };
                    return Err(index_out_of_range(index, position, gather.rows));
                }
            }
            RowKernel::Cumsum { cumsum, dtype } => team.run(cumsum.chunks(), &|chunk, _| {
                // SAFETY: as above.
                unsafe { cumsum.run(isa, *dtype, chunk, m.read(0), m.write(0)) }
            }),
            RowKernel::Argsort { argsort, dtype } => team.run(argsort.chunks(), &|chunk, member| {
                // SAFETY: as above; the scratch memory is aligned for any type.
                unsafe { argsort.run(*dtype, chunk, m.read(0), m.write(0).cast(), m.scratch(member)) }
            }),
            RowKernel::Nms(nms) => team.run(nms.chunks(), &|chunk, _| {
                // SAFETY: as above.
                unsafe { nms.run(chunk, m.read(0), m.write(0)) }
            }),
        }
        Ok(())
    }
}
