//! The coordinator: the server of the control plane, run by rank 0.
//!
//! One thread accepts connections, one watches deadlines, and each connection has a thread that
//! reads and, once its peer has joined, one that writes. Only the readers and the watcher change
//! the state; they never write to a socket, so no peer can hold them up.

use crate::barrier::Barriers;
use crate::failure::{Failure, PeerStatus, RankAt};
use crate::frame::{Until, describe_error, frame, read_frame, write_frame};
use crate::message::{MAX_HANDSHAKE_BYTES, MAX_MESSAGE_BYTES, MAX_RANKS, Reply, Request, VERSION};
use crate::options::Options;
use crate::stop::StopAgreement;
use crate::store::{ReplyTo, Store};
use crate::token::{Token, constant_time_eq, nonce};
use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The time that a peer has to prove that it knows the token.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of connections whose peers have not proved it yet. One more closes the oldest, so
/// connections that send nothing cannot keep a rank out.
const MAX_PENDING: usize = 64;
/// The time that ranks have to close their connections after a failure, also if other processes keep
/// their machine busy. A rank that was stopped does not.
const HANG_UP_TIMEOUT: Duration = Duration::from_secs(2);
/// The number of messages that may wait to be written to one rank.
const MAX_QUEUED: usize = 8192;
/// The number of peers whose refusal is logged.
const MAX_WARNED: usize = 100;
/// The stack of a connection's threads, which run no user code but the warning callback.
const STACK_BYTES: usize = 256 << 10;

/// The server of the control plane. It stops when it is dropped.
pub struct Coordinator {
    shared: Arc<Shared>,
    address: SocketAddr,
    threads: Vec<thread::JoinHandle<()>>,
}

struct Shared {
    size: u32,
    token: Token,
    options: Options,
    state: Mutex<State>,
    /// Notified when the watcher should look again, and when a rank leaves.
    changed: Condvar,
    /// Messages that are queued and not yet written.
    unwritten: AtomicUsize,
    /// Connections of ranks that are still being read.
    reading: AtomicUsize,
}

struct State {
    started: Instant,
    members: Vec<Option<Member>>,
    store: Store,
    barriers: Barriers,
    stop: StopAgreement,
    failure: Option<Failure>,
    closed: bool,
    /// Connections that have not joined: a number, and the stream to close.
    pending: VecDeque<(u64, TcpStream)>,
    accepted: u64,
    warned: HashSet<IpAddr>,
}

/// A rank that has joined.
struct Member {
    host: String,
    stream: TcpStream,
    outbox: SyncSender<Arc<Vec<u8>>>,
    step: Option<u64>,
    activity: String,
    changed: Instant,
    heard: Instant,
    left: bool,
}

impl Coordinator {
    /// Starts a coordinator for `size` ranks. It listens at `address`; with port 0, at any free
    /// port.
    pub fn start(
        address: impl ToSocketAddrs,
        size: u32,
        token: &Token,
        options: &Options,
    ) -> Result<Coordinator> {
        if size == 0 || size > MAX_RANKS {
            return Err(Error::argument(format!(
                "the number of ranks is {size}; it must be from 1 to {MAX_RANKS}"
            )));
        }
        let within = |e: io::Error| Error::from(e).within("the coordinator cannot listen");
        let listener = TcpListener::bind(address).map_err(within)?;
        let address = listener.local_addr().map_err(within)?;
        let state = State {
            started: Instant::now(),
            members: (0..size).map(|_| None).collect(),
            store: Store::default(),
            barriers: Barriers::default(),
            stop: StopAgreement::default(),
            failure: None,
            closed: false,
            pending: VecDeque::new(),
            accepted: 0,
            warned: HashSet::new(),
        };
        let shared = Arc::new(Shared {
            size,
            token: token.clone(),
            options: options.clone(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            unwritten: AtomicUsize::new(0),
            reading: AtomicUsize::new(0),
        });
        let (accepting, watching) = (shared.clone(), shared.clone());
        let threads = vec![
            spawn("rendezvous-accept", move || accept(&accepting, &listener))?,
            spawn("rendezvous-watch", move || watching.watch())?,
        ];
        Ok(Coordinator { shared, address, threads })
    }

    /// The address at which the coordinator listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address for connections from this host.
    pub fn local_address(&self) -> SocketAddr {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        SocketAddr::new(ip, self.address.port())
    }

    /// Waits until all ranks have left or the run has failed, at most for `timeout`. Returns
    /// [`ErrorKind::Deadline`] with the ranks that have not left.
    pub fn wait_for_all_to_leave(&self, timeout: Duration) -> Result<()> {
        let deadline = later(Instant::now(), timeout);
        let mut state = self.shared.lock();
        loop {
            let left = |member: &Option<Member>| member.as_ref().is_some_and(|member| member.left);
            if state.failure.is_some() || state.members.iter().all(left) {
                return Ok(());
            }
            let now = Instant::now();
            if now >= deadline {
                let staying = (0..self.shared.size).filter(|rank| !left(&state.members[*rank as usize]));
                let staying = state.describe(&staying.collect::<Vec<_>>());
                let why = format!("not all ranks left within {:.1} s: {staying}", timeout.as_secs_f64());
                return Err(Error::new(ErrorKind::Deadline, why));
            }
            let waited = self.shared.changed.wait_timeout(state, deadline - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until everything that was queued is written, at most for `timeout`. Call it before the
    /// process exits without dropping the coordinator.
    pub fn flush(&self, timeout: Duration) {
        let deadline = later(Instant::now(), timeout);
        while self.shared.unwritten.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Coordinator {
    /// After a failure: tells the ranks that nothing more is sent, and reads on until they have closed
    /// their connections, at most for [`HANG_UP_TIMEOUT`]. TCP resets a connection that is closed with
    /// unread messages, and a rank could then lose the message that names the failure.
    fn hang_up(&self) {
        {
            let mut state = self.shared.lock();
            if state.failure.is_none() {
                return;
            }
            state.closed = true;
            for member in state.members.iter().flatten() {
                let _ = member.stream.shutdown(Shutdown::Write);
            }
        }
        let deadline = Instant::now() + HANG_UP_TIMEOUT;
        while self.shared.reading.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.flush(Duration::from_secs(1));
        self.hang_up();
        {
            let mut state = self.shared.lock();
            state.closed = true;
            let joined = state.members.iter().flatten().map(|member| &member.stream);
            for stream in joined.chain(state.pending.iter().map(|(_, stream)| stream)) {
                let _ = stream.shutdown(Shutdown::Both);
            }
            // Drops the outboxes, which ends the writers.
            state.members.clear();
            self.shared.changed.notify_all();
        }
        // Wakes the thread that accepts. If that fails it stays blocked, and harms nobody.
        let woken = TcpStream::connect_timeout(&self.local_address(), Duration::from_secs(1)).is_ok();
        for (i, thread) in self.threads.drain(..).enumerate() {
            if woken || i > 0 {
                let _ = thread.join();
            }
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<thread::JoinHandle<()>> {
    let builder = thread::Builder::new().name(name.into()).stack_size(STACK_BYTES);
    builder.spawn(run).map_err(|e| Error::from(e).within(format!("cannot start the thread {name}")))
}

/// Accepts connections until the coordinator is dropped.
fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let accepted = listener.accept();
        let mut state = shared.lock();
        if state.closed {
            return;
        }
        let Ok((stream, peer)) = accepted else {
            // Such as too many open files: others may be closed soon.
            drop(state);
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        let Ok(closing) = stream.try_clone() else { continue };
        if state.pending.len() >= MAX_PENDING
            && let Some((_, oldest)) = state.pending.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        state.accepted += 1;
        let number = state.accepted;
        state.pending.push_back((number, closing));
        drop(state);
        let serving = shared.clone();
        if spawn("rendezvous-read", move || serving.serve(&stream, peer.ip(), number)).is_err() {
            shared.forget_pending(number);
        }
    }
}

/// Writes what is queued for a rank.
fn write_all(shared: &Shared, mut stream: &TcpStream, inbox: Receiver<Arc<Vec<u8>>>) {
    let mut broken = false;
    for bytes in inbox {
        broken = broken || io::Write::write_all(&mut stream, &bytes).is_err();
        shared.unwritten.fetch_sub(1, Ordering::Release);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget_pending(&self, number: u64) {
        self.lock().pending.retain(|(pending, _)| *pending != number);
    }

    /// Reads a connection until it ends.
    fn serve(self: &Arc<Shared>, stream: &TcpStream, peer: IpAddr, number: u64) {
        let joined = self.handshake(stream);
        self.forget_pending(number);
        let rank = match joined {
            Ok(rank) => rank,
            Err(why) => {
                self.warn_once(peer, &why);
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
        };
        self.reading.fetch_add(1, Ordering::Release);
        let mut reading = stream;
        let ended = loop {
            let message = read_frame(&mut reading, MAX_MESSAGE_BYTES, || self.heard(rank));
            let request = match message {
                Ok(bytes) => Request::decode(&bytes),
                Err(e) => break describe_error(&e),
            };
            match request {
                Some(request) => self.handle(rank, request),
                None => break "it sent a malformed message".to_owned(),
            }
        };
        self.lost(rank, &ended);
        let _ = stream.shutdown(Shutdown::Both);
        self.reading.fetch_sub(1, Ordering::Release);
    }

    /// Checks that the peer knows the token and has a free rank; makes it a member.
    fn handshake(self: &Arc<Shared>, stream: &TcpStream) -> std::result::Result<u32, String> {
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        let mut until = Until { stream, deadline };
        let describe = |e: io::Error| describe_error(&e);
        let read = |until: &mut Until<'_>| read_frame(until, MAX_HANDSHAKE_BYTES, || ()).map_err(describe);
        let refuse = |until: &mut Until<'_>, reason: String| {
            let _ = write_frame(until, &Reply::Refused { reason: reason.clone() }.encode());
            Err(reason)
        };
        let Some(Request::Hello { version, nonce: theirs }) = Request::decode(&read(&mut until)?) else {
            return Err("it does not speak this protocol".into());
        };
        if version != VERSION {
            return refuse(&mut until, format!("it has version {version} of the protocol, not {VERSION}"));
        }
        let ours = nonce();
        let proof = self.token.proof(&[b"coordinator", &theirs, &ours]);
        write_frame(&mut until, &Reply::Challenge { version: VERSION, nonce: ours, proof }.encode())
            .map_err(describe)?;
        let Some(Request::Join { rank, size, host, proof }) = Request::decode(&read(&mut until)?) else {
            return Err("it sent a malformed message".into());
        };
        let expected = self.token.proof(&[
            b"rank",
            &theirs,
            &ours,
            &rank.to_le_bytes(),
            &size.to_le_bytes(),
            host.as_bytes(),
        ]);
        if !constant_time_eq(&proof, &expected) {
            return refuse(&mut until, format!("it has another token ({})", Token::VARIABLE));
        }
        match self.admit(stream, rank, size, host) {
            Ok(()) => Ok(rank),
            Err(reason) => refuse(&mut until, reason),
        }
    }

    /// Makes an authenticated peer a member.
    fn admit(
        self: &Arc<Shared>,
        stream: &TcpStream,
        rank: u32,
        size: u32,
        host: String,
    ) -> std::result::Result<(), String> {
        if size != self.size {
            return Err(format!("rank {rank} on {host} expects {size} ranks; rank 0 expects {}", self.size));
        }
        let setup = || -> io::Result<(TcpStream, TcpStream)> {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(Some(self.options.peer_timeout))?;
            Ok((stream.try_clone()?, stream.try_clone()?))
        };
        let (writing, closing) = setup().map_err(|e| e.to_string())?;
        let (outbox, inbox) = sync_channel(MAX_QUEUED);
        let mut state = self.lock();
        if state.closed {
            return Err("the run has ended".into());
        }
        match state.members.get(rank as usize) {
            None => return Err(format!("rank {rank} of {size} does not exist")),
            Some(Some(member)) => {
                return Err(format!("rank {rank} has joined already, from {}", member.host));
            }
            Some(None) => {}
        }
        let shared = self.clone();
        spawn("rendezvous-write", move || write_all(&shared, &writing, inbox)).map_err(|e| e.to_string())?;
        let now = Instant::now();
        let activity = "joining".to_owned();
        let member = Member {
            host,
            stream: closing,
            outbox,
            step: None,
            activity,
            changed: now,
            heard: now,
            left: false,
        };
        state.members[rank as usize] = Some(member);
        if let Some(failure) = state.failure.clone() {
            self.send(&state, rank, &Reply::Failed(failure));
        } else if state.members.iter().all(Option::is_some) {
            let hosts = state.members.iter().flatten().map(|member| member.host.clone()).collect();
            // Heartbeats begin now.
            state.members.iter_mut().flatten().for_each(|member| member.heard = now);
            self.broadcast(&state, &Reply::Welcome { hosts });
        }
        Ok(())
    }

    /// Logs that a peer was refused, once for each address.
    fn warn_once(&self, peer: IpAddr, why: &str) {
        let mut state = self.lock();
        if state.closed || state.warned.len() > MAX_WARNED || !state.warned.insert(peer) {
            return;
        }
        let last = state.warned.len() > MAX_WARNED;
        drop(state);
        let end = if last { "; further addresses are not logged" } else { "" };
        (self.options.on_warning)(&format!("refused a connection from {peer}: {why}{end}"));
    }

    /// Queues a message for a rank. A rank that does not read what it is sent is disconnected.
    fn queue(&self, state: &State, rank: u32, bytes: &Arc<Vec<u8>>) {
        let member = state.members.get(rank as usize).and_then(Option::as_ref);
        if let Some(member) = member.filter(|member| !member.left) {
            self.unwritten.fetch_add(1, Ordering::Release);
            if member.outbox.try_send(bytes.clone()).is_err() {
                self.unwritten.fetch_sub(1, Ordering::Release);
                let _ = member.stream.shutdown(Shutdown::Both);
            }
        }
    }

    fn send(&self, state: &State, rank: u32, reply: &Reply) {
        self.queue(state, rank, &Arc::new(frame(&reply.encode())));
    }

    fn send_all(&self, state: &State, replies: Vec<ReplyTo>) {
        for (rank, reply) in replies {
            self.send(state, rank, &reply);
        }
    }

    fn broadcast(&self, state: &State, reply: &Reply) {
        let bytes = Arc::new(frame(&reply.encode()));
        (0..self.size).for_each(|rank| self.queue(state, rank, &bytes));
    }

    /// Notes that something arrived from a rank.
    fn heard(&self, rank: u32) {
        if let Some(Some(member)) = self.lock().members.get_mut(rank as usize) {
            member.heard = Instant::now();
        }
    }

    fn handle(&self, rank: u32, request: Request) {
        let mut state = self.lock();
        let now = Instant::now();
        match request {
            // A connection joins once.
            Request::Hello { .. } | Request::Join { .. } => {}
            Request::Heartbeat { step, activity } => {
                if let Some(Some(member)) = state.members.get_mut(rank as usize)
                    && (member.step != step || member.activity != activity)
                {
                    (member.step, member.activity, member.changed) = (step, activity, now);
                }
                let (step, activity) = state.progress(0);
                self.send(&state, rank, &Reply::Alive { step, activity });
            }
            Request::Fail { step, place, message } => {
                let host = state.host(rank);
                self.fail(&mut state, Failure { rank, host, step, place, message });
            }
            Request::Peers { id } => {
                let peers = state.peers(now);
                self.send(&state, rank, &Reply::Peers { id, peers });
            }
            Request::Leave { id } => {
                self.send(&state, rank, &Reply::Done { id });
                if let Some(Some(member)) = state.members.get_mut(rank as usize) {
                    member.left = true;
                }
                let replies = state.barriers.reject_all(&format!("rank {rank} has left the run"));
                self.send_all(&state, replies);
                self.promise(&mut state, rank, None);
                self.changed.notify_all();
            }
            // All others wait for ranks, of which one has failed.
            _ if state.failure.is_some() => {}
            Request::Put { id, key, value } => {
                let replies = state.store.put(rank, id, key, value);
                self.send_all(&state, replies);
            }
            Request::TryGet { id, key } => {
                let (_, reply) = state.store.try_get(rank, id, &key);
                self.send(&state, rank, &reply);
            }
            Request::Get { id, key, timeout } => {
                let reply = state.store.get(rank, id, key, later(now, timeout));
                self.send_all(&state, reply.into_iter().collect());
                self.changed.notify_all();
            }
            Request::Remove { id, key } => {
                state.store.remove(&key);
                self.send(&state, rank, &Reply::Done { id });
            }
            Request::Barrier { id, name, timeout } => {
                let replies = match state.left().first() {
                    Some(gone) => {
                        let reason = format!("rank {gone} has left the run");
                        vec![(rank, Reply::Rejected { id, reason })]
                    }
                    None => state.barriers.arrive(rank, id, name, later(now, timeout), self.size),
                };
                self.send_all(&state, replies);
                self.changed.notify_all();
            }
            Request::Stop => {
                if state.stop.request(self.size) {
                    self.broadcast(&state, &Reply::ProposeStop);
                    for rank in state.left() {
                        self.promise(&mut state, rank, None);
                    }
                }
            }
            Request::Promise { last } => self.promise(&mut state, rank, last),
        }
    }

    /// Notes a rank's promise to stop. A rank that left has run its last step.
    fn promise(&self, state: &mut State, rank: u32, last: Option<u64>) {
        if let Some(last) = state.stop.promise(rank, last) {
            self.broadcast(state, &Reply::StopAfter { last });
        }
    }

    /// Records the first failure and tells all ranks. Later ones change nothing.
    fn fail(&self, state: &mut State, failure: Failure) {
        if state.failure.is_some() || state.closed {
            return;
        }
        self.broadcast(state, &Reply::Failed(failure.clone()));
        state.failure = Some(failure);
        state.store.clear_waits();
        state.barriers.clear();
        self.changed.notify_all();
    }

    /// A connection ended. Without leaving first, that is a failure.
    fn lost(&self, rank: u32, why: &str) {
        let mut state = self.lock();
        match state.members.get(rank as usize) {
            Some(Some(member)) if !member.left => {}
            _ => return,
        }
        let (step, place) = state.progress(rank);
        let message =
            format!("the connection to this rank was lost, so its process has probably died ({why})");
        let failure = Failure { rank, host: state.host(rank), step, place, message };
        self.fail(&mut state, failure);
    }

    /// Ends waits at their deadlines and finds silent ranks, until the coordinator is dropped.
    fn watch(&self) {
        let (interval, timeout) = (self.options.interval(), self.options.peer_timeout);
        let mut state = self.lock();
        let mut last = Instant::now();
        while !state.closed {
            let now = Instant::now();
            // This process itself was stopped or starved: messages may be waiting to be read.
            if now - last > timeout / 2 {
                state.members.iter_mut().flatten().for_each(|member| member.heard = now);
            }
            last = now;
            let replies = state.store.expire(now);
            self.send_all(&state, replies);
            let replies = {
                let State { barriers, members, .. } = &mut *state;
                barriers.expire(now, self.size, |missing| describe(members, missing))
            };
            self.send_all(&state, replies);
            if state.failure.is_none()
                && let Some(failure) = state.silent(now, timeout, self.options.join_timeout)
            {
                self.fail(&mut state, failure);
            }
            let deadlines = [state.store.next_deadline(), state.barriers.next_deadline()];
            let next = deadlines.into_iter().flatten().fold(now + interval, Instant::min);
            let wait = next.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A time that may be too far away for an `Instant`.
pub(crate) fn later(now: Instant, timeout: Duration) -> Instant {
    const DECADE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
    now + timeout.min(DECADE)
}

/// Describes where ranks are.
fn describe(members: &[Option<Member>], ranks: &[u32]) -> String {
    const SHOWN: usize = 8;
    let line = |rank: &u32| match members.get(*rank as usize) {
        Some(Some(member)) => {
            RankAt { rank: *rank, host: &member.host, step: member.step, place: &member.activity }.to_string()
        }
        _ => format!("rank {rank}"),
    };
    let mut text = ranks.iter().take(SHOWN).map(line).collect::<Vec<_>>().join("; ");
    if ranks.len() > SHOWN {
        text += &format!("; and {} more", ranks.len() - SHOWN);
    }
    text
}

impl State {
    fn host(&self, rank: u32) -> String {
        let member = self.members.get(rank as usize).and_then(Option::as_ref);
        member.map(|member| member.host.clone()).unwrap_or_default()
    }

    fn progress(&self, rank: u32) -> (Option<u64>, String) {
        let member = self.members.get(rank as usize).and_then(Option::as_ref);
        member.map(|member| (member.step, member.activity.clone())).unwrap_or_default()
    }

    /// The ranks that have left.
    fn left(&self) -> Vec<u32> {
        let left = |(member, _): &(&Option<Member>, u32)| member.as_ref().is_some_and(|member| member.left);
        self.members.iter().zip(0..).filter(left).map(|(_, rank)| rank).collect()
    }

    fn describe(&self, ranks: &[u32]) -> String {
        describe(&self.members, ranks)
    }

    fn peers(&self, now: Instant) -> Vec<PeerStatus> {
        let members =
            self.members.iter().zip(0..).filter_map(|(member, rank)| Some((member.as_ref()?, rank)));
        let status = |(member, rank): (&Member, u32)| PeerStatus {
            rank,
            host: member.host.clone(),
            step: member.step,
            activity: member.activity.clone(),
            unchanged: now.saturating_duration_since(member.changed),
            silent: now.saturating_duration_since(member.heard),
            left: member.left,
        };
        members.map(status).collect()
    }

    /// Finds a rank that did not join in time or was silent for too long.
    fn silent(&self, now: Instant, timeout: Duration, join_timeout: Duration) -> Option<Failure> {
        let absent: Vec<u32> = self
            .members
            .iter()
            .zip(0..)
            .filter(|(member, _)| member.is_none())
            .map(|(_, rank)| rank)
            .collect();
        if let Some(rank) = absent.first() {
            if now.saturating_duration_since(self.started) <= join_timeout {
                return None;
            }
            let (joined, size) = (self.members.len() - absent.len(), self.members.len());
            let missing = self.describe(&absent);
            let message = format!(
                "it did not join within {:.1} s ({joined} of {size} ranks did; missing: {missing})",
                join_timeout.as_secs_f64()
            );
            let (host, step, place) = (String::new(), None, String::new());
            return Some(Failure { rank: *rank, host, step, place, message });
        }
        let present =
            self.members.iter().zip(0..).filter_map(|(member, rank)| Some((member.as_ref()?, rank)));
        let silence = |member: &Member| now.saturating_duration_since(member.heard);
        let (member, rank) = present
            .filter(|(member, _)| !member.left && silence(member) > timeout)
            .max_by_key(|(member, _)| silence(member))?;
        let message = format!("no heartbeat for {:.1} s", silence(member).as_secs_f64());
        let (host, place) = (member.host.clone(), member.activity.clone());
        Some(Failure { rank, host, step: member.step, place, message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_addresses_are_logged_once_and_not_for_ever() {
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let log = warnings.clone();
        let options = Options::new().on_warning(move |text| log.lock().unwrap().push(text.to_owned()));
        let coordinator = Coordinator::start("127.0.0.1:0", 1, &Token::random(), &options).unwrap();
        for round in 0..2 {
            for i in 0..200u8 {
                coordinator.shared.warn_once(Ipv4Addr::new(10, 0, 0, i).into(), &format!("why {round}"));
            }
        }
        let warnings = warnings.lock().unwrap();
        assert_eq!(warnings.len(), MAX_WARNED + 1);
        assert!(warnings[0].contains("10.0.0.0") && warnings[0].contains("why 0"), "{warnings:?}");
        assert!(warnings[MAX_WARNED].contains("not logged"), "{warnings:?}");
    }

    #[test]
    fn silence_counts_once_all_have_joined() {
        let shared_token = Token::random();
        let coordinator = Coordinator::start("127.0.0.1:0", 2, &shared_token, &Options::new()).unwrap();
        let mut state = coordinator.shared.lock();
        let stream = TcpStream::connect(coordinator.address()).unwrap();
        let start = state.started;
        let member = |heard| Member {
            host: "h".into(),
            stream: stream.try_clone().unwrap(),
            outbox: sync_channel(1).0,
            step: Some(4),
            activity: "backward".into(),
            changed: heard,
            heard,
            left: false,
        };
        let seconds = Duration::from_secs;
        let silent = |state: &State, at: u64| state.silent(start + seconds(at), seconds(10), seconds(60));
        state.members[0] = Some(member(start));
        assert_eq!(silent(&state, 60), None);
        let failure = silent(&state, 61).unwrap();
        assert_eq!((failure.rank, failure.step), (1, None));
        state.members[1] = Some(member(start + seconds(55)));
        let failure = silent(&state, 61).unwrap();
        assert_eq!((failure.rank, failure.step, &failure.place[..]), (0, Some(4), "backward"));
        state.members[0].as_mut().unwrap().left = true;
        assert_eq!(silent(&state, 65), None);
        assert_eq!(silent(&state, 66).unwrap().rank, 1);
    }
}
