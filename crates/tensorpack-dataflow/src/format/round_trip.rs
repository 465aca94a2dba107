//! Round-trip tests shared by the serializers.

use super::RandomAccess;
use crate::{DataFlow, FromList, Sample, Seed, State};
use std::path::PathBuf;
use tensorpack_tensor::{DType, HostTensor, Result};

/// Samples of every dtype and of unusual shapes.
pub(super) fn test_samples() -> Vec<Sample> {
    let shapes: [&[usize]; 5] = [&[], &[0], &[3], &[2, 3, 1], &[4, 0, 2]];
    let sample = |dtype: DType| {
        let tensor = |sizes: &[usize]| {
            let n = sizes.iter().product::<usize>();
            let values: Vec<f64> = (0..n).map(|i| ((i * 7 + 1) % 5) as f64).collect();
            HostTensor::from_f64(dtype, sizes, &values).unwrap()
        };
        shapes.iter().map(|s| tensor(s)).collect()
    };
    DType::ALL.into_iter().map(sample).collect()
}

/// Checks that saved samples are read back in order and by index, and that an empty dataflow works.
pub(super) fn assert_round_trip<S: RandomAccess>(
    save: impl Fn(&dyn DataFlow, PathBuf) -> Result<u64>,
    load: impl Fn(PathBuf) -> Result<S>,
) {
    let dir = tempfile::tempdir().unwrap();
    let samples = test_samples();
    let path = dir.path().join("samples");
    assert_eq!(save(&FromList::new(samples.clone()), path.clone()).unwrap(), samples.len() as u64);
    let loaded = load(path.clone()).unwrap();
    let mut reader = loaded.open(Seed::new(1), &State::at(0, 2)).unwrap();
    assert_eq!(reader.read().unwrap().as_ref(), Some(&samples[2]));
    for i in (0..samples.len()).rev() {
        assert_eq!(loaded.get(i as u64).unwrap(), samples[i]);
    }
    assert!(loaded.get(samples.len() as u64).is_err());
    assert!(save(&FromList::new(samples), path.clone()).is_err(), "overwritten");

    let empty = dir.path().join("empty");
    save(&FromList::new(vec![]), empty.clone()).unwrap();
    assert!(load(empty.clone()).unwrap().is_empty());
}
