//! Messages to a standard error that nobody reads, as after `2>&1 | head -1`.

use std::process::Command;
use tensorpack_dataflow::tensor::{Error, ErrorKind, HostTensor, Result};
use tensorpack_dataflow::{DataFlow, FromFn, Seed, State};

/// Set in the process whose standard error is closed.
const CHILD: &str = "TENSORPACK_TEST_CLOSED_OUTPUT";

fn read_with_a_failing_sample() -> Result<u64> {
    let flow = FromFn::new(3, |i| match i {
        1 => Err(Error::new(ErrorKind::Data, "damaged")),
        _ => Ok(vec![HostTensor::scalar(i as f32)]),
    });
    let mut reader = flow.skip_errors(1).open(Seed::new(0), &State::start())?;
    let mut samples = 0;
    while reader.read()?.is_some() {
        samples += 1;
    }
    Ok(samples)
}

#[test]
fn a_message_that_cannot_be_written_is_dropped() {
    if std::env::var_os(CHILD).is_some() {
        assert_eq!(read_with_a_failing_sample().unwrap(), 2);
        return;
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--nocapture", "a_message_that_cannot_be_written_is_dropped"]).env(CHILD, "1");
    let output = test.stderr(writer).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", output.status);
}
