//! Crops against full images, errors of the API, and malformed files.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use tensorpack_jpeg::{Channels, Jpeg, Rect, Scale, Scratch};
use tensorpack_tensor::{CounterRng, ErrorKind};

const SIZE: (usize, usize) = (43, 61);

const SAMPLING: [SamplingFactor; 4] =
    [SamplingFactor::F_1_1, SamplingFactor::F_2_1, SamplingFactor::F_1_2, SamplingFactor::F_2_2];

/// A smooth color image with an edge.
fn encode(sampling: SamplingFactor, progressive: bool) -> Vec<u8> {
    let (h, w) = SIZE;
    let pixel = |i: usize| {
        let (y, x) = (i / w, i % w);
        let edge = if 2 * x > w + y { 90 } else { 0 };
        [(4 * x) as u8, (5 * y) as u8, (x + y + edge) as u8]
    };
    let pixels: Vec<u8> = (0..h * w).flat_map(pixel).collect();
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, 85);
    encoder.set_sampling_factor(sampling);
    encoder.set_progressive(progressive);
    encoder.encode(&pixels, w as u16, h as u16, ColorType::Rgb).expect("the image can be encoded");
    file
}

fn decode(file: &[u8], channels: Channels) -> Vec<u8> {
    Jpeg::open(file).unwrap().decode(channels, &mut Scratch::default()).unwrap()
}

/// The same region of a full image.
fn crop(image: &[u8], width: usize, rect: Rect, channels: usize) -> Vec<u8> {
    let rows = image.chunks_exact(width * channels).skip(rect.y).take(rect.height);
    rows.flat_map(|row| row[rect.x * channels..(rect.x + rect.width) * channels].to_vec()).collect()
}

#[test]
fn crops_match_the_full_image_at_every_scale() {
    let mut scratch = Scratch::default();
    for sampling in SAMPLING {
        let file = encode(sampling, false);
        let jpeg = Jpeg::open(&file).unwrap();
        assert!(jpeg.supports_crops() && jpeg.size() == SIZE);
        for (scale, channels) in [Scale::Full, Scale::Half, Scale::Quarter, Scale::Eighth]
            .into_iter()
            .flat_map(|scale| [(scale, Channels::Rgb), (scale, Channels::Gray)])
        {
            let (h, w) = (scale.scaled(SIZE.0), scale.scaled(SIZE.1));
            let mut full = vec![0; h * w * channels.count()];
            let whole = jpeg.decode_crop(Rect::full(h, w), scale, channels, &mut scratch).unwrap();
            whole.write_to(&mut full).unwrap();
            let rng = CounterRng::new(3, "crops");
            for i in 0..30 {
                let draw = |k: u64, n: usize| (rng.uniform(i, k) * n as f64) as usize;
                let (x, y) = (draw(0, w), draw(1, h));
                let rect = Rect { x, y, width: 1 + draw(2, w - x), height: 1 + draw(3, h - y) };
                let part = jpeg.decode_crop(rect, scale, channels, &mut scratch).unwrap();
                let mut out = vec![0; part.len()];
                part.write_to(&mut out).unwrap();
                assert_eq!(out, crop(&full, w, rect, channels.count()), "{scale:?} {channels:?} {rect:?}");
            }
        }
    }
}

#[test]
fn unsupported_files_are_decoded_in_full_only() {
    let file = encode(SamplingFactor::F_2_2, true);
    let jpeg = Jpeg::open(&file).unwrap();
    assert!(!jpeg.supports_crops());
    let mut scratch = Scratch::default();
    let e = jpeg.decode_crop(Rect::full(8, 8), Scale::Full, Channels::Rgb, &mut scratch).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    // The two decoders differ in rounding only.
    let (progressive, baseline) =
        (decode(&file, Channels::Rgb), decode(&encode(SamplingFactor::F_2_2, false), Channels::Rgb));
    let difference: u64 = progressive.iter().zip(&baseline).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    assert!(difference / (progressive.len() as u64) < 2, "{difference}");
}

#[test]
fn invalid_regions_and_buffers_are_errors() {
    let file = encode(SamplingFactor::F_1_1, false);
    let jpeg = Jpeg::open(&file).unwrap();
    let mut scratch = Scratch::default();
    let (h, w) = SIZE;
    for rect in [
        Rect { x: 0, y: 0, width: 0, height: 5 },
        Rect { x: w, y: 0, width: 1, height: 1 },
        Rect { x: 0, y: 1, width: w, height: h },
        Rect { x: usize::MAX, y: 0, width: 2, height: 1 },
    ] {
        let e = jpeg.decode_crop(rect, Scale::Full, Channels::Rgb, &mut scratch).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Argument, "{rect:?}");
    }
    // A region of the full image is outside the scaled one.
    let rect = Rect { x: w - 1, y: 0, width: 1, height: 1 };
    assert!(jpeg.decode_crop(rect, Scale::Half, Channels::Rgb, &mut scratch).is_err());
    let crop = jpeg.decode_crop(Rect::full(4, 4), Scale::Full, Channels::Rgb, &mut scratch).unwrap();
    assert_eq!(crop.write_to(&mut [0; 47]).unwrap_err().kind(), ErrorKind::Shape);
}

#[test]
fn claimed_sizes_are_limited_before_decoding() {
    let file = encode(SamplingFactor::F_1_1, false);
    let frame = file.windows(2).position(|w| w == [0xFF, 0xC0]).expect("a frame");
    let claim = |height: u16, width: u16| {
        let mut file = file.clone();
        file[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
        file[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
        Jpeg::open(&file)
            .and_then(|jpeg| jpeg.decode(Channels::Rgb, &mut Scratch::default()))
            .unwrap_err()
            .kind()
    };
    assert_eq!(claim(65_500, 65_500), ErrorKind::Memory);
    assert_eq!(claim(11_000, 11_000), ErrorKind::Io);
}

#[test]
fn malformed_files_never_panic() {
    let mut scratch = Scratch::default();
    for (name, sampling) in
        [("444", SAMPLING[0]), ("422", SAMPLING[1]), ("440", SAMPLING[2]), ("420", SAMPLING[3])]
    {
        let file = encode(sampling, false);
        let rng = CounterRng::new(5, name);
        for i in 0..600 {
            let mut bytes = file.clone();
            for k in 0..1 + i % 4 {
                let at = (rng.uniform(i, 2 * k) * bytes.len() as f64) as usize;
                bytes[at] = (rng.uniform(i, 2 * k + 1) * 256.0) as u8;
            }
            if i % 3 == 0 {
                bytes.truncate((rng.uniform(i, 99) * bytes.len() as f64) as usize);
            }
            let Ok(jpeg) = Jpeg::open(&bytes) else { continue };
            let (h, w) = jpeg.size();
            if h * w > 1 << 18 {
                continue;
            }
            if let Ok(pixels) = jpeg.decode(Channels::Rgb, &mut scratch) {
                assert_eq!(pixels.len(), h * w * 3);
            }
            let rect = Rect { x: 0, y: 0, width: Scale::Half.scaled(w), height: Scale::Half.scaled(h) };
            if let Ok(crop) = jpeg.decode_crop(rect, Scale::Half, Channels::Gray, &mut scratch) {
                crop.write_to(&mut vec![0; crop.len()]).unwrap();
            }
        }
    }
}
