//! Pictures of data: grids of images, and boxes.

use super::pixels::{PixelValue, dispatch_pixel_type, image_size};
use tensorpack_tensor::{Error, HostTensor, Result, element_count};

/// Arranges images `[n, height, width, channels]` in a grid with this many columns, and returns one
/// image. `border` pixels of the value `fill` are between them.
///
/// ```
/// # use tensorpack_dataflow::image::stack_patches;
/// # use tensorpack_dataflow::tensor::{DType, HostTensor};
/// let digits = HostTensor::zeros(DType::U8, [10, 28, 28, 1])?;
/// assert_eq!(stack_patches(&digits, 5, 2, 255.0)?.sizes(), [58, 148, 1]);
/// # Ok::<(), tensorpack_dataflow::tensor::Error>(())
/// ```
#[doc(alias = "make_grid")]
pub fn stack_patches(images: &HostTensor, columns: usize, border: usize, fill: f32) -> Result<HostTensor> {
    let &[n, h, w, c] = images.sizes() else {
        return Err(Error::shape(format!(
            "stack_patches: expected images [n, height, width, channels], got {:?}",
            images.sizes()
        )));
    };
    if n == 0 || columns == 0 {
        return Err(Error::argument(format!("stack_patches: {n} images in {columns} columns")));
    }
    // The dtype, and that no dim is empty.
    image_size(&HostTensor::zeros(images.dtype(), [h, w, c])?).map_err(|e| e.within("stack_patches"))?;
    let columns = columns.min(n);
    let rows = n.div_ceil(columns);
    let side = |count: usize, size: usize| {
        let sizes = count.checked_mul(size)?;
        sizes.checked_add(border.checked_mul(count - 1)?)
    };
    let (Some(height), Some(width)) = (side(rows, h), side(columns, w)) else {
        return Err(Error::argument(format!("stack_patches: a border of {border} pixels is too large")));
    };
    let elements = element_count(&[height, width, c]).map_err(|e| e.within("stack_patches"))?;
    dispatch_pixel_type!(images, T => {
        let mut canvas = vec![T::from_f32(fill); elements];
        for (i, image) in images.as_slice::<T>()?.chunks_exact(h * w * c).enumerate() {
            let (row, column) = (i / columns, i % columns);
            let (top, left) = (row * h + row * border, column * w + column * border);
            for (y, line) in image.chunks_exact(w * c).enumerate() {
                let start = ((top + y) * width + left) * c;
                canvas[start..start + w * c].copy_from_slice(line);
            }
        }
        HostTensor::new([height, width, c], canvas)
    })
}

/// Draws the outlines of boxes `[n, 4]` (left, top, right, bottom, in pixels) into an image. `color` has
/// a value for each channel. Parts outside of the image are not drawn.
pub fn draw_boxes(image: HostTensor, boxes: &HostTensor, color: &[f32]) -> Result<HostTensor> {
    let (h, w, c) = image_size(&image).map_err(|e| e.within("draw_boxes"))?;
    if !matches!(boxes.sizes(), [_, 4]) {
        let why =
            format!("draw_boxes: expected boxes [n, 4] of left, top, right, bottom, got {:?}", boxes.sizes());
        return Err(Error::shape(why));
    }
    if color.len() != c {
        let why = format!("draw_boxes: a color of {} values for an image of {c} channels", color.len());
        return Err(Error::argument(why));
    }
    let boxes = boxes.to_f64_vec();
    if let Some(bad) = boxes.iter().find(|v| !v.is_finite()) {
        return Err(Error::argument(format!("draw_boxes: a box has the coordinate {bad}")));
    }
    let mut image = image;
    dispatch_pixel_type!(image, T => {
        let pixels = image.as_mut_slice::<T>()?;
        let mut set = |x: i64, y: i64| {
            if (0..w as i64).contains(&x) && (0..h as i64).contains(&y) {
                let at = (y as usize * w + x as usize) * c;
                pixels[at..at + c].iter_mut().zip(color).for_each(|(p, v)| *p = T::from_f32(*v));
            }
        };
        for &[left, top, right, bottom] in boxes.as_chunks::<4>().0 {
            // Nothing is visible beyond the image, and a box may be far larger.
            let inside = |v: f64, size: usize| v.round().clamp(-1.0, size as f64) as i64;
            let (left, right) = (inside(left, w), inside(right - 1.0, w));
            let (top, bottom) = (inside(top, h), inside(bottom - 1.0, h));
            for x in left..=right {
                set(x, top);
                set(x, bottom);
            }
            for y in top..=bottom {
                set(left, y);
                set(right, y);
            }
        }
    });
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack_tensor::DType;

    #[test]
    fn patches_fill_rows_from_the_left() {
        let images = HostTensor::new([3, 1, 2, 1], vec![1u8, 2, 3, 4, 5, 6]).unwrap();
        let grid = stack_patches(&images, 2, 1, 9.0).unwrap();
        assert_eq!(grid.sizes(), [3, 5, 1]);
        assert_eq!(grid.as_slice::<u8>().unwrap(), [1, 2, 9, 3, 4, 9, 9, 9, 9, 9, 5, 6, 9, 9, 9]);
        // A single row is as wide as its images.
        assert_eq!(stack_patches(&images, 8, 0, 0.0).unwrap().sizes(), [1, 6, 1]);
        for (images, columns) in [(&images, 0), (&HostTensor::zeros(DType::U8, [0, 1, 2, 1]).unwrap(), 2)] {
            assert!(stack_patches(images, columns, 0, 0.0).is_err());
        }
        assert!(stack_patches(&HostTensor::zeros(DType::I32, [1, 1, 1, 1]).unwrap(), 1, 0, 0.0).is_err());
        for border in [usize::MAX, usize::MAX / 2, usize::MAX / 6] {
            assert!(stack_patches(&images, 2, border, 0.0).is_err());
        }
        // A single image has no border.
        let image = HostTensor::new([1, 1, 2, 1], vec![1u8, 2]).unwrap();
        assert_eq!(stack_patches(&image, 2, usize::MAX, 0.0).unwrap().as_slice::<u8>().unwrap(), [1, 2]);
    }

    #[test]
    fn boxes_are_outlines_cut_off_at_the_border() {
        let image = HostTensor::zeros(DType::U8, [4, 4]).unwrap();
        let boxes = HostTensor::new([2, 4], vec![0.0f32, 0.0, 3.0, 3.0, 2.0, 3.0, 1e30, 9.0]).unwrap();
        let drawn = draw_boxes(image.clone(), &boxes, &[7.0]).unwrap();
        assert_eq!(
            drawn.as_slice::<u8>().unwrap(),
            [7, 7, 7, 0, 7, 0, 7, 0, 7, 7, 7, 0, 0, 0, 7, 7],
            "the second box begins in the last row"
        );
        assert!(draw_boxes(image.clone(), &boxes, &[7.0; 3]).is_err());
        let nan = HostTensor::new([1, 4], vec![f32::NAN, 0.0, 1.0, 1.0]).unwrap();
        assert!(draw_boxes(image, &nan, &[7.0]).is_err());
    }
}
