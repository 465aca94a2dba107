//! Runs an exported model without its code: `cargo run --release --example predict -- model.safetensors` prints what
//! it makes of zeros. `OfflinePredictor::export` writes such files.

use tensorpack::prelude::*;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).ok_or_else(|| Error::argument("which file?"))?;
    let model = ExportedModel::load(path)?;
    let zeros = |s: &TensorSpec| {
        HostTensor::zeros(s.dtype, s.sizes.iter().map(|n| n.unwrap_or(1)).collect::<Vec<_>>())
    };
    let inputs = model.inputs().iter().map(zeros).collect::<Result<Vec<_>>>()?;
    for (name, y) in model.outputs().zip(model.predict(&inputs.iter().collect::<Vec<_>>())?) {
        println!("{name}: {y:?}");
    }
    Ok(())
}
