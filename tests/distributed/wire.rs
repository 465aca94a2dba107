//! Two hosts on this machine: network namespaces with names of their own, and a wire between them
//! whose packets pass through this process, which delays and drops them.
//!
//! Each host has a TUN device. The kernel's own tool for this, `tc netem`, is missing in many
//! kernels.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tensorpack::tensor::CounterRng;

/// Packets on their way in one direction. More are dropped, as by any network device.
const QUEUE: usize = 1000;

/// The properties of the wire.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    /// Whether nothing arrives.
    pub(crate) down: bool,
    /// The share of packets that are lost.
    pub(crate) loss: f64,
    pub(crate) delay: Duration,
    /// Bits per second; no limit if it is `None`.
    pub(crate) rate: Option<f64>,
}

/// What the hosts and the threads that carry packets share.
#[derive(Default)]
struct Wire {
    link: Mutex<Link>,
    carried: AtomicU64,
    lost: AtomicU64,
    done: AtomicBool,
}

/// Two hosts with a wire between them. They disappear on drop.
pub(crate) struct Hosts {
    pub(crate) names: [String; 2],
    /// Contains the programs that run commands on a host.
    folder: TempDir,
    wire: Arc<Wire>,
    relays: Vec<JoinHandle<()>>,
}

/// Runs `ip`.
fn ip(words: &str) -> io::Result<()> {
    let output = Command::new("ip").args(words.split(' ')).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr)))),
    }
}

/// Creates a TUN device, which exists until the file is closed.
fn create_device(name: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: `ifreq` is a C struct of integers, arrays and pointers, so zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    assert!(name.len() < request.ifr_name.len());
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the file is open, and the request is initialized and outlives the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Hosts {
    /// Creates the hosts. Only root can.
    pub(crate) fn new() -> io::Result<Hosts> {
        let id = std::process::id();
        let names = [0, 1].map(|i| format!("tp{i}-{id}"));
        let folder = tempfile::tempdir()?;
        let mut hosts = Hosts { names, folder, wire: Arc::default(), relays: Vec::new() };
        let mut devices = Vec::new();
        for (i, host) in hosts.names.iter().enumerate() {
            let device = format!("tpw{i}-{id}");
            devices.push(create_device(&device)?);
            ip(&format!("netns add {host}"))?;
            ip(&format!("link set {device} netns {host}"))?;
            ip(&format!("-n {host} addr add {} peer {} dev {device}", address(i), address(1 - i)))?;
            ip(&format!("-n {host} link set {device} up"))?;
            ip(&format!("-n {host} link set lo up"))?;
        }
        hosts.write_programs()?;
        let [a, b] = [&devices[0], &devices[1]];
        for (from, to, seed) in [(a, b, 0), (b, a, 1)] {
            let (from, to) = (from.try_clone()?, to.try_clone()?);
            let wire = hosts.wire.clone();
            hosts.relays.push(thread::spawn(move || relay(from, to, &wire, seed)));
        }
        Ok(hosts)
    }

    /// Writes a program that runs its arguments on a host, and one that does so for text, as `ssh`
    /// does. On a host, `/etc/hosts` has the names of both.
    fn write_programs(&self) -> io::Result<()> {
        let names = self.folder.path().join("hosts");
        let lines = self.names.iter().enumerate().map(|(i, host)| format!("{} {host}\n", address(i)));
        fs::write(&names, format!("127.0.0.1 localhost\n{}", lines.collect::<String>()))?;
        let inside = format!(
            "#!/bin/sh\nhost=$1; shift\nexec ip netns exec \"$host\" unshare --uts /bin/sh -c \
             'hostname \"$0\" && mount --bind {} /etc/hosts && exec \"$@\"' \"$host\" \"$@\"\n",
            names.display()
        );
        let as_ssh = format!(
            "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1; shift\n\
             exec {} \"$host\" /bin/sh -c \"$*\"\n",
            self.inside().display()
        );
        for (path, text) in [(self.inside(), inside), (self.as_ssh(), as_ssh)] {
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    fn inside(&self) -> PathBuf {
        self.folder.path().join("inside")
    }

    /// Returns the program to use in place of `ssh`.
    pub(crate) fn as_ssh(&self) -> PathBuf {
        self.folder.path().join("as-ssh")
    }

    /// Returns a command that runs on the first host.
    pub(crate) fn on_first(&self, command: &Command) -> Command {
        let mut on_host = Command::new(self.inside());
        on_host.arg(&self.names[0]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => on_host.env(name, value),
                None => on_host.env_remove(name),
            };
        }
        on_host
    }

    /// Changes the wire.
    pub(crate) fn set(&self, link: Link) {
        *self.wire.link.lock().unwrap_or_else(PoisonError::into_inner) = link;
    }

    /// Returns how many packets the wire has carried and lost.
    pub(crate) fn packets(&self) -> (u64, u64) {
        (self.wire.carried.load(Ordering::Relaxed), self.wire.lost.load(Ordering::Relaxed))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.wire.done.store(true, Ordering::Relaxed);
        for relay in self.relays.drain(..) {
            let _ = relay.join();
        }
        for host in &self.names {
            let _ = ip(&format!("netns del {host}"));
        }
    }
}

/// Returns the address of a host, in a network for tests (RFC 2544).
fn address(host: usize) -> String {
    format!("198.18.99.{}", host + 1)
}

/// Carries packets in one direction.
fn relay(mut from: File, mut to: File, wire: &Wire, seed: u64) {
    let rng = CounterRng::new(seed, "loss");
    let mut on_the_way: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let (mut packet, mut count, mut free_at) = (vec![0; 1 << 16], 0, Instant::now());
    while !wire.done.load(Ordering::Relaxed) {
        let now = Instant::now();
        while on_the_way.front().is_some_and(|(due, _)| *due <= now) {
            let (_, bytes) = on_the_way.pop_front().expect("there is one");
            // The other device may be gone already.
            let _ = to.write(&bytes);
        }
        match from.read(&mut packet) {
            Ok(n) => {
                let link = *wire.link.lock().unwrap_or_else(PoisonError::into_inner);
                count += 1;
                if !link.down && rng.uniform(0, count) >= link.loss && on_the_way.len() < QUEUE {
                    let takes = link.rate.map_or(0.0, |rate| 8.0 * n as f64 / rate);
                    free_at = free_at.max(now) + Duration::from_secs_f64(takes);
                    on_the_way.push_back((free_at + link.delay, packet[..n].to_vec()));
                    wire.carried.fetch_add(1, Ordering::Relaxed);
                } else {
                    wire.lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            // Nothing to read.
            Err(_) => {
                let next = on_the_way.front().map(|(due, _)| due.saturating_duration_since(now));
                wait_for_packet(&from, next.unwrap_or(Duration::from_millis(20)));
            }
        }
    }
}

/// Waits until a device has a packet, at most for `timeout`.
fn wait_for_packet(device: &File, timeout: Duration) {
    let mut poll = libc::pollfd { fd: device.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    // SAFETY: one entry and a timeout, both initialized; no signal mask.
    unsafe { libc::ppoll(&raw mut poll, 1, &raw const timeout, std::ptr::null()) };
}
