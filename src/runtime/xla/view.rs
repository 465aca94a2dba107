//! Strided views as StableHLO: slices, reversals, transpositions and broadcasts of a buffer.

use super::stablehlo::{Value, Writer};
use crate::kir::View;
use tensorpack_tensor::DType;

/// A dimension of a view that advances through the buffer.
#[derive(Clone, Copy, Debug)]
struct Walk {
    /// The dimension of the view.
    dim: usize,
    size: usize,
    /// The distance between elements.
    stride: usize,
}

/// A dimension of the buffer, with the view dimensions that advance through it.
#[derive(Debug)]
struct Track {
    size: usize,
    /// The offset of the view in it.
    offset: usize,
    /// Longest strides first; strides are in elements of this dimension.
    walks: Vec<Walk>,
}

/// Returns the elements of a view of `buffer`, with the sizes of the view.
pub(super) fn read(w: &mut Writer, buffer: &Value, view: &View) -> Value {
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
    // The dimensions of the buffer keep the layout that the compiler chose; flat elements also
    // work.
    let found = [buffer.sizes.as_slice(), &flat]
        .into_iter()
        .find_map(|sizes| tracks(sizes, offset, &walks).map(|tracks| (sizes, tracks)));
    let Some((sizes, tracks)) = found else {
        return gather(w, buffer, view);
    };
    let mut x = w.reshape(buffer, sizes);
    let mut order = Vec::new();
    for track in &tracks {
        x = follow(w, &x, order.len(), track, &mut order);
    }
    let reversed: Vec<usize> = (0..order.len()).filter(|&i| backwards.contains(&order[i])).collect();
    if !reversed.is_empty() {
        x = w.reverse(&x, &reversed);
    }
    let mut back: Vec<usize> = (0..order.len()).collect();
    back.sort_by_key(|&i| order[i]);
    let x = w.transpose(&x, &back);
    order.sort_unstable();
    if x.len() == view.len() { w.reshape(&x, &view.sizes) } else { w.broadcast(&x, &order, &view.sizes) }
}

/// Assigns each walk to the dimension of a dense tensor in which it stays. Returns `None` if one
/// crosses dimensions.
fn tracks(sizes: &[usize], offset: usize, walks: &[Walk]) -> Option<Vec<Track>> {
    let mut strides = vec![1; sizes.len()];
    (1..sizes.len()).rev().for_each(|d| strides[d - 1] = strides[d] * sizes[d]);
    let mut tracks: Vec<Track> = (0..sizes.len())
        .map(|d| Track { size: sizes[d], offset: offset / strides[d] % sizes[d], walks: Vec::new() })
        .collect();
    for walk in walks {
        // The dimension with the longest stride that divides this one.
        let d = (0..sizes.len()).find(|&d| sizes[d] > 1 && walk.stride.is_multiple_of(strides[d]))?;
        tracks[d].walks.push(Walk { stride: walk.stride / strides[d], ..*walk });
    }
    tracks.iter().all(fits).then_some(tracks)
}

/// Whether the walks stay inside, and each ends before the next longer one advances.
fn fits(track: &Track) -> bool {
    let reach = |walks: &[Walk]| walks.iter().map(|w| (w.size - 1) * w.stride).sum::<usize>();
    track.offset + reach(&track.walks) < track.size
        && (1..track.walks.len()).all(|i| reach(&track.walks[i..]) < track.walks[i - 1].stride)
}

/// Replaces dimension `at` of `x` by one dimension per walk, and appends the view dimensions to
/// `order`.
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
            // Split off the longest walk as a dimension; its last step may end with the buffer.
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

/// Gathers element by element, for views whose walks overlap.
fn gather(w: &mut Writer, buffer: &Value, view: &View) -> Value {
    let mut indices = w.integer(view.offset as i128, DType::I64, &view.sizes);
    for (dim, &stride) in view.strides.iter().enumerate() {
        if stride != 0 && view.sizes[dim] > 1 {
            let index = w.iota(dim, DType::I64, &view.sizes);
            let stride = w.integer(stride as i128, DType::I64, &view.sizes);
            let ahead = w.like("multiply", &[&index, &stride]);
            indices = w.like("add", &[&indices, &ahead]);
        }
    }
    let indices = w.reshape(&indices, &[view.len(), 1]);
    let flat = w.reshape(buffer, &[buffer.len()]);
    let attributes = "dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], \
                      index_vector_dim = 1>, slice_sizes = array<i64: 1>";
    let picked = w.op("gather", &[&flat, &indices], attributes, buffer.element, &[view.len()]);
    w.reshape(&picked, &view.sizes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kir::{BufferId, BufferKind, Origin, Program, Signature};
    use crate::runtime::executor::{Executable, Executor, RunInfo};
    use crate::runtime::xla::module::Purpose;
    use crate::runtime::xla::{XlaExecutor, XlaOptions};
    use crate::runtime::{Lowered, Platform};
    use std::time::Duration;
    use tensorpack_tensor::{CounterRng, HostTensor, Site};

    /// Returns the index in the buffer of each element of the view.
    fn indices(view: &View) -> Vec<i64> {
        let at = |i: usize| {
            let (mut rest, mut index) = (i, view.offset as isize);
            for d in (0..view.sizes.len()).rev() {
                index += (rest % view.sizes[d]) as isize * view.strides[d];
                rest /= view.sizes[d];
            }
            index as i64
        };
        (0..view.len()).map(at).collect()
    }

    /// Returns a view made by a few random operations, sometimes with overlapping elements.
    fn draw(rng: &CounterRng, number: u64, buffer: &[usize]) -> View {
        let next = std::cell::Cell::new(0);
        let below = |n: usize| {
            next.set(next.get() + 1);
            rng.word(number, next.get()) as usize % n
        };
        let mut view = View::dense(BufferId(0), DType::I64, buffer);
        for _ in 0..below(5) {
            let rank = view.sizes.len();
            view = match below(6) {
                0 => {
                    let mut order: Vec<usize> = (0..rank).collect();
                    (1..rank).for_each(|i| order.swap(i, below(i + 1)));
                    view.permute(&order)
                }
                1 => {
                    let begin: Vec<usize> = view.sizes.iter().map(|&n| below(n)).collect();
                    let step: Vec<usize> = (0..rank).map(|_| 1 + below(3)).collect();
                    let left = |d: usize| (view.sizes[d] - begin[d]).div_ceil(step[d]);
                    let sizes: Vec<usize> = (0..rank).map(|d| 1 + below(left(d))).collect();
                    view.slice(&begin, &step, &sizes)
                }
                2 if rank > 0 => view.reverse(&[below(rank)]),
                3 => {
                    let sizes: Vec<usize> = [1 + below(3)].iter().chain(&view.sizes).copied().collect();
                    view.broadcast_to(&sizes)
                }
                4 => view.reshape(&[view.len()]).unwrap_or(view),
                5 if view.len().is_multiple_of(6) => view.reshape(&[2, view.len() / 6, 3]).unwrap_or(view),
                _ => view,
            };
        }
        match number % 10 {
            // Parts of rows that are not rows of the buffer; the last one ends with the buffer.
            8 => View { sizes: vec![9, 5], strides: vec![13, 1], offset: 8 + below(4), ..view },
            // Overlapping windows of three.
            9 => View { sizes: vec![4, 3], strides: vec![1, 1], offset: below(20), ..view },
            _ => view,
        }
    }

    #[test]
    fn views_read_the_strided_elements() {
        if tensorpack_testing::plugin_for_tests("cpu").is_none() {
            return;
        }
        let rng = CounterRng::new(0, "views");
        let buffer = [4, 6, 5];
        let mut program = Program::default();
        program.add_buffer(DType::I64, &buffer, BufferKind::Feed(0));
        program.fetches = (0..300).map(|i| draw(&rng, i, &buffer)).collect();
        let origin = Origin { name: "view".into(), site: Site::caller() };
        program.fetch_origins = vec![origin; program.fetches.len()];
        let views = program.fetches.clone();
        let fetches = (0..views.len()).map(|i| (0, i)).collect();
        let signature = Signature { feeds: vec![(DType::I64, &buffer[..])], variables: Vec::new() };
        let lowered = Lowered::new(vec![program], fetches, Default::default(), &signature).unwrap();
        let options = XlaOptions {
            memory_limit: None,
            deadline: Duration::from_secs(300),
            full_precision: true,
            deterministic: true,
            compile_cache_bytes: Some(0),
            profile: false,
        };
        let (interrupt, turns) =
            (crate::runtime::Interrupt::new(), crate::runtime::Turns::new(options.deadline));
        let mut engine = XlaExecutor::open(Platform::Cpu, 0, options, None, 1, &interrupt, &turns).unwrap();
        engine.create_variables(&[], 0).unwrap();
        let count = HostTensor::new(buffer, (0..120).collect::<Vec<i64>>()).unwrap();
        let mut found = Vec::new();
        let mut executable = engine.program(&lowered, Purpose::Run).unwrap();
        executable.run(&RunInfo { seed: 0, draw: 0 }, &[&count], &mut found).unwrap();
        for (view, found) in views.iter().zip(&found) {
            assert_eq!(found.sizes(), view.sizes, "{view:?}");
            assert_eq!(found.as_slice::<i64>().unwrap(), indices(view), "{view:?}");
        }
        let text = executable.plan_text();
        for name in ["slice", "reverse", "transpose", "broadcast_in_dim", "pad", "gather"] {
            assert!(text.contains(&format!("stablehlo.{name}")), "no view became a {name}");
        }
    }
}
