//! Nonblocking collectives over bytes, with whatever MPI a machine has.
//!
//! The library is opened at run time: nothing is linked, and no compiler wrapper or header is
//! needed to build. Three binary interfaces are known: that of the MPI 5 standard, Open MPI's and MPICH's.
//! [`Library::find`] searches `$TENSORPACK_MPI`, the wheel that `tensorpack plugin install mpi`
//! installs, and the system. [`World::init`] initializes it, and each collective returns a
//! [`Request`], which is polled under a deadline:
//!
//! ```no_run
//! use std::time::{Duration, Instant};
//! use tensorpack_mpi::{Buffer, Library, World};
//!
//! # fn main() -> tensorpack_tensor::Result<()> {
//! // Started with: mpiexec -n 4 PROGRAM
//! let world = World::init(Library::find()?, Duration::from_secs(60))?;
//! let (rank, size) = (world.rank() as u8, world.size());
//! let request = world.all_gather(Buffer::from(&[rank][..]), Buffer::zeroed(size))?;
//! let deadline = Instant::now() + Duration::from_secs(10);
//! let gathered = request.wait(deadline, &|| Ok(()))?.receive;
//! assert_eq!(*gathered, (0..size as u8).collect::<Vec<_>>());
//! world.finalize(Duration::from_secs(10))
//! # }
//! ```
//!
//! Sums are not MPI's business: `MPI_Allreduce` adds in an order that depends on the algorithm, the
//! number of ranks and the message length. An all-to-all of shards, a sum in a fixed order and an
//! all-gather move as many bytes and always give the same bits.
//!
//! A [`World`] and its requests belong to one thread at a time. MPI makes progress only while a
//! request is polled, so that thread should do little else. Every return code of MPI is checked and
//! becomes an error with MPI's own text. A request owns its [`Buffer`]s; if it cannot be finished,
//! they are leaked instead of freed.
//!
//! # When a rank dies
//!
//! MPI has no deadline: a collective with a rank that is dead or stopped is "in progress" for ever.
//! [`Request::wait`] ends with an error of kind
//! [`Deadline`](tensorpack_tensor::ErrorKind::Deadline), or with that of its `progress` function,
//! which can ask the control plane (`tensorpack-rendezvous`) for a failure that names the rank.
//! After that MPI is given up, and the process should exit with `_exit`, since exit handlers of MPI
//! libraries may wait, too.
//!
//! The launcher is faster, and kills all ranks. [`Mpiexec::command`] keeps it from that for a
//! [grace time](Mpiexec::grace). One of three ranks was killed in an all-to-all with a deadline of
//! 3 s:
//!
//! - Hydra 4.0.2 and 5.0.2 alone kill all ranks within 0.1 s, with and without
//!   `-disable-auto-cleanup`, and return status 9.
//! - Open MPI 4.1.4 alone kills all ranks within 2 s and returns status 137. With
//!   `--enable-recovery` the survivors get their error, but the status is 0.
//! - With the command made here, the survivors get their error after 3.0 s with each of them, and
//!   `mpiexec` ends after the grace time, with a status other than 0. It does so, too, if the rank
//!   was stopped; Hydra with `-disable-auto-cleanup` waited for it for ever.
//!
//! Open MPI 5 and Intel MPI were not tried.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `abi` | [`Abi`]: the binary interfaces, with their constants |
//! | `calls` | tables of MPI's functions, one for each type of handles |
//! | `buffer` | [`Buffer`]: aligned memory that a request owns |
//! | `discovery` | [`find_libraries`]: where libraries are searched for |
//! | `library` | [`Library`]: an opened library |
//! | `connection` | what a world and its requests share |
//! | `request` | [`Request`]: a collective in flight |
//! | `world` | [`World`]: initialization, collectives, the end |
//! | `mpiexec` | [`Mpiexec`]: the launcher and its command line |

mod abi;
mod calls;
mod buffer;
mod discovery;
mod library;
mod connection;
mod request;
mod world;
mod mpiexec;

pub use abi::Abi;
pub use buffer::Buffer;
#[doc(hidden)]
pub use discovery::PACKAGED_LIBRARY;
pub use discovery::{FoundMpi, MpiSource, find_libraries, find_library, mpi_folder};
pub use library::Library;
pub use mpiexec::{Mpiexec, MpiexecKind};
pub use request::{Completed, Request};
pub use world::World;
