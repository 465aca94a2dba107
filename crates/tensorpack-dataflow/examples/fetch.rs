//! Downloads every data set and prints what it contains: `cargo run -p tensorpack-dataflow
//! --example fetch`.

use tensorpack_dataflow::RandomAccess;
use tensorpack_dataflow::dataset::{cifar10, data_dir, fashion_mnist, mnist, ptb, webster};
use tensorpack_dataflow::tensor::Result;

fn main() -> Result<()> {
    println!("data directory: {}", data_dir()?.display());
    for (name, train, test) in [
        ("mnist", mnist::train()?, mnist::test()?),
        ("fashion_mnist", fashion_mnist::train()?, fashion_mnist::test()?),
    ] {
        println!(
            "{name}: {} training and {} test samples, first: {:?}",
            train.len(),
            test.len(),
            train.get(0)?
        );
    }
    let (train, test) = (cifar10::train()?, cifar10::test()?);
    println!("cifar10: {} training and {} test samples, first: {:?}", train.len(), test.len(), train.get(0)?);
    let words = [ptb::Split::Train, ptb::Split::Valid, ptb::Split::Test].map(ptb::token_ids);
    let [train, valid, test] = words.map(|words| words.map(|words| words.len()));
    let vocabulary = ptb::vocabulary()?;
    println!("ptb: {}, {} and {} tokens, most frequent: {:?}", train?, valid?, test?, &vocabulary[..5]);
    println!("webster: {} entries", webster::entries()?.len());
    Ok(())
}
