//! Plugins that never return from a call. Alone in its process, which installs a logger and must
//! exit while the calls still hang. Its plugins use the format of libraries on Linux.

#![cfg(target_os = "linux")]

mod fake_plugin;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tensorpack_pjrt::{Client, CompileOptions, Plugin};
use tensorpack_tensor::{Error, ErrorKind};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Recorder;

impl log::Log for Recorder {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        LINES.lock().unwrap().push(record.args().to_string());
    }
    fn flush(&self) {}
}

/// Where a plugin hangs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hang {
    /// In an initializer of the library, which runs while it is loaded.
    Load,
    GetApi,
    /// In this function of the table.
    Function(usize),
}

/// The positions of functions in the table.
const INITIALIZE: usize = 3;
const CREATE_CLIENT: usize = 10;
const EXECUTE: usize = 55;

fn plugin(folder: &Path, name: &str, hang: Hang) -> PathBuf {
    let at = match hang {
        Hang::Function(at) => at,
        _ => usize::MAX,
    };
    let text = format!(
        "#[repr(C)]
        pub struct Table {{ size: usize, more: usize, version: [usize; 2], major: i32, minor: i32, functions: [usize; 300] }}
        unsafe extern \"C\" fn nothing() -> usize {{ 0 }}
        extern \"C\" fn hang() -> usize {{ loop {{ std::thread::sleep(std::time::Duration::from_secs(1)) }} }}
        extern \"C\" fn load() {{ if {load} {{ hang(); }} }}
        #[used]
        #[unsafe(link_section = \".init_array\")]
        static LOAD: extern \"C\" fn() = load;
        #[unsafe(no_mangle)]
        pub extern \"C\" fn GetPjrtApi() -> *const Table {{
            if {get_api} {{ hang(); }}
            let mut functions = [nothing as *const () as usize; 300];
            if let Some(function) = functions.get_mut({at}) {{ *function = hang as *const () as usize; }}
            Box::into_raw(Box::new(Table {{
                size: 40 + 8 * 300, more: 0, version: [24, 0], major: 0, minor: 99, functions,
            }}))
        }}",
        load = hang == Hang::Load,
        get_api = hang == Hang::GetApi,
    );
    fake_plugin::build(folder, name, &text)
}

/// Checks the error of a call with a deadline of `limit`.
#[track_caller]
fn check<T: std::fmt::Debug>(limit: Duration, call: impl FnOnce() -> Result<T, Error>, terms: &[&str]) {
    let begun = Instant::now();
    let e = call().unwrap_err();
    assert!(begun.elapsed() < limit + Duration::from_secs(10), "{e}");
    assert_eq!(e.kind(), ErrorKind::Deadline, "{e}");
    assert!(terms.iter().all(|term| e.to_string().contains(term)), "{e}");
}

#[test]
fn a_call_that_hangs_is_an_error_after_the_deadline() {
    log::set_logger(&Recorder).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let dir = tempfile::tempdir().unwrap();
    let short = Duration::from_millis(300);

    // A client. Messages come after 5 s.
    let open = Plugin::open(&plugin(dir.path(), "create", Hang::Function(CREATE_CLIENT))).unwrap();
    check(short, || Client::new_within(&open, &[], short, &|| Ok(())), &["libcreate", "client"]);
    assert_eq!(*LINES.lock().unwrap(), Vec::<String>::new());
    let long = Duration::from_millis(5500);
    check(long, || Client::new_within(&open, &[], long, &|| Ok(())), &["libcreate", "client"]);
    let lines = std::mem::take(&mut *LINES.lock().unwrap());
    assert!(lines.len() == 1 && lines[0].contains("waiting") && lines[0].contains("libcreate"), "{lines:?}");

    // An error of `check` ends the wait at once, for later calls, too.
    let stopped = || Err(Error::new(ErrorKind::Interrupted, "stopped"));
    let begun = Instant::now();
    let e = Client::new_within(&open, &[], Duration::from_secs(60), &stopped).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Interrupted, "{e}");
    assert!(e.to_string().contains("libcreate"), "{e}");
    let file = plugin(dir.path(), "stopped", Hang::Function(INITIALIZE));
    for check in [&stopped as &dyn Fn() -> Result<(), Error>, &|| Ok(())] {
        let e = Plugin::open_within(&file, Duration::from_secs(60), check).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Interrupted, "{e}");
    }
    assert!(begun.elapsed() < Duration::from_secs(30));
    // The start of a program, which waits for other processes.
    let open = Plugin::open(&plugin(dir.path(), "execute", Hang::Function(EXECUTE))).unwrap();
    let compile = || {
        let client = Client::new(&open, &[]).unwrap();
        let program = client.compile("", &CompileOptions::new()).unwrap();
        (client, program)
    };
    let (client, program) = compile();
    check(short, || program.execute_checking(&[], &[], short, || Ok(())), &["did not start"]);
    assert!(client.compile("", &CompileOptions::new()).unwrap_err().message().contains("abandoned"));
    let (client, program) = compile();
    let begun = Instant::now();
    let gone = || match begun.elapsed() < short {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Peer, "rank 1 is gone")),
    };
    let e = program.execute_checking(&[], &[], Duration::from_secs(3600), gone).unwrap_err();
    assert_eq!((e.kind(), e.message()), (ErrorKind::Peer, "rank 1 is gone"));
    assert!(begun.elapsed() >= short);
    assert!(client.compile("", &CompileOptions::new()).unwrap_err().message().contains("abandoned"));

    // The plugin itself. The loader's lock stays taken after the last of them.
    for (name, hang) in
        [("initialize", Hang::Function(INITIALIZE)), ("api", Hang::GetApi), ("load", Hang::Load)]
    {
        let file = plugin(dir.path(), name, hang);
        check(short, || Plugin::open_within(&file, short, &|| Ok(())), &[name]);
        // It is not tried again.
        let begun = Instant::now();
        assert_eq!(Plugin::open(&file).unwrap_err().kind(), ErrorKind::Deadline);
        assert!(begun.elapsed() < Duration::from_secs(10), "{name}");
    }
}
