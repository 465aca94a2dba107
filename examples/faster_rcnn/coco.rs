//! COCO's format: a file of annotations and a folder of images.

use super::scenes;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tensorpack::dataflow::image::{Channels, Interpolation, decode, resize};
use tensorpack::dataflow::{DataFlow, Flow, FromFn, Sample};
use tensorpack::prelude::*;
use tensorpack::serde_json::{self, Value};

/// An image and its objects.
struct Annotated {
    file: PathBuf,
    /// Boxes `(x, y, width, height)` and classes.
    objects: Vec<([f64; 4], i32)>,
    crowds: Vec<([f64; 4], i32)>,
}

/// The images of a part of the set, such as `train2017`.
pub(crate) struct Coco {
    /// The names of the classes.
    pub(crate) classes: Vec<String>,
    images: Vec<Annotated>,
}

impl Coco {
    /// Reads `DIR/annotations/instances_PART.json`; its images are in `DIR/PART`. Images without objects
    /// are left out if `with_objects`.
    pub(crate) fn read(dir: &Path, part: &str, with_objects: bool) -> Result<Coco> {
        let path = dir.join("annotations").join(format!("instances_{part}.json"));
        let at = |e: String| Error::argument(format!("{}: {e}", path.display()));
        let text = std::fs::read(&path).map_err(|e| at(e.to_string()))?;
        let json: Value = serde_json::from_slice(&text).map_err(|e| at(e.to_string()))?;
        let list = |key: &str| json[key].as_array().ok_or_else(|| at(format!("no list {key:?}")));
        let integer =
            |v: &Value, key: &str| v[key].as_i64().ok_or_else(|| at(format!("no integer {key:?} in {v}")));
        let string = |v: &Value, key: &str| {
            v[key].as_str().map(String::from).ok_or_else(|| at(format!("no string {key:?} in {v}")))
        };
        // Classes are numbered in the order of their ids, which have gaps.
        let mut categories = Vec::new();
        for category in list("categories")? {
            categories.push((integer(category, "id")?, string(category, "name")?));
        }
        categories.sort();
        let class_of: HashMap<i64, i32> =
            categories.iter().zip(0..).map(|((id, _), class)| (*id, class)).collect();
        let (mut images, mut index_of) = (Vec::new(), HashMap::new());
        for image in list("images")? {
            index_of.insert(integer(image, "id")?, images.len());
            let file = dir.join(part).join(string(image, "file_name")?);
            images.push(Annotated { file, objects: Vec::new(), crowds: Vec::new() });
        }
        for annotation in list("annotations")? {
            let class = class_of.get(&integer(annotation, "category_id")?);
            let image = index_of.get(&integer(annotation, "image_id")?);
            let numbers = annotation["bbox"].as_array().map(|b| b.iter().filter_map(Value::as_f64).collect());
            let corners: Option<[f64; 4]> = numbers.and_then(|b: Vec<f64>| b.try_into().ok());
            let (Some(&class), Some(&image), Some(corners)) = (class, image, corners) else {
                return Err(at(format!("no image, category or bbox for {annotation}")));
            };
            let is_crowd = annotation["iscrowd"].as_i64() == Some(1);
            let image = &mut images[image];
            // Some annotations have no extent.
            if corners[2] > 0.0 && corners[3] > 0.0 {
                if is_crowd { &mut image.crowds } else { &mut image.objects }.push((corners, class));
            }
        }
        images.retain(|image| !with_objects || !image.objects.is_empty());
        if images.is_empty() {
            return Err(at(format!("no images{}", if with_objects { " with objects" } else { "" })));
        }
        Ok(Coco { classes: categories.into_iter().map(|(_, name)| name).collect(), images })
    }

    /// Returns the inputs of the model. Images are resized so that their longer edge is `size`, and padded
    /// at the right or at the bottom; boxes and their areas are those in the resized image.
    pub(crate) fn into_flow(self, size: usize, max_objects: usize) -> Flow {
        let images = Arc::new(self.images);
        let count = images.len() as u64;
        FromFn::new(count, move |i| load(&images[i as usize], size, max_objects)).into_flow()
    }
}

fn load(annotated: &Annotated, size: usize, max_objects: usize) -> Result<Sample> {
    let within = |e: Error| e.within(annotated.file.display().to_string());
    let file = std::fs::read(&annotated.file).map_err(|e| within(Error::argument(e.to_string())))?;
    let image = decode(&file, Channels::Rgb).map_err(within)?;
    let (height, width) = (image.sizes()[0], image.sizes()[1]);
    let scale = size as f64 / height.max(width) as f64;
    let [h, w] = [height, width].map(|n| ((n as f64 * scale).round() as usize).clamp(1, size));
    let resized = resize(&image, h, w, Interpolation::Linear)?;
    let mut pixels = vec![0f32; size * size * 3];
    for (from, to) in resized.as_slice::<u8>()?.chunks(w * 3).zip(pixels.chunks_mut(size * 3)) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = f32::from(*from) / 255.0);
    }
    let [sx, sy] = [w as f64 / width as f64, h as f64 / height as f64];
    let scaled =
        |([x, y, w, h], class): &([f64; 4], i32)| ([x * sx, y * sy, (x + w) * sx, (y + h) * sy], *class);
    let objects = annotated.objects.iter().take(max_objects);
    let crowds = annotated.crowds.iter().take(max_objects - objects.len());
    let crowd_count = crowds.len();
    let all: Vec<([f64; 4], i32)> = objects.chain(crowds).map(scaled).collect();
    scenes::sample(pixels, size, max_objects, &all, crowd_count)
}
