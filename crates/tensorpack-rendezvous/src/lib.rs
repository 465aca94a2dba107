//! The control plane of a distributed run: which rank a process is, and how ranks find, wait for
//! and lose each other. It moves no tensors.
//!
//! [`Launch::detect`] finds rank, size and coordinator from options and launchers. Rank 0 serves a
//! [`Coordinator`] over TCP; every rank, rank 0 included, joins it with a [`Rendezvous`], which
//! offers
//!
//! - a key-value store ([`put`](Rendezvous::put), [`get`](Rendezvous::get),
//!   [`try_get`](Rendezvous::try_get)) with the semantics of PJRT's callbacks: binary values,
//!   written once;
//! - [barriers](Rendezvous::barrier), which name the ranks that are missing;
//! - heartbeats that carry each rank's [step](Rendezvous::begin_step) and
//!   [activity](Rendezvous::set_activity), so that a dead or silent rank is known within the
//!   [peer timeout](Options::peer_timeout);
//! - the first [`Failure`], which every rank learns at once, with rank, host, step and place;
//! - an agreement on the [last step](Rendezvous::request_stop) of a run that is asked to stop.
//!
//! ```
//! use std::thread;
//! use std::time::Duration;
//! use tensorpack_rendezvous::{Coordinator, Options, Rendezvous, Token};
//!
//! # fn main() -> tensorpack_tensor::Result<()> {
//! let (token, options, timeout) = (Token::random(), Options::new(), Duration::from_secs(10));
//! // Two ranks; here both are threads of one process.
//! let coordinator = Coordinator::start("127.0.0.1:0", 2, &token, &options)?;
//! let address = coordinator.address().to_string();
//! let (their_token, their_options) = (token.clone(), options.clone());
//! let other = thread::spawn(move || {
//!     let rank1 = Rendezvous::join(&address, 1, 2, &their_token, &their_options)?;
//!     rank1.put("answer", &[42])?;
//!     rank1.barrier("done", timeout)?;
//!     rank1.leave(timeout)
//! });
//! let rank0 = Rendezvous::join_own(coordinator, 2, &token, &options)?;
//! assert_eq!(rank0.get("answer", timeout)?, [42]);
//! rank0.barrier("done", timeout)?;
//! rank0.leave(timeout)?;
//! # other.join().unwrap()
//! # }
//! ```
//!
//! Every wait has a deadline. A peer must prove that it knows the run's [`Token`] before it can do
//! anything; until then its messages are small, its time is short, and the number of such
//! connections is bounded. Refused peers are reported once per address to
//! [`Options::on_warning`].
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `token` | [`Token`]: the shared secret and the proof of knowing it |
//! | `failure` | [`Failure`] and [`PeerStatus`]: what is known about a rank |
//! | `message`, `frame` | the protocol: messages, and how they are sent |
//! | `options` | [`Options`]: timeouts and where warnings go |
//! | `launch` | [`Launch`]: rank, size and coordinator from launchers |
//! | `store`, `barrier`, `stop` | the coordinator's state, without sockets |
//! | `coordinator` | [`Coordinator`]: the server |
//! | `rendezvous` | [`Rendezvous`]: a rank's connection |

#![forbid(unsafe_code)]

mod token;
mod failure;
mod message;
mod frame;
mod options;
mod launch;
mod store;
mod barrier;
mod stop;
mod coordinator;
mod rendezvous;

pub use coordinator::Coordinator;
pub use failure::{Failure, PeerStatus};
pub use launch::{DEFAULT_PORT, Launch, LaunchOptions, Launcher};
pub use message::{MAX_KEY_BYTES, MAX_RANKS, MAX_VALUE_BYTES};
#[doc(hidden)]
pub use message::{check_decoding, sample_messages};
pub use options::Options;
pub use rendezvous::{Rendezvous, bind_address};
pub use stop::NextStep;
pub use token::Token;
