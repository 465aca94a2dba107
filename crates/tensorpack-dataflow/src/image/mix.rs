//! Mixing the examples of a batch: mixup and CutMix.

use crate::adaptor::map::component;
use crate::{Sample, SampleRng};
use tensorpack_tensor::{DType, Error, HostTensor, Result};

/// Mixup (Zhang et al., 2017): every example of a batch becomes `weight * example + (1 - weight) *
/// partner`, and so does its label.
///
/// A batch has images `[batch, height, width, channels]` of u8 or f32 in component 0, and labels in
/// component 1: classes `[batch]` or probabilities `[batch, classes]`. Mixed images are f32, mixed
/// labels f32 `[batch, classes]`, for `softmax_cross_entropy`. One weight is drawn for each batch from
/// Beta(alpha, alpha), and the partners are a random permutation of the batch.
///
/// ```
/// use tensorpack_dataflow::image::Mixup;
/// use tensorpack_dataflow::tensor::{DType, HostTensor};
/// use tensorpack_dataflow::{DataFlow, FromList, Seed, State};
///
/// let images = HostTensor::zeros(DType::U8, [4, 32, 32, 3])?;
/// let labels = HostTensor::new([4], vec![0, 1, 2, 3])?;
/// let mixup = Mixup::new(1.0, 10);
/// let data = FromList::new(vec![vec![images, labels]]).map_random(move |batch, rng| mixup.mix(batch, rng));
/// let batch = data.open(Seed::new(0), &State::start())?.read()?.expect("one batch");
/// assert_eq!(batch[1].sizes(), [4, 10]);
/// # Ok::<(), tensorpack_dataflow::tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mixup(Mixing);

/// CutMix (Yun et al., 2019): a random rectangle of every image of a batch is replaced by that of its
/// partner, and labels are mixed by area.
///
/// Batches are those of [`Mixup`]. The rectangle is the same for all images of a batch; its area is
/// drawn from Beta(alpha, alpha) before it is cut off at the border. Images keep their dtype.
#[derive(Clone, Debug)]
pub struct CutMix(Mixing);

#[derive(Clone, Debug)]
struct Mixing {
    alpha: f64,
    classes: usize,
    images: usize,
    labels: usize,
}

impl Mixing {
    fn new(alpha: f64, classes: usize) -> Mixing {
        Mixing { alpha, classes, images: 0, labels: 1 }
    }

    /// Draws the weight of the examples, and the partner of each.
    fn draw(&self, examples: usize, rng: &mut SampleRng) -> Result<(f64, Vec<usize>)> {
        if !(self.alpha > 0.0 && self.alpha.is_finite()) {
            return Err(Error::argument(format!("alpha is {}; it must be positive", self.alpha)));
        }
        let weight = beta(self.alpha, rng);
        let mut partners: Vec<usize> = (0..examples).collect();
        for i in (1..partners.len()).rev() {
            partners.swap(i, rng.below(i as u64 + 1) as usize);
        }
        Ok((weight, partners))
    }

    /// Draws for the examples of a batch, after checking that it can be mixed.
    fn draw_for(&self, batch: &mut Sample, rng: &mut SampleRng) -> Result<(f64, Vec<usize>)> {
        let images = component(batch, self.images)?;
        if images.sizes().len() != 4 || !matches!(images.dtype(), DType::U8 | DType::F32) {
            let (dtype, sizes) = (images.dtype(), images.sizes());
            let why = format!(
                "expected images [batch, height, width, channels] of u8 or f32, got {dtype}{sizes:?}"
            );
            return Err(Error::shape(why).note("mix batches: call it after `batch`"));
        }
        self.draw(images.sizes()[0], rng)
    }

    /// Replaces the labels by those of examples and partners, mixed.
    fn mix_labels(&self, batch: &mut Sample, weight: f64, partners: &[usize]) -> Result<()> {
        let labels = component(batch, self.labels)?;
        let probabilities = self.probabilities(labels, partners.len())?;
        let rows: Vec<&[f32]> = probabilities.chunks_exact(self.classes.max(1)).collect();
        let mixed = partners.iter().zip(&rows).flat_map(|(&partner, row)| mix(row, rows[partner], weight));
        *labels = HostTensor::new([partners.len(), self.classes], mixed.collect())?;
        Ok(())
    }

    /// Returns the labels as probabilities `[batch, classes]`.
    fn probabilities(&self, labels: &HostTensor, batch: usize) -> Result<Vec<f32>> {
        let float = matches!(labels.dtype(), DType::F32 | DType::F64);
        if float && labels.sizes() == [batch, self.classes] {
            return Ok(labels.to_f64_vec().iter().map(|p| *p as f32).collect());
        }
        if float || labels.sizes() != [batch] || labels.dtype() == DType::Bool {
            let (dtype, sizes, classes) = (labels.dtype(), labels.sizes(), self.classes);
            return Err(Error::shape(format!(
                "expected labels [{batch}] of an integer type or [{batch}, {classes}] of a float type, got {dtype}{sizes:?}"
            )));
        }
        let mut rows = vec![0.0; batch * self.classes];
        for (i, class) in labels.to_f64_vec().into_iter().enumerate() {
            if !(0.0..self.classes as f64).contains(&class) {
                let why =
                    format!("example {i} has the label {class}, but there are {} classes", self.classes);
                return Err(Error::argument(why));
            }
            rows[i * self.classes + class as usize] = 1.0;
        }
        Ok(rows)
    }
}

impl Mixup {
    /// Creates mixup with weights from Beta(alpha, alpha): 1.0 draws them uniformly, 0.2 mostly near 0
    /// and 1.
    pub fn new(alpha: f64, classes: usize) -> Mixup {
        Mixup(Mixing::new(alpha, classes))
    }

    /// Sets the components of the images and the labels (default: 0 and 1).
    #[must_use]
    pub fn components(self, images: usize, labels: usize) -> Mixup {
        Mixup(Mixing { images, labels, ..self.0 })
    }

    /// Draws the weight of a batch's examples and the partner of each, for models that mix on their
    /// device. [`Mixup::mix`] mixes with the same draws.
    pub fn draw(&self, examples: usize, rng: &mut SampleRng) -> Result<(f64, Vec<usize>)> {
        self.0.draw(examples, rng).map_err(|e| e.within("Mixup"))
    }

    /// Mixes the examples of a batch.
    pub fn mix(&self, mut batch: Sample, rng: &mut SampleRng) -> Result<Sample> {
        let (weight, partners) = self.0.draw_for(&mut batch, rng).map_err(|e| e.within("Mixup"))?;
        let images = component(&mut batch, self.0.images)?;
        let values: Vec<f32> = match images.dtype() {
            DType::U8 => images.as_slice::<u8>()?.iter().map(|&v| v.into()).collect(),
            _ => images.as_slice::<f32>()?.to_vec(),
        };
        let size: usize = images.sizes()[1..].iter().product();
        let row = |i: usize| &values[i * size..(i + 1) * size];
        let mixed = partners.iter().enumerate().flat_map(|(i, &partner)| mix(row(i), row(partner), weight));
        *images = HostTensor::new(images.sizes(), mixed.collect::<Vec<f32>>())?;
        self.0.mix_labels(&mut batch, weight, &partners).map_err(|e| e.within("Mixup"))?;
        Ok(batch)
    }
}

impl CutMix {
    /// Creates CutMix with areas from Beta(alpha, alpha); the paper uses 1.0.
    pub fn new(alpha: f64, classes: usize) -> CutMix {
        CutMix(Mixing::new(alpha, classes))
    }

    /// Sets the components of the images and the labels (default: 0 and 1).
    #[must_use]
    pub fn components(self, images: usize, labels: usize) -> CutMix {
        CutMix(Mixing { images, labels, ..self.0 })
    }

    /// Mixes the examples of a batch.
    pub fn mix(&self, mut batch: Sample, rng: &mut SampleRng) -> Result<Sample> {
        let (weight, partners) = self.0.draw_for(&mut batch, rng).map_err(|e| e.within("CutMix"))?;
        let images = component(&mut batch, self.0.images)?;
        let sizes = <[usize; 4]>::try_from(images.sizes()).expect("images have four dims");
        let [_, height, width, _] = sizes;
        // The rectangle has the shape of the image, and its center is anywhere.
        let share = (1.0 - weight).sqrt();
        let mut range = |size: usize| {
            let (center, half) = (rng.uniform() * size as f64, share * size as f64 / 2.0);
            let end = |at: f64| at.round().clamp(0.0, size as f64) as usize;
            end(center - half)..end(center + half)
        };
        let (rows, columns) = (range(height), range(width));
        let kept = 1.0 - (rows.len() * columns.len()) as f64 / (height * width).max(1) as f64;
        match images.dtype() {
            DType::U8 => paste(images.as_mut_slice::<u8>()?, sizes, &rows, &columns, &partners),
            _ => paste(images.as_mut_slice::<f32>()?, sizes, &rows, &columns, &partners),
        }
        self.0.mix_labels(&mut batch, kept, &partners).map_err(|e| e.within("CutMix"))?;
        Ok(batch)
    }
}

/// Replaces the rectangle of every image by that of its partner.
fn paste<T: Copy>(
    images: &mut [T],
    [_, height, width, channels]: [usize; 4],
    rows: &std::ops::Range<usize>,
    columns: &std::ops::Range<usize>,
    partners: &[usize],
) {
    let before = images.to_vec();
    for (i, &partner) in partners.iter().enumerate() {
        for y in rows.clone() {
            let span = |image: usize| {
                let line = (image * height + y) * width;
                (line + columns.start) * channels..(line + columns.end) * channels
            };
            images[span(i)].copy_from_slice(&before[span(partner)]);
        }
    }
}

fn mix<'a>(a: &'a [f32], b: &'a [f32], weight: f64) -> impl Iterator<Item = f32> + 'a {
    let (of_a, of_b) = (weight as f32, (1.0 - weight) as f32);
    a.iter().zip(b).map(move |(a, b)| a * of_a + b * of_b)
}

/// Draws from Beta(alpha, alpha), as the ratio of two gamma variates. Their logarithms are used,
/// because with a small alpha both may underflow.
fn beta(alpha: f64, rng: &mut SampleRng) -> f64 {
    let (a, b) = (log_gamma_variate(alpha, rng), log_gamma_variate(alpha, rng));
    1.0 / (1.0 + (b - a).exp())
}

/// Draws the logarithm of a Gamma(shape, 1) variate by the method of Marsaglia and Tsang (2000), which
/// needs a shape of at least 1: for others, a variate of `shape + 1` is multiplied by
/// `uniform^(1 / shape)`.
fn log_gamma_variate(shape: f64, rng: &mut SampleRng) -> f64 {
    if shape < 1.0 {
        // 1 - uniform is not zero.
        return log_gamma_variate(shape + 1.0, rng) + (1.0 - rng.uniform()).ln() / shape;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = rng.normal();
        let v = (1.0 + c * x).powi(3);
        let u = 1.0 - rng.uniform();
        if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return (d * v).ln();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seed;

    /// Two images of one value each, with the classes 0 and 2.
    fn batch(dtype: DType) -> Sample {
        let values: Vec<f64> = [10.0; 48].into_iter().chain([200.0; 48]).collect();
        let images = HostTensor::from_f64(dtype, [2, 4, 4, 3], &values).unwrap();
        vec![images, HostTensor::new([2], vec![0i32, 2]).unwrap()]
    }

    /// The moments of Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1)).
    #[test]
    fn weights_have_the_moments_of_the_beta_distribution() {
        for alpha in [0.1, 0.4, 1.0, 3.0] {
            let n = 20_000;
            let draws: Vec<f64> = (0..n).map(|i| beta(alpha, &mut Seed::new(1).rng(0, i))).collect();
            let mean = draws.iter().sum::<f64>() / n as f64;
            let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
            assert!((mean - 0.5).abs() < 0.012, "alpha {alpha}: mean {mean}");
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!((variance / expected - 1.0).abs() < 0.05, "alpha {alpha}: {variance}, not {expected}");
        }
        assert!((0..1000).all(|i| beta(1e-4, &mut Seed::new(2).rng(0, i)).is_finite()));
    }

    /// The weight can be read from the pixels, and the labels must agree with it.
    #[test]
    fn labels_are_mixed_like_pixels() {
        for (dtype, index) in (0..40).flat_map(|i| [(DType::U8, i), (DType::F32, i)]) {
            let mut rng = Seed::new(5).rng(0, index);
            let mixed = Mixup::new(0.8, 3).mix(batch(dtype), &mut rng).unwrap();
            let pixels = mixed[0].as_slice::<f32>().unwrap();
            for (image, label) in pixels.chunks(48).zip(mixed[1].as_slice::<f32>().unwrap().chunks(3)) {
                assert!(image.iter().all(|v| *v == image[0]));
                let expected = 10.0 * label[0] + 200.0 * label[2];
                assert!((image[0] - expected).abs() < 1e-3, "{image:?}, {label:?}");
                assert!((label.iter().sum::<f32>() - 1.0).abs() < 1e-6 && label[1] == 0.0);
            }
        }
    }

    #[test]
    fn a_batch_is_mixed_with_the_weight_and_the_partners_drawn() {
        let mixup = Mixup::new(0.8, 3);
        for index in 0..40 {
            let rng = || Seed::new(5).rng(0, index);
            let (weight, partners) = mixup.draw(2, &mut rng()).unwrap();
            let mixed = mixup.mix(batch(DType::U8), &mut rng()).unwrap();
            for (i, image) in mixed[0].as_slice::<f32>().unwrap().chunks(48).enumerate() {
                let [own, partner] = [i, partners[i]].map(|i| [10.0, 200.0][i]);
                let expected = weight * own + (1.0 - weight) * partner;
                assert!((f64::from(image[0]) - expected).abs() < 1e-3, "{image:?}, not {expected}");
            }
        }
    }

    #[test]
    fn a_rectangle_is_as_large_as_the_share_of_its_label() {
        let mut shares = Vec::new();
        for index in 0..200 {
            let mut rng = Seed::new(6).rng(0, index);
            let mixed = CutMix::new(1.0, 3).mix(batch(DType::U8), &mut rng).unwrap();
            let pixels = mixed[0].as_slice::<u8>().unwrap();
            for (image, label) in pixels.chunks(48).zip(mixed[1].as_slice::<f32>().unwrap().chunks(3)) {
                let dark = image.iter().filter(|v| **v == 10).count() as f32 / 48.0;
                assert!((dark - label[0]).abs() < 1e-6, "{image:?}, {label:?}");
                let cut: Vec<bool> = image.chunks(3).map(|p| p[0] != image[0]).collect();
                let rows: Vec<usize> = cut.chunks(4).map(|row| row.iter().filter(|c| **c).count()).collect();
                let widest = rows.iter().max().unwrap();
                // All rows of the rectangle are equally wide.
                assert!(rows.iter().all(|n| n == widest || *n == 0 || *widest == 4), "{rows:?}");
                shares.push(label[0]);
            }
        }
        assert!(shares.iter().any(|s| *s > 0.1 && *s < 0.4) && shares.contains(&1.0));
    }

    #[test]
    fn batches_that_cannot_be_mixed_are_errors() {
        let mut rng = Seed::new(0).rng(0, 0);
        let mixup = Mixup::new(1.0, 3);
        let image = HostTensor::zeros(DType::U8, [4, 4, 3]).unwrap();
        let e = mixup.mix(vec![image, HostTensor::scalar(1i32)], &mut rng).unwrap_err();
        assert!(e.to_string().contains("after `batch`"), "{e}");
        let mut wrong = batch(DType::U8);
        wrong[1] = HostTensor::new([2], vec![0i32, 3]).unwrap();
        let e = mixup.mix(wrong, &mut rng).unwrap_err();
        assert!(e.to_string().contains("label 3") && e.to_string().contains("3 classes"), "{e}");
        let mut wrong = batch(DType::F32);
        wrong[1] = HostTensor::new([2], vec![0.5f32, 1.0]).unwrap();
        assert!(mixup.mix(wrong, &mut rng).is_err());
        for alpha in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(CutMix::new(alpha, 3).mix(batch(DType::U8), &mut rng).is_err());
        }
        assert!(mixup.mix(vec![], &mut rng).is_err());
        let empty = vec![
            HostTensor::zeros(DType::U8, [0, 4, 4, 3]).unwrap(),
            HostTensor::zeros(DType::I32, [0]).unwrap(),
        ];
        assert_eq!(mixup.mix(empty, &mut rng).unwrap()[1].sizes(), [0, 3]);
    }
}
