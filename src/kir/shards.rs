//! The division of tensors into shards.

/// Divides the elements of a flattened tensor into shards of equal length, one for each process or
/// device. If the number of elements is not a multiple, neighboring shards overlap by one element,
/// which both compute, with the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shards {
    /// The number of shards.
    pub count: usize,
    /// The shard of this program; `None` in a program that runs on several devices: each replica
    /// has the shard of its number.
    pub own: Option<usize>,
}

impl Shards {
    /// Returns whether a tensor of this many elements can be divided.
    pub fn divide(&self, elements: usize) -> bool {
        self.count > 1 && elements >= self.count
    }

    /// Returns the number of elements of a shard of a tensor of `elements`.
    pub fn len(&self, elements: usize) -> usize {
        elements.div_ceil(self.count)
    }

    /// Returns the first element of shard `index` of a tensor of `elements`, or their number if
    /// there is no such shard.
    pub fn start(&self, elements: usize, index: usize) -> usize {
        (elements as u128 * index as u128 / self.count as u128).min(elements as u128) as usize
    }

    /// Returns the elements that only shard `index` contributes to the whole tensor.
    pub fn part(&self, elements: usize, index: usize) -> std::ops::Range<usize> {
        self.start(elements, index)..self.start(elements, index + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_have_equal_lengths_and_cover_the_tensor() {
        for count in 2..9 {
            let shards = Shards { count, own: None };
            for elements in count..70 {
                let parts: Vec<_> = (0..count).map(|i| shards.part(elements, i)).collect();
                assert_eq!((parts[0].start, parts[count - 1].end), (0, elements));
                assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
                for (index, part) in parts.iter().enumerate() {
                    let shard =
                        shards.start(elements, index)..shards.start(elements, index) + shards.len(elements);
                    assert!(shard.start == part.start && part.end <= shard.end && shard.end <= elements);
                }
            }
            assert!(!shards.divide(count - 1) && shards.divide(count));
        }
    }
}
