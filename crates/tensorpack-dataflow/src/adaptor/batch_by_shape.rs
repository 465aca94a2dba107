//! Batches of samples with equal shapes.

use super::map::component;
use super::stack::{Padding, stack};
use crate::indexed_reader::sample_error;
use crate::{DataFlow, Flow, Reader, Resume, Sample, Seed, State};
use std::collections::VecDeque;
use std::sync::Arc;
use tensorpack_tensor::{Error, Result};

/// Batches samples whose component has the same shape: [`DataFlow::batch_by_shape`].
///
/// A batch is returned when it is full. The remainder at the end of a pass is dropped or returned
/// as smaller batches; no sample is carried over to the next pass.
#[derive(Clone)]
#[doc(alias = "BatchDataByShape")]
pub struct BatchByShape {
    inner: Flow,
    batch: usize,
    component: usize,
    keep_remainder: bool,
    /// The number of batches of a pass, if it was counted.
    size: Option<u64>,
}

impl BatchByShape {
    pub(crate) fn new(inner: impl DataFlow + 'static, batch: usize, component: usize) -> BatchByShape {
        BatchByShape { inner: Arc::new(inner), batch, component, keep_remainder: false, size: None }
    }

    /// Keeps the remainder at the end of a pass as smaller batches, ordered by their first samples.
    #[must_use]
    pub fn keep_remainder(self) -> BatchByShape {
        BatchByShape { keep_remainder: true, size: None, ..self }
    }

    /// Reads one pass to count its batches, so that the [size](DataFlow::size) is known. Requires that
    /// every pass has the same shapes, in any order; a pass with another number of batches is an error
    /// when it ends. Call it before adaptors that are slow, or on a flow that is cached.
    pub fn counted(self) -> Result<BatchByShape> {
        let uncounted = BatchByShape { size: None, ..self };
        let mut reader = uncounted.open(Seed::new(0), &State::at(0, 0))?;
        let mut size = 0;
        while reader.read()?.is_some() {
            size += 1;
        }
        Ok(BatchByShape { size: Some(size), ..uncounted })
    }
}

impl DataFlow for BatchByShape {
    fn size(&self) -> Option<u64> {
        self.size
    }

    fn resume(&self) -> Resume {
        self.inner.resume().max(Resume::Replay)
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        if self.batch == 0 {
            return Err(Error::argument("batch_by_shape: the batch size must be at least 1"));
        }
        let inner = self.inner.open(seed, &State::at(at.epoch, 0))?;
        let reader = GroupReader {
            flow: self.clone(),
            inner,
            groups: VecDeque::new(),
            ended: false,
            failed: None,
            at: State::at(at.epoch, 0),
        };
        crate::replay::replay_to(Box::new(reader), at)
    }
}

struct GroupReader {
    flow: BatchByShape,
    inner: Box<dyn Reader>,
    /// Incomplete batches, one per shape, oldest first.
    groups: VecDeque<Vec<Sample>>,
    /// The input's pass has ended and the incomplete batches are being returned.
    ended: bool,
    /// The error of a pass that has another number of batches than was counted.
    failed: Option<Error>,
    at: State,
}

impl GroupReader {
    fn next(&mut self) -> Result<Option<Vec<Sample>>> {
        while !self.ended {
            let Some(mut sample) = self.inner.read()? else {
                self.ended = true;
                if !self.flow.keep_remainder {
                    self.groups.clear();
                }
                break;
            };
            let State { epoch, index, .. } = self.at;
            let component = component(&mut sample, self.flow.component);
            let shape = component.map_err(|e| sample_error(e, epoch, index))?.sizes().to_vec();
            let same = |group: &Vec<Sample>| group[0][self.flow.component].sizes() == shape;
            let position = match self.groups.iter().position(same) {
                Some(position) => position,
                None => {
                    self.groups.push_back(Vec::new());
                    self.groups.len() - 1
                }
            };
            self.groups[position].push(sample);
            if self.groups[position].len() == self.flow.batch {
                return Ok(self.groups.remove(position));
            }
        }
        let group = self.groups.pop_front();
        self.ended = group.is_some();
        Ok(group)
    }
}

impl Reader for GroupReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let State { epoch, index, .. } = self.at;
        let batch =
            |group: Vec<Sample>| stack(&group, Padding::None).map_err(|e| sample_error(e, epoch, index));
        let read = match &self.failed {
            Some(e) => Err(e.clone()),
            None => self.next().and_then(|group| group.map(batch).transpose()),
        };
        let differs = |counted: &u64| match &read {
            Ok(Some(_)) => index >= *counted,
            Ok(None) => index != *counted,
            Err(_) => false,
        };
        let read = match self.flow.size.filter(differs) {
            Some(counted) => {
                let why = format!(
                    "batch_by_shape: {counted} batches were counted, but pass {epoch} has another number"
                );
                let error = Error::argument(why).note("every pass must have the same shapes");
                Err(self.failed.insert(error).clone())
            }
            None => read,
        };
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        self.at.clone()
    }
}
