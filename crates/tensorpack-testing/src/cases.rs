//! The number of cases of randomised tests.

/// Returns the number of cases to run: `TENSORPACK_TEST_CASES`, or `default` if it is not set.
///
/// # Panics
/// If the variable is not a number.
pub fn test_cases(default: u32) -> u32 {
    match std::env::var("TENSORPACK_TEST_CASES") {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("TENSORPACK_TEST_CASES is {text:?}: {e}")),
        Err(_) => default,
    }
}
