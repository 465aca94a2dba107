//! Rows of a table by number: picked, or added to.

use crate::Isa;
use crate::partition::part;
use crate::scalar::Addend;
use crate::simd::per_isa::per_isa;
use std::ops::Range;
use tensorpack_tensor::DType;

/// Elements of one chunk, more or less.
const CHUNK: usize = 32 * 1024;

/// `batch` tables of `rows` rows, and `count` row numbers (i64) for each of them or, if `shared`, for all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GatherScatter {
    /// How many tables.
    pub batch: usize,
    /// Rows of a table.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Row numbers for a table.
    pub count: usize,
    /// Whether all tables have the same row numbers.
    pub shared: bool,
}

impl GatherScatter {
    fn gather_group(&self) -> usize {
        (CHUNK / self.width.max(1)).max(1)
    }

    /// Lists of row numbers.
    pub(crate) fn index_tables(&self) -> usize {
        if self.shared { self.batch.min(1) } else { self.batch }
    }

    /// Rows that are picked. Without columns there is nothing to write, but every row number is looked at once.
    fn gathered(&self) -> usize {
        let tables = if self.width == 0 { self.index_tables() } else { self.batch };
        tables * self.count
    }

    /// Into how many chunks picking is cut.
    pub fn gather_chunks(&self) -> usize {
        self.gathered().div_ceil(self.gather_group())
    }

    /// Picks: row `k` of the output's table `b`, `[batch, count, width]`, is row `indices[b, k]` of the table `b`.
    /// Elements have 1, 2, 4 or 8 bytes. Returns where in `indices` this chunk met the first that names no row; for
    /// such a one nothing is written.
    ///
    /// # Safety
    /// [`GatherScatter::check`] must have passed. The tables and `indices` must be readable in full, the output writable,
    /// aligned for their types, and apart.
    pub unsafe fn gather(
        &self,
        element_size: usize,
        chunk: usize,
        tables: *const u8,
        indices: *const i64,
        out: *mut u8,
    ) -> Option<usize> {
        let group = self.gather_group();
        let items = chunk * group..((chunk + 1) * group).min(self.gathered());
        // SAFETY: passed on from the caller. A row of one element is read as a number.
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
    /// As for [`GatherScatter::gather`], with rows of `width` numbers of type `T`.
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
            let place = if self.shared { item % self.count } else { item };
            // SAFETY: as many indices as items, or as many as an item's table has.
            let row = unsafe { *indices.add(place) };
            if (row as u64) >= self.rows as u64 {
                bad = bad.or(Some(place));
                continue;
            }
            // SAFETY: the row is inside its table, and the item inside the output.
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

    /// Copies a chunk of the `count` numbers, cut as for [`GatherScatter::gather`]. Returns the position
    /// of the first zero in this chunk.
    ///
    /// # Safety
    /// `values` must be readable and `out` writable in full, and the two apart.
    pub unsafe fn nonzero(&self, chunk: usize, values: *const i64, out: *mut i64) -> Option<usize> {
        let group = self.gather_group();
        let items = chunk * group..((chunk + 1) * group).min(self.batch * self.count);
        // SAFETY: the items are some of the numbers, which the caller gives in full.
        let (from, to) = unsafe {
            let from = std::slice::from_raw_parts(values.add(items.start), items.len());
            (from, std::slice::from_raw_parts_mut(out.add(items.start), items.len()))
        };
        to.copy_from_slice(from);
        from.iter().position(|&v| v == 0).map(|at| items.start + at)
    }

    /// How a table is cut for adding: into pieces of its width, and those into parts of its rows. Every chunk looks
    /// at all row numbers, so there are not more parts than keep that small beside the adding.
    fn cut(&self) -> [usize; 2] {
        let pieces = self.width.div_ceil(CHUNK).max(1);
        let width = self.width / pieces;
        let parts = (self.rows * width).div_ceil(CHUNK).min(width.max(8)).max(1);
        [pieces, parts]
    }

    /// Into how many chunks adding is cut.
    pub fn scatter_chunks(&self) -> usize {
        let [pieces, parts] = self.cut();
        let tables = match self.rows * self.width {
            // Nothing is written, but every row number is looked at once.
            0 if self.count == 0 => 0,
            0 => self.index_tables(),
            _ => self.batch,
        };
        tables * pieces * parts
    }

    /// Adds: the output's table `b`, `[batch, rows, width]`, is zeros, plus for every `k` in order, in row
    /// `indices[b, k]`, row `k` of the updates' table `b`. Returns where in `indices` the first is that names no row.
    ///
    /// # Safety
    /// [`GatherScatter::check`] must have passed. The updates and `indices` must be readable in full, the output writable,
    /// aligned for their types, and apart.
    /// The machine must have the instructions of `isa`.
    pub unsafe fn scatter_add(
        &self,
        isa: Isa,
        dtype: DType,
        chunk: usize,
        updates: *const u8,
        indices: *const i64,
        out: *mut u8,
    ) -> Option<usize> {
        // SAFETY: passed on from the caller.
        unsafe {
            match dtype {
                DType::F32 => self.scatter::<f32>(isa, chunk, updates.cast(), indices, out.cast()),
                DType::F64 => self.scatter::<f64>(isa, chunk, updates.cast(), indices, out.cast()),
                DType::I32 => self.scatter::<i32>(isa, chunk, updates.cast(), indices, out.cast()),
                DType::I64 => self.scatter::<i64>(isa, chunk, updates.cast(), indices, out.cast()),
                other => panic!("rows are added in f32, f64, i32 or i64, not {other}"),
            }
        }
    }

    /// # Safety
    /// As for [`GatherScatter::scatter_add`].
    unsafe fn scatter<T: Addend>(
        &self,
        isa: Isa,
        chunk: usize,
        updates: *const T,
        indices: *const i64,
        out: *mut T,
    ) -> Option<usize> {
        let [pieces, parts] = self.cut();
        let table = chunk / (pieces * parts);
        let columns = part(self.width, pieces, chunk / parts % pieces);
        let rows = part(self.rows, parts, chunk % parts);
        let first = if self.shared { 0 } else { table * self.count };
        // SAFETY: `first` and the offsets lie within what the caller vouches for.
        let bad = unsafe {
            let (updates, out) = (
                updates.add(table * self.count * self.width + columns.start),
                out.add(table * self.rows * self.width + columns.start),
            );
            let indices = std::slice::from_raw_parts(indices.add(first), self.count);
            add_rows(isa, indices, self.rows, rows, updates, out, self.width, columns.len())
        };
        bad.map(|place| first + place)
    }
}

per_isa! {
    /// # Safety
    /// `updates` must have a row of `cols` elements, `stride` apart, for each index, and `out` one for each of `rows`.
    unsafe fn add_rows<T: Addend>(
        indices: &[i64],
        all: usize,
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
    all: usize,
    rows: Range<usize>,
    updates: *const T,
    out: *mut T,
    stride: usize,
    cols: usize,
) -> Option<usize> {
    // Rows without elements may be many more than memory has room for.
    for row in rows.clone().filter(|_| cols > 0) {
        // SAFETY: a row of the output.
        unsafe { std::slice::from_raw_parts_mut(out.add(row * stride), cols) }.fill(T::default());
    }
    let mut bad = None;
    for (k, &row) in indices.iter().enumerate() {
        if (row as u64) >= all as u64 {
            bad = bad.or(Some(k));
        } else if rows.contains(&(row as usize)) {
            // SAFETY: a row of the output, and the one of the updates that is added to it.
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
