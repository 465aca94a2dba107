//! Where a reader stands.

use std::fmt;
use std::str::FromStr;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A position in a dataflow: so many samples of this pass have been read.
///
/// Pass and index alone are enough for every dataflow. One that cannot compute where its inputs stand (a filter, whose
/// index says nothing of how many were dropped) adds their states, and needs not read again what came before.
///
/// It prints as text to keep in a file, which parses back: `3/17` is 17 samples into pass 3, `3/17(3/40 3/2)` adds two
/// inputs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct State {
    /// The pass over the data, from 0.
    pub epoch: u64,
    /// How many samples of the pass have been read, those that failed among them.
    pub index: u64,
    /// Where the inputs stand, if the dataflow says so.
    pub inputs: Vec<State>,
}

impl State {
    /// `index` samples into pass `epoch`.
    pub fn at(epoch: u64, index: u64) -> State {
        State { epoch, index, inputs: Vec::new() }
    }

    /// The beginning of the first pass.
    pub fn start() -> State {
        State::default()
    }

    /// Moves on by what was read: a sample, one that failed, or the end of the pass. A wait that took too long has read
    /// nothing.
    pub fn advance<T>(&mut self, read: &Result<Option<T>>) {
        match read {
            Ok(None) => (self.epoch, self.index) = (self.epoch + 1, 0),
            Err(e) if e.kind() == ErrorKind::Deadline => {}
            Ok(Some(_)) | Err(_) => self.index += 1,
        }
    }

    /// With the state of an input whose pass and index follow from ours: kept only if they are not all of it.
    pub(crate) fn with_nested_input(&self, input: State) -> State {
        let inputs = if input.inputs.is_empty() { Vec::new() } else { vec![input] };
        State { inputs, ..State::at(self.epoch, self.index) }
    }

    /// With the states of inputs of which ours says nothing.
    pub(crate) fn with_inputs(&self, inputs: Vec<State>) -> State {
        State { inputs, ..State::at(self.epoch, self.index) }
    }

    /// Where the one input is to be opened: as told, or at this pass and index.
    pub(crate) fn input_or(&self, epoch: u64, index: u64) -> State {
        self.inputs.first().cloned().unwrap_or_else(|| State::at(epoch, index))
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.epoch, self.index)?;
        for (i, input) in self.inputs.iter().enumerate() {
            write!(f, "{}{input}", if i == 0 { "(" } else { " " })?;
        }
        f.write_str(if self.inputs.is_empty() { "" } else { ")" })
    }
}

impl FromStr for State {
    type Err = Error;

    fn from_str(text: &str) -> Result<State> {
        // The states whose brackets are open; the outermost one has none.
        let mut open = vec![State::start()];
        let wrong =
            || Error::argument(format!("{text:?} is no state: one looks like 3/17, or 3/17(3/40 3/2)"));
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest.find(['(', ')', ' ']).unwrap_or(rest.len());
            let (word, mark) = (&rest[..end], rest[end..].chars().next());
            rest = &rest[end + usize::from(mark.is_some())..];
            if !word.is_empty() {
                let (epoch, index) = word.split_once('/').ok_or_else(wrong)?;
                let number = |digits: &str| digits.parse().map_err(|_| wrong());
                open.last_mut().ok_or_else(wrong)?.inputs.push(State::at(number(epoch)?, number(index)?));
            }
            match mark {
                Some('(') if !word.is_empty() => {
                    let outer = open.last_mut().and_then(|outer| outer.inputs.pop());
                    open.push(outer.ok_or_else(wrong)?);
                }
                Some(')') if open.len() > 1 => {
                    let done = open.pop().filter(|done| !done.inputs.is_empty()).ok_or_else(wrong)?;
                    open.last_mut().ok_or_else(wrong)?.inputs.push(done);
                }
                Some(' ') | None => {}
                Some(_) => return Err(wrong()),
            }
        }
        let mut all = open.pop().filter(|_| open.is_empty()).ok_or_else(wrong)?.inputs;
        all.pop().filter(|_| all.is_empty()).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_state() -> impl Strategy<Value = State> {
        let leaf = (any::<u64>(), any::<u64>()).prop_map(|(epoch, index)| State::at(epoch, index));
        leaf.prop_recursive(4, 20, 3, |inner| {
            (any::<u64>(), any::<u64>(), prop::collection::vec(inner, 0..3))
                .prop_map(|(epoch, index, inputs)| State { epoch, index, inputs })
        })
    }

    proptest! {
        #[test]
        fn state_round_trips_through_text(state in any_state()) {
            prop_assert_eq!(state.to_string().parse::<State>().unwrap(), state);
        }

        #[test]
        fn parsing_never_panics(text in "[0-9/() x]{0,12}") {
            if let Ok(state) = text.parse::<State>() {
                prop_assert_eq!(state.to_string().parse::<State>().unwrap(), state);
            }
        }
    }

    #[test]
    fn text_form_matches_the_documentation() {
        let state = State::at(3, 17)
            .with_inputs(vec![State::at(3, 40), State::at(3, 2).with_inputs(vec![State::at(4, 0)])]);
        assert_eq!(state.to_string(), "3/17(3/40 3/2(4/0))");
        for wrong in ["", "3", "3/", "3/17(", "3/17)", "3/17()", "3/17 3/18", "(3/17)", "3/17(3/1))", "-1/2"]
        {
            assert!(wrong.parse::<State>().is_err(), "{wrong:?}");
        }
    }
}
