//! Strided views as StableHLO: slices, reversals, transpositions and broadcasts of what a buffer holds.

use super::text::{Value, Writer};
use crate::kir::View;
use tensorpack_tensor::DType;

/// A dimension of a view that moves through the buffer, forwards.
#[derive(Clone, Copy, Debug)]
struct Walk {
    /// Which dimension of the view.
    dim: usize,
    size: usize,
    /// Elements from one index to the next.
    stride: usize,
}

/// A dimension of the buffer, with what walks through it.
#[derive(Debug)]
struct Track {
    size: usize,
    /// Where the view begins in it.
    offset: usize,
    /// The longest steps first; strides are counted in this dimension's own elements.
    walks: Vec<Walk>,
}

/// What a view sees of `buffer`, with the view's sizes.
pub(super) fn see(w: &mut Writer, buffer: &Value, view: &View) -> Value {
    if view.is_empty() {
        return w.splat(0.0, buffer.element, &view.sizes);
    }
    if view.is_dense() && view.len() == buffer.len() {
        return w.reshape(buffer, &view.sizes);
    }
    let (mut walks, mut offset, mut backwards) = (Vec::new(), view.offset as isize, Vec::new());
    for (dim, (&size, &stride)) in view.sizes.iter().zip(&view.strides).enumerate() {
        if size == 1 || stride == 0 {
            continue;
        }
        if stride < 0 {
            offset += (size - 1) as isize * stride;
            backwards.push(dim);
        }
        walks.push(Walk { dim, size, stride: stride.unsigned_abs() });
    }
    walks.sort_by_key(|walk| std::cmp::Reverse(walk.stride));
    let offset = offset as usize;
    let flat = [buffer.len()];
    // The buffer's own dimensions keep the layout an engine chose; its elements in a row are the same under any.
    let found = [buffer.sizes.as_slice(), &flat]
        .into_iter()
        .find_map(|sizes| tracks(sizes, offset, &walks).map(|tracks| (sizes, tracks)));
    let Some((sizes, tracks)) = found else {
        return pick(w, buffer, view);
    };
    let mut x = w.reshape(buffer, sizes);
    let mut order = Vec::new();
    for track in &tracks {
        x = follow(w, &x, order.len(), track, &mut order);
    }
    let turned: Vec<usize> = (0..order.len()).filter(|&i| backwards.contains(&order[i])).collect();
    if !turned.is_empty() {
        x = w.reverse(&x, &turned);
    }
    let mut back: Vec<usize> = (0..order.len()).collect();
    back.sort_by_key(|&i| order[i]);
    let x = w.transpose(&x, &back);
    order.sort_unstable();
    if x.len() == view.len() { w.reshape(&x, &view.sizes) } else { w.broadcast(&x, &order, &view.sizes) }
}

/// Which dimension of a dense tensor of these sizes each walk stays in, or `None` if one leaves its own.
fn tracks(sizes: &[usize], offset: usize, walks: &[Walk]) -> Option<Vec<Track>> {
    let mut strides = vec![1; sizes.len()];
    (1..sizes.len()).rev().for_each(|d| strides[d - 1] = strides[d] * sizes[d]);
    let mut tracks: Vec<Track> = (0..sizes.len())
        .map(|d| Track { size: sizes[d], offset: offset / strides[d] % sizes[d], walks: Vec::new() })
        .collect();
    for walk in walks {
        // The dimension of the longest stride that this one is made of.
        let d = (0..sizes.len()).find(|&d| sizes[d] > 1 && walk.stride.is_multiple_of(strides[d]))?;
        tracks[d].walks.push(Walk { stride: walk.stride / strides[d], ..*walk });
    }
    tracks.iter().all(fits).then_some(tracks)
}

/// Whether the walks end inside, and each is done before the next longer one takes a step.
fn fits(track: &Track) -> bool {
    let reach = |walks: &[Walk]| walks.iter().map(|w| (w.size - 1) * w.stride).sum::<usize>();
    track.offset + reach(&track.walks) < track.size
        && (1..track.walks.len()).all(|i| reach(&track.walks[i..]) < track.walks[i - 1].stride)
}

/// Replaces dimension `at` of `x` by one for each walk through it, and notes whose they are in `order`.
fn follow(w: &mut Writer, x: &Value, at: usize, track: &Track, order: &mut Vec<usize>) -> Value {
    let along = |x: &Value, size: usize| -> Vec<usize> {
        let mut sizes = x.sizes.clone();
        sizes[at] = size;
        sizes
    };
    let cut = |w: &mut Writer, x: &Value, begin: usize, step: usize, size: usize| {
        let (mut begins, mut steps) = (vec![0; x.sizes.len()], vec![1; x.sizes.len()]);
        (begins[at], steps[at]) = (begin, step);
        w.slice(x, &begins, &steps, &along(x, size))
    };
    match track.walks.as_slice() {
        [] => {
            let x = cut(w, x, track.offset, 1, 1);
            let mut sizes = x.sizes.clone();
            sizes.remove(at);
            w.reshape(&x, &sizes)
        }
        [walk] => {
            order.push(walk.dim);
            cut(w, x, track.offset, walk.stride, walk.size)
        }
        [walk, inner @ ..] => {
            // Whole steps of the longest walk as a dimension of their own; the last may end with the buffer.
            let whole = walk.size * walk.stride;
            let there = whole.min(track.size - track.offset);
            let x = cut(w, x, track.offset, 1, there);
            let mut around = vec![[0, 0]; x.sizes.len()];
            around[at] = [0, (whole - there) as i64];
            let x = w.pad(&x, 0.0, &around, &vec![0; around.len()]);
            let mut sizes = x.sizes.clone();
            sizes.splice(at..=at, [walk.size, walk.stride]);
            let x = w.reshape(&x, &sizes);
            order.push(walk.dim);
            let inner = Track { size: walk.stride, offset: 0, walks: inner.to_vec() };
            follow(w, &x, at + 1, &inner, order)
        }
    }
}

/// Element by element, where steps of a view overlap.
fn pick(w: &mut Writer, buffer: &Value, view: &View) -> Value {
    let mut places = w.integer(view.offset as i128, DType::I64, &view.sizes);
    for (dim, &stride) in view.strides.iter().enumerate() {
        if stride != 0 && view.sizes[dim] > 1 {
            let index = w.iota(dim, DType::I64, &view.sizes);
            let stride = w.integer(stride as i128, DType::I64, &view.sizes);
            let ahead = w.like("multiply", &[&index, &stride]);
            places = w.like("add", &[&places, &ahead]);
        }
    }
    let places = w.reshape(&places, &[view.len(), 1]);
    let flat = w.reshape(buffer, &[buffer.len()]);
    let attributes = "dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], \
                      index_vector_dim = 1>, slice_sizes = array<i64: 1>";
    let picked = w.op("gather", &[&flat, &places], attributes, buffer.element, &[view.len()]);
    w.reshape(&picked, &view.sizes)
}
