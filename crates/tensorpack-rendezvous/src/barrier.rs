//! Barriers, as the coordinator keeps them.

use crate::message::Reply;
use crate::store::ReplyTo;
use std::collections::BTreeMap;
use std::time::Instant;

/// The number of barriers that may be incomplete at a time.
const MAX_BARRIERS: usize = 4096;

/// The incomplete barriers by name. A barrier is forgotten when it completes, so a name can be used
/// again.
#[derive(Default)]
pub(crate) struct Barriers(BTreeMap<String, Vec<Arrival>>);

struct Arrival {
    rank: u32,
    id: u64,
    deadline: Instant,
}

impl Barriers {
    /// A rank arrives. Returns the replies: to all ranks if it was the last one.
    pub(crate) fn arrive(
        &mut self,
        rank: u32,
        id: u64,
        name: String,
        deadline: Instant,
        size: u32,
    ) -> Vec<ReplyTo> {
        let reject = |reason| vec![(rank, Reply::Rejected { id, reason })];
        if self.0.len() >= MAX_BARRIERS && !self.0.contains_key(&name) {
            return reject(format!("{MAX_BARRIERS} barriers are incomplete"));
        }
        let arrivals = self.0.entry(name.clone()).or_default();
        if arrivals.iter().any(|arrival| arrival.rank == rank) {
            return reject(format!("rank {rank} waits at the barrier {name:?} already"));
        }
        arrivals.push(Arrival { rank, id, deadline });
        if arrivals.len() < size as usize {
            return Vec::new();
        }
        let arrivals = self.0.remove(&name).unwrap_or_default();
        arrivals.into_iter().map(|arrival| (arrival.rank, Reply::Done { id: arrival.id })).collect()
    }

    /// Ends the waits whose time has passed. `describe` says where the missing ranks are.
    pub(crate) fn expire(
        &mut self,
        now: Instant,
        size: u32,
        describe: impl Fn(&[u32]) -> String,
    ) -> Vec<ReplyTo> {
        let mut replies = Vec::new();
        for arrivals in self.0.values_mut() {
            if arrivals.iter().all(|arrival| arrival.deadline > now) {
                continue;
            }
            let missing = describe(&missing(arrivals, size));
            for arrival in arrivals.extract_if(.., |arrival| arrival.deadline <= now) {
                replies.push((arrival.rank, Reply::TimedOut { id: arrival.id, missing: missing.clone() }));
            }
        }
        self.0.retain(|_, arrivals| !arrivals.is_empty());
        replies
    }

    /// Ends all waits, since a rank that left will arrive at none of them.
    pub(crate) fn reject_all(&mut self, reason: &str) -> Vec<ReplyTo> {
        let arrivals = std::mem::take(&mut self.0).into_values().flatten();
        let reply =
            |arrival: Arrival| (arrival.rank, Reply::Rejected { id: arrival.id, reason: reason.to_owned() });
        arrivals.map(reply).collect()
    }

    /// When [`expire`](Barriers::expire) will next have something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.0.values().flatten().map(|arrival| arrival.deadline).min()
    }

    /// Forgets all waits.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The ranks that have not arrived.
fn missing(arrivals: &[Arrival], size: u32) -> Vec<u32> {
    (0..size).filter(|rank| arrivals.iter().all(|arrival| arrival.rank != *rank)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_last_rank_releases_all_and_the_name_can_be_used_again() {
        let (mut barriers, later) = (Barriers::default(), Instant::now() + Duration::from_secs(60));
        for round in 0..2 {
            assert_eq!(barriers.arrive(2, round, "b".into(), later, 3), []);
            assert_eq!(barriers.arrive(1, 10, "other".into(), later, 3), []);
            assert_eq!(barriers.arrive(0, 5, "b".into(), later, 3), []);
            let released = barriers.arrive(1, 7, "b".into(), later, 3);
            let done = |(rank, id)| (rank, Reply::Done { id });
            assert_eq!(released, [(2, round), (0, 5), (1, 7)].map(done));
            assert!(matches!(barriers.reject_all("x")[..], [(1, Reply::Rejected { id: 10, .. })]));
        }
        assert_eq!(barriers.arrive(0, 1, "alone".into(), later, 1), [(0, Reply::Done { id: 1 })]);
    }

    #[test]
    fn a_timeout_names_the_missing_ranks() {
        let (mut barriers, now) = (Barriers::default(), Instant::now());
        let late = now + Duration::from_secs(9);
        barriers.arrive(1, 1, "b".into(), now, 4);
        barriers.arrive(3, 3, "b".into(), late, 4);
        let replies = barriers.expire(now, 4, |missing| format!("{missing:?}"));
        assert_eq!(replies, [(1, Reply::TimedOut { id: 1, missing: "[0, 2]".into() })]);
        assert_eq!(barriers.next_deadline(), Some(late));
        // Rank 1 may try again.
        assert_eq!(barriers.arrive(1, 4, "b".into(), late, 4), []);
        assert!(matches!(
            barriers.arrive(1, 5, "b".into(), late, 4)[..],
            [(1, Reply::Rejected { id: 5, .. })]
        ));
    }

    #[test]
    fn the_number_of_barriers_is_bounded() {
        let (mut barriers, now) = (Barriers::default(), Instant::now());
        for i in 0..MAX_BARRIERS {
            assert_eq!(barriers.arrive(0, 1, i.to_string(), now, 2), []);
        }
        assert!(matches!(barriers.arrive(0, 1, "x".into(), now, 2)[..], [(0, Reply::Rejected { .. })]));
        assert_eq!(barriers.arrive(1, 1, "0".into(), now, 2).len(), 2);
    }
}
