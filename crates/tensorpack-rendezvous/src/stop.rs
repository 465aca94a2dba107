//! The agreement on the last step of a run.
//!
//! Ranks are not at the same step when one of them asks to stop, and a rank must not begin a step
//! that another will not run: the collectives of that step would wait for ever. So the agreement
//! has two phases. Each rank first promises the last step that it will begin before it hears more:
//! the one after its current step, so that it need not wait as long as messages are faster than
//! steps. The last step of the run is then the largest of the promises. No rank is past it.

/// The coordinator's side.
#[derive(Debug, Default)]
pub(crate) enum StopAgreement {
    /// Nobody has asked to stop.
    #[default]
    Running,
    /// The promises so far, by rank.
    Proposed(Vec<Option<Option<u64>>>),
    /// All ranks were told the last step.
    Decided,
}

impl StopAgreement {
    /// A rank asks to stop. Returns whether all ranks must be asked for their promises.
    pub(crate) fn request(&mut self, size: u32) -> bool {
        let first = matches!(self, StopAgreement::Running);
        if first {
            *self = StopAgreement::Proposed(vec![None; size as usize]);
        }
        first
    }

    /// A rank's promise. Returns the last step of the run once all ranks have made one; that is
    /// `None` if no step has begun and none shall.
    pub(crate) fn promise(&mut self, rank: u32, last: Option<u64>) -> Option<Option<u64>> {
        let StopAgreement::Proposed(promises) = self else { return None };
        *promises.get_mut(rank as usize)? = Some(last);
        let all: Option<Vec<Option<u64>>> = promises.iter().copied().collect();
        let decided = all?.into_iter().max().flatten();
        *self = StopAgreement::Decided;
        Some(decided)
    }
}

/// What a rank does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Run the step.
    Run,
    /// Do not run the step: all ranks stop before it.
    Stop,
}

/// A rank's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StopState {
    /// Nobody has asked to stop, as far as this rank knows.
    #[default]
    Running,
    /// No step after this one may begin before the decision.
    Promised(Option<u64>),
    /// The last step of the run.
    Decided(Option<u64>),
}

impl StopState {
    /// Makes the promise of a rank whose last begun step is `step`.
    pub(crate) fn propose(&mut self, step: Option<u64>) -> Option<u64> {
        let last = step.map(|step| step.saturating_add(1));
        *self = StopState::Promised(last);
        last
    }

    /// Whether a step may begin; `None` until the decision.
    pub(crate) fn next(&self, step: u64) -> Option<NextStep> {
        match self {
            StopState::Running => Some(NextStep::Run),
            StopState::Promised(last) if last.is_some_and(|last| step <= last) => Some(NextStep::Run),
            StopState::Promised(_) => None,
            StopState::Decided(last) if last.is_some_and(|last| step <= last) => Some(NextStep::Run),
            StopState::Decided(_) => Some(NextStep::Stop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tensorpack_testing::test_cases;

    #[test]
    fn the_last_step_is_the_largest_promise() {
        let mut agreement = StopAgreement::default();
        assert_eq!(agreement.promise(0, Some(4)), None);
        assert!(agreement.request(3));
        assert!(!agreement.request(3));
        assert_eq!(agreement.promise(2, Some(7)), None);
        assert_eq!(agreement.promise(9, Some(70)), None);
        assert_eq!(agreement.promise(0, None), None);
        assert_eq!(agreement.promise(1, Some(6)), Some(Some(7)));
        assert!(!agreement.request(3));
        assert_eq!(agreement.promise(1, Some(60)), None);
    }

    #[test]
    fn before_the_first_step_all_stop_at_once() {
        let mut agreement = StopAgreement::default();
        agreement.request(1);
        let mut state = StopState::default();
        assert_eq!(state.next(0), Some(NextStep::Run));
        let last = state.propose(None);
        assert_eq!(state.next(0), None);
        assert_eq!(agreement.promise(0, last), Some(None));
        assert_eq!(StopState::Decided(None).next(0), Some(NextStep::Stop));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(test_cases(500)))]

        /// Whatever the order in which ranks begin steps and messages arrive, all ranks run the
        /// same last step.
        #[test]
        fn all_ranks_run_the_same_steps(size in 1..6usize, events in prop::collection::vec((0..6usize, 0..3u8), 1..120)) {
            let mut agreement = StopAgreement::default();
            // The next step, the state, whether a proposal and a decision are on their way.
            let mut ranks = vec![(0u64, StopState::default(), false); size];
            let mut decision = None;
            let begin = |rank: &mut (u64, StopState, bool)| {
                if rank.1.next(rank.0) == Some(NextStep::Run) {
                    rank.0 += 1;
                }
            };
            let promise = |agreement: &mut StopAgreement, ranks: &mut [(u64, StopState, bool)], i: usize| {
                if !ranks[i].2 {
                    return None;
                }
                ranks[i].2 = false;
                let step = ranks[i].0.checked_sub(1);
                let last = ranks[i].1.propose(step);
                agreement.promise(i as u32, last)
            };
            for (i, event) in events {
                let i = i % size;
                match event {
                    0 => begin(&mut ranks[i]),
                    1 if agreement.request(size as u32) => ranks.iter_mut().for_each(|rank| rank.2 = true),
                    _ => decision = promise(&mut agreement, &mut ranks, i).or(decision),
                }
            }
            if agreement.request(size as u32) {
                ranks.iter_mut().for_each(|rank| rank.2 = true);
            }
            for i in 0..size {
                decision = promise(&mut agreement, &mut ranks, i).or(decision);
            }
            let last = decision.expect("all ranks have promised");
            for rank in &mut ranks {
                rank.1 = StopState::Decided(last);
                while rank.1.next(rank.0) == Some(NextStep::Run) {
                    begin(rank);
                }
                prop_assert_eq!(rank.0, last.map_or(0, |last| last + 1));
            }
        }
    }
}
