//! Pictures that examples leave in their run directory.

use std::path::Path;
use tensorpack::dataflow::image::stack_patches;
use tensorpack::dataflow::tensor::Element;
use tensorpack::monitor::Image;
use tensorpack::prelude::*;
use tensorpack::say;

/// Stacks tensors of one shape along a new first dimension.
pub(crate) fn stack<'a, T: Element + Clone>(
    tensors: impl IntoIterator<Item = &'a HostTensor>,
) -> Result<HostTensor> {
    let (mut sizes, mut values, mut count) = (Vec::new(), Vec::<T>::new(), 0);
    for image in tensors {
        sizes = image.sizes().to_vec();
        values.extend_from_slice(image.as_slice::<T>()?);
        count += 1;
    }
    sizes.insert(0, count);
    HostTensor::new(sizes, values)
}

/// Writes images `[n, height, width, channels]` with values from 0 to 1 to a file, as a grid with this
/// many columns.
pub(crate) fn save_grid(file: &Path, images: &HostTensor, columns: usize) -> Result<()> {
    let pixels: Vec<f32> = images.as_slice::<f32>()?.iter().map(|x| x * 255.0).collect();
    let grid = stack_patches(&HostTensor::new(images.sizes(), pixels)?, columns, 2, 128.0)?;
    for image in Image::from_tensor(&grid)? {
        std::fs::write(file, image.to_png()?)
            .map_err(|e| Error::from(e).within(format!("writing {}", file.display())))?;
    }
    say!("wrote {}", file.display());
    Ok(())
}
