//! Builds libraries that act as plugins.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles Rust source text to a dynamic library.
pub(crate) fn build(folder: &Path, name: &str, text: &str) -> PathBuf {
    let source = folder.join(format!("{name}.rs"));
    fs::write(&source, text).unwrap();
    let library = folder.join(format!("lib{name}.so"));
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let built = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=cdylib", "-Cpanic=abort", "-o"])
        .args([&library, &source])
        .status();
    assert!(built.unwrap().success());
    library
}
