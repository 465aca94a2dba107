//! The PJRT clients of the process: one per platform, because a client claims its devices.

use super::key_value_store::RendezvousStore;
use super::nccl_flags;
use super::peer_watch::PeerWatch;
use super::replicas::GlobalDevices;
use super::target::XlaOptions;
use crate::distributed::ProcessGroup;
use crate::runtime::{Interrupt, Platform, XLA_CPU_DEVICES};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tensorpack_pjrt::{Client, DistributedOptions, OptionValue, Plugin, find_plugin};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The most towers of one process: more than any machine has devices.
const MAX_TOWERS: usize = 1024;

/// A client with the devices that a session can use.
#[derive(Clone, Debug)]
pub(super) struct OpenClient {
    pub(super) client: Arc<Client>,
    /// The index on the platform of the client's first device.
    pub(super) first: usize,
    /// The other processes of the run, if there are any.
    pub(super) peers: Option<Peers>,
}

/// The processes of a group, as their clients see them.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    pub(super) watch: Arc<PeerWatch>,
    pub(super) devices: Arc<GlobalDevices>,
}

/// Returns the client of a platform, creating it at the first call. That may wait for a driver or
/// for another process, but no longer than the deadline of the options, and until an interrupt.
///
/// With a group, the client has devices `index` to `index + towers - 1` of the platform, and knows
/// those of the other processes. It is then the client of all sessions of this process.
pub(super) fn client(
    platform: Platform,
    index: usize,
    group: Option<&Arc<ProcessGroup>>,
    towers: usize,
    options: &XlaOptions,
    interrupt: &Interrupt,
) -> Result<OpenClient> {
    static CLIENTS: Mutex<Vec<(Platform, OpenClient)>> = Mutex::new(Vec::new());
    let group = group.filter(|group| group.size() > 1);
    check_platform(platform, group)?;
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    let open = match clients.iter().find(|(p, _)| *p == platform) {
        Some((_, open)) => open.clone(),
        None => {
            let open = open(platform, index, group, towers, options, interrupt)?;
            clients.push((platform, open.clone()));
            open
        }
    };
    match (group, &open.peers) {
        (None, _) => Ok(OpenClient { peers: None, ..open }),
        (Some(group), Some(peers))
            if open.first == index && peers.devices.local().len() == towers && peers.watch.is_of(group) =>
        {
            Ok(open)
        }
        (Some(group), _) => {
            let why = format!(
                "xla:{} is already in use by this process with other devices or peers",
                platform.name()
            );
            let note = format!("open a session of {group} on xla:{}:{index} first", platform.name());
            Err(Error::new(ErrorKind::Unsupported, why).note(note))
        }
    }
}

/// Checks that XLA has collectives between processes on this platform.
fn check_platform(platform: Platform, group: Option<&Arc<ProcessGroup>>) -> Result<()> {
    match (group, platform) {
        (None, _) | (_, Platform::Cuda) => Ok(()),
        (Some(group), platform) => {
            let (name, size) = (platform.name(), group.size());
            let why =
                format!("xla:{name} cannot train with {size} processes: its collectives are within one");
            Err(Error::new(ErrorKind::Unsupported, why)
                .note("use xla:cuda, cpu:N, or several devices of one process"))
        }
    }
}

fn open(
    platform: Platform,
    index: usize,
    group: Option<&Arc<ProcessGroup>>,
    towers: usize,
    options: &XlaOptions,
    interrupt: &Interrupt,
) -> Result<OpenClient> {
    let deadline = options.deadline;
    let check = || interrupt.check();
    let path = find_plugin(platform.name())?;
    if group.is_some() {
        nccl_flags::set_abortable(&path);
    }
    let plugin = Plugin::open_within(&path, deadline, &check)?;
    let open = match group {
        None => {
            let plugin_options: &[(&str, OptionValue)] = match platform {
                Platform::Cpu => &[("cpu_device_count", OptionValue::Int(XLA_CPU_DEVICES as i64))],
                Platform::Cuda
                    if !preallocates(options.memory_limit, std::env::var(PREALLOCATE).ok().as_deref()) =>
                {
                    &[NO_PREALLOCATION]
                }
                _ => &[],
            };
            let client = Client::new_within(&plugin, plugin_options, deadline, &check);
            let client = Arc::new(client.map_err(|e| match platform {
                Platform::Cuda => e.note(
                    "if another process holds the memory of the GPU (`nvidia-smi` lists them), start it with \
                     XLA_PYTHON_CLIENT_PREALLOCATE=false or a memory limit, so that both fit",
                ),
                _ => e,
            })?);
            OpenClient { client, first: 0, peers: None }
        }
        Some(group) => open_group(&plugin, index, group, towers, options, &check)?,
    };
    match open.client.platform_name()? {
        name if name == platform.name() => Ok(open),
        name => Err(Error::new(ErrorKind::Unsupported, format!("{plugin:?} is a plugin for {name}"))),
    }
}

/// JAX's variable, which XLA itself does not read.
const PREALLOCATE: &str = "XLA_PYTHON_CLIENT_PREALLOCATE";

/// The plugin allocates memory as it is needed, instead of most of the device's at the start.
const NO_PREALLOCATION: (&str, OptionValue) = ("preallocate", OptionValue::Bool(false));

/// Returns whether a client takes most of a GPU's memory at the start, given the value of [`PREALLOCATE`].
fn preallocates(memory_limit: Option<usize>, variable: Option<&str>) -> bool {
    memory_limit.is_none() && !matches!(variable, Some("false" | "0"))
}

/// Returns whether another process of the group uses one of the devices with these indices, too.
fn shares_devices(group: &Arc<ProcessGroup>, indices: &[i64], timeout: Duration) -> Result<bool> {
    // Processes with different devices visible to CUDA number them differently.
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let own = serde_json::json!((&group.rendezvous().hosts()[group.rank()], visible, indices));
    let all = group.gather_all(own.to_string().as_bytes(), timeout)?;
    let parsed = |bytes: &Vec<u8>| serde_json::from_slice::<(String, String, Vec<i64>)>(bytes).ok();
    let Some((host, visible, _)) = parsed(&all[group.rank()]) else { return Ok(false) };
    let overlaps = |(rank, bytes): (usize, &Vec<u8>)| {
        rank != group.rank()
            && parsed(bytes).is_some_and(|other| {
                (&other.0, &other.1) == (&host, &visible) && other.2.iter().any(|i| indices.contains(i))
            })
    };
    Ok(all.iter().enumerate().any(overlaps))
}

/// Opens a client for this process's part of a group.
fn open_group(
    plugin: &Arc<Plugin>,
    index: usize,
    group: &Arc<ProcessGroup>,
    towers: usize,
    options: &XlaOptions,
    check: &dyn Fn() -> Result<()>,
) -> Result<OpenClient> {
    let deadline = options.deadline;
    if !(1..=MAX_TOWERS).contains(&towers) {
        let why = format!("a process cannot have {towers} towers, but 1 to {MAX_TOWERS}");
        return Err(Error::argument(why).within(group.to_string()));
    }
    // Other processes may use the other devices of this machine.
    let visible: Vec<i64> = (0..towers).map(|tower| index.saturating_add(tower) as i64).collect();
    let store = RendezvousStore::new(group, "xla/");
    let distributed = DistributedOptions::new(group.rank(), group.size(), Arc::new(store))
        .abort_collectives_on_failure(true)
        .longest_wait(deadline);
    let mut plugin_options = vec![("visible_devices", OptionValue::Ints(visible.clone()))];
    // None of the processes that use a device may take most of its memory at once.
    let shared = shares_devices(group, &visible, deadline)?;
    if shared || !preallocates(options.memory_limit, std::env::var(PREALLOCATE).ok().as_deref()) {
        plugin_options.push(NO_PREALLOCATION);
    }
    let client = Arc::new(Client::new_distributed(plugin, &plugin_options, &distributed, deadline, check)?);
    let devices = Arc::new(GlobalDevices::new(&client, group, towers)?);
    let aborting = client.clone();
    let watch = PeerWatch::start(group, move |failure| {
        if let Err(e) = aborting.abort_collectives(failure.rank as usize, &failure.to_string()) {
            log::warn!("the collectives that wait for rank {} cannot be aborted: {e}", failure.rank);
        }
    })?;
    Ok(OpenClient { client, first: index, peers: Some(Peers { watch, devices }) })
}

#[cfg(test)]
mod tests {
    use super::super::test_ranks::join_all;
    use super::*;
    use std::thread;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn memory_is_preallocated_unless_a_limit_or_the_variable_forbids_it() {
        for (limit, variable, expected) in [
            (None, None, true),
            (None, Some("true"), true),
            (None, Some("false"), false),
            (None, Some("0"), false),
            (Some(1 << 30), None, false),
            (Some(1 << 30), Some("true"), false),
        ] {
            assert_eq!(preallocates(limit, variable), expected, "{variable:?}");
        }
    }

    #[test]
    fn ranks_know_whether_they_share_devices() {
        for (indices, expected) in [
            ([vec![0], vec![0], vec![1]], [true, true, false]),
            ([vec![0, 1], vec![2, 3], vec![1, 2]], [true, true, true]),
            ([vec![0, 1], vec![2, 3], vec![4, 5]], [false, false, false]),
        ] {
            let ranks = join_all(3).into_iter().zip(indices);
            let ask = |(group, own): (Arc<ProcessGroup>, Vec<i64>)| {
                thread::spawn(move || (shares_devices(&group, &own, LONG).unwrap(), group))
            };
            let threads: Vec<_> = ranks.map(ask).collect();
            let answers: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            let found: Vec<bool> = answers.iter().map(|(shares, _)| *shares).collect();
            assert_eq!(found, expected);
        }
    }
}
