#![no_main]

use tensorpack_jpeg::{Channels, Jpeg, Rect, Scale, Scratch};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(jpeg) = Jpeg::open(bytes) else { return };
    let (height, width) = jpeg.size();
    // Larger images may legitimately need more memory than libFuzzer allows.
    if height * width > 1 << 16 {
        return;
    }
    let mut scratch = Scratch::default();
    if let Ok(pixels) = jpeg.decode(Channels::Rgb, &mut scratch) {
        assert_eq!(pixels.len(), height * width * 3);
    }
    for scale in [Scale::Full, Scale::Half, Scale::Quarter, Scale::Eighth] {
        let (h, w) = (scale.scaled(height), scale.scaled(width));
        let rect = Rect { x: w / 3, y: h / 3, width: w - w / 3, height: h - h / 3 };
        if let Ok(crop) = jpeg.decode_crop(rect, scale, Channels::Rgb, &mut scratch) {
            crop.write_to(&mut vec![0; crop.len()]).expect("the buffer has the right length");
        }
    }
});
