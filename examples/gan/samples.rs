//! Sample images of a generator.

use super::{generator, sample_codes, with_code};
use tensorpack::callback::DumpTensorAsImage;
use tensorpack::prelude::*;

/// The number of samples.
const SAMPLES: usize = 1000;
/// The number of rows and columns of the image.
const SIDE: usize = 8;

/// Adds `samples` to the graph: the generator's output, in inference mode, for 1,000 vectors `z` that
/// stay the same over the whole run; and `grid`, an image of the first 64.
pub(crate) fn add_samples(
    graph: &Graph,
    z: Init,
    length: usize,
    generator: impl Fn(&TowerContext, &Tensor) -> Tensor,
) -> Result<()> {
    let z = graph.constant(z.value(0, "samples", DType::F32, &[SAMPLES, length])?);
    let t = TowerContext::inference(graph);
    let images = t.name_scope("look", |t| t.reuse(|t| generator(t, &z)));
    let samples = ((images + 1.0) * 0.5).named("samples");
    let first = samples.strided_slice(&[0; 4], &[Some(SIDE * SIDE), None, None, None], &[1; 4]);
    let side = SIDE as isize;
    let rows = first.split_dim(0, &[side, side]).transpose(&[0, 2, 1, 3, 4]);
    rows.merge_dims(0, 2).merge_dims(1, 2).named("grid");
    Ok(())
}

/// Adds the samples of a generator that gets a code besides this much noise: the ten codes in turn.
pub(crate) fn add_coded_samples(graph: &Graph, z: Init, length: usize) -> Result<()> {
    let codes = sample_codes(graph, SAMPLES)?;
    add_samples(graph, z, length, |t, z| generator(t, &with_code(z, &codes)))
}

/// Writes the image after every epoch, as `samples-epEPOCH.png` in the run directory.
pub(crate) fn sample_grid() -> impl Callback {
    DumpTensorAsImage::new("grid").prefix("samples")
}
