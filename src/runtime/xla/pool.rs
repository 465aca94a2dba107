//! Pooling as StableHLO: one slice of all images per window position, so that a compiler fuses them
//! into one loop.

use super::stablehlo::{Value, Writer};
use crate::kir::{Pool, PoolKind};
use tensorpack_tensor::{DType, Error, HostTensor, Result};

/// Prints pooling of dense inputs. Results have the type of the first input; window positions are
/// u8.
pub(super) fn write(w: &mut Writer, kind: PoolKind, pool: &Pool, inputs: &[Value]) -> Result<Vec<Value>> {
    let windows = Windows { pool };
    Ok(match kind {
        PoolKind::Max => windows.max(w, &inputs[0])?.into(),
        PoolKind::MaxGrad => vec![windows.max_grad(w, &inputs[0], &inputs[1])],
        PoolKind::MaxPick => vec![windows.max_pick(w, &inputs[0], &inputs[1])],
        PoolKind::Average => vec![windows.average(w, &inputs[0])?],
        PoolKind::AverageGrad => vec![windows.average_grad(w, &inputs[0])?],
    })
}

struct Windows<'a> {
    pool: &'a Pool,
}

impl Windows<'_> {
    fn images(&self) -> [usize; 4] {
        [self.pool.batch, self.pool.in_size[0], self.pool.in_size[1], self.pool.channels]
    }

    fn results(&self) -> [usize; 4] {
        [self.pool.batch, self.pool.out_size[0], self.pool.out_size[1], self.pool.channels]
    }

    /// Returns every position in a window with its index, in row-major order.
    fn positions(&self) -> impl Iterator<Item = ([usize; 2], usize)> {
        let [height, width] = self.pool.window;
        (0..height).flat_map(move |i| (0..width).map(move |j| ([i, j], i * width + j)))
    }

    /// The number of pixels from the first to the last that windows read, along an axis.
    fn span(&self, axis: usize) -> i64 {
        ((self.pool.out_size[axis] - 1) * self.pool.stride[axis] + self.pool.window[axis]) as i64
    }

    /// Returns the images, padded with `fill` as far as windows reach.
    fn padded(&self, w: &mut Writer, x: &Value, fill: f64) -> Value {
        let x = w.reshape(x, &self.images());
        let around = |axis: usize| {
            let low = self.pool.pad_low[axis] as i64;
            [low, self.span(axis) - self.pool.in_size[axis] as i64 - low]
        };
        w.pad(&x, fill, &[[0, 0], around(0), around(1), [0, 0]], &[0; 4])
    }

    /// Returns the elements of all windows at one position.
    fn at(&self, w: &mut Writer, padded: &Value, [i, j]: [usize; 2]) -> Value {
        let [down, across] = self.pool.stride;
        w.slice(padded, &[0, i, j, 0], &[1, down, across, 1], &self.results())
    }

    /// The first window position inside the image, for each output along an axis.
    fn first_real(&self, axis: usize) -> Vec<f64> {
        let Pool { pad_low, stride, window, .. } = self.pool;
        let first = |o: usize| pad_low[axis].saturating_sub(o * stride[axis]).min(window[axis]);
        (0..self.pool.out_size[axis]).map(|o| first(o) as f64).collect()
    }

    /// The number of window positions inside the image, at least 1, for each output along an axis.
    fn real(&self, axis: usize) -> Vec<f64> {
        let Pool { pad_low, stride, window, in_size, .. } = self.pool;
        let end =
            |o: usize| (in_size[axis] + pad_low[axis]).saturating_sub(o * stride[axis]).min(window[axis]);
        let first = self.first_real(axis);
        (0..self.pool.out_size[axis]).map(|o| (end(o) as f64 - first[o]).max(1.0)).collect()
    }

    /// Broadcasts a number per output row and a number per output column to all results.
    fn by_axes(&self, w: &mut Writer, dtype: DType, numbers: [Vec<f64>; 2]) -> Result<[Value; 2]> {
        let [rows, cols] = numbers;
        let mut repeated = |numbers: Vec<f64>, dim: usize| {
            let line = w.tensor(&HostTensor::from_f64(dtype, [numbers.len()], &numbers)?);
            Ok::<Value, Error>(w.broadcast(&line, &[dim], &self.results()))
        };
        Ok([repeated(rows, 1)?, repeated(cols, 2)?])
    }

    /// Returns the maximum of each window and its first position. NaN wins; padding never does.
    fn max(&self, w: &mut Writer, x: &Value) -> Result<[Value; 2]> {
        let x = self.padded(w, x, f64::NEG_INFINITY);
        let rows = self.first_real(0).iter().map(|&i| i * self.pool.window[1] as f64).collect();
        let [row, col] = self.by_axes(w, DType::U8, [rows, self.first_real(1)])?;
        let mut position = w.like("add", &[&row, &col]);
        let mut best = self.at(w, &x, [0, 0]);
        for (at, number) in self.positions().skip(1) {
            let v = self.at(w, &x, at);
            // NaN compares as not less.
            let not_greater = w.compare("LE", &v, &best);
            let (greater, no_nan_yet) = (w.like("not", &[&not_greater]), w.compare("EQ", &best, &best));
            let wins = w.like("and", &[&greater, &no_nan_yet]);
            best = w.select(&wins, &v, &best);
            let number = w.splat(number as f64, DType::U8, &position.sizes);
            position = w.select(&wins, &number, &position);
        }
        Ok([best, position])
    }

    /// Each pixel sums the gradients of the windows whose maximum it is. Pixels are grouped in
    /// blocks of a stride, so that all pixels of a block are in the same windows: the one that
    /// begins at the block, and some before it.
    fn max_grad(&self, w: &mut Writer, dy: &Value, positions: &Value) -> Value {
        let Pool { in_size, window, stride, pad_low, out_size, .. } = *self.pool;
        let (dy, positions) = (w.reshape(dy, &self.results()), w.reshape(positions, &self.results()));
        let (wide, positions) = (w.widened(&dy), w.convert(&positions, DType::I32));
        let blocks = [0, 1].map(|a| (pad_low[a] + in_size[a]).div_ceil(stride[a]));
        let [batch, channels] = [self.pool.batch, self.pool.channels];
        let pixels = [batch, blocks[0], stride[0], blocks[1], stride[1], channels];
        let zero = w.splat(0.0, wide.element, &pixels);
        let mut sum = zero.clone();
        let before = [0, 1].map(|a| window[a].div_ceil(stride[a]));
        for before in (0..before[0]).flat_map(|down| (0..before[1]).map(move |across| [down, across])) {
            let around = |a: usize| [before[a] as i64, blocks[a] as i64 - (before[a] + out_size[a]) as i64];
            let mut of_window = |x: &Value| {
                let x = w.pad(x, 0.0, &[[0, 0], around(0), around(1), [0, 0]], &[0; 4]);
                w.broadcast(&x, &[0, 1, 3, 5], &pixels)
            };
            let (share, position) = (of_window(&wide), of_window(&positions));
            // The position of the pixel in that window, if it is inside.
            let [row, col] = [0, 1].map(|a| {
                let in_block = w.iota(2 + 2 * a, DType::I32, &pixels);
                let ahead = w.integer((before[a] * stride[a]) as i128, DType::I32, &pixels);
                w.like("add", &[&in_block, &ahead])
            });
            let width = w.integer(window[1] as i128, DType::I32, &pixels);
            let own = w.like("multiply", &[&row, &width]);
            let own = w.like("add", &[&own, &col]);
            let mut is_it = w.compare("EQ", &position, &own);
            for (a, at) in [row, col].iter().enumerate() {
                if (before[a] + 1) * stride[a] > window[a] {
                    let end = w.integer(window[a] as i128, DType::I32, &pixels);
                    let inside = w.compare("LT", at, &end);
                    is_it = w.like("and", &[&is_it, &inside]);
                }
            }
            let share = w.select(&is_it, &share, &zero);
            sum = w.like("add", &[&sum, &share]);
        }
        let sum = w.reshape(&sum, &[batch, blocks[0] * stride[0], blocks[1] * stride[1], channels]);
        let dx = w.slice(&sum, &[0, pad_low[0], pad_low[1], 0], &[1; 4], &self.images());
        w.convert(&dx, dy.element)
    }

    fn max_pick(&self, w: &mut Writer, x: &Value, positions: &Value) -> Value {
        let (x, positions) = (self.padded(w, x, 0.0), w.reshape(positions, &self.results()));
        let mut picked = w.splat(0.0, x.element, &self.results());
        for (at, number) in self.positions() {
            let v = self.at(w, &x, at);
            let number = w.splat(number as f64, DType::U8, &positions.sizes);
            let is_it = w.compare("EQ", &positions, &number);
            picked = w.select(&is_it, &v, &picked);
        }
        picked
    }

    /// Divides by the number of elements of each window that are inside the image.
    fn divide_by_count(&self, w: &mut Writer, x: &Value) -> Result<Value> {
        let dtype = if x.element == DType::F64.into() { DType::F64 } else { DType::F32 };
        let [rows, cols] = self.by_axes(w, dtype, [self.real(0), self.real(1)])?;
        let count = w.like("multiply", &[&rows, &cols]);
        Ok(w.like("divide", &[x, &count]))
    }

    fn average(&self, w: &mut Writer, x: &Value) -> Result<Value> {
        let element = x.element;
        let x = w.widened(x);
        let x = self.padded(w, &x, 0.0);
        let zero = w.splat(0.0, x.element, &[]);
        let [height, width] = self.pool.window;
        let strides = [1, self.pool.stride[0], self.pool.stride[1], 1];
        let sum = w.reduce_window("add", &x, &zero, &[1, height, width, 1], &strides, &[[0, 0]; 4]);
        let mean = self.divide_by_count(w, &sum)?;
        Ok(w.convert(&mean, element))
    }

    fn average_grad(&self, w: &mut Writer, dy: &Value) -> Result<Value> {
        let element = dy.element;
        let dy = w.reshape(dy, &self.results());
        let dy = w.widened(&dy);
        let share = self.divide_by_count(w, &dy)?;
        let around = |axis: usize| {
            let reach = self.pool.window[axis] as i64 - 1;
            let low = reach - self.pool.pad_low[axis] as i64;
            let spread = ((self.pool.out_size[axis] - 1) * self.pool.stride[axis] + 1) as i64;
            [low, self.pool.in_size[axis] as i64 + reach - low - spread]
        };
        let between = [0, self.pool.stride[0] - 1, self.pool.stride[1] - 1, 0];
        let spread = w.pad(&share, 0.0, &[[0, 0], around(0), around(1), [0, 0]], &between);
        let zero = w.splat(0.0, spread.element, &[]);
        let [height, width] = self.pool.window;
        let dx = w.reduce_window("add", &spread, &zero, &[1, height, width, 1], &[1; 4], &[[0, 0]; 4]);
        Ok(w.convert(&dx, element))
    }
}
