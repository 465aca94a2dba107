//! Tests of depthwise convolutions against the definition of convolution, one channel at a time.

use proptest::prelude::*;
use tensorpack_kernels::{Conv2d, DepthwiseFilterGrad, DepthwiseForward, DepthwiseInputGrad};

use super::check;
use super::conv2d::{convolution, products, same};

/// Calls `product` with the positions in x, w and y of every product.
fn depthwise_products(c: &Conv2d, product: &mut dyn FnMut(usize, usize, usize)) {
    let one = Conv2d { in_channels: 1, out_channels: 1, ..*c };
    products(&one, &mut |x, w, y| {
        let at = |i: usize, channel: usize| i * c.in_channels + channel;
        (0..c.in_channels).for_each(|channel| product(at(x, channel), at(w, channel), at(y, channel)));
    });
}

fn check_all(c: Conv2d) {
    let c = Conv2d { out_channels: c.in_channels, ..c };
    check(&DepthwiseForward(c), |product| depthwise_products(&c, &mut |x, w, y| product(y, x, w)));
    check(&DepthwiseInputGrad(c), |product| depthwise_products(&c, &mut |x, w, y| product(x, y, w)));
    check(&DepthwiseFilterGrad(c), |product| depthwise_products(&c, &mut |x, w, y| product(w, x, y)));
}

proptest! {
    #[test]
    fn random_sizes(c in convolution()) {
        check_all(c);
    }
}

/// Checks sizes with several bands, groups of images and of rows, and pixels computed together.
#[test]
fn large_sizes() {
    for (size, kernel, stride) in [(30, 3, 1), (31, 3, 2), (12, 5, 1), (40, 1, 3)] {
        check_all(same(3, size, kernel, stride, [70, 70]));
    }
    check_all(Conv2d { dilation: [2, 3], pad_low: [2, 3], ..same(2, 20, 3, 1, [33, 33]) });
}
