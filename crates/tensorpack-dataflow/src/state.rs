//! The position of a reader.

use std::fmt;
use std::str::FromStr;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A position in a dataflow: the number of samples read in the current pass.
///
/// Pass and index suffice to open any dataflow. Adaptors that cannot compute the position of their
/// inputs from them (a filter does not know how many samples it dropped) also store the inputs'
/// states, so that resuming does not reread earlier samples.
///
/// The text form can be stored and parsed: `3/17` is 17 samples into pass 3, and `3/17(3/40 3/2)`
/// adds the states of two inputs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct State {
    /// The pass, starting at 0.
    pub epoch: u64,
    /// The number of samples read in this pass, including failed ones.
    pub index: u64,
    /// The states of the inputs, if the dataflow needs them to resume.
    pub inputs: Vec<State>,
}

impl State {
    /// Creates the position `index` samples into pass `epoch`.
    pub fn at(epoch: u64, index: u64) -> State {
        State { epoch, index, inputs: Vec::new() }
    }

    /// Creates the position at the start of the first pass.
    pub fn start() -> State {
        State::default()
    }

    /// Advances by one read: a sample, a failed sample or the end of a pass. A timeout does not
    /// advance.
    pub fn advance<T>(&mut self, read: &Result<Option<T>>) {
        match read {
            Ok(None) => (self.epoch, self.index) = (self.epoch + 1, 0),
            Err(e) if e.kind() == ErrorKind::Deadline => {}
            Ok(Some(_)) | Err(_) => self.index += 1,
        }
    }

    /// Adds the state of an input whose pass and index follow from ours. It is only stored if it
    /// has inputs of its own.
    pub(crate) fn with_nested_input(&self, input: State) -> State {
        let inputs = if input.inputs.is_empty() { Vec::new() } else { vec![input] };
        State { inputs, ..State::at(self.epoch, self.index) }
    }

    /// Adds the states of inputs that cannot be derived from our position.
    pub(crate) fn with_inputs(&self, inputs: Vec<State>) -> State {
        State { inputs, ..State::at(self.epoch, self.index) }
    }

    /// Returns the stored state of the single input; defaults to the given position.
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
        // The states with an open parenthesis, outermost first.
        let mut open = vec![State::start()];
        let wrong = || {
            Error::argument(format!(
                "invalid dataflow state {text:?}; expected a form like 3/17 or 3/17(3/40 3/2)"
            ))
        };
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
