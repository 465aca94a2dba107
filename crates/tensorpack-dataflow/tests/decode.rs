//! Compares decoded images with OpenCV and crops with full images, and decodes malformed files.

use std::path::{Path, PathBuf};
use tensorpack_dataflow::image::{Channels, ImageFile, Interpolation, Rect, decode};
use tensorpack_dataflow::tensor::{CounterRng, ErrorKind, HostTensor};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images")
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).expect("a test file")
}

/// Names of all JPEG files without their extension.
fn jpegs() -> Vec<String> {
    let files = std::fs::read_dir(folder()).expect("the folder of test files");
    let names = files.map(|f| f.expect("a file").file_name().into_string().expect("a name"));
    let mut names: Vec<String> = names.filter_map(|n| Some(n.strip_suffix(".jpg")?.to_string())).collect();
    names.sort();
    assert!(names.len() >= 15);
    names
}

fn mean_and_max_difference(a: &HostTensor, b: &HostTensor) -> (f64, u8) {
    assert_eq!(a.sizes(), b.sizes());
    let (a, b) = (a.as_slice::<u8>().unwrap(), b.as_slice::<u8>().unwrap());
    let all = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b));
    (all.clone().map(f64::from).sum::<f64>() / a.len() as f64, all.max().unwrap_or(0))
}

/// Crops an image.
fn crop(image: &HostTensor, rect: Rect) -> Vec<u8> {
    let &[_, w, c] = image.sizes() else { panic!("an image") };
    let rows = image.as_slice::<u8>().unwrap().chunks_exact(w * c).skip(rect.y).take(rect.height);
    rows.flat_map(|row| row[rect.x * c..(rect.x + rect.width) * c].to_vec()).collect()
}

#[test]
fn decoded_images_match_opencv() {
    for name in jpegs() {
        let ours = decode(&read(&format!("{name}.jpg")), Channels::Rgb).unwrap();
        let theirs = decode(&read(&format!("{name}.png")), Channels::Rgb).unwrap();
        let (mean, max) = mean_and_max_difference(&ours, &theirs);
        // The two inverse transforms round differently: by one level, or two where chroma is
        // involved.
        assert!(mean < 0.5 && max <= 4, "{name}: mean {mean}, most {max}");
    }
}

#[test]
fn grayscale_decoding_matches_luma() {
    for name in jpegs().iter().filter(|n| !n.starts_with("progressive")) {
        let file = read(&format!("{name}.jpg"));
        let (gray, rgb) = (decode(&file, Channels::Gray).unwrap(), decode(&file, Channels::Rgb).unwrap());
        assert_eq!(gray.sizes()[..2], rgb.sizes()[..2]);
        assert_eq!(gray.sizes()[2], 1);
        let of_rgb = rgb
            .as_slice::<u8>()
            .unwrap()
            .chunks(3)
            .map(|p| 0.299 * f64::from(p[0]) + 0.587 * f64::from(p[1]) + 0.114 * f64::from(p[2]));
        let mut errors: Vec<f64> = gray
            .as_slice::<u8>()
            .unwrap()
            .iter()
            .zip(of_rgb)
            .map(|(&g, y)| (f64::from(g) - y).abs())
            .collect();
        errors.sort_by(f64::total_cmp);
        // Colors outside the RGB gamut lose luma, so not all pixels agree.
        assert!(errors[errors.len() / 2] < 1.0, "{name}");
    }
}

#[test]
fn decode_crop_matches_a_crop_of_the_full_image() {
    for name in jpegs() {
        let bytes = read(&format!("{name}.jpg"));
        let file = ImageFile::open(&bytes).unwrap();
        let whole = file.decode(Channels::Rgb).unwrap();
        let (h, w) = file.size();
        let rng = CounterRng::new(7, &name);
        for i in 0..40 {
            let draw = |k: u64, n: usize| (rng.uniform(i, k) * n as f64) as usize;
            let (x, y) = (draw(0, w), draw(1, h));
            let rect = Rect { x, y, width: 1 + draw(2, w - x), height: 1 + draw(3, h - y) };
            let mut out = vec![0; rect.width * rect.height * 3];
            let size = (rect.height, rect.width);
            file.decode_crop(rect, size, Channels::Rgb, Interpolation::Linear, &mut out).unwrap();
            assert_eq!(out, crop(&whole, rect), "{name}: {rect:?}");
        }
    }
}

#[test]
fn scaled_decoding_matches_box_averages() {
    // Except 4:1:1, whose chroma is repeated instead of interpolated.
    let is_blended =
        |n: &&String| n.ends_with("29x43") && !n.starts_with("411") || n.starts_with("orientation");
    for name in jpegs().iter().filter(is_blended) {
        let bytes = read(&format!("{name}.jpg"));
        let file = ImageFile::open(&bytes).unwrap();
        let whole = file.decode(Channels::Rgb).unwrap();
        for factor in [2, 4] {
            // In stored orientation, the region starts and ends between pixels of the quarter-size
            // image.
            let rect = match &name[..name.len().min(12)] {
                "orientation3" => Rect { x: 2, y: 6, width: 12, height: 8 },
                "orientation6" => Rect { x: 2, y: 4, width: 8, height: 12 },
                _ => Rect { x: 4, y: 4, width: 12, height: 8 },
            };
            let (height, width) = (rect.height / factor, rect.width / factor);
            let mut out = vec![0; height * width * 3];
            file.decode_crop(rect, (height, width), Channels::Rgb, Interpolation::Linear, &mut out).unwrap();
            let pixels = crop(&whole, rect);
            let mut error = 0.0;
            for (i, &actual) in out.iter().enumerate() {
                let (y, x, c) = (i / 3 / width * factor, i / 3 % width * factor, i % 3);
                let square = (0..factor * factor).map(|k| (y + k / factor, x + k % factor));
                let sum: f64 = square.map(|(y, x)| f64::from(pixels[(y * rect.width + x) * 3 + c])).sum();
                error += (f64::from(actual) - sum / (factor * factor) as f64).abs() / out.len() as f64;
            }
            // The low frequencies of a block only approximate the means of its quarters.
            assert!(error < 6.0, "{name} by {factor}: {error}");
        }
    }
}

#[test]
fn reads_every_kind_of_png() {
    let expected = decode(&read("png_16.png"), Channels::Rgb).unwrap();
    assert_eq!(decode(&read("png_alpha.png"), Channels::Rgb).unwrap(), expected);
    let red: Vec<u8> = expected.as_slice::<u8>().unwrap().chunks(3).map(|p| p[0]).collect();
    assert_eq!(decode(&read("png_grey.png"), Channels::Gray).unwrap().as_slice::<u8>().unwrap(), red);
    let three = decode(&read("png_grey.png"), Channels::Rgb).unwrap();
    assert_eq!(three.as_slice::<u8>().unwrap()[..6], [red[0], red[0], red[0], red[1], red[1], red[1]]);
}

/// Decodes the file in full and in part. It must not panic, and a successful result must have the
/// right shape.
fn decode_all_ways(file: &[u8]) {
    for channels in [Channels::Gray, Channels::Rgb] {
        let Ok(opened) = ImageFile::open(file) else { return };
        let (h, w) = opened.size();
        if h * w > 1 << 20 {
            return;
        }
        if let Ok(image) = opened.decode(channels) {
            assert_eq!(image.sizes(), [h, w, channels.count()]);
        }
        let rect = Rect { x: w / 3, y: h / 3, width: w - w / 3, height: (h - h / 3).min(9) };
        let mut out = vec![0; 5 * 4 * channels.count()];
        let _ = opened.decode_crop(rect, (5, 4), channels, Interpolation::Linear, &mut out);
    }
}

#[test]
fn malformed_files_never_panic() {
    let names = jpegs().into_iter().map(|n| n + ".jpg").chain(["png_alpha.png".into(), "png_16.png".into()]);
    for name in names {
        let file = read(&name);
        for n in (0..file.len()).step_by(7) {
            decode_all_ways(&file[..n]);
        }
        let rng = CounterRng::new(1, &name);
        for i in 0..150 {
            let mut broken = file.clone();
            for k in 0..1 + i % 4 {
                let at = (rng.uniform(i, 2 * k) * broken.len() as f64) as usize;
                broken[at] = (rng.uniform(i, 2 * k + 1) * 256.0) as u8;
            }
            decode_all_ways(&broken);
        }
    }
}

#[test]
fn truncated_files_are_reported() {
    let file = read("444_29x43.jpg");
    let e = decode(&file[..file.len() - 120], Channels::Rgb).unwrap_err();
    assert!(e.message().contains("truncated"), "{e}");
    let e = decode(b"hello", Channels::Rgb).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
}

#[test]
fn small_files_cannot_claim_large_images() {
    let file = read("444_29x43.jpg");
    let frame = file.windows(2).position(|w| w == [0xFF, 0xC0]).expect("a frame");
    let claim = |height: u16, width: u16| {
        let mut file = file.clone();
        file[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
        file[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
        decode(&file, Channels::Rgb).unwrap_err().message().to_string()
    };
    assert!(claim(65500, 65500).contains("limit"));
    assert!(claim(11000, 11000).contains("truncated"));
}
