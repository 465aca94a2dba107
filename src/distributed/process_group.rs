//! The processes that train together.

use super::mpi_thread::{MpiThread, deadline};
use super::store_gather::StoreGather;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tensorpack_mpi::{Buffer, Completed, Request, World};
use tensorpack_rendezvous::{
    Coordinator, Launch, LaunchOptions, Options, PeerStatus, Rendezvous, Token, bind_address,
};
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// How long an error of MPI waits for the control plane to name the rank that caused it.
const NAMING_TIMEOUT: Duration = Duration::from_secs(1);
/// What a rank says it is doing during a step, unless it waits for others.
pub(crate) const COMPUTING: &str = "computing";
/// The beginning of what a rank says it is doing while it waits for the sums of a step.
pub(crate) const WAITING: &str = "waiting for the sum";
/// The first interval after which a rank that waits for others looks where they are. Later ones are
/// longer.
const LOOK_AFTER: Duration = Duration::from_secs(2);
/// The most characters of the name of a barrier.
const MAX_NAME: usize = 100;
/// The longest message of a broadcast; MPI counts bytes in 32 bits.
const MAX_MESSAGE: usize = 1 << 30;

/// The processes that train together, one of which is this one: its rank. A launcher such as
/// `tensorpack launch`, `mpirun` or `srun` starts them.
///
/// Two channels connect them. MPI, or the collectives of an accelerator, moves tensors; a control
/// plane, a TCP server on rank 0, carries small values and heartbeats, and tells all ranks which one
/// has failed and where. Once a rank has failed, every call returns that error, of kind
/// [`ErrorKind::Peer`].
#[doc(alias = "Horovod")]
#[doc(alias = "world")]
pub struct ProcessGroup {
    rendezvous: Rendezvous,
    mpi: Option<&'static MpiThread>,
    /// How many threads wait for the communication thread.
    urgent: AtomicUsize,
    /// Nanoseconds that towers waited for sums.
    exposed: AtomicU64,
    /// The number of barriers so far.
    barriers: AtomicU64,
    /// Used without MPI.
    gathers: Mutex<StoreGather>,
    wire_dtype: Option<DType>,
}

/// How a job of the communication thread waits for its requests.
#[derive(Clone, Copy)]
pub(super) struct Waiting<'a> {
    group: &'a ProcessGroup,
    deadline: Instant,
}

impl Waiting<'_> {
    /// Waits for a request until the deadline, or until another rank has failed.
    pub(super) fn for_request(self, request: Request<'_>) -> Result<Completed> {
        let is_urgent = || self.group.urgent.load(Ordering::Relaxed) > 0;
        request.wait_until(self.deadline, &|| self.group.rendezvous.check(), &is_urgent)
    }
}

/// Lets the communication thread poll without pauses as long as it exists.
pub(super) struct Urgent<'a>(&'a ProcessGroup);

impl Drop for Urgent<'_> {
    fn drop(&mut self) {
        self.0.urgent.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a process joins the others.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// The time after which a rank that is silent has failed. Defaults to 10 s.
    pub peer_timeout: Duration,
    /// Whether tensors are moved by MPI. Accelerators have their own collectives; then MPI is used
    /// only if the launcher names no coordinator. Defaults to `true`.
    pub mpi: bool,
    /// The dtype in which gradients are sent, if it is not their own: bf16 halves the traffic of f32.
    /// Each process rounds the sum over its towers before it sends it, and adds up in f32. Only MPI
    /// does so. Defaults to `None`.
    pub wire_dtype: Option<DType>,
}

impl Default for GroupOptions {
    fn default() -> GroupOptions {
        GroupOptions { peer_timeout: Duration::from_secs(10), mpi: true, wire_dtype: None }
    }
}

impl ProcessGroup {
    /// How long an error may take after its deadline to name the rank that caused it.
    pub(crate) const EXPLANATION: Duration = Duration::from_secs(2 * NAMING_TIMEOUT.as_secs());

    /// Joins the processes that a launcher started together with this one, and waits for all of
    /// them. Without a launcher the process is alone.
    pub fn join(options: &GroupOptions) -> Result<Arc<ProcessGroup>> {
        if let Some(dtype) = options.wire_dtype.filter(|dtype| *dtype != DType::Bf16) {
            let why = format!("gradients cannot be sent as {dtype}");
            return Err(Error::new(ErrorKind::DType, why).note("send them as bf16, or as they are"));
        }
        if options.wire_dtype.is_some() && !options.mpi {
            let why = "accelerators send gradients as they are: wire_dtype is for thread teams (cpu:N)";
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let launch = Launch::detect(&LaunchOptions::default())?;
        let settings =
            Options::new().peer_timeout(options.peer_timeout).on_warning(|warning| log::warn!("{warning}"));
        let mpi = match launch.size > 1 && (options.mpi || launch.coordinator.is_none()) {
            true if options.mpi => Some(MpiThread::get()?),
            // It is needed only to find rank 0.
            true => Some(MpiThread::get().map_err(|e| {
                let why =
                    format!("{} names no coordinator, and MPI cannot be used to find it", launch.launcher);
                e.within(why).note(format!(
                    "set TENSORPACK_COORDINATOR to HOST:PORT of rank 0 and {} to a secret",
                    Token::VARIABLE
                ))
            })?),
            false => None,
        };
        if let Some(mpi) = mpi {
            check_ranks(&launch, mpi)?;
            mpi.set_in_use(true);
        }
        let rendezvous = match (mpi, &launch.coordinator) {
            (Some(mpi), None) => meet_over_mpi(&launch, mpi, &settings)?,
            (_, None) if launch.size == 1 => Rendezvous::start(&launch, None, &Token::random(), &settings)?,
            _ => Rendezvous::start(&launch, None, &Token::from_env()?, &settings)?,
        };
        Ok(ProcessGroup::new(rendezvous, mpi, options.wire_dtype))
    }

    /// Returns the group of the ranks of a rendezvous, for sessions on accelerators: without MPI,
    /// sessions on thread teams cannot use it.
    pub fn from_rendezvous(rendezvous: Rendezvous) -> Arc<ProcessGroup> {
        ProcessGroup::new(rendezvous, None, None)
    }

    fn new(
        rendezvous: Rendezvous,
        mpi: Option<&'static MpiThread>,
        wire_dtype: Option<DType>,
    ) -> Arc<ProcessGroup> {
        let (urgent, exposed, barriers, gathers) = Default::default();
        Arc::new(ProcessGroup { rendezvous, mpi, urgent, exposed, barriers, gathers, wire_dtype })
    }

    /// Returns the rank of this process.
    pub fn rank(&self) -> usize {
        self.rendezvous.rank() as usize
    }

    /// Returns the number of processes.
    #[doc(alias = "world_size")]
    pub fn size(&self) -> usize {
        self.rendezvous.size() as usize
    }

    /// Returns the number of processes on this host.
    pub fn local_size(&self) -> usize {
        let hosts = self.rendezvous.hosts();
        hosts.iter().filter(|host| **host == hosts[self.rank()]).count()
    }

    /// Returns the dtype in which gradients are sent, if it is not their own.
    pub fn wire_dtype(&self) -> Option<DType> {
        self.wire_dtype
    }

    /// Returns the control plane.
    pub fn rendezvous(&self) -> &Rendezvous {
        &self.rendezvous
    }

    /// Returns how long towers have waited for other ranks since the group was joined.
    pub fn exposed_communication(&self) -> Duration {
        Duration::from_nanos(self.exposed.load(Ordering::Relaxed))
    }

    /// Says that someone waits for the communication thread, until the result is dropped.
    pub(super) fn urgent(&self) -> Urgent<'_> {
        self.urgent.fetch_add(1, Ordering::Relaxed);
        Urgent(self)
    }

    pub(super) fn add_exposed(&self, waited: Duration) {
        self.exposed.fetch_add(waited.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Runs a job on the communication thread. The job gets the world, or an error if an earlier one
    /// has failed, the instant at which it must be done, and a check that fails when another rank
    /// has. Its own error ends the use of MPI; the job must [`explain`](Self::explain) it.
    pub(super) fn submit(
        self: &Arc<ProcessGroup>,
        timeout: Duration,
        job: impl FnOnce(Result<&World>, Waiting<'_>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let mpi = self
            .mpi
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, "these processes were not connected by MPI"))?;
        let group = self.clone();
        mpi.submit(move |world| job(world, Waiting { group: &group, deadline: deadline(timeout) }))
    }

    /// Runs a job on the communication thread and waits for its result.
    pub(super) fn run<R: Send + 'static>(
        self: &Arc<ProcessGroup>,
        timeout: Duration,
        job: impl FnOnce(&World, Waiting<'_>) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let (answer, answered) = sync_channel(1);
        let group = self.clone();
        let _urgent = self.urgent();
        self.submit(timeout, move |world, wait| {
            let done = world.and_then(|world| job(world, wait).map_err(|e| group.explain(e)));
            let failed = done.as_ref().err().cloned();
            // The caller waits for it.
            let _ = answer.send(done);
            failed.map_or(Ok(()), Err)
        })?;
        let gone = |_| Error::new(ErrorKind::Engine, "the communication thread is gone");
        answered.recv().map_err(gone)?
    }

    /// Returns the same number of bytes of every rank, in order of ranks.
    pub(crate) fn all_gather(
        self: &Arc<ProcessGroup>,
        own: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>> {
        if self.size() == 1 {
            return Ok(vec![own.to_vec()]);
        }
        if self.mpi.is_none() {
            return self.gather_all(own, timeout);
        }
        let (send, receive) = (Buffer::from(own), Buffer::zeroed(own.len() * self.size()));
        let each = own.len();
        let (_, gathered) = self.exchange_all(send, receive, timeout)?;
        Ok((0..self.size()).map(|rank| gathered[rank * each..(rank + 1) * each].to_vec()).collect())
    }

    /// Sends `send` to all ranks, and receives as many bytes from each. Needs MPI. Returns the buffers.
    pub(super) fn exchange_all(
        self: &Arc<ProcessGroup>,
        send: Buffer,
        receive: Buffer,
        timeout: Duration,
    ) -> Result<(Buffer, Buffer)> {
        self.run(timeout, move |world, wait| {
            let done = wait.for_request(world.all_gather(send, receive)?)?;
            Ok((done.send, done.receive))
        })
    }

    /// Returns the bytes of every rank, in order of ranks.
    pub(crate) fn gather_all(
        self: &Arc<ProcessGroup>,
        own: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>> {
        if self.mpi.is_none() {
            let gathered = self.store_gather().gather(&self.rendezvous, own, timeout);
            return gathered.map_err(|e| self.explain(e));
        }
        let lengths = self.all_gather(&(own.len() as u64).to_le_bytes(), timeout)?;
        let length = |bytes: &Vec<u8>| bytes[..].try_into().map_or(0, u64::from_le_bytes) as usize;
        let longest = lengths.iter().map(length).max().unwrap_or(0);
        let mut padded = own.to_vec();
        padded.resize(longest, 0);
        let gathered = self.all_gather(&padded, timeout)?;
        let cut = |(mut bytes, len): (Vec<u8>, &Vec<u8>)| {
            bytes.truncate(length(len));
            bytes
        };
        Ok(gathered.into_iter().zip(&lengths).map(cut).collect())
    }

    /// Returns the bytes of rank 0. Other ranks pass anything.
    pub(crate) fn broadcast(self: &Arc<ProcessGroup>, own: Vec<u8>, timeout: Duration) -> Result<Vec<u8>> {
        if self.size() == 1 {
            return Ok(own);
        }
        if self.mpi.is_none() {
            let received = self.store_gather().broadcast(&self.rendezvous, &own, timeout);
            return received.map_err(|e| self.explain(e));
        }
        let lengths = self.all_gather(&(own.len() as u64).to_le_bytes(), timeout)?;
        let len = lengths[0][..].try_into().map_or(0, u64::from_le_bytes) as usize;
        let mut bytes = if self.rank() == 0 { own } else { vec![0; len] };
        for chunk in bytes.chunks_mut(MAX_MESSAGE) {
            let buffer = Buffer::from(&*chunk);
            let received = self.run(timeout, move |world, wait| {
                Ok(wait.for_request(world.broadcast(0, buffer)?)?.receive)
            })?;
            chunk.copy_from_slice(&received);
        }
        Ok(bytes)
    }

    fn store_gather(&self) -> MutexGuard<'_, StoreGather> {
        self.gathers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for all ranks, through the control plane.
    pub(crate) fn barrier(&self, name: &str, timeout: Duration) -> Result<()> {
        let count = self.barriers.fetch_add(1, Ordering::Relaxed);
        self.rendezvous.barrier(&format!("{name}/{count}"), timeout)
    }

    /// Waits for all ranks at a place outside of the steps. `what` says what all ranks do there, such
    /// as "saves", and `with` adds what may differ between them. Returns an error early if a rank waits for the sums of a step after `step`,
    /// or after the last one that this rank has begun: it will not come.
    pub(crate) fn barrier_between_steps(
        &self,
        what: &str,
        with: &str,
        step: Option<u64>,
        timeout: Duration,
    ) -> Result<()> {
        let count = self.barriers.fetch_add(1, Ordering::Relaxed);
        let end = what.char_indices().map(|(i, _)| i).nth(MAX_NAME).unwrap_or(what.len());
        let name = format!("{}/{count}", &what[..end]);
        let deadline = deadline(timeout);
        let mut interval = LOOK_AFTER;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.rendezvous.barrier(&name, left.min(interval)) {
                Err(e) if e.kind() == ErrorKind::Deadline && left > interval => {
                    self.check_nobody_trains(&format!("{what} {with}"), step)?;
                    interval = (2 * interval).min(timeout / 8).max(LOOK_AFTER);
                }
                Err(e) if e.kind() == ErrorKind::Deadline => {
                    return Err(e.within(format!("after {:.1} s in all", timeout.as_secs_f64())));
                }
                done => return done,
            }
        }
    }

    /// Returns an error if another rank is in a step that this rank has not begun.
    fn check_nobody_trains(&self, what: &str, step: Option<u64>) -> Result<()> {
        let peers = self.rendezvous.peers(NAMING_TIMEOUT)?;
        let step = step.or_else(|| peers.get(self.rank())?.step);
        let trains = |peer: &&PeerStatus| peer.step > step && peer.activity.starts_with(WAITING);
        let Some(peer) = peers.iter().find(trains) else { return Ok(()) };
        let why = format!("rank {} {} while another one trains: {peer}", self.rank(), what.trim_end());
        Err(Error::argument(why)
            .note("callbacks must do the same in all ranks")
            .note("if only rank 0 has something to do, make the callback chief_only; it can save and stop"))
    }

    /// Leaves the run: from here on, the end of this process is no failure. Waits for the others, at
    /// most for `timeout`.
    pub fn leave(&self, timeout: Duration) -> Result<()> {
        self.barrier("end", timeout)?;
        match self.rendezvous.leave(timeout) {
            // All ranks are done, so rank 0 may have ended before this one got its reply.
            Err(e) if e.kind() == ErrorKind::Peer && self.rank() > 0 => {}
            left => left?,
        }
        if let Some(mpi) = self.mpi {
            mpi.set_in_use(false);
        }
        Ok(())
    }

    /// Waits for a moment until the control plane knows of a failed rank, and returns its error.
    pub(crate) fn wait_for_cause(&self) -> Option<Error> {
        let begun = Instant::now();
        loop {
            if let Err(cause) = self.rendezvous.check() {
                return Some(cause);
            }
            if begun.elapsed() > NAMING_TIMEOUT {
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Names the rank that caused an error of MPI, if the control plane knows it; otherwise says what
    /// all others are doing.
    pub(super) fn explain(&self, e: Error) -> Error {
        if e.kind() == ErrorKind::Peer {
            return e;
        }
        if let Some(cause) = self.wait_for_cause() {
            return cause;
        }
        let peers = self.rendezvous.peers(NAMING_TIMEOUT);
        let peers = peers.unwrap_or_else(|_| vec![self.rendezvous.coordinator_status()]);
        peers.iter().filter(|p| p.rank as usize != self.rank()).fold(e, |e, peer| e.note(peer.to_string()))
    }

    /// Reports the error that ends this rank to all others. An error that another rank caused is
    /// known to them.
    pub(crate) fn fail(&self, error: &Error) {
        // The end of the process must not wait for the others.
        if let Some(mpi) = self.mpi {
            mpi.give_up();
        }
        if error.kind() != ErrorKind::Peer {
            self.rendezvous.fail("", &error.to_string(), NAMING_TIMEOUT);
        }
    }
}

impl fmt::Display for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} on {}", self.rank(), self.size(), self.rendezvous.hosts()[self.rank()])?;
        self.mpi.map_or(Ok(()), |mpi| write!(f, ", {}", mpi.version))
    }
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Checks that MPI has the ranks of the launcher.
fn check_ranks(launch: &Launch, mpi: &MpiThread) -> Result<()> {
    let (rank, size) = (launch.rank as usize, launch.size as usize);
    if (mpi.rank, mpi.size) == (rank, size) {
        return Ok(());
    }
    let why = format!(
        "{} says that this is rank {rank} of {size}, but {} says rank {} of {}",
        launch.launcher, mpi.version, mpi.rank, mpi.size
    );
    Err(Error::argument(why)
        .note("start the program with the launcher of this MPI, such as tensorpack launch"))
}

/// Joins over a coordinator whose address and token rank 0 broadcasts.
fn meet_over_mpi(launch: &Launch, mpi: &'static MpiThread, settings: &Options) -> Result<Rendezvous> {
    // A token has at most 4096 bytes, a name of a host 255.
    const MAX_ADDRESS: usize = 8192;
    const TIMEOUT: Duration = Duration::from_secs(60);
    let (mut own, mut message) = (None, vec![0; MAX_ADDRESS]);
    if launch.rank == 0 {
        let token = match std::env::var_os(Token::VARIABLE) {
            Some(_) => Token::from_env()?,
            None => Token::random(),
        };
        let host = host_name();
        let bind = bind_address(launch, None, &format!("{host}:0"), settings)?;
        let coordinator = Coordinator::start(bind, launch.size, &token, settings)?;
        let address = coordinator.address();
        let reached_at = match launch.is_one_host() {
            true => address.to_string(),
            false if address.ip().is_unspecified() => format!("{host}:{}", address.port()),
            false => address.to_string(),
        };
        let text = format!("{reached_at}\n{}", token.as_str());
        if text.len() > MAX_ADDRESS {
            let why = format!("address and token have {} bytes; they may have {MAX_ADDRESS}", text.len());
            return Err(Error::argument(why).note(format!("set {} to a shorter text", Token::VARIABLE)));
        }
        message[..text.len()].copy_from_slice(text.as_bytes());
        own = Some((coordinator, token));
    }
    let (answer, answered) = sync_channel(1);
    mpi.submit(move |world| {
        let sent = world.and_then(|world| {
            Ok(world.broadcast(0, Buffer::from(&message[..]))?.wait(deadline(TIMEOUT), &|| Ok(()))?.receive)
        });
        let failed = sent.as_ref().err().cloned();
        // The caller waits for it.
        let _ = answer.send(sent);
        failed.map_or(Ok(()), Err)
    })?;
    let gone = |_| Error::new(ErrorKind::Engine, "the communication thread is gone");
    let message = answered.recv().map_err(gone)??;
    let text = String::from_utf8_lossy(&message);
    let malformed = || Error::new(ErrorKind::Io, "rank 0 broadcast no address of the coordinator");
    let (address, token) = text.trim_end_matches('\0').split_once('\n').ok_or_else(malformed)?;
    match own {
        Some((coordinator, token)) => Rendezvous::join_own(coordinator, launch.size, &token, settings),
        None => Rendezvous::join(address, launch.rank, launch.size, &Token::new(token)?, settings),
    }
}

/// Returns the name of this host.
fn host_name() -> String {
    #[cfg(unix)]
    {
        let mut name = [0u8; 256];
        // SAFETY: the buffer is as long as stated, and keeps its last byte, which ends the text.
        let code = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
        let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
        if code == 0 && !text.is_empty() {
            return String::from_utf8_lossy(text).into_owned();
        }
    }
    "localhost".into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::process::{Child, Command, Stdio};

    /// Set in child processes to what they do.
    const CHILD: &str = "TENSORPACK_TEST_GROUP_PROCESS";
    const LONG: Duration = Duration::from_secs(120);

    /// Runs in a child process: one rank.
    #[test]
    fn rank_process() {
        match std::env::var(CHILD).as_deref() {
            Ok("gather") => gather_in_all_ways(),
            Ok("refuse") => thread_teams_need_mpi(),
            Ok("die") => one_rank_dies(),
            _ => {}
        }
    }

    fn join() -> Arc<ProcessGroup> {
        ProcessGroup::join(&GroupOptions { mpi: false, ..GroupOptions::default() }).unwrap()
    }

    /// The bytes of a rank, some of which need many rounds.
    fn bytes(rank: usize, len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + i / 251 + rank * 101) as u8).collect()
    }

    fn gather_in_all_ways() {
        let group = join();
        let (rank, size) = (group.rank(), group.size());
        for round in 0..3 {
            let own = bytes(rank, 40 + round);
            let expected: Vec<Vec<u8>> = (0..size).map(|rank| bytes(rank, 40 + round)).collect();
            assert_eq!(group.all_gather(&own, LONG).unwrap(), expected);
            group.barrier("between", LONG).unwrap();
        }
        for lens in [[0, 0], [0, 1], [9 << 20, 5 << 20]] {
            let expected: Vec<Vec<u8>> = (0..size).map(|rank| bytes(rank, lens[rank])).collect();
            assert!(group.gather_all(&bytes(rank, lens[rank]), LONG).unwrap() == expected, "{lens:?}");
        }
        for len in [0, 1, 9 << 20] {
            let own = if rank == 0 { bytes(0, len) } else { bytes(7, 3) };
            assert!(group.broadcast(own, LONG).unwrap() == bytes(0, len), "{len} bytes");
        }
        group.barrier("end", LONG).unwrap();
        // Only the result of the last round remains.
        let rounds = group.store_gather().rounds();
        let kept = |round: &u64| group.rendezvous().try_get(&format!("gather/{round}")).unwrap().is_some();
        assert_eq!((0..rounds).filter(kept).collect::<Vec<u64>>(), [rounds - 1]);
        group.barrier("compared", LONG).unwrap();
        group.rendezvous().leave(LONG).unwrap();
    }

    fn thread_teams_need_mpi() {
        let group = join();
        let e = group.submit(LONG, |_, _| Ok(())).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert!(e.message().contains("MPI"), "{e}");
        group.barrier("end", LONG).unwrap();
        group.rendezvous().leave(LONG).unwrap();
    }

    fn one_rank_dies() {
        let group = join();
        group.barrier("joined", LONG).unwrap();
        if group.rank() == 1 {
            std::process::exit(0);
        }
        let e = group.broadcast(vec![1, 2, 3], LONG).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Peer, "{e}");
        assert!(e.message().contains("rank 1"), "{e}");
    }

    #[test]
    fn gradients_are_sent_as_bf16_over_mpi_only() {
        let refused = |wire_dtype, mpi| {
            let options = GroupOptions { wire_dtype: Some(wire_dtype), mpi, ..GroupOptions::default() };
            ProcessGroup::join(&options).unwrap_err()
        };
        assert_eq!(refused(DType::F64, true).kind(), ErrorKind::DType);
        assert_eq!(refused(DType::Bf16, false).kind(), ErrorKind::Unsupported);
    }

    fn start(role: &str) -> Vec<Child> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let token = Token::random();
        let start = |rank: usize| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "distributed::process_group::tests::rank_process", "--nocapture"]);
            command.env(CHILD, role).env("TENSORPACK_RANK", rank.to_string()).env("TENSORPACK_SIZE", "2");
            command.env("TENSORPACK_COORDINATOR", format!("127.0.0.1:{port}"));
            command.env(Token::VARIABLE, token.as_str()).stdin(Stdio::null()).spawn().unwrap()
        };
        (0..2).map(start).collect()
    }

    #[test]
    fn processes_without_mpi_gather_and_broadcast() {
        for mut child in start("gather") {
            assert!(child.wait().unwrap().success());
        }
    }

    #[test]
    fn processes_without_mpi_have_no_sums_on_thread_teams() {
        for mut child in start("refuse") {
            assert!(child.wait().unwrap().success());
        }
    }

    #[test]
    fn a_gather_without_a_rank_names_it() {
        let mut children = start("die");
        assert!(children[0].wait().unwrap().success());
        children[1].wait().unwrap();
    }
}
