//! Gather and scatter-add: reads the rows of a table that a list of indices names, or adds rows to
//! them.

use crate::Isa;
use crate::partition::part;
use crate::scalar::Addend;
use crate::simd::per_isa::per_isa;
use std::ops::Range;
use tensorpack_tensor::DType;

/// Approximate number of elements per chunk.
const CHUNK: usize = 32 * 1024;

/// The sizes of a gather or a scatter-add: `batch` tables of `rows` rows, and `count` i64 indices
/// per table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "Lookup")]
pub struct GatherScatter {
    /// Number of tables.
    pub batch: usize,
    /// Rows per table.
    pub rows: usize,
    /// Elements per row.
    pub width: usize,
    /// Indices per table.
    pub count: usize,
    /// Whether all tables share one list of indices.
    pub shared: bool,
}

impl GatherScatter {
    /// Returns the number of rows that a chunk gathers.
    fn rows_per_chunk(&self) -> usize {
        (CHUNK / self.width.max(1)).max(1)
    }

    /// Returns the number of index lists.
    pub(crate) fn index_tables(&self) -> usize {
        if self.shared { self.batch.min(1) } else { self.batch }
    }

    /// Returns the number of rows to gather. Rows without elements write nothing, but every index
    /// is still checked once.
    fn gathered(&self) -> usize {
        let tables = if self.width == 0 { self.index_tables() } else { self.batch };
        tables * self.count
    }

    /// Returns the number of chunks of [`GatherScatter::gather`].
    pub fn gather_chunks(&self) -> usize {
        self.gathered().div_ceil(self.rows_per_chunk())
    }

    /// Gathers one chunk: `out[b, k, :] = tables[b, indices[b, k], :]`, with `out` of shape
    /// `[batch, count, width]`. Elements have 1, 2, 4 or 8 bytes. Returns the position in `indices`
    /// of the first out-of-range index of this chunk; nothing is written for such an index.
    ///
    /// # Safety
    /// [`GatherScatter::check`] must have passed. The tables and `indices` must be readable and the
    /// output writable in full. All must be aligned for their types and must not overlap.
    pub unsafe fn gather(
        &self,
        element_size: usize,
        chunk: usize,
        tables: *const u8,
        indices: *const i64,
        out: *mut u8,
    ) -> Option<usize> {
        let group = self.rows_per_chunk();
        let items = chunk * group..((chunk + 1) * group).min(self.gathered());
        // SAFETY: guaranteed by the caller. A row of one element is copied as an integer.
        unsafe {
            match (self.width, element_size) {
                (1, 2) => self.gather_rows(1, items, tables.cast::<u16>(), indices, out.cast()),
                (1, 4) => self.gather_rows(1, items, tables.cast::<u32>(), indices, out.cast()),
                (1, 8) => self.gather_rows(1, items, tables.cast::<u64>(), indices, out.cast()),
                _ => self.gather_rows(self.width * element_size, items, tables, indices, out),
            }
        }
    }

    /// # Safety
    /// Same as [`GatherScatter::gather`], with rows of `width` elements of type `T`.
    unsafe fn gather_rows<T: Copy>(
        &self,
        width: usize,
        items: Range<usize>,
        tables: *const T,
        indices: *const i64,
        out: *mut T,
    ) -> Option<usize> {
        let mut bad = None;
        for item in items {
            let table = item / self.count;
            let position = if self.shared { item % self.count } else { item };
            // SAFETY: there is an index for each item, or, if shared, for each row of a table.
            let row = unsafe { *indices.add(position) };
            if (row as u64) >= self.rows as u64 {
                bad = bad.or(Some(position));
                continue;
            }
            // SAFETY: `row` was compared with `rows` above, so it is inside its table, and the item
            // is inside the output.
            unsafe {
                let from = tables.add((table * self.rows + row as usize) * width);
                match width {
                    1 => *out.add(item) = *from,
                    _ => std::ptr::copy_nonoverlapping(from, out.add(item * width), width),
                }
            }
        }
        bad
    }

    /// Copies one chunk of `batch * count` integers, with the chunks of [`GatherScatter::gather`].
    /// Returns the position of the first zero in this chunk.
    ///
    /// # Safety
    /// [`GatherScatter::check`] must have passed, and `width` must be 1. `values` must be readable
    /// and `out` writable as `batch * count` integers, also if the indices are shared. They must be
    /// aligned and must not overlap.
    pub unsafe fn nonzero(&self, chunk: usize, values: *const i64, out: *mut i64) -> Option<usize> {
        let group = self.rows_per_chunk();
        let items = chunk * group..((chunk + 1) * group).min(self.batch * self.count);
        // SAFETY: the items end at `batch * count`, and the caller guarantees as many integers in
        // both.
        let (from, to) = unsafe {
            let from = std::slice::from_raw_parts(values.add(items.start), items.len());
            (from, std::slice::from_raw_parts_mut(out.add(items.start), items.len()))
        };
        to.copy_from_slice(from);
        from.iter().position(|&v| v == 0).map(|at| items.start + at)
    }

    /// Returns how many column blocks and row blocks partition a table for a scatter-add. Every
    /// chunk scans all indices, so the number of row blocks is limited to keep the scan cheap
    /// relative to the additions.
    fn blocks(&self) -> [usize; 2] {
        let col_blocks = self.width.div_ceil(CHUNK).max(1);
        let width = self.width / col_blocks;
        let row_blocks = (self.rows * width).div_ceil(CHUNK).min(width.max(8)).max(1);
        [col_blocks, row_blocks]
    }

    /// Returns the number of chunks of [`GatherScatter::scatter_add`].
    pub fn scatter_chunks(&self) -> usize {
        let [col_blocks, row_blocks] = self.blocks();
        let tables = match self.rows * self.width {
            // Nothing is written, but every index is still checked once.
            0 if self.count == 0 => 0,
            0 => self.index_tables(),
            _ => self.batch,
        };
        tables * col_blocks * row_blocks
    }

    /// Scatter-adds one chunk: `out`, of shape `[batch, rows, width]`, starts as zeros, then
    /// `out[b, indices[b, k], :] += updates[b, k, :]` for every `k` in order. Returns the position
    /// in `indices` of the first out-of-range index.
    ///
    /// # Safety
    /// [`GatherScatter::check`] must have passed. The updates and `indices` must be readable and
    /// the output writable in full. All must be aligned for their types and must not overlap. The
    /// CPU must support `isa`.
    pub unsafe fn scatter_add(
        &self,
        isa: Isa,
        dtype: DType,
        chunk: usize,
        updates: *const u8,
        indices: *const i64,
        out: *mut u8,
    ) -> Option<usize> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match dtype {
                DType::F32 => self.scatter::<f32>(isa, chunk, updates.cast(), indices, out.cast()),
                DType::F64 => self.scatter::<f64>(isa, chunk, updates.cast(), indices, out.cast()),
                DType::I32 => self.scatter::<i32>(isa, chunk, updates.cast(), indices, out.cast()),
                DType::I64 => self.scatter::<i64>(isa, chunk, updates.cast(), indices, out.cast()),
                other => panic!("scatter-add supports f32, f64, i32 and i64, not {other}"),
            }
        }
    }

    /// # Safety
    /// Same as [`GatherScatter::scatter_add`].
    unsafe fn scatter<T: Addend>(
        &self,
        isa: Isa,
        chunk: usize,
        updates: *const T,
        indices: *const i64,
        out: *mut T,
    ) -> Option<usize> {
        let [col_blocks, row_blocks] = self.blocks();
        let table = chunk / (col_blocks * row_blocks);
        let columns = part(self.width, col_blocks, chunk / row_blocks % col_blocks);
        let rows = part(self.rows, row_blocks, chunk % row_blocks);
        let first = if self.shared { 0 } else { table * self.count };
        // Wrapping, since a table without rows has no column to point to.
        let updates = updates.wrapping_add(table * self.count * self.width + columns.start);
        let out = out.wrapping_add(table * self.rows * self.width + columns.start);
        // SAFETY: the caller guarantees `count` indices for each table, or for all if they are
        // shared; `part` returns columns and rows inside the table, and each chunk has its own.
        let bad = unsafe {
            let indices = std::slice::from_raw_parts(indices.add(first), self.count);
            add_rows(isa, indices, self.rows, rows, updates, out, self.width, columns.len())
        };
        bad.map(|k| first + k)
    }
}

per_isa! {
    /// # Safety
    /// `updates` must have a row of `cols` elements for each index, and `out` one for each of
    /// `rows`; rows are `stride` elements apart.
    unsafe fn add_rows<T: Addend>(
        indices: &[i64],
        table_rows: usize,
        rows: Range<usize>,
        updates: *const T,
        out: *mut T,
        stride: usize,
        cols: usize,
    ) -> Option<usize> = add_rows_body
}

#[inline(always)]
unsafe fn add_rows_body<T: Addend, const FAST: bool>(
    indices: &[i64],
    table_rows: usize,
    rows: Range<usize>,
    updates: *const T,
    out: *mut T,
    stride: usize,
    cols: usize,
) -> Option<usize> {
    // There may be more rows without elements than memory could hold: do not touch those.
    for row in rows.clone().filter(|_| cols > 0) {
        // SAFETY: a row of the output.
        unsafe { std::slice::from_raw_parts_mut(out.add(row * stride), cols) }.fill(T::default());
    }
    let mut bad = None;
    for (k, &row) in indices.iter().enumerate() {
        if (row as u64) >= table_rows as u64 {
            bad = bad.or(Some(k));
        } else if rows.contains(&(row as usize)) {
            // SAFETY: a row of the output, since `rows` contains it, and row `k` of the updates.
            let (to, from) = unsafe {
                (
                    std::slice::from_raw_parts_mut(out.add(row as usize * stride), cols),
                    std::slice::from_raw_parts(updates.add(k * stride), cols),
                )
            };
            for (t, f) in to.iter_mut().zip(from) {
                *t = t.plus(*f);
            }
        }
    }
    bad
}
