//! The last batch of a run, which a resumed run reads again to find out whether its data changed.

use super::state;
use serde_json::{Value, json};
use tensorpack_dataflow::State;
use tensorpack_tensor::{HostTensor, Result};

/// Where the last batch before a checkpoint begins, and its checksum.
///
/// What a dataflow reads is a function of seed and position, so reading from `before` gives the same
/// batch again, shuffled or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LastBatch {
    pub(super) before: State,
    pub(super) crc32c: u32,
}

impl LastBatch {
    /// Returns the encoded position `at` with the last batch before it. Versions that do not know
    /// the fourth element ignore it.
    pub(super) fn append_to(&self, at: &State) -> Value {
        let inputs: Vec<Value> = at.inputs.iter().map(state::to_json).collect();
        let last = json!({"before": state::to_json(&self.before), "crc32c": self.crc32c});
        json!([at.epoch, at.index, inputs, last])
    }

    /// Returns the last batch before an encoded position, if it is known: not at the start of a run,
    /// and not in a checkpoint of version 0.1.
    pub(super) fn of(saved: &Value) -> Result<Option<LastBatch>> {
        let Some(last) = saved.get(3) else { return Ok(None) };
        let Some(crc32c) = last["crc32c"].as_u64() else { return Ok(None) };
        Ok(Some(LastBatch { before: state::from_json(&last["before"])?, crc32c: crc32c as u32 }))
    }
}

/// Returns the checksum of a batch: of the types, sizes and bytes of its components.
pub(super) fn checksum<'a>(components: impl IntoIterator<Item = &'a HostTensor>) -> u32 {
    components.into_iter().fold(0, |crc, value| {
        let spec = format!("{}{:?}", value.dtype(), value.sizes());
        crc32c::crc32c_append(crc32c::crc32c_append(crc, spec.as_bytes()), value.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_with_a_last_batch_are_positions() {
        let inner = State { epoch: 4, index: 1, inputs: vec![State::at(1, 2), State::at(3, 4)] };
        for at in [State::at(2, 7), State { epoch: 2, index: 7, inputs: vec![inner] }] {
            let last = LastBatch { before: State::at(2, 6), crc32c: u32::MAX };
            let saved = last.append_to(&at);
            assert_eq!(state::from_json(&saved).unwrap(), at);
            assert_eq!(LastBatch::of(&saved).unwrap(), Some(last));
            assert_eq!(LastBatch::of(&state::to_json(&at)).unwrap(), None);
        }
        assert_eq!(LastBatch::of(&Value::Null).unwrap(), None);
    }

    #[test]
    fn checksums_cover_types_sizes_and_elements() {
        let batches = [
            HostTensor::new([2, 1], vec![1f32, 2.0]).unwrap(),
            HostTensor::new([1, 2], vec![1f32, 2.0]).unwrap(),
            HostTensor::new([2, 1], vec![1f32, 3.0]).unwrap(),
            HostTensor::new([2, 1], vec![1f32.to_bits() as i32, 2f32.to_bits() as i32]).unwrap(),
        ];
        for (i, a) in batches.iter().enumerate() {
            for (j, b) in batches.iter().enumerate() {
                assert_eq!(checksum([a]) == checksum([b]), i == j);
            }
        }
    }
}
