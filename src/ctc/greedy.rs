//! The labels of the most probable alignment.

use super::scores::Scores;
use tensorpack_tensor::{HostTensor, Result};

/// Returns the labels of each example's most probable alignment: the best class of every step,
/// without repetitions and blanks. Takes logits `[batch, time, classes]` and the number of steps of
/// each example, integers `[batch]`.
///
/// ```
/// use tensorpack::ctc::ctc_greedy_decode;
/// use tensorpack::{HostTensor, Result};
///
/// # fn main() -> Result<()> {
/// // Steps: a, a, blank, a.
/// let logits = HostTensor::new([1, 4, 2], vec![0.0f32, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0])?;
/// let lengths = HostTensor::new([1], vec![4i32])?;
/// assert_eq!(ctc_greedy_decode(&logits, &lengths, 0)?, [[1, 1]]);
/// # Ok(())
/// # }
/// ```
pub fn ctc_greedy_decode(logits: &HostTensor, lengths: &HostTensor, blank: usize) -> Result<Vec<Vec<usize>>> {
    let scores = Scores::new(logits, lengths, blank)?;
    let decode = |steps: &mut dyn Iterator<Item = &[f64]>| {
        let (mut labels, mut before) = (Vec::new(), blank);
        for step in steps {
            // The first of equal classes.
            let better = |best: usize, i: usize| if step[i] > step[best] { i } else { best };
            let class = (1..step.len()).fold(0, better);
            if class != blank && class != before {
                labels.push(class);
            }
            before = class;
        }
        labels
    };
    Ok(scores.examples().map(|mut steps| decode(&mut steps)).collect())
}
