//! Uniform random numbers as StableHLO: bit-identical to
//! [`CounterRng`](tensorpack_tensor::CounterRng), computed in integer arithmetic.

use super::stablehlo::{Element, Value, Writer};
use tensorpack_tensor::{DType, hash_name};

/// The key of a run's random numbers: u64 scalars.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) seed: Value,
    pub(super) draw: Value,
}

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// The offset of a random tensor's first element in its stream.
#[derive(Clone, Debug)]
pub(super) enum Offset {
    Known(usize),
    /// A u64 scalar that differs between towers.
    Argument(Value),
}

/// Returns `len` uniform numbers in `[0, 1)` from the stream, starting with element `first`.
pub(super) fn uniform(
    w: &mut Writer,
    key: &Key,
    stream: &str,
    first: &Offset,
    len: usize,
    dtype: DType,
) -> Value {
    // A counter yields four numbers; an unknown offset may fall on any of them.
    let (counters, begin) = match first {
        Offset::Known(first) => {
            let begin = first / 4;
            ([(first + len).div_ceil(4) - begin], w.integer(begin as i128, Element::U64, &[]))
        }
        Offset::Argument(first) => {
            let two = w.integer(2, Element::U64, &[]);
            ([len.div_ceil(4) + 1], w.like("shift_right_logical", &[first, &two]))
        }
    };
    let hash = w.integer(i128::from(hash_name(stream)), Element::U64, &[]);
    let stream = w.like("xor", &[&key.seed, &hash]);
    let k = halves(w, &stream).map(|half| w.broadcast(&half, &[], &counters));
    let index = w.iota(0, Element::U64, &counters);
    let begin = w.broadcast(&begin, &[], &counters);
    let counter = w.like("add", &[&index, &begin]);
    let [low, high] = halves(w, &counter);
    let [draw_low, draw_high] = halves(w, &key.draw).map(|half| w.broadcast(&half, &[], &counters));
    let c = philox(w, k, [low, high, draw_low, draw_high]);
    // Interleave, so that the words of one counter are adjacent.
    let columns = c.map(|word| w.reshape(&word, &[counters[0], 1]));
    let all = columns.iter().collect::<Vec<_>>();
    let words = w.op("concatenate", &all, "dimension = 1 : i64", Element::U32, &[counters[0], 4]);
    let words = w.reshape(&words, &[counters[0] * 4]);
    let words = match first {
        Offset::Known(first) => w.slice(&words, &[first % 4], &[1], &[len]),
        Offset::Argument(first) => {
            let three = w.integer(3, Element::U64, &[]);
            let at = w.like("and", &[first, &three]);
            let attribute = format!("slice_sizes = array<i64: {len}>");
            w.op("dynamic_slice", &[&words, &at], &attribute, Element::U32, &[len])
        }
    };
    unit_interval(w, &words, dtype.into())
}

/// Returns `len` uniform numbers in `[0, 1)` for each row of `seeds`: two numbers in `[0, 1)` of
/// 24 bits, which are the key of the row.
pub(super) fn uniform_rows(w: &mut Writer, seeds: &Value, len: usize) -> Value {
    let rows = seeds.sizes[0];
    let counters = [rows, len.div_ceil(4)];
    let unit = w.splat(f64::from(1u32 << 24), seeds.element, &seeds.sizes);
    let bits = w.like("multiply", &[seeds, &unit]);
    let bits = w.convert(&bits, Element::U32);
    let key = [0, 1].map(|i| {
        let word = w.slice(&bits, &[0, i], &[1, 1], &[rows, 1]);
        let word = w.reshape(&word, &[rows]);
        w.broadcast(&word, &[0], &counters)
    });
    let counter = w.iota(1, Element::U64, &counters);
    let [low, high] = halves(w, &counter);
    let zero = w.integer(0, Element::U32, &counters);
    let words = philox(w, key, [low, high, zero.clone(), zero]);
    let columns = words.map(|word| w.reshape(&word, &[rows, counters[1], 1]));
    let all = columns.iter().collect::<Vec<_>>();
    let words = w.op("concatenate", &all, "dimension = 2 : i64", Element::U32, &[rows, counters[1], 4]);
    let words = w.reshape(&words, &[rows, 4 * counters[1]]);
    let words = w.slice(&words, &[0, 0], &[1, 1], &[rows, len]);
    unit_interval(w, &words, seeds.element)
}

/// Converts random words to numbers in `[0, 1)`.
fn unit_interval(w: &mut Writer, words: &Value, element: Element) -> Value {
    let eight = w.integer(8, Element::U32, &words.sizes);
    let bits = w.like("shift_right_logical", &[words, &eight]);
    let number = w.convert(&bits, element);
    let unit = w.splat(1.0 / f64::from(1u32 << 24), element, &words.sizes);
    w.like("multiply", &[&number, &unit])
}

/// Returns the words of Philox 4x32-10 for each key and counter.
fn philox(w: &mut Writer, mut k: [Value; 2], mut c: [Value; 4]) -> [Value; 4] {
    let sizes = c[0].sizes.clone();
    for round in 0..10 {
        if round > 0 {
            for (k, weyl) in k.iter_mut().zip(WEYL) {
                let weyl = w.integer(i128::from(weyl), Element::U32, &sizes);
                *k = w.like("add", &[k, &weyl]);
            }
        }
        let [low0, high0] = product(w, &c[0], MULTIPLIERS[0]);
        let [low1, high1] = product(w, &c[2], MULTIPLIERS[1]);
        let mixed = |w: &mut Writer, high: &Value, word: &Value, key: &Value| {
            let mixed = w.like("xor", &[high, word]);
            w.like("xor", &[&mixed, key])
        };
        let (c0, c2) = (mixed(w, &high1, &c[1], &k[0]), mixed(w, &high0, &c[3], &k[1]));
        c = [c0, low1, c2, low0];
    }
    c
}

/// Returns the lower and the upper 32 bits.
fn halves(w: &mut Writer, x: &Value) -> [Value; 2] {
    let by = w.integer(32, Element::U64, &x.sizes);
    let upper = w.like("shift_right_logical", &[x, &by]);
    [w.convert(x, Element::U32), w.convert(&upper, Element::U32)]
}

/// Returns the lower and the upper half of a product.
fn product(w: &mut Writer, x: &Value, by: u32) -> [Value; 2] {
    let wide = w.convert(x, Element::U64);
    let by = w.integer(i128::from(by), Element::U64, &x.sizes);
    let product = w.like("multiply", &[&wide, &by]);
    halves(w, &product)
}
