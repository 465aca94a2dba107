//! Clients of several processes, with a plugin made for this test: what it gets from the key-value
//! store, and what it is told about processes. Its library uses the format of Linux.

#![cfg(target_os = "linux")]

mod fake_plugin;

use libloading::{Library, Symbol};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_pjrt::{Client, Device, DistributedOptions, KeyValueStore, Plugin};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

const LONG: Duration = Duration::from_secs(60);

/// A store in memory, which fails once a rank is dead.
#[derive(Default)]
struct Memory {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    values: HashMap<String, Vec<u8>>,
    is_dead: bool,
}

impl State {
    fn check(&self) -> Result<()> {
        match self.is_dead {
            true => Err(Error::new(ErrorKind::Peer, "rank 1 on node7: its connection ended")),
            false => Ok(()),
        }
    }
}

impl Memory {
    fn kill(&self) {
        self.state.lock().unwrap().is_dead = true;
        self.changed.notify_all();
    }
}

impl KeyValueStore for Memory {
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let state = self.state.lock().unwrap();
        let missing = |state: &mut State| !state.is_dead && !state.values.contains_key(key);
        let (state, _) = self.changed.wait_timeout_while(state, timeout, missing).unwrap();
        state.check()?;
        let late = || Error::new(ErrorKind::Deadline, format!("no rank stored {key:?}"));
        state.values.get(key).cloned().ok_or_else(late)
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let state = self.state.lock().unwrap();
        state.check()?;
        Ok(state.values.get(key).cloned())
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<bool> {
        let mut state = self.state.lock().unwrap();
        state.check()?;
        let is_new = !state.values.contains_key(key);
        state.values.entry(key.into()).or_insert_with(|| value.into());
        self.changed.notify_all();
        Ok(is_new)
    }
}

fn library(folder: &Path, name: &str) -> PathBuf {
    fake_plugin::build(folder, name, include_str!("fake_plugin/several_processes.rs"))
}

fn create(plugin: &Arc<Plugin>, rank: usize, size: usize, store: &Arc<Memory>) -> Result<Client> {
    let options = DistributedOptions::new(rank, size, store.clone())
        .abort_collectives_on_failure(true)
        .longest_wait(Duration::from_secs(2));
    Client::new_distributed(plugin, &[], &options, LONG, &|| Ok(()))
}

/// What the plugin was told about processes: a line for each update.
fn updates(library: &Path) -> Vec<String> {
    // SAFETY: the library is the one of this test, which is loaded already; the function has this type,
    // and its result has the stated size.
    let text = unsafe {
        let library = Library::new(library).unwrap();
        let updates: Symbol<'_, unsafe extern "C" fn(&mut usize) -> *const u8> =
            library.get(b"updates").unwrap();
        let mut size = 0;
        let text = updates(&mut size);
        String::from_utf8(std::slice::from_raw_parts(text, size).to_vec()).unwrap()
    };
    text.lines().map(str::to_owned).collect()
}

#[test]
fn processes_find_each_other_and_learn_of_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let file = library(dir.path(), "three");
    let plugin = Plugin::open(&file).unwrap();
    let store = Arc::<Memory>::default();
    let create = |rank| {
        let (plugin, store) = (plugin.clone(), store.clone());
        thread::spawn(move || create(&plugin, rank, 3, &store).unwrap())
    };
    let threads: Vec<_> = (0..3).map(create).collect();
    let clients: Vec<Client> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    for (rank, client) in clients.iter().enumerate() {
        assert_eq!(client.process_index().unwrap(), rank);
        let devices: Vec<_> = client.global_devices().iter().map(|d| (d.id(), d.process_index())).collect();
        assert_eq!(devices, [(0, 2), (1, 1), (2, 0)], "the plugin's order is not that of ranks");
        let own: Vec<_> = client.devices().iter().map(Device::id).collect();
        assert_eq!(own, [2 - rank as i64]);
        for device in client.global_devices() {
            assert_eq!(device.is_addressable(), device.process_index() == rank);
        }
        let other = client.global_devices().iter().find(|d| !d.is_addressable()).unwrap();
        let e = client.upload(&HostTensor::scalar(1.0f32), other).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Argument);
        assert!(e.message().contains(&format!("process {}", other.process_index())), "{e}");
        assert_eq!(other.memory().unwrap_err().kind(), ErrorKind::Argument);
        assert!(client.store_error().is_none());
    }
    // The plugin compares states, so it is told first that all are connected (3).
    assert_eq!(updates(&file), ["0 1 3 ;1 2 3 ;2 3 3 ;"; 3]);
    clients[0].abort_collectives(1, "rank 1 is gone").unwrap();
    assert_eq!(updates(&file)[3], "0 1 3 ;1 2 4 rank 1 is gone;2 3 3 ;");
    assert_eq!(clients[0].abort_collectives(3, "").unwrap_err().kind(), ErrorKind::Argument);

    // A store lives as long as a client that may call it.
    let mut clients = clients.into_iter();
    assert_eq!(Arc::strong_count(&store), 4);
    drop(clients.next());
    assert_eq!(Arc::strong_count(&store), 3);
    let abandoned = clients.next().unwrap();
    abandoned.abandon();
    assert!(abandoned.abort_collectives(0, "").unwrap_err().message().contains("abandoned"));
    drop(abandoned);
    assert_eq!(Arc::strong_count(&store), 3, "its threads may still call the store");
}

#[test]
fn the_error_of_a_store_is_the_clients() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = Plugin::open(&library(dir.path(), "two")).unwrap();
    let store = Arc::<Memory>::default();
    // Nobody else comes. The plugin asks for a day, which the options cap.
    let begun = Instant::now();
    let e = create(&plugin, 0, 2, &store).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Deadline, "{e}");
    assert!(e.message().contains("local_topology/1"), "{e}");
    assert!(begun.elapsed() >= Duration::from_secs(2) && begun.elapsed() < LONG);

    let store = Arc::<Memory>::default();
    let dying = store.clone();
    let killer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        dying.kill();
    });
    let begun = Instant::now();
    let e = create(&plugin, 0, 2, &store).unwrap_err();
    killer.join().unwrap();
    assert_eq!(e.kind(), ErrorKind::Peer, "{e}");
    assert!(e.message().contains("rank 1 on node7"), "{e}");
    assert!(begun.elapsed() < Duration::from_secs(2), "the wait ends at once");
}
