//! The names that the protocol has for data types.

use tensorpack::DType;

const NAMES: [(DType, &str); 8] = [
    (DType::Bool, "BOOL"),
    (DType::U8, "UINT8"),
    (DType::I32, "INT32"),
    (DType::I64, "INT64"),
    (DType::F16, "FP16"),
    (DType::Bf16, "BF16"),
    (DType::F32, "FP32"),
    (DType::F64, "FP64"),
];

/// Returns the protocol's name of a data type.
pub(super) fn name_of(dtype: DType) -> &'static str {
    NAMES.iter().find(|(d, _)| *d == dtype).map_or("BYTES", |(_, name)| name)
}

/// Returns a shape as the protocol writes it, with -1 for a size that requests choose.
pub(super) fn shape(sizes: &[Option<usize>]) -> Vec<i64> {
    sizes.iter().map(|n| n.map_or(-1, |n| n as i64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_name() {
        for dtype in DType::ALL {
            assert_ne!(name_of(dtype), "BYTES", "{dtype}");
        }
    }
}
