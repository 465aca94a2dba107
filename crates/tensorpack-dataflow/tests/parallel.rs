//! Parallel adaptors: determinism, errors, timeouts and shutdown.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_dataflow::tensor::{DType, Error, ErrorKind, HostTensor, Result};
use tensorpack_dataflow::{
    ComponentSpec, DataFlow, Flow, FromChannel, FromFn, FromIter, FromList, Reader, Resume, Sample, Seed,
    State,
};

fn numbers(n: u64) -> FromFn {
    FromFn::new(n, |i| Ok(vec![HostTensor::scalar(i as i64)]))
}

/// The same, but sequential only.
fn stream(n: u64) -> FromIter {
    FromIter::new(move |_| (0..n).map(|i| Ok(vec![HostTensor::scalar(i as i64)])))
}

fn value(sample: &Sample) -> u64 {
    sample[0].to_scalar().expect("a scalar") as u64
}

fn open(flow: &impl DataFlow) -> Box<dyn Reader> {
    flow.open(Seed::new(1), &State::start()).expect("opens")
}

fn pass(reader: &mut dyn Reader) -> Vec<u64> {
    let mut all = Vec::new();
    while let Some(sample) = reader.read().expect("no sample fails") {
        all.push(value(&sample));
    }
    all
}

/// An input with random access and a sequential one.
fn both(n: u64) -> [Flow; 2] {
    [numbers(n).into_flow(), stream(n).into_flow()]
}

#[test]
fn worker_panic_is_an_error_in_order() {
    for input in both(6) {
        let flow = input.map_parallel(3, |sample, _| {
            assert!(value(&sample) != 2, "no twos please");
            Ok(sample)
        });
        let mut reader = open(&flow);
        for epoch in 0..3 {
            for i in 0..6 {
                assert_eq!(reader.state(), State::at(epoch, i));
                match reader.read() {
                    Ok(sample) => assert_eq!(value(&sample.expect("inside the pass")), i),
                    Err(e) => {
                        assert_eq!((i, e.kind()), (2, ErrorKind::Data));
                        let want = format!("sample 2 of epoch {epoch}: ");
                        assert!(
                            e.message().starts_with(&want) && e.message().contains("no twos please"),
                            "{e}"
                        );
                    }
                }
            }
            assert!(reader.read().expect("no sample fails").is_none());
        }
    }
}

#[test]
fn input_panic_is_an_error() {
    let input = FromIter::new(|_| {
        (0..4).map(|i| {
            assert!(i != 1, "the source is broken");
            Ok(vec![HostTensor::scalar(i)])
        })
    });
    let mut reader = open(&input.prefetch(2));
    assert!(reader.read().expect("the first is fine").is_some());
    let e = reader.read().expect_err("the second panics");
    assert!(e.message().starts_with("sample 1 of epoch 0: "), "{e}");
}

#[test]
fn errors_name_the_sample_and_the_path() {
    let files = FromFn::new(20, |i| match i {
        17 => Err(Error::new(ErrorKind::Io, "/data/cat.jpg: not a JPEG file")),
        _ => Ok(vec![HostTensor::scalar(i as i64)]),
    });
    let flow = files.map_parallel(4, |sample, _| match value(&sample) {
        5 => Err(Error::shape("too small")),
        _ => Ok(sample),
    });
    let mut reader = flow.open(Seed::new(0), &State::at(3, 0)).expect("opens");
    let mut errors = Vec::new();
    for _ in 0..20 {
        errors.extend(reader.read().err().map(|e| e.message().to_string()));
    }
    let want = ["sample 5 of epoch 3: too small", "sample 17 of epoch 3: /data/cat.jpg: not a JPEG file"];
    assert_eq!(errors, want);
    assert_eq!(reader.state(), State::at(3, 20));
}

#[test]
fn unordered_passes_keep_their_samples() {
    for input in both(50) {
        let flow = input.map_parallel(4, |sample, rng| {
            thread::sleep(Duration::from_micros(rng.below(300)));
            Ok(sample)
        });
        let flow = flow.unordered();
        assert_eq!((flow.size().is_some_and(|n| n != 50), flow.resume()), (false, Resume::Never));
        let mut reader = open(&flow);
        for epoch in 0..4 {
            assert_eq!(reader.state(), State::at(epoch, 0));
            let mut all = pass(&mut *reader);
            all.sort_unstable();
            assert!(all.into_iter().eq(0..50), "epoch {epoch}");
        }
        assert!(flow.open(Seed::new(1), &State::at(2, 0)).is_ok());
        let e = flow.open(Seed::new(1), &State::at(2, 5)).err().expect("it cannot know which five");
        assert_eq!(e.kind(), ErrorKind::Unsupported);
    }
}

#[test]
fn timeout_names_stage_and_sample_and_can_be_retried() {
    let release = Arc::new(AtomicBool::new(false));
    let held = release.clone();
    let flow = numbers(8).map_parallel(2, move |sample, _| {
        while value(&sample) == 3 && !held.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(sample)
    });
    let mut reader = open(&flow.timeout(Duration::from_secs(1)));
    for _ in 0..3 {
        assert!(reader.read().expect("in time").is_some());
    }
    for _ in 0..2 {
        let e = reader.read().expect_err("it hangs");
        assert_eq!(e.kind(), ErrorKind::Deadline);
        assert!(e.message().starts_with("sample 3 of epoch 0: map_parallel"), "{e}");
        assert_eq!(reader.state(), State::at(0, 3));
    }
    release.store(true, Ordering::Relaxed);
    let rest: Vec<u64> = std::iter::from_fn(|| {
        loop {
            match reader.read() {
                Err(e) if e.kind() == ErrorKind::Deadline => continue,
                read => return read.expect("no sample fails").as_ref().map(value),
            }
        }
    })
    .collect();
    assert_eq!(rest, [3, 4, 5, 6, 7]);
}

/// Adaptors that read several samples at a time, over an input that delays every fifth.
fn slow_pipelines(timeout: Duration) -> [Flow; 7] {
    let slow = || {
        let flow = stream(20).map(|sample| {
            let pause = if value(&sample) % 5 == 3 { 25 } else { 0 };
            thread::sleep(Duration::from_millis(pause));
            Ok(sample)
        });
        flow.timeout(timeout)
    };
    [
        slow().batch(6).keep_remainder().into_flow(),
        slow().shuffle_window(6).into_flow(),
        slow().zip(slow()).into_flow(),
        slow().filter(|sample| Ok(value(sample) % 2 == 1)).into_flow(),
        slow().repeat_each(3).into_flow(),
        slow().shard(1, 3).into_flow(),
        slow().skip_errors(1).concat(slow()).into_flow(),
    ]
}

/// Returns what two passes read and how often they timed out.
fn two_passes(flow: &Flow) -> (Vec<Option<Sample>>, usize) {
    let mut reader = open(flow);
    let (mut all, mut late) = (Vec::new(), 0);
    while reader.state().epoch < 2 {
        let before = reader.state();
        match reader.read() {
            Err(e) if e.kind() == ErrorKind::Deadline => {
                assert_eq!((reader.state().epoch, reader.state().index), (before.epoch, before.index));
                late += 1;
            }
            read => all.push(read.expect("no sample fails")),
        }
    }
    (all, late)
}

/// A timeout neither loses nor repeats samples.
#[test]
fn timeout_loses_no_samples() {
    let (short, long) = (slow_pipelines(Duration::from_millis(5)), slow_pipelines(Duration::from_secs(60)));
    for (i, (short, long)) in short.iter().zip(&long).enumerate() {
        let (got, late) = two_passes(short);
        let (want, never) = two_passes(long);
        assert_eq!(got, want, "flow {i}");
        assert!(late > 0 && never == 0, "flow {i} was late {late} times, and {never} times with time enough");
    }
}

/// A timeout too long for the clock never ends a wait.
#[test]
fn longest_timeout_reads_all_samples() {
    for (i, flow) in slow_pipelines(Duration::MAX).iter().enumerate() {
        let (got, late) = two_passes(flow);
        assert_eq!((got, late), two_passes(&slow_pipelines(Duration::from_secs(60))[i]), "flow {i}");
    }
    let (sender, receiver) = mpsc::channel();
    let sample = vec![HostTensor::scalar(7i64)];
    sender.send(sample.clone()).expect("the channel is open");
    let mut reader = open(&FromChannel::new(receiver).timeout(Duration::MAX));
    assert_eq!(reader.read().expect("a sample was sent"), Some(sample));
}

#[test]
fn deadline_error_inside_a_function_is_a_failed_sample() {
    let flow = numbers(6).map(|sample| match value(&sample) {
        1 => Err(Error::new(ErrorKind::Deadline, "the server did not answer")),
        _ => Ok(sample),
    });
    let mut reader = open(&flow.batch(3));
    let e = reader.read().expect_err("the second fails");
    assert_eq!((e.kind(), e.message()), (ErrorKind::Data, "sample 1 of epoch 0: the server did not answer"));
    let batch = reader.read().expect("no sample fails").expect("the second batch");
    assert_eq!(batch[0].as_slice::<i64>().expect("numbers"), [3, 4, 5]);
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Returns whether only `count` threads remain. A joined thread stays listed until the kernel has
/// reaped it.
fn wait_for_threads(count: usize) -> bool {
    let began = Instant::now();
    while threads() != count && began.elapsed() < Duration::from_secs(30) {
        thread::sleep(Duration::from_millis(1));
    }
    threads() == count
}

/// Runs a test in its own process, since other tests have threads too.
fn in_own_process(test: &str) -> bool {
    if std::env::var_os("TENSORPACK_ALONE").is_some() {
        return true;
    }
    let me = std::env::current_exe().expect("this program");
    let run = std::process::Command::new(me)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("TENSORPACK_ALONE", "1")
        .output()
        .expect("it runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    // A wrong name would run nothing, and succeed.
    let output = String::from_utf8_lossy(&run.stdout);
    assert!(output.contains("1 passed"), "{test} did not run: {output}");
    false
}

#[test]
fn dropping_a_blocked_reader_joins_its_threads() {
    if !in_own_process("parallel::dropping_a_blocked_reader_joins_its_threads") {
        return;
    }
    let before = threads();
    let drop_quickly = |what: &str, reader: Box<dyn Reader>| {
        thread::sleep(Duration::from_millis(30));
        let began = Instant::now();
        drop(reader);
        assert!(began.elapsed() < Duration::from_secs(2), "{what}: {:?}", began.elapsed());
        assert!(wait_for_threads(before), "{what}: {} threads, not {before}", threads());
    };
    // Blocked on a full buffer.
    drop_quickly("full", open(&numbers(1000).repeat_forever().map_parallel(4, |s, _| Ok(s)).prefetch(2)));
    // Blocked on an empty one: nothing is ever sent.
    let (sender, receiver) = mpsc::channel();
    let nothing = FromChannel::new(receiver);
    drop_quickly(
        "empty",
        open(&nothing.map_parallel(3, |s, _| Ok(s)).batch(2).prefetch(2).map_parallel(2, |s, _| Ok(s))),
    );
    drop(sender);
    // In a filter that drops everything.
    drop_quickly("filter", open(&numbers(10).repeat_forever().filter(|_| Ok(false)).prefetch(1)));
    // In the middle of a pass with two stages.
    let mut reader = open(&stream(100).map_batch(3, 4, [], |_, _, _| Ok(())).prefetch(3));
    (0..7).for_each(|_| drop(reader.read().expect("no sample fails")));
    drop_quickly("middle", reader);
    // A thread that never returns is detached after a timeout.
    let stuck = numbers(9).map_parallel(2, |sample, _| {
        if value(&sample) == 1 {
            thread::sleep(Duration::from_secs(3600));
        }
        Ok(sample)
    });
    let mut reader = open(&stuck.timeout(Duration::from_secs(1)));
    assert!(reader.read().expect("the first").is_some());
    assert_eq!(reader.read().expect_err("stuck").kind(), ErrorKind::Deadline);
    let began = Instant::now();
    drop(reader);
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[test]
fn many_passes_leak_nothing() {
    if !in_own_process("parallel::many_passes_leak_nothing") {
        return;
    }
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
        statm.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).expect("a number of pages")
            * 4096.0
    };
    let files = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let (threads_before, files_before) = (threads(), files());
    let random = FromFn::new(24, |i| Ok(vec![HostTensor::new([64], vec![i as f32; 64])?]));
    let flow = random
        .shuffle()
        .map_parallel(3, |mut sample, rng| {
            sample[0].as_mut_slice::<f32>()?[0] = rng.uniform() as f32;
            Ok(sample)
        })
        .filter(|_| Ok(true))
        .shuffle_window(5)
        .batch(4)
        .prefetch(2);
    let mut reader = open(&flow);
    let mut sizes = Vec::new();
    for epoch in 0..2000 {
        while reader.read().expect("no sample fails").is_some() {}
        if epoch >= 200 && epoch % 10 == 0 {
            sizes.push(resident());
        }
        // Reopen from time to time.
        if epoch % 20 == 0 {
            reader = flow.open(Seed::new(1), &reader.state()).expect("opens");
        }
    }
    drop(reader);
    assert!(wait_for_threads(threads_before), "{} threads, not {threads_before}", threads());
    assert_eq!(files(), files_before);
    // Least-squares slope in bytes per epoch.
    let mean_x = (sizes.len() - 1) as f64 / 2.0;
    let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
    let (mut xy, mut xx) = (0.0, 0.0);
    for (x, y) in sizes.iter().enumerate() {
        let x = x as f64 - mean_x;
        xy += x * (y - mean);
        xx += x * x;
    }
    let slope = xy / xx / 10.0;
    assert!(slope < 100.0, "{slope} bytes an epoch");
}

#[test]
fn channel_is_read_once() {
    let (sender, receiver) = mpsc::channel();
    let sending = thread::spawn(move || {
        (0..5).for_each(|i| sender.send(vec![HostTensor::scalar(i64::from(i))]).expect("somebody reads"));
    });
    let flow = FromChannel::new(receiver);
    assert!(flow.open(Seed::new(0), &State::at(0, 3)).is_err());
    let mut reader = open(&flow);
    assert_eq!(pass(&mut *reader), [0, 1, 2, 3, 4]);
    sending.join().expect("it sent all");
    let e = reader.read().expect_err("there is no second pass");
    assert_eq!(e.kind(), ErrorKind::Data);
    assert!(flow.open(Seed::new(0), &State::start()).is_err());

    let (_sender, receiver) = mpsc::channel();
    let mut reader = open(&FromChannel::new(receiver).timeout(Duration::from_millis(10)));
    let e = reader.read().expect_err("nothing was sent");
    assert_eq!(e.kind(), ErrorKind::Deadline);
}

#[test]
fn once_iterator_is_read_once() {
    let flow = FromIter::once((0..3).map(|i| Ok(vec![HostTensor::scalar(i)])));
    assert_eq!(flow.resume(), Resume::Never);
    assert!(
        flow.open(Seed::new(0), &State::at(0, 1)).is_err_and(|e| e.to_string().contains("FromIter::new"))
    );
    let mut reader = open(&flow);
    assert_eq!(pass(&mut *reader), [0, 1, 2]);
    assert!(reader.read().is_err_and(|e| e.to_string().contains("FromIter::new")));
}

#[test]
fn declared_size_is_enforced() {
    let sized = |said| stream(4).with_size(said);
    assert_eq!(pass(&mut *open(&sized(4))), [0, 1, 2, 3]);
    let read = |said| -> Vec<Result<Option<Sample>>> {
        let mut reader = open(&sized(said));
        (0..6).map(|_| reader.read()).collect()
    };
    let few = read(5);
    let e = few[4].as_ref().expect_err("one is missing");
    assert!(e.kind() == ErrorKind::Data && e.message().contains("declared size is 5"), "{e}");
    assert!(few[5].as_ref().is_ok_and(Option::is_none));
    let many = read(3);
    let e = many[3].as_ref().expect_err("one too many");
    assert!(e.kind() == ErrorKind::Data && e.message().contains("declared size of 3"), "{e}");
    assert!(many[4].as_ref().is_ok_and(Option::is_none));
}

#[test]
fn map_batch_matches_map_then_batch() {
    let components = [ComponentSpec::new(DType::F32, [2]), ComponentSpec::new(DType::I64, [])];
    let flow = numbers(23).map_batch(3, 5, components, |sample, rng, slot| {
        slot.component::<f32>(0)?.fill(rng.uniform() as f32);
        slot.component::<i64>(1)?.copy_from_slice(sample[0].as_slice()?);
        Ok(())
    });
    let flow = flow.keep_remainder();
    let plain = numbers(23).map_random(|sample, rng| {
        let x = rng.uniform() as f32;
        Ok(vec![HostTensor::new([2], vec![x, x])?, sample[0].clone()])
    });
    let plain = plain.batch(5).keep_remainder();
    assert_eq!((flow.size(), plain.size()), (Some(5), Some(5)));
    let (mut a, mut b) = (open(&flow), open(&plain));
    for _ in 0..15 {
        assert_eq!(a.read().expect("no sample fails"), b.read().expect("no sample fails"));
    }
    let wrong = numbers(5).map_batch(2, 5, [ComponentSpec::new(DType::F32, [2])], |_, _, slot| {
        slot.component::<f64>(0).map(|_| ())
    });
    let e = open(&wrong).read().expect_err("the type is wrong");
    assert!(e.message().starts_with("sample 0 of epoch 0: component 0: "), "{e}");
}

#[test]
fn invalid_arguments_fail_on_open() {
    let cases = [
        (numbers(3).batch(0).into_flow(), ErrorKind::Argument, "batch"),
        (numbers(3).batch(4).into_flow(), ErrorKind::Argument, "batch size 4"),
        (numbers(3).map_parallel(0, |s, _| Ok(s)).into_flow(), ErrorKind::Argument, "map_parallel"),
        (numbers(3).shard(3, 3).into_flow(), ErrorKind::Argument, "index 3"),
        (stream(3).shuffle().into_flow(), ErrorKind::Unsupported, "shuffle_window"),
        (stream(3).shuffle_window(0).into_flow(), ErrorKind::Argument, "shuffle_window"),
    ];
    for (flow, kind, term) in cases {
        let e = flow.open(Seed::new(0), &State::start()).err().expect("the argument is invalid");
        assert!(e.kind() == kind && e.to_string().contains(term), "{term}: {e}");
    }
}

#[test]
fn workers_read_indexed_inputs_concurrently() {
    let ids = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let seen = ids.clone();
    let files = FromFn::new(40, move |i| {
        seen.lock().expect("no panic").insert(format!("{:?}", thread::current().id()));
        thread::sleep(Duration::from_millis(2));
        Ok(vec![HostTensor::scalar(i as i64)])
    });
    assert!(pass(&mut *open(&files.map_parallel(4, |s, _| Ok(s)))).into_iter().eq(0..40));
    assert!(ids.lock().expect("no panic").len() > 1);
}

#[test]
fn prefetch_crosses_pass_boundaries() {
    let flow = FromList::new((0..3).map(|i| vec![HostTensor::scalar(i)]).collect()).prefetch(10);
    let mut reader = open(&flow);
    for _ in 0..4 {
        assert_eq!(pass(&mut *reader), [0, 1, 2]);
    }
    assert_eq!(reader.state(), State::at(4, 0));
}
