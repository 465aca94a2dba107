//! Hosts on this machine: network namespaces with names of their own, and a switch between them
//! whose packets pass through this process, which delays, slows and drops them.
//!
//! Each host has a TUN device. The kernel's own tool for this, `tc netem`, is missing in many
//! kernels.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tensorpack_tensor::CounterRng;

/// Packets on their way from one host. More are dropped, as by any network device.
const QUEUE: usize = 1000;
/// The largest packet. Much larger than Ethernet's: every packet costs this process time, and it has
/// to carry the traffic of all hosts.
const MTU: usize = 16_000;
/// The most hosts: the addresses of the network.
const MAX_HOSTS: usize = 250;

/// The properties of the link between each host and the switch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    /// Whether nothing arrives.
    pub down: bool,
    /// The share of packets that are lost.
    pub loss: f64,
    /// How long a packet is on its way from host to host.
    pub delay: Duration,
    /// The bits per second that a host can send, and that it can receive at the same time. No limit
    /// if it is `None`.
    pub rate: Option<f64>,
}

/// When a host can send and receive the next packet.
#[derive(Clone, Copy)]
struct Port {
    sends_at: Instant,
    receives_at: Instant,
}

/// What the hosts and the threads that carry packets share.
struct Switch {
    link: Mutex<Link>,
    ports: Mutex<Vec<Port>>,
    carried: AtomicU64,
    lost: AtomicU64,
    done: AtomicBool,
}

/// Hosts with a switch between them. They disappear on drop.
pub struct Hosts {
    names: Vec<String>,
    /// Contains the programs that run commands on a host.
    folder: TempDir,
    switch: Arc<Switch>,
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
    /// Creates this many hosts. Only root can.
    pub fn new(count: usize) -> io::Result<Hosts> {
        assert!((1..=MAX_HOSTS).contains(&count), "{count} hosts");
        let id = std::process::id();
        let port = Port { sends_at: Instant::now(), receives_at: Instant::now() };
        let (link, carried, lost, done) = Default::default();
        let switch = Switch { link, ports: Mutex::new(vec![port; count]), carried, lost, done };
        let mut hosts = Hosts {
            names: (0..count).map(|i| format!("tp{i}-{id}")).collect(),
            folder: tempfile::tempdir()?,
            switch: Arc::new(switch),
            relays: Vec::new(),
        };
        let mut devices = Vec::new();
        for (i, host) in hosts.names.iter().enumerate() {
            let device = format!("tpw{i}-{id}");
            devices.push(create_device(&device)?);
            ip(&format!("netns add {host}"))?;
            ip(&format!("link set {device} netns {host}"))?;
            ip(&format!("-n {host} addr add {}/24 dev {device}", address(i)))?;
            ip(&format!("-n {host} link set {device} mtu {MTU} up"))?;
            ip(&format!("-n {host} link set lo up"))?;
        }
        hosts.write_programs()?;
        let devices = Arc::new(devices);
        for from in 0..count {
            let (devices, switch) = (devices.clone(), hosts.switch.clone());
            hosts.relays.push(thread::spawn(move || relay(from, &devices, &switch)));
        }
        Ok(hosts)
    }

    /// Returns the names of the hosts.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Writes a program that runs its arguments on a host, and one that does so for text, as `ssh`
    /// does. On a host, `/etc/hosts` has the names of all.
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
    fn as_ssh(&self) -> PathBuf {
        self.folder.path().join("as-ssh")
    }

    /// Returns a command that runs `command`, the `mpiexec` of Hydra, on the first host. It reaches
    /// the others over the switch.
    pub fn launch(&self, command: &Command) -> Command {
        let mut on_host = Command::new(self.inside());
        on_host.arg(&self.names[0]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => on_host.env(name, value),
                None => on_host.env_remove(name),
            };
        }
        on_host.env("HYDRA_LAUNCHER", "ssh").env("HYDRA_LAUNCHER_EXEC", self.as_ssh());
        // All hosts have the same kernel, so libraries would find each other in shared memory.
        on_host.env("UCX_TLS", "tcp,self").env("FI_PROVIDER", "tcp");
        on_host
    }

    /// Changes the links of all hosts.
    pub fn set(&self, link: Link) {
        *lock(&self.switch.link) = link;
    }

    /// Returns how many packets the switch has carried and lost.
    pub fn packets(&self) -> (u64, u64) {
        (self.switch.carried.load(Ordering::Relaxed), self.switch.lost.load(Ordering::Relaxed))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.switch.done.store(true, Ordering::Relaxed);
        for relay in self.relays.drain(..) {
            let _ = relay.join();
        }
        for host in &self.names {
            let _ = ip(&format!("netns del {host}"));
        }
    }
}

/// A network for tests (RFC 2544).
const NETWORK: [u8; 3] = [198, 18, 99];

fn address(host: usize) -> String {
    let [a, b, c] = NETWORK;
    format!("{a}.{b}.{c}.{}", host + 1)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the host that an IPv4 packet is for.
fn destination(packet: &[u8], hosts: usize) -> Option<usize> {
    let is_ipv4 = packet.len() >= 20 && packet[0] >> 4 == 4;
    let host = usize::from(*packet.get(19)?).checked_sub(1)?;
    (is_ipv4 && packet[16..19] == NETWORK && host < hosts).then_some(host)
}

/// A packet on its way; the order is that of `due`.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    /// When it has left its host, or when it arrives.
    due: Instant,
    number: u64,
    has_left: bool,
    to: usize,
    bytes: Vec<u8>,
}

/// Carries the packets of one host.
fn relay(host: usize, devices: &[File], switch: &Switch) {
    run_first();
    let rng = CounterRng::new(host as u64, "loss");
    let mut on_the_way: BinaryHeap<Reverse<Packet>> = BinaryHeap::new();
    let (mut packet, mut number) = (vec![0; 1 << 16], 0);
    let mut device = &devices[host];
    while !switch.done.load(Ordering::Relaxed) {
        let now = Instant::now();
        while on_the_way.peek().is_some_and(|Reverse(first)| first.due <= now) {
            let Some(Reverse(mut first)) = on_the_way.pop() else { break };
            if first.has_left {
                // The other device may be gone already.
                let _ = (&devices[first.to]).write(&first.bytes);
            } else {
                let link = *lock(&switch.link);
                let receiver = &mut lock(&switch.ports)[first.to];
                first.due = receiver.receive(first.due, first.bytes.len(), &link);
                first.has_left = true;
                on_the_way.push(Reverse(first));
            }
        }
        match device.read(&mut packet) {
            Ok(n) => {
                // Others are multicast, or IPv6's search for neighbors.
                let Some(to) = destination(&packet[..n], devices.len()) else { continue };
                let link = *lock(&switch.link);
                number += 1;
                if !link.down && rng.uniform(0, number) >= link.loss && on_the_way.len() < QUEUE {
                    let due = lock(&switch.ports)[host].send(now, n, &link);
                    let bytes = packet[..n].to_vec();
                    on_the_way.push(Reverse(Packet { due, number, has_left: false, to, bytes }));
                    switch.carried.fetch_add(1, Ordering::Relaxed);
                } else {
                    switch.lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            // Nothing to read.
            Err(_) => {
                let next = on_the_way.peek().map(|Reverse(first)| first.due.saturating_duration_since(now));
                wait_for_packet(device, next.unwrap_or(Duration::from_millis(20)));
            }
        }
    }
}

impl Link {
    /// Returns how long it takes to transmit so many bytes.
    fn takes(&self, len: usize) -> Duration {
        Duration::from_secs_f64(self.rate.map_or(0.0, |rate| 8.0 * len as f64 / rate))
    }
}

impl Port {
    /// Sends a packet after those before it. Returns when it has left.
    fn send(&mut self, now: Instant, len: usize, link: &Link) -> Instant {
        self.sends_at = self.sends_at.max(now) + link.takes(len);
        self.sends_at
    }

    /// Receives a packet that left at `sent`, after those that left before it. Returns when it is
    /// there. If the port is free, it receives while the other sends.
    fn receive(&mut self, sent: Instant, len: usize, link: &Link) -> Instant {
        self.receives_at = sent.max(self.receives_at + link.takes(len));
        self.receives_at + link.delay
    }
}

/// Lets this thread run before others, and wake up on time: the links must not depend on how busy
/// the machine is. Without the right to do so, they do.
fn run_first() {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: concern the calling thread; the parameter is initialized. Failing changes nothing.
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority);
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_queue_at_the_sender_and_at_the_receiver() {
        let start = Instant::now();
        // A packet of 1000 bytes takes 1 ms.
        let link = Link { delay: Duration::from_millis(5), rate: Some(8e6), ..Link::default() };
        let port = Port { sends_at: start, receives_at: start };
        let (mut first, mut second, mut receiver) = (port, port, port);
        let ms = |at: Instant| (at.duration_since(start).as_secs_f64() * 1e3).round() as u64;
        let sent = first.send(start, 1000, &link);
        let queued = first.send(start, 1000, &link);
        let other = second.send(start, 1000, &link);
        assert_eq!([sent, queued, other].map(ms), [1, 2, 1]);
        // Both senders' first packets come at once, and the second of the first follows.
        let received = [sent, other, queued].map(|sent| receiver.receive(sent, 1000, &link));
        assert_eq!(received.map(ms), [6, 7, 8]);
        // A port that was idle receives while the other sends.
        let late = first.send(start + Duration::from_millis(20), 1000, &link);
        assert_eq!(ms(receiver.receive(late, 1000, &link)), 26);
    }

    #[test]
    fn only_packets_for_a_host_are_carried() {
        let mut packet = vec![0; 20];
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&[198, 18, 99, 2]);
        assert_eq!(destination(&packet, 2), Some(1));
        assert_eq!(destination(&packet, 1), None);
        assert_eq!(destination(&packet[..19], 2), None);
        packet[0] = 0x60;
        assert_eq!(destination(&packet, 2), None);
        packet[..17].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 224]);
        assert_eq!(destination(&packet, 2), None);
    }
}
