//! Downloads the data sets and checks their statistics. Needs a network, or the files in
//! `$TENSORPACK_DATASET`: `TENSORPACK_TEST_FETCH=1 cargo test -p tensorpack-dataflow --test suite
//! fetch -- --nocapture`.

use tensorpack_dataflow::RandomAccess;
use tensorpack_dataflow::dataset::{cifar10, data_dir, fashion_mnist, mnist, ptb, webster};
use tensorpack_dataflow::tensor::{HostTensor, Result};

#[test]
fn data_sets_have_the_published_statistics() -> Result<()> {
    if !tensorpack_testing::opted_in("TENSORPACK_TEST_FETCH") {
        return Ok(());
    }
    println!("in {}", data_dir()?.display());

    // The commonly used normalization constants of MNIST: 0.1307 and 0.3081.
    let (mean, std) = moments(&mnist::train()?, 60_000)?;
    println!("mnist: mean {mean:?}, std {std:?}");
    assert_close(&mean, &[0.130_66]);
    assert_close(&std, &[0.308_11]);
    assert_eq!(mnist::test()?.len(), 10_000);

    let (mean, std) = moments(&fashion_mnist::train()?, 60_000)?;
    println!("fashion_mnist: mean {mean:?}, std {std:?}");
    assert_close(&mean, &[0.286_04]);
    assert_close(&std, &[0.353_02]);
    assert_eq!(fashion_mnist::test()?.len(), 10_000);

    let (mean, std) = moments(&cifar10::train()?, 50_000)?;
    println!("cifar10: mean {mean:?}, std {std:?}");
    assert_close(&mean, &[0.491_399_68 * 255.0, 0.482_158_41 * 255.0, 0.446_530_91 * 255.0]);
    assert_close(&std, &[0.247_032_23 * 255.0, 0.243_485_13 * 255.0, 0.261_587_84 * 255.0]);
    assert_eq!(cifar10::test()?.len(), 10_000);

    let vocabulary = ptb::vocabulary()?;
    println!("ptb: {} words, most frequent {:?}", vocabulary.len(), &vocabulary[..4]);
    assert_eq!(vocabulary.len(), 10_000);
    for (split, n) in [(ptb::Split::Train, 929_589), (ptb::Split::Valid, 73_760), (ptb::Split::Test, 82_430)]
    {
        assert_eq!(ptb::token_ids(split)?.len(), n);
    }
    let unrolled = ptb::BpttBatches::new(ptb::token_ids(ptb::Split::Train)?, 20, 35)?;
    assert_eq!(unrolled.len(), 1327);

    assert_eq!(webster::entries()?.len(), 102_217);
    assert_eq!(webster::text()?.len(), 22_097_424);
    Ok(())
}

/// Returns the mean and standard deviation of every channel. Also checks the number of samples and
/// the balance of labels.
fn moments(set: &impl RandomAccess, len: u64) -> Result<(Vec<f64>, Vec<f64>)> {
    assert_eq!(set.len(), len);
    let channels = |image: &HostTensor| image.sizes().get(2).copied().unwrap_or(1);
    let n = channels(&set.get(0)?[0]);
    let (mut sum, mut squares, mut count) = (vec![0.0; n], vec![0.0; n], 0.0);
    let mut labels = [0; 10];
    for i in 0..len {
        let sample = set.get(i)?;
        labels[sample[1].to_scalar()? as usize] += 1;
        for pixel in sample[0].to_f64_vec().chunks_exact(n) {
            for (c, x) in pixel.iter().enumerate() {
                sum[c] += x;
                squares[c] += x * x;
            }
            count += 1.0;
        }
    }
    assert!(labels.iter().all(|&n| n > len / 12), "{labels:?}");
    let mean: Vec<f64> = sum.iter().map(|s| s / count).collect();
    let std = squares.iter().zip(&mean).map(|(s, m)| (s / count - m * m).sqrt()).collect();
    Ok((mean, std))
}

fn assert_close(a: &[f64], b: &[f64]) {
    assert!(
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a / b - 1.0).abs() < 1e-4),
        "{a:?}, not {b:?}"
    );
}
