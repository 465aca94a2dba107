//! Tests of convolutions and their gradients, all three from one definition.

use proptest::prelude::*;
use tensorpack_kernels::{Bias, Contract, Conv2d, Conv2dFilterGrad, Conv2dForward, Conv2dInputGrad, Isa};

use super::{check, numbers, run, run_with};

/// Calls `product` with the positions in x, w and y of every product of a convolution.
pub(crate) fn products(c: &Conv2d, product: &mut dyn FnMut(usize, usize, usize)) {
    let index = |at: &[usize], sizes: &[usize]| at.iter().zip(sizes).fold(0, |i, (at, size)| i * size + at);
    let Conv2d { in_size: [h, w], out_size: [oh, ow], kernel: [kh, kw], .. } = *c;
    let mut taps = Vec::new();
    for (oy, ky) in (0..oh).flat_map(|oy| (0..kh).map(move |ky| (oy, ky))) {
        for (ox, kx) in (0..ow).flat_map(|ox| (0..kw).map(move |kx| (ox, kx))) {
            let y = (oy * c.stride[0] + ky * c.dilation[0]) as isize - c.pad_low[0] as isize;
            let x = (ox * c.stride[1] + kx * c.dilation[1]) as isize - c.pad_low[1] as isize;
            if (0..h as isize).contains(&y) && (0..w as isize).contains(&x) {
                taps.push((oy, ox, ky, kx, y as usize, x as usize));
            }
        }
    }
    for n in 0..c.batch {
        for &(oy, ox, ky, kx, y, x) in &taps {
            for ci in 0..c.in_channels {
                for co in 0..c.out_channels {
                    product(
                        index(&[n, y, x, ci], &[c.batch, h, w, c.in_channels]),
                        index(&[ky, kx, ci, co], &[kh, kw, c.in_channels, c.out_channels]),
                        index(&[n, oy, ox, co], &[c.batch, oh, ow, c.out_channels]),
                    );
                }
            }
        }
    }
}

fn check_forward(c: Conv2d) {
    check(&Conv2dForward(c), |product| products(&c, &mut |x, w, y| product(y, x, w)));
}

fn check_input_grad(c: Conv2d) {
    check(&Conv2dInputGrad(c), |product| products(&c, &mut |x, w, y| product(x, y, w)));
}

fn check_filter_grad(c: Conv2d) {
    check(&Conv2dFilterGrad(c), |product| products(&c, &mut |x, w, y| product(w, x, y)));
}

/// Generates the sizes of one axis: input, kernel, stride, dilation, padding, output.
fn axis() -> impl Strategy<Value = (usize, usize, usize, usize, usize, usize)> {
    let input = prop_oneof![1 => Just(0usize), 2 => Just(1usize), 8 => 2usize..14];
    let kernel = prop_oneof![1 => Just(0usize), 4 => Just(1usize), 8 => 2usize..5];
    (input, kernel, 1usize..4, 1usize..4, 0usize..6, 0usize..4).prop_map(|(i, k, s, d, low, high)| {
        // There is no output if the filter does not fit; an output larger than usual reads zeros.
        let span = d * k.saturating_sub(1) + 1;
        let out = (i + low + high).checked_sub(span).map_or(0, |room| room / s + 1);
        (i, k, s, d, low, out)
    })
}

fn channels() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0usize), 3 => Just(1usize), 6 => 2usize..20, 2 => 20usize..50]
}

pub(crate) fn convolution() -> impl Strategy<Value = Conv2d> {
    (0usize..4, channels(), channels(), axis(), axis(), any::<bool>()).prop_map(
        |(batch, in_channels, out_channels, y, x, exact)| Conv2d {
            batch,
            in_size: [y.0, x.0],
            in_channels,
            out_channels,
            kernel: [y.1, x.1],
            stride: [y.2, x.2],
            dilation: [y.3, x.3],
            pad_low: [y.4, x.4],
            out_size: [y.5, x.5],
            // In f64, all but exact convolutions use reference loops.
            exact,
        },
    )
}

/// Generates 3x3 convolutions with stride 1 and many channels: those that use F(4x4, 3x3) or
/// F(2x2, 3x3), and those just too small for it.
fn winograd_sizes() -> impl Strategy<Value = Conv2d> {
    let size = || 5usize..14;
    let channels = || prop_oneof![1 => 6usize..15, 4 => 15usize..70, 1 => 70usize..140];
    (2usize..9, channels(), channels(), size(), size(), 0usize..3, 0usize..4, any::<bool>()).prop_map(
        |(batch, in_channels, out_channels, height, width, low, high, exact)| Conv2d {
            batch,
            in_size: [height, width],
            in_channels,
            out_channels,
            kernel: [3, 3],
            stride: [1, 1],
            dilation: [1, 1],
            pad_low: [low, low.saturating_sub(1)],
            out_size: [height + low + high - 2, width + low.saturating_sub(1) + high - 2],
            exact,
        },
    )
}

/// Generates 4x4 convolutions with stride 2 and many channels: those that use F(2x2, 2x2), and those
/// just too small for it.
fn stride2_sizes() -> impl Strategy<Value = Conv2d> {
    let size = || 8usize..18;
    let channels = || prop_oneof![1 => 30usize..36, 3 => 62usize..72];
    (4usize..8, channels(), channels(), size(), size(), 0usize..4, 0usize..4, 0usize..8).prop_map(
        |(batch, in_channels, out_channels, height, width, low, high, exact)| Conv2d {
            batch,
            in_size: [height, width],
            in_channels,
            out_channels,
            kernel: [4, 4],
            stride: [2, 2],
            dilation: [1, 1],
            pad_low: [low, low.saturating_sub(1)],
            out_size: [(height + low + high - 4) / 2 + 1, (width + low.saturating_sub(1) + high - 4) / 2 + 1],
            exact: exact == 0,
        },
    )
}

/// Generates convolutions of many channels to a few, whose input gradients are those of a few channels
/// to many: one of the two is a matrix product and col2im.
fn few_outputs() -> impl Strategy<Value = Conv2d> {
    let size = || prop_oneof![6 => 1usize..20, 1 => 60usize..80];
    let axis = || (size(), 1usize..6, 1usize..4, 1usize..3, 0usize..5, 0usize..5);
    let axis = || axis().prop_filter("the filter fits", |a| a.0 + a.4 + a.5 > a.3 * (a.1 - 1));
    (0usize..20, 14usize..40, 1usize..9, axis(), axis(), any::<bool>()).prop_map(
        |(batch, many, few, y, x, backward)| {
            let out = |a: (usize, usize, usize, usize, usize, usize)| {
                (a.0 + a.4 + a.5 - (a.3 * (a.1 - 1) + 1)) / a.2 + 1
            };
            Conv2d {
                batch,
                in_size: [y.0, x.0],
                in_channels: if backward { few } else { many },
                out_channels: if backward { many } else { few },
                kernel: [y.1, x.1],
                stride: if backward { [y.2, x.2] } else { [1; 2] },
                dilation: [y.3, x.3],
                pad_low: [y.4, x.4],
                out_size: [out(y), out(x)],
                exact: false,
            }
        },
    )
}

/// Checks that the fused bias and ReLU give the same bits as a separate pass: the same operations
/// on the same sums.
fn check_bias(c: Conv2d, relu: bool) {
    let work = Conv2dForward(c);
    let (lhs, rhs) = (numbers(work.lhs_len(), 1), numbers(work.rhs_len(), 2));
    let bias = numbers(c.out_channels, 3);
    for isa in Isa::available() {
        let mut want = run(&work, isa, &lhs, &rhs, false);
        for (i, y) in want.iter_mut().enumerate() {
            *y += bias[i % c.out_channels];
            *y = if relu && *y < 0.0 { 0.0 } else { *y };
        }
        let bias = Bias { add: bias.as_ptr(), relu };
        assert_eq!(run_with(&work, isa, &lhs, &rhs, bias, false), want, "{isa} {c:?}");
    }
}

proptest! {
    #[test]
    fn forward(c in convolution()) {
        check_forward(c);
    }

    #[test]
    fn bias_and_relu(c in convolution(), relu: bool) {
        check_bias(c, relu);
    }

    #[test]
    fn input_grad(c in convolution()) {
        check_input_grad(c);
    }

    #[test]
    fn filter_grad(c in convolution()) {
        check_filter_grad(c);
    }
}

proptest! {
    // The reference code is slow for so many channels.
    #![proptest_config(crate::oracle::cases(12))]

    #[test]
    fn winograd(c in winograd_sizes(), relu: bool) {
        check_forward(c);
        check_input_grad(c);
        check_filter_grad(c);
        check_bias(c, relu);
    }
}

proptest! {
    #![proptest_config(crate::oracle::cases(24))]

    #[test]
    fn winograd_with_stride_2(c in stride2_sizes(), relu: bool) {
        check_forward(c);
        check_input_grad(c);
        check_filter_grad(c);
        check_bias(c, relu);
    }
}

proptest! {
    #![proptest_config(crate::oracle::cases(48))]

    #[test]
    fn to_few_channels(c in few_outputs(), relu: bool) {
        check_forward(c);
        check_input_grad(c);
        check_bias(c, relu);
    }
}

/// Returns a square convolution with "same" padding.
pub(crate) fn same(batch: usize, size: usize, kernel: usize, stride: usize, channels: [usize; 2]) -> Conv2d {
    Conv2d {
        batch,
        in_size: [size; 2],
        in_channels: channels[0],
        out_channels: channels[1],
        kernel: [kernel; 2],
        stride: [stride; 2],
        dilation: [1; 2],
        pad_low: [(kernel - 1) / 2; 2],
        out_size: [size.div_ceil(stride); 2],
        exact: false,
    }
}

/// Returns shapes large enough for every kind of blocking: bands, groups of images, pieces of sums,
/// several panels, blocks of columns.
pub(crate) fn large() -> Vec<Conv2d> {
    vec![
        same(1, 70, 3, 1, [64, 8]),
        same(40, 4, 3, 2, [9, 40]),
        same(70, 2, 1, 1, [70, 70]),
        same(2, 9, 3, 2, [130, 70]),
        same(2, 9, 1, 2, [400, 33]),
        same(20, 6, 5, 3, [5, 16]),
        Conv2d { dilation: [2, 2], pad_low: [2, 2], ..same(1, 12, 3, 1, [150, 20]) },
        same(20, 8, 4, 2, [40, 70]),
        same(9, 8, 4, 2, [64, 130]),
        same(33, 16, 4, 2, [64, 70]),
        same(70, 8, 4, 2, [130, 270]),
        same(2, 9, 3, 1, [128, 40]),
        same(4, 16, 3, 1, [40, 70]),
        same(2, 16, 3, 1, [90, 128]),
        same(1, 7, 1, 1, [40, 300]),
        same(1, 5, 3, 1, [140, 270]),
        same(1, 14, 3, 1, [130, 40]),
        same(48, 3, 3, 1, [200, 210]),
        same(12, 8, 3, 1, [66, 70]),
    ]
}

/// A single image has enough chunks for several threads, and a chunk is not too small.
#[test]
fn one_image_keeps_threads_busy() {
    for (size, channels) in
        [(7, [512, 2048]), (7, [2048, 512]), (14, [1024, 256]), (28, [128, 512]), (56, [64, 256])]
    {
        let work = Conv2dForward(same(1, size, 1, 1, channels));
        let each = work.flops() / work.chunks(1) as f64;
        assert!(work.chunks(1) >= 7, "{size} {channels:?}: {} chunks", work.chunks(1));
        assert!(each >= 4e6, "{size} {channels:?}: {each} operations in a chunk");
    }
}

#[test]
fn large_forward() {
    large().into_iter().for_each(check_forward);
}

#[test]
fn large_input_grad() {
    large().into_iter().for_each(check_input_grad);
}

#[test]
fn large_filter_grad() {
    large().into_iter().for_each(check_filter_grad);
    // A filter too large for partial results.
    check_filter_grad(same(3, 2, 3, 1, [700, 700]));
}

/// The definition allows no error where a sum has no terms.
#[test]
fn gradients_of_taps_that_read_only_padding_are_zero() {
    let narrow = Conv2d { in_size: [17, 1], out_size: [16, 2], ..same(12, 16, 3, 1, [9, 17]) };
    check_filter_grad(narrow);
    check_filter_grad(Conv2d { in_size: [2, 1], out_size: [2, 2], ..same(48, 2, 3, 1, [17, 17]) });
    check_filter_grad(Conv2d { in_size: [17, 6], pad_low: [1, 2], out_size: [16, 2], ..narrow });
}
