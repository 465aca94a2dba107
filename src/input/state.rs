//! JSON encoding of a dataflow's state in a checkpoint.

use serde_json::{Value, json};
use tensorpack_dataflow::State;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Encodes a state.
pub(crate) fn to_json(state: &State) -> Value {
    match state.inputs.as_slice() {
        [] => json!([state.epoch, state.index]),
        inputs => json!([state.epoch, state.index, inputs.iter().map(to_json).collect::<Vec<_>>()]),
    }
}

/// Decodes a state; `null` is the start.
pub(crate) fn from_json(saved: &Value) -> Result<State> {
    if saved.is_null() {
        return Ok(State::start());
    }
    let read = || {
        let (epoch, index) = (saved.get(0)?.as_u64()?, saved.get(1)?.as_u64()?);
        let inputs = saved.get(2).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let inputs = inputs.iter().map(from_json).collect::<Result<_>>().ok()?;
        Some(State { epoch, index, inputs })
    };
    read().ok_or_else(|| Error::new(ErrorKind::Io, format!("{saved} is not a valid dataflow position")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_round_trip() {
        let inner = State { epoch: 4, index: 1, inputs: vec![State::at(1, 2), State::at(3, 4)] };
        let state = State { epoch: 2, index: 7, inputs: vec![inner] };
        assert_eq!(from_json(&to_json(&state)).unwrap(), state);
        assert_eq!(from_json(&Value::Null).unwrap(), State::start());
        assert!(from_json(&json!(["x"])).is_err());
    }
}
