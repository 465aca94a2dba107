//! Measures how fast JPEG files become batches.

use crate::memory::peak_rss_mb;
use std::num::ParseIntError;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tensorpack::dataflow::image::{
    Augmentor, AugmentorList, BrightnessScale, Contrast, Flip, ImageFile, RandomResizedCrop, Rect, Saturation,
};
use tensorpack::dataflow::{ComponentSpec, DataFlow, FromFn, MapBatch, Seed, State};
use tensorpack::{DType, Error, HostTensor, Result};

/// Warm-up batches.
const WARM_UP: usize = 5;

/// The width and height of the images in a batch.
const SIDE: usize = 224;

/// The options of `bench -- dataflow`.
#[derive(Debug, clap::Args)]
pub(crate) struct DataflowArgs {
    /// The directory of JPEG files.
    #[arg(long, value_name = "DIR")]
    jpegs: PathBuf,
    /// Worker threads.
    #[arg(long, value_name = "N", default_value = "2", value_parser = at_least_1)]
    workers: usize,
    /// The batch size.
    #[arg(long, value_name = "B", default_value = "64", value_parser = at_least_1)]
    batch: usize,
    /// Batches to time.
    #[arg(long, value_name = "N", default_value = "20", value_parser = at_least_1)]
    steps: usize,
    /// Print one JSON line.
    #[arg(long)]
    json: bool,
    /// Instead, write one crop of every image for bench/peers/opencv_crops.py.
    #[arg(long, value_name = "DIR")]
    crops: Option<PathBuf>,
}

/// Parses a number; 0 becomes 1.
fn at_least_1(text: &str) -> std::result::Result<usize, ParseIntError> {
    Ok(text.parse::<usize>()?.max(1))
}

pub(crate) fn measure(args: &DataflowArgs, started: Instant) -> Result<()> {
    let files = photographs(&args.jpegs)?;
    let pipeline = Arc::new(Pipeline::new(files, args.batch));
    if let Some(folder) = &args.crops {
        return pipeline.write_crops(folder);
    }
    let (first_step, seconds) = pipeline.run(args.workers, args.steps, started)?;
    let ms = seconds * 1e3 / args.steps as f64;
    let rate = (args.batch * args.steps) as f64 / seconds;
    let rss = peak_rss_mb();
    if args.json {
        println!(
            "{{\"model\":\"dataflow\",\"workers\":{},\"batch\":{},\"ms_per_step\":{ms:.4},\"examples_per_s\":{rate:.1},\
             \"first_step_s\":{first_step:.4},\"peak_rss_mb\":{rss:.1}}}",
            args.workers, args.batch
        );
    } else {
        println!(
            "{} workers, batch {}: {rate:.0} images/s, {ms:.2} ms per batch; first batch after {first_step:.3} s; \
             peak {rss:.0} MB",
            args.workers, args.batch
        );
    }
    Ok(())
}

/// Returns the JPEG files of a directory, sorted by name.
fn photographs(folder: &Path) -> Result<Vec<PathBuf>> {
    let place = || format!("--jpegs {}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(|e| Error::from(e).within(place()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let is_jpeg = |ending: &str| ending.eq_ignore_ascii_case("jpeg") || ending.eq_ignore_ascii_case("jpg");
    files.retain(|file| file.extension().and_then(|e| e.to_str()).is_some_and(is_jpeg));
    files.sort();
    if files.is_empty() {
        return Err(Error::argument("the directory has no .jpg or .jpeg file").within(place()));
    }
    Ok(files)
}

/// The pipeline from files to batches.
struct Pipeline {
    files: Vec<PathBuf>,
    batch: usize,
    crop: RandomResizedCrop,
    augmentors: AugmentorList,
    seed: Seed,
}

impl Pipeline {
    fn new(files: Vec<PathBuf>, batch: usize) -> Pipeline {
        let augmentors = AugmentorList::new()
            .then(Flip::horizontal())
            .then(BrightnessScale::new(0.6, 1.4))
            .then(Contrast::new(0.6, 1.4))
            .then(Saturation::new(0.4));
        Pipeline { files, batch, crop: RandomResizedCrop::new(SIDE), augmentors, seed: Seed::new(0) }
    }

    /// The batches of this pipeline, made by this many threads.
    fn batches(self: &Arc<Self>, workers: usize) -> MapBatch {
        let (read, make) = (self.clone(), self.clone());
        let files = FromFn::new(self.files.len() as u64, move |index| {
            let file = &read.files[index as usize];
            let bytes = std::fs::read(file).map_err(|e| Error::from(e).within(file.display()))?;
            Ok(vec![HostTensor::new([bytes.len()], bytes)?])
        });
        let picture = ComponentSpec::new(DType::U8, [SIDE, SIDE, 3]);
        files.map_batch(workers, self.batch, [picture], move |sample, rng, slot| {
            let image = make.crop.decode(sample[0].as_slice()?, rng)?;
            let (image, _) = make.augmentors.augment(image, rng)?;
            slot.component::<u8>(0)?.copy_from_slice(image.as_slice()?);
            Ok(())
        })
    }

    /// Returns the seconds until the first batch, and for `steps` batches after the warm-up.
    fn run(self: &Arc<Self>, workers: usize, steps: usize, started: Instant) -> Result<(f64, f64)> {
        let mut reader = self.batches(workers).repeat_forever().open(self.seed, &State::start())?;
        reader.read()?;
        let first = started.elapsed().as_secs_f64();
        for _ in 1..WARM_UP {
            reader.read()?;
        }
        let began = Instant::now();
        for _ in 0..steps {
            reader.read()?;
        }
        Ok((first, began.elapsed().as_secs_f64()))
    }

    /// Writes one crop of every image before color jitter: the pixels to `crops.rgb`, and file,
    /// left, top, width and height to `crops.tsv`.
    fn write_crops(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        let (mut pixels, mut lines) = (Vec::new(), String::new());
        for (index, file) in self.files.iter().enumerate() {
            let bytes = std::fs::read(file)?;
            let rng = self.seed.rng(0, index as u64);
            let (height, width) = ImageFile::open(&bytes)?.size();
            let Rect { x, y, width, height } = self.crop.random_rect(height, width, &mut rng.clone());
            lines += &format!("{}\t{x}\t{y}\t{width}\t{height}\n", file.display());
            pixels.extend_from_slice(self.crop.decode(&bytes, &mut rng.clone())?.as_slice::<u8>()?);
        }
        std::fs::write(folder.join("crops.tsv"), lines)?;
        Ok(std::fs::write(folder.join("crops.rgb"), pixels)?)
    }
}
