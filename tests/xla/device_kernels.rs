//! Kernels of devices on timelines, from a plugin with a profiler. XLA's CPU plugin has none, so a
//! library adds one to it, whose recordings it writes itself.

use crate::{child, fake_plugin, timeline, trace};
use std::path::Path;
use tensorpack::callback::Profiler;
use tensorpack::runtime::Device;

const DIR: &str = "TENSORPACK_TEST_KERNELS";
const REAL: &str = "TENSORPACK_TEST_REAL_PLUGIN";

/// Another plugin, with a profiler. Its recordings have one kernel, from start to stop.
const PLUGIN: &str = r#"
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

#[repr(C)]
pub struct Extension { size: usize, kind: c_int, next: usize, table: usize, context: i64 }
#[repr(C)]
pub struct Table { size: usize, private: usize, functions: [usize; 8] }
#[repr(C)]
pub struct Create { size: usize, options: *const u8, options_size: usize, profiler: usize }
#[repr(C)]
pub struct Collect { size: usize, profiler: usize, buffer: *mut u8, buffer_size: usize }

static TIMES: Mutex<Vec<u64>> = Mutex::new(Vec::new());
static DATA: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn now() { TIMES.lock().unwrap().push(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64) }

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value > 127 { to.push(value as u8 | 128); value >>= 7 }
    to.push(value as u8)
}
fn number(to: &mut Vec<u8>, field: u64, value: u64) { varint(to, field << 3); varint(to, value) }
fn part(to: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    varint(to, field << 3 | 2);
    varint(to, bytes.len() as u64);
    to.extend(bytes)
}

extern "C" fn nothing(_: *mut c_void) -> usize { 0 }
extern "C" fn create(args: &mut Create) -> usize { args.profiler = 1; 0 }
extern "C" fn start(_: *mut c_void) -> usize { now(); 0 }
extern "C" fn stop(_: *mut c_void) -> usize { if TIMES.lock().unwrap().len() % 2 == 1 { now() } 0 }
extern "C" fn collect(args: &mut Collect) -> usize {
    let times = TIMES.lock().unwrap();
    let [start, stop] = times[times.len() - 2..] else { unreachable!() };
    let (mut event, mut line, mut metadata, mut entry, mut plane) = (vec![], vec![], vec![], vec![], vec![]);
    number(&mut event, 1, 7);
    number(&mut event, 2, 1_000_000);
    number(&mut event, 3, (stop - start) * 1000 - 1_000_000);
    number(&mut line, 1, 3);
    part(&mut line, 2, b"Stream #3");
    number(&mut line, 3, start);
    part(&mut line, 4, &event);
    part(&mut metadata, 2, b"fake_kernel");
    number(&mut entry, 1, 7);
    part(&mut entry, 2, &metadata);
    part(&mut plane, 2, b"/device:FAKE:0");
    part(&mut plane, 3, &line);
    part(&mut plane, 4, &entry);
    let mut data = DATA.lock().unwrap();
    data.clear();
    part(&mut data, 1, &plane);
    // As XLA's GPU plugin does.
    data.push(0);
    (args.buffer, args.buffer_size) = (data.as_mut_ptr(), data.len());
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const usize {
    let path = CString::new(std::env::var("TENSORPACK_TEST_REAL_PLUGIN").unwrap()).unwrap();
    unsafe {
        let get = dlsym(dlopen(path.as_ptr(), 2), c"GetPjrtApi".as_ptr());
        let get: extern "C" fn() -> *const usize = std::mem::transmute(get);
        let real = get();
        let copy = std::slice::from_raw_parts(real, *real / 8).to_vec().leak();
        let none = nothing as *const () as usize;
        let functions = [none, none, none, create as *const () as usize, none, start as *const () as usize,
            stop as *const () as usize, collect as *const () as usize];
        let table = Box::into_raw(Box::new(Table { size: 80, private: 0, functions })) as usize;
        let extension = Extension { size: 40, kind: 1, next: copy[1], table, context: 0 };
        copy[1] = Box::into_raw(Box::new(extension)) as usize;
        copy.as_ptr()
    }
}"#;

/// Runs in a child process: trains on the plugin of the environment.
#[test]
fn child_that_records() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let device: Device = "xla:cpu:0".parse().unwrap();
    timeline::train(Path::new(&dir), &[device], 1, Some(Profiler::steps(2..=4)));
}

#[test]
fn kernels_of_a_device_are_on_the_timeline_at_their_time() {
    let Some(real) = tensorpack_testing::plugin_for_tests("cpu") else { return };
    let dir = tempfile::tempdir().unwrap();
    let Some(plugin) = fake_plugin(dir.path(), "profiled", PLUGIN) else { return };
    let run = dir.path().join("run");
    let mut command = child("device_kernels::child_that_records");
    command.env(DIR, &run).env("TENSORPACK_PJRT_PLUGIN", plugin).env(REAL, real.path());
    let output = command.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    assert!(log.contains("kernels of the devices in the timeline: 1"), "{log}");
    let trace = trace::read(&run.join("timeline-2-4.json"));
    let kernel = trace.named("fake_kernel")[0];
    assert_eq!(trace.names("device"), ["fake_kernel"]);
    // It has recorded from before step 2 to after step 4, and not much longer: with the host's clock.
    let steps = [2, 3, 4].map(|step| trace.named(&format!("step {step}"))[0]);
    let slack = 200_000_000;
    assert!(kernel.begun <= steps[0].begun && steps[0].begun - kernel.begun < slack, "{kernel:?} {steps:?}");
    assert!(steps[2].ended <= kernel.ended && kernel.ended - steps[2].ended < slack, "{kernel:?} {steps:?}");
}
