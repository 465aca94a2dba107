/// Returns `len` values in -1.5..1.5, exact in f32, that depend on `seed` alone.
fn values(seed: u64, len: usize) -> Vec<f64> {
    let mixed = |i: u64| {
        let mut z = seed.wrapping_add((i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let value = |i: u64| (mixed(i) >> 40) as f64 / (1u64 << 24) as f64 * 3.0 - 1.5;
    (0..len as u64).map(|i| f64::from(value(i) as f32)).collect()
}

/// Returns `len` integers in 0..`below` that depend on `seed` alone.
fn indices(seed: u64, below: usize, len: usize) -> Vec<f64> {
    values(seed, len).iter().map(|v| ((v + 1.5) / 3.0 * below as f64).floor()).collect()
}

/// Returns the seed of the first values of the variable `name`.
fn seed_of(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3))
}
