//! A rank's connection to the coordinator.

use crate::coordinator::{Coordinator, later};
use crate::failure::{Failure, PeerStatus};
use crate::frame::{Until, describe_error, read_frame, write_frame};
use crate::launch::Launch;
use crate::message::{
    MAX_ACTIVITY_BYTES, MAX_HANDSHAKE_BYTES, MAX_HOST_BYTES, MAX_KEY_BYTES, MAX_MESSAGE_BYTES,
    MAX_VALUE_BYTES, Reply, Request, VERSION, cut,
};
use crate::options::Options;
use crate::stop::{NextStep, StopState};
use crate::token::{Token, constant_time_eq, nonce};
use std::collections::HashMap;
use std::env;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// How long rank 0 waits after it has told the others of its own failure, and the others for its last
/// messages.
const LINGER: Duration = Duration::from_millis(100);
/// The pause before a connection is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// A rank's part in the control plane. It may be used from any number of threads.
///
/// Once a rank has failed, every call but [`peers`](Rendezvous::peers) returns an error of kind
/// [`ErrorKind::Peer`] with the first [`Failure`], and every call that waits ends at once. Dropping
/// it without [`leave`](Rendezvous::leave) is a failure of this rank.
pub struct Rendezvous {
    shared: Arc<Shared>,
    threads: Vec<thread::JoinHandle<()>>,
    /// Rank 0's.
    coordinator: Option<Coordinator>,
}

struct Shared {
    rank: u32,
    size: u32,
    hosts: Vec<String>,
    options: Options,
    stream: TcpStream,
    /// Held while a message is written.
    writing: Mutex<()>,
    state: Mutex<State>,
    /// Notified at every change of the state that a thread may wait for.
    changed: Condvar,
}

struct State {
    step: Option<u64>,
    activity: String,
    stop: StopState,
    failure: Option<Failure>,
    next_id: u64,
    /// Requests that wait for a reply.
    pending: HashMap<u64, Option<Reply>>,
    /// When the coordinator was last heard, and rank 0's progress at that time.
    heard: Instant,
    coordinator_progress: (Option<u64>, String),
    connected: bool,
    /// Set by `leave` and `drop`: the end of the connection is no failure.
    closing: bool,
}

impl Rendezvous {
    /// Joins the run that `launch` describes, and waits until all ranks have. Rank 0 also starts
    /// the coordinator, at [`bind_address`].
    ///
    /// Returns [`ErrorKind::Argument`] if the launcher names no coordinator; then rank 0 starts a
    /// [`Coordinator`] and hands its address to the others, which [`join`](Rendezvous::join) it.
    pub fn start(
        launch: &Launch,
        bind: Option<IpAddr>,
        token: &Token,
        options: &Options,
    ) -> Result<Rendezvous> {
        let address = match &launch.coordinator {
            Some(address) => address.clone(),
            None if launch.size == 1 => format!("{}:0", Ipv4Addr::LOCALHOST),
            None => {
                let why = format!("the coordinator's address is unknown: {} names none", launch.launcher);
                return Err(Error::argument(why).note("set TENSORPACK_COORDINATOR to HOST:PORT of rank 0"));
            }
        };
        if launch.rank != 0 {
            return Rendezvous::join(&address, launch.rank, launch.size, token, options);
        }
        let bind = bind_address(launch, bind, &address, options)?;
        let coordinator = Coordinator::start(bind, launch.size, token, options)?;
        Rendezvous::join_own(coordinator, launch.size, token, options)
    }

    /// Joins as rank 0, which runs the coordinator.
    pub fn join_own(
        coordinator: Coordinator,
        size: u32,
        token: &Token,
        options: &Options,
    ) -> Result<Rendezvous> {
        let address = coordinator.local_address().to_string();
        let mut joined = Rendezvous::join(&address, 0, size, token, options)?;
        joined.coordinator = Some(coordinator);
        Ok(joined)
    }

    /// Joins the coordinator at `address`, `HOST:PORT`, and waits until all ranks have joined.
    /// Tries again while there is no coordinator.
    ///
    /// Returns [`ErrorKind::Deadline`] if no coordinator is found within the join timeout,
    /// [`ErrorKind::Argument`] if it refuses this rank, and [`ErrorKind::Peer`] if another rank
    /// fails or does not join.
    pub fn join(address: &str, rank: u32, size: u32, token: &Token, options: &Options) -> Result<Rendezvous> {
        let deadline = later(Instant::now(), options.join_timeout);
        let within = |e: Error| e.within(format!("rank {rank} cannot join the coordinator at {address}"));
        let mut stream = connect(address, rank, size, token, deadline).map_err(within)?;
        let hosts = loop {
            // The coordinator has the same timeout and names the ranks that are missing; this one is
            // for a coordinator that hangs.
            let welcome = Until { stream: &stream, deadline: later(deadline, options.peer_timeout) };
            match wait_for_welcome(welcome, rank).map_err(within)? {
                Welcome::Joined(hosts) => break hosts,
                Welcome::Closed(why) => {
                    // Strangers that open many connections make the coordinator close those that have
                    // not joined yet. If it is gone, or has admitted this rank, this fails at once.
                    thread::sleep(RETRY);
                    stream = try_connect(address, rank, size, token, deadline).map_err(|_| within(why))?;
                }
            }
        };
        if hosts.len() != size as usize {
            return Err(within(Error::new(ErrorKind::Io, "it sent a malformed message")));
        }
        Rendezvous::begin(stream, rank, size, hosts, options)
    }

    fn begin(
        stream: TcpStream,
        rank: u32,
        size: u32,
        hosts: Vec<String>,
        options: &Options,
    ) -> Result<Rendezvous> {
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(options.peer_timeout))?;
        let reading = stream.try_clone()?;
        let state = State {
            step: None,
            activity: "joined".into(),
            stop: StopState::default(),
            failure: None,
            next_id: 0,
            pending: HashMap::new(),
            heard: Instant::now(),
            coordinator_progress: (None, String::new()),
            connected: true,
            closing: false,
        };
        let shared = Arc::new(Shared {
            rank,
            size,
            hosts,
            options: options.clone(),
            stream,
            writing: Mutex::new(()),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let mut joined = Rendezvous { shared: shared.clone(), threads: Vec::new(), coordinator: None };
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name.into()).spawn(run).map_err(Error::from)
        };
        let beating = shared.clone();
        joined.threads.push(spawn("rendezvous-receive", Box::new(move || shared.receive(&reading)))?);
        joined.threads.push(spawn("rendezvous-heartbeat", Box::new(move || beating.beat()))?);
        Ok(joined)
    }

    /// The rank of this process.
    pub fn rank(&self) -> u32 {
        self.shared.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.shared.size
    }

    /// The host of every rank.
    pub fn hosts(&self) -> &[String] {
        &self.shared.hosts
    }

    /// The number of ranks below this one on the same host.
    pub fn local_rank(&self) -> u32 {
        let (mine, hosts) = (self.shared.rank as usize, &self.shared.hosts);
        hosts[..mine].iter().filter(|host| **host == hosts[mine]).count() as u32
    }

    /// Stores a value for all ranks. Returns [`ErrorKind::Name`] if the key has a value already.
    pub fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        check_key(key)?;
        if value.len() > MAX_VALUE_BYTES {
            let why =
                format!("the value of {key:?} has {} bytes; the limit is {MAX_VALUE_BYTES}", value.len());
            return Err(Error::argument(why));
        }
        let request = |id| Request::Put { id, key: key.into(), value: value.into() };
        match self.request(Duration::ZERO, request)? {
            Reply::Done { .. } => Ok(()),
            Reply::Exists { .. } => {
                Err(Error::new(ErrorKind::Name, format!("the key {key:?} has a value already")))
            }
            reply => Err(unexpected(reply)),
        }
    }

    /// Returns a value, waiting for it at most for `timeout`. Returns [`ErrorKind::Deadline`] if
    /// there is none by then.
    pub fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        check_key(key)?;
        match self.request(timeout, |id| Request::Get { id, key: key.into(), timeout })? {
            Reply::Value { value, .. } => Ok(value),
            Reply::TimedOut { .. } => {
                let why = format!("no rank stored a value for {key:?} within {:.1} s", timeout.as_secs_f64());
                Err(Error::new(ErrorKind::Deadline, why))
            }
            reply => Err(unexpected(reply)),
        }
    }

    /// Returns a value, or `None` if there is none.
    pub fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        check_key(key)?;
        match self.request(Duration::ZERO, |id| Request::TryGet { id, key: key.into() })? {
            Reply::Value { value, .. } => Ok(Some(value)),
            Reply::NotFound { .. } => Ok(None),
            reply => Err(unexpected(reply)),
        }
    }

    /// Removes a value, if there is one: all values together take a limited amount of memory.
    pub fn remove(&self, key: &str) -> Result<()> {
        check_key(key)?;
        match self.request(Duration::ZERO, |id| Request::Remove { id, key: key.into() })? {
            Reply::Done { .. } => Ok(()),
            reply => Err(unexpected(reply)),
        }
    }

    /// Waits until all ranks have called this with the same name, at most for `timeout`. Returns
    /// [`ErrorKind::Deadline`] with the ranks that are missing and what they are doing, and
    /// [`ErrorKind::Argument`] if one of them has left. A name can be used again.
    pub fn barrier(&self, name: &str, timeout: Duration) -> Result<()> {
        check_key(name)?;
        match self.request(timeout, |id| Request::Barrier { id, name: name.into(), timeout })? {
            Reply::Done { .. } => Ok(()),
            Reply::TimedOut { missing, .. } => {
                let seconds = timeout.as_secs_f64();
                let why =
                    format!("the barrier {name:?} is not complete after {seconds:.1} s; missing: {missing}");
                Err(Error::new(ErrorKind::Deadline, why))
            }
            reply => Err(unexpected(reply)),
        }
    }

    /// Says what this rank is doing. Heartbeats carry it to the coordinator, and errors about this
    /// rank name it. Nothing is sent at once, so this costs little.
    pub fn set_activity(&self, activity: &str) {
        let mut state = self.shared.lock();
        state.activity.clear();
        state.activity.push_str(cut(activity, MAX_ACTIVITY_BYTES));
    }

    /// Notes that this rank is about to begin a step, and returns whether it should: after a rank
    /// has [asked to stop](Rendezvous::request_stop), all ranks run the same last step.
    ///
    /// Costs a lock, except that a rank that is ahead of the agreement waits for it, at most for
    /// the peer timeout; then it returns [`ErrorKind::Deadline`].
    pub fn begin_step(&self, step: u64) -> Result<NextStep> {
        let deadline = later(Instant::now(), self.shared.options.peer_timeout);
        let mut state = self.shared.lock();
        loop {
            self.shared.check(&state)?;
            match state.stop.next(step) {
                Some(NextStep::Run) => {
                    state.step = Some(step);
                    return Ok(NextStep::Run);
                }
                Some(NextStep::Stop) => return Ok(NextStep::Stop),
                None if Instant::now() >= deadline => {
                    let why = format!("the ranks did not agree on a last step before step {step}");
                    return Err(Error::new(ErrorKind::Deadline, why));
                }
                None => state = self.shared.wait(state, deadline),
            }
        }
    }

    /// Asks all ranks to stop at the same step, soon. [`begin_step`](Rendezvous::begin_step) then
    /// tells them when.
    pub fn request_stop(&self) -> Result<()> {
        self.check()?;
        self.shared.send(&Request::Stop)
    }

    /// The last step of the run, once the ranks have agreed on it.
    pub fn last_step(&self) -> Option<u64> {
        match self.shared.lock().stop {
            StopState::Decided(last) => last,
            _ => None,
        }
    }

    /// Reports that this rank failed, and returns the first failure of the run, which every rank
    /// learns: this one, unless another rank failed before. An empty `place` stands for the rank's
    /// [activity](Rendezvous::set_activity). Waits at most for `timeout` until the coordinator has
    /// it.
    pub fn fail(&self, place: &str, message: &str, timeout: Duration) -> Failure {
        let (step, activity) = {
            let state = self.shared.lock();
            (state.step, state.activity.clone())
        };
        let rank = self.shared.rank;
        let place = if place.is_empty() { activity } else { place.to_owned() };
        let message = message.to_owned();
        let own = Failure {
            rank,
            host: self.shared.hosts[rank as usize].clone(),
            step,
            place: place.clone(),
            message: message.clone(),
        };
        // If it cannot be sent the coordinator is gone, and the others know.
        let _ = self.shared.send(&Request::Fail { step, place, message });
        let deadline = later(Instant::now(), timeout);
        let mut state = self.shared.lock();
        while state.failure.is_none() && Instant::now() < deadline {
            state = self.shared.wait(state, deadline);
        }
        let first = state.failure.get_or_insert(own).clone();
        drop(state);
        if let Some(coordinator) = &self.coordinator {
            coordinator.flush(deadline.saturating_duration_since(Instant::now()));
            // The process may end now, with messages from the others unread. TCP then resets the
            // connections, and whatever the others have not read is lost.
            thread::sleep(LINGER);
        }
        first
    }

    /// The first failure of the run, if this rank knows of one. Does not communicate.
    pub fn failure(&self) -> Option<Failure> {
        self.shared.lock().failure.clone()
    }

    /// Returns an error of kind [`ErrorKind::Peer`] if this rank knows of a failure. Does not
    /// communicate, so loops that poll a device or MPI can call it.
    pub fn check(&self) -> Result<()> {
        self.shared.check(&self.shared.lock())
    }

    /// What all ranks are doing, as the coordinator knows it; for a report about a run that hangs.
    /// It works after a failure, too.
    pub fn peers(&self, timeout: Duration) -> Result<Vec<PeerStatus>> {
        match self.shared.request(later(Instant::now(), timeout), false, |id| Request::Peers { id })? {
            Reply::Peers { peers, .. } => Ok(peers),
            reply => Err(unexpected(reply)),
        }
    }

    /// What rank 0 was doing when this rank last heard of it, for a report if the coordinator does not
    /// answer. Does not communicate.
    pub fn coordinator_status(&self) -> PeerStatus {
        let state = self.shared.lock();
        let (step, activity) = state.coordinator_progress.clone();
        let silent = state.heard.elapsed();
        let host = self.shared.hosts.first().cloned().unwrap_or_default();
        PeerStatus { rank: 0, host, step, activity, unchanged: silent, silent, left: false }
    }

    /// Leaves the run: from here on, the end of this process is no failure. Rank 0 waits until all
    /// others have left, at most for `timeout`, because they need the coordinator.
    pub fn leave(&self, timeout: Duration) -> Result<()> {
        let deadline = later(Instant::now(), timeout);
        let left = self.shared.request(deadline, true, |id| Request::Leave { id });
        self.shared.lock().closing = left.is_ok();
        left?;
        match &self.coordinator {
            Some(coordinator) => {
                let left = || deadline.saturating_duration_since(Instant::now());
                coordinator.wait_for_all_to_leave(left())?;
                // This process may end at once; the others wait for their replies.
                coordinator.flush(left());
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Sends a request and waits for its reply: `timeout`, which the coordinator watches, and the
    /// time within which a coordinator that is alive answers.
    fn request(&self, timeout: Duration, request: impl FnOnce(u64) -> Request) -> Result<Reply> {
        let deadline = later(later(Instant::now(), timeout), self.shared.options.peer_timeout);
        self.shared.request(deadline, true, request)
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        let _ = self.shared.stream.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, at most until `deadline`.
    fn wait<'a>(&self, state: MutexGuard<'a, State>, deadline: Instant) -> MutexGuard<'a, State> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
    }

    fn check(&self, state: &State) -> Result<()> {
        state.failure.as_ref().map_or(Ok(()), |failure| Err(failure.to_error()))
    }

    /// Writes a message. An error, such as that of a coordinator that does not read, ends the
    /// connection, because a part of the message may have been written.
    fn send(&self, request: &Request) -> Result<()> {
        self.write(request).or_else(|e| {
            self.wait_for_last_messages();
            self.lost(&describe_error(&e));
            self.check(&self.lock())?;
            Err(Error::from(e).within("the control plane"))
        })
    }

    fn write(&self, request: &Request) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        write_frame(&mut &self.stream, &request.encode())
    }

    /// The coordinator may have closed the connection after a message that names the run's failure,
    /// which the receiving thread has yet to read. Waits until it has, at most for [`LINGER`].
    fn wait_for_last_messages(&self) {
        // If the coordinator is silent rather than gone, there is no message to wait for.
        let _ = self.stream.shutdown(Shutdown::Write);
        let deadline = Instant::now() + LINGER;
        let mut state = self.lock();
        while state.connected && state.failure.is_none() && Instant::now() < deadline {
            state = self.wait(state, deadline);
        }
    }

    /// Sends a request and waits for its reply. With `checked`, a failure of the run ends the wait.
    fn request(
        &self,
        deadline: Instant,
        checked: bool,
        request: impl FnOnce(u64) -> Request,
    ) -> Result<Reply> {
        let id = {
            let mut state = self.lock();
            if checked {
                self.check(&state)?;
            }
            state.next_id += 1;
            let id = state.next_id;
            state.pending.insert(id, None);
            id
        };
        let reply = self.send(&request(id)).and_then(|()| self.reply(id, deadline, checked));
        self.lock().pending.remove(&id);
        reply
    }

    fn reply(&self, id: u64, deadline: Instant, checked: bool) -> Result<Reply> {
        let mut state = self.lock();
        loop {
            if let Some(reply) = state.pending.get_mut(&id).and_then(Option::take) {
                return Ok(reply);
            }
            if checked || !state.connected {
                self.check(&state)?;
            }
            if Instant::now() >= deadline {
                return Err(Error::new(ErrorKind::Deadline, "the coordinator did not answer in time"));
            }
            state = self.wait(state, deadline);
        }
    }

    /// Reads messages until the connection ends.
    fn receive(&self, mut stream: &TcpStream) {
        let ended = loop {
            let message = read_frame(&mut stream, MAX_MESSAGE_BYTES, || self.lock().heard = Instant::now());
            match message.map(|bytes| Reply::decode(&bytes)) {
                Ok(Some(reply)) => self.handle(reply),
                Ok(None) => break "it sent a malformed message".to_owned(),
                Err(e) => break describe_error(&e),
            }
        };
        self.lost(&ended);
    }

    fn handle(&self, reply: Reply) {
        let mut state = self.lock();
        match reply {
            Reply::Alive { step, activity } => state.coordinator_progress = (step, activity),
            Reply::Failed(failure) => {
                state.failure.get_or_insert(failure);
            }
            Reply::ProposeStop => {
                let step = state.step;
                let last = state.stop.propose(step);
                drop(state);
                // This is the receiving thread. After an error it reads on, and heartbeats report it.
                let _ = self.write(&Request::Promise { last });
            }
            Reply::StopAfter { last } => state.stop = StopState::Decided(last),
            Reply::Done { id }
            | Reply::Value { id, .. }
            | Reply::NotFound { id }
            | Reply::Exists { id }
            | Reply::TimedOut { id, .. }
            | Reply::Rejected { id, .. }
            | Reply::Peers { id, .. } => {
                // Nobody waits any more if the request timed out here.
                if let Some(slot) = state.pending.get_mut(&id) {
                    *slot = Some(reply);
                }
            }
            // Part of the handshake, which is over.
            Reply::Challenge { .. } | Reply::Refused { .. } | Reply::Welcome { .. } => {}
        }
        self.changed.notify_all();
    }

    /// The connection ended: rank 0 is gone, unless this rank is leaving.
    fn lost(&self, why: &str) {
        let message = format!(
            "the connection to this rank, which runs the coordinator, was lost, so its process has probably died ({why})"
        );
        self.coordinator_failed(message);
    }

    fn coordinator_failed(&self, message: String) {
        let mut state = self.lock();
        state.connected = false;
        if !state.closing && state.failure.is_none() {
            let (step, place) = state.coordinator_progress.clone();
            let host = self.hosts.first().cloned().unwrap_or_default();
            state.failure = Some(Failure { rank: 0, host, step, place, message });
        }
        self.changed.notify_all();
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Sends heartbeats, and watches those of the coordinator.
    fn beat(&self) {
        let (interval, timeout) = (self.options.interval(), self.options.peer_timeout);
        let mut last = Instant::now();
        loop {
            let (step, activity, silent) = {
                let mut state = self.lock();
                if state.closing {
                    return;
                }
                let now = Instant::now();
                // This process itself was stopped or starved: messages may be waiting to be read.
                if now - last > timeout / 2 {
                    state.heard = now;
                }
                last = now;
                (state.step, state.activity.clone(), now.saturating_duration_since(state.heard))
            };
            if silent > timeout {
                return self.coordinator_failed(format!("no heartbeat for {:.1} s", silent.as_secs_f64()));
            }
            if self.send(&Request::Heartbeat { step, activity }).is_err() {
                return;
            }
            let next = Instant::now() + interval;
            let mut state = self.lock();
            while !state.closing && Instant::now() < next {
                state = self.wait(state, next);
            }
        }
    }
}

fn unexpected(reply: Reply) -> Error {
    match reply {
        Reply::Rejected { reason, .. } => Error::argument(reason),
        _ => Error::new(ErrorKind::Io, "the coordinator sent an unexpected reply"),
    }
}

fn check_key(key: &str) -> Result<()> {
    match key.len() {
        1..=MAX_KEY_BYTES => Ok(()),
        n => Err(Error::argument(format!("a key of {n} bytes; it must have from 1 to {MAX_KEY_BYTES}"))),
    }
}

/// The address at which rank 0 listens: `bind` if given, else loopback if all ranks are on one
/// host, else the address that the coordinator's name stands for.
pub fn bind_address(
    launch: &Launch,
    bind: Option<IpAddr>,
    coordinator: &str,
    options: &Options,
) -> Result<SocketAddr> {
    let (host, port) = coordinator.rsplit_once(':').unwrap_or((coordinator, "0"));
    let port: u16 = port.parse().map_err(|_| Error::argument(format!("{coordinator:?} has no port")))?;
    if let Some(ip) = bind {
        return Ok(SocketAddr::new(ip, port));
    }
    if launch.is_one_host() {
        return Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
    }
    let deadline = later(Instant::now(), options.join_timeout);
    let found =
        resolve(coordinator, deadline).map_err(|e| e.within(format!("the coordinator {coordinator}")))?;
    let is_named_loopback = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() || host == "localhost";
    match found.iter().find(|address| is_named_loopback || !address.ip().is_loopback()) {
        Some(address) => Ok(*address),
        // A host's own name often stands for a loopback address in its /etc/hosts.
        None => {
            (options.on_warning)(&format!(
                "{host} stands for a loopback address on this host, so the coordinator listens on all \
                 interfaces; name one to listen on a single one"
            ));
            Ok(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))
        }
    }
}

/// Resolves a name on a thread of its own, because the system's resolver has no deadline.
fn resolve(address: &str, deadline: Instant) -> Result<Vec<SocketAddr>> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let (send, receive) = sync_channel(1);
    let name = address.to_owned();
    let run = move || drop(send.send(name.to_socket_addrs().map(|found| found.collect::<Vec<_>>())));
    thread::Builder::new().name("rendezvous-resolve".into()).spawn(run)?;
    match receive.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Ok(found)) if found.is_empty() => Err(Error::new(ErrorKind::Io, "the name has no address")),
        Ok(found) => Ok(found?),
        Err(_) => Err(Error::new(ErrorKind::Deadline, "the name was not resolved in time")),
    }
}

/// Connects and proves to the coordinator that this rank knows the token; tries again until
/// `deadline` while nobody listens there.
fn connect(address: &str, rank: u32, size: u32, token: &Token, deadline: Instant) -> Result<TcpStream> {
    let mut pause = RETRY;
    loop {
        let error = match try_connect(address, rank, size, token, deadline) {
            Ok(stream) => return Ok(stream),
            // Not retried: it will not change.
            Err(e) if e.kind() == ErrorKind::Argument => return Err(e),
            Err(e) => e,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let why = format!("no connection in time: {}", error.message());
            return Err(Error::new(ErrorKind::Deadline, why)
                .note("is rank 0 running, and does a firewall allow connections to it?"));
        }
        thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(250));
    }
}

fn try_connect(address: &str, rank: u32, size: u32, token: &Token, deadline: Instant) -> Result<TcpStream> {
    const ATTEMPT: Duration = Duration::from_secs(5);
    let deadline = deadline.min(Instant::now() + ATTEMPT);
    let mut last = Error::new(ErrorKind::Io, "the name has no address");
    for address in resolve(address, deadline)? {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) if is_connected_to_itself(&stream) => {
                last = Error::new(ErrorKind::Io, "nobody listens there");
            }
            Ok(stream) => {
                stream.set_nodelay(true)?;
                handshake(Until { stream: &stream, deadline }, rank, size, token)?;
                return Ok(stream);
            }
            Err(e) => last = e.into(),
        }
    }
    Err(last)
}

/// TCP connects a socket to itself if nobody listens at a port of this host, and the system happens to
/// choose the same port for the other end. The coordinator could not listen there until it is closed.
fn is_connected_to_itself(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(local), Ok(peer)) if local == peer)
}

fn handshake(mut until: Until<'_>, rank: u32, size: u32, token: &Token) -> Result<()> {
    let ours = nonce();
    write_frame(&mut until, &Request::Hello { version: VERSION, nonce: ours }.encode())?;
    let (version, theirs, proof) = match Reply::decode(&read_frame(&mut until, MAX_HANDSHAKE_BYTES, || ())?) {
        Some(Reply::Challenge { version, nonce, proof }) => (version, nonce, proof),
        Some(Reply::Refused { reason }) => {
            return Err(Error::argument(format!("it refuses this rank: {reason}")));
        }
        _ => return Err(Error::argument("another program listens there: it does not speak this protocol")),
    };
    if version != VERSION {
        let why = format!("it has version {version} of the protocol, not {VERSION}");
        return Err(Error::argument(why).note("all ranks must run the same program"));
    }
    if !constant_time_eq(&proof, &token.proof(&[b"coordinator", &ours, &theirs])) {
        let why = "it has another token, or belongs to another run";
        return Err(Error::argument(why).note(format!("all ranks need the same {}", Token::VARIABLE)));
    }
    let host = host_name();
    let proof =
        token.proof(&[b"rank", &ours, &theirs, &rank.to_le_bytes(), &size.to_le_bytes(), host.as_bytes()]);
    Ok(write_frame(&mut until, &Request::Join { rank, size, host, proof }.encode())?)
}

/// How the wait for all ranks to join ended.
enum Welcome {
    /// All have; these are their hosts.
    Joined(Vec<String>),
    /// The connection was closed before.
    Closed(Error),
}

/// Waits until all ranks have joined.
fn wait_for_welcome(mut until: Until<'_>, rank: u32) -> Result<Welcome> {
    match read_frame(&mut until, MAX_MESSAGE_BYTES, || ()).map(|bytes| Reply::decode(&bytes)) {
        Ok(Some(Reply::Welcome { hosts })) => Ok(Welcome::Joined(hosts)),
        Ok(Some(Reply::Refused { reason })) => {
            Err(Error::argument(format!("it refuses this rank: {reason}")))
        }
        Ok(Some(Reply::Failed(failure))) => Err(failure.to_error()),
        Ok(_) => Err(Error::new(ErrorKind::Io, "it sent a malformed message")),
        Err(e) if e.kind() == io::ErrorKind::TimedOut => Err(Error::new(
            ErrorKind::Deadline,
            format!("rank {rank} was not told in time that all ranks have joined"),
        )),
        Err(e) => {
            let why =
                format!("rank 0 closed the connection before all ranks had joined ({})", describe_error(&e));
            Ok(Welcome::Closed(Error::new(ErrorKind::Peer, why)))
        }
    }
}

/// This host's name.
fn host_name() -> String {
    let file = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let names = [file, env::var("HOSTNAME").ok(), env::var("COMPUTERNAME").ok()];
    let name = names.into_iter().flatten().map(|name| name.trim().to_owned()).find(|name| !name.is_empty());
    cut(&name.unwrap_or_else(|| "unknown-host".into()), MAX_HOST_BYTES).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use tensorpack_testing::assert_mentions;

    /// Peers with the token, too, are held to the protocol.
    #[test]
    fn a_rank_that_breaks_the_protocol_has_failed() {
        let (token, options) = (Token::random(), Options::new());
        let oversized = (MAX_MESSAGE_BYTES as u32 + 1).to_le_bytes();
        let malformed = [1, 0, 0, 0, 200];
        for (bytes, why) in [(&oversized[..], "limit"), (&malformed, "malformed")] {
            let coordinator = Coordinator::start("127.0.0.1:0", 2, &token, &options).unwrap();
            let address = coordinator.address().to_string();
            let their_token = token.clone();
            let deadline = later(Instant::now(), Duration::from_secs(20));
            let joining = thread::spawn(move || connect(&address, 1, 2, &their_token, deadline).unwrap());
            let rank = Rendezvous::join_own(coordinator, 2, &token, &options).unwrap();
            let stream = joining.join().unwrap();
            io::Write::write_all(&mut &stream, bytes).unwrap();
            let error = rank.get("never", Duration::from_secs(20)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Peer);
            assert_mentions(error, &["rank 1", why]);
        }
    }

    /// Found by trying until the system chooses the port itself, from the range that Linux uses.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_socket_that_is_connected_to_itself_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(!is_connected_to_itself(&other));
        let mut tries = (0..1_000_000).map(|i| 40_000 + 2 * (i / 100 % 5_000) as u16);
        // Another program may listen at some of them.
        let to_itself = |stream: &TcpStream| stream.local_addr().unwrap() == stream.peer_addr().unwrap();
        let itself =
            tries.find_map(|port| TcpStream::connect(("127.0.0.1", port)).ok().filter(to_itself)).unwrap();
        assert!(is_connected_to_itself(&itself));
    }
}
