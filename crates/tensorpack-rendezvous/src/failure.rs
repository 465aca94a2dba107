//! What is known about a rank: its progress, and how it failed.

use std::fmt;
use std::time::Duration;
use tensorpack_tensor::{Error, ErrorKind};

/// The first failure of a run, as every rank learns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The rank that failed.
    pub rank: u32,
    /// Its host; empty if it never joined.
    pub host: String,
    /// The last step it began, if any.
    pub step: Option<u64>,
    /// Where it failed or what it was last seen doing; may be empty.
    pub place: String,
    /// What went wrong.
    pub message: String,
}

impl Failure {
    /// Converts the failure to an error of kind [`ErrorKind::Peer`].
    pub fn to_error(&self) -> Error {
        Error::new(ErrorKind::Peer, self.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}",
            RankAt { rank: self.rank, host: &self.host, step: self.step, place: &self.place },
            self.message
        )
    }
}

/// What the coordinator knows about a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// The rank.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// The last step it began, if any.
    pub step: Option<u64>,
    /// What it says it is doing.
    pub activity: String,
    /// The time since step or activity last changed.
    pub unchanged: Duration,
    /// The time since the coordinator last received anything from it.
    pub silent: Duration,
    /// Whether it has left the run.
    pub left: bool,
}

impl fmt::Display for PeerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = RankAt { rank: self.rank, host: &self.host, step: self.step, place: &self.activity };
        match self.left {
            true => write!(f, "{at}: left"),
            false => write!(
                f,
                "{at}: unchanged for {:.1} s, last heard {:.1} s ago",
                self.unchanged.as_secs_f64(),
                self.silent.as_secs_f64()
            ),
        }
    }
}

/// Displays a rank with host, step and place, leaving out what is unknown.
pub(crate) struct RankAt<'a> {
    pub(crate) rank: u32,
    pub(crate) host: &'a str,
    pub(crate) step: Option<u64>,
    pub(crate) place: &'a str,
}

impl fmt::Display for RankAt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        if !self.host.is_empty() {
            write!(f, " on {}", self.host)?;
        }
        if let Some(step) = self.step {
            write!(f, ", step {step}")?;
        }
        if !self.place.is_empty() {
            write!(f, ", {}", self.place)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_rank_host_step_place_and_message() {
        let failure = Failure {
            rank: 3,
            host: "node7".into(),
            step: Some(120),
            place: "all-reduce of bucket 2".into(),
            message: "no heartbeat for 10.0 s".into(),
        };
        let error = failure.to_error();
        assert_eq!(error.kind(), ErrorKind::Peer);
        let text = "rank 3 on node7, step 120, all-reduce of bucket 2: no heartbeat for 10.0 s";
        assert_eq!(error.message(), text);
        let early = Failure { host: String::new(), step: None, place: String::new(), ..failure };
        assert_eq!(early.to_string(), "rank 3: no heartbeat for 10.0 s");
    }
}
