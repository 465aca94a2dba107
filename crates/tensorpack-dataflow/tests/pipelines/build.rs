//! Builds random pipelines.

use std::collections::BTreeSet;
use tempfile::TempDir;
use tensorpack_dataflow::tensor::{DType, Error, HostTensor, Result};
use tensorpack_dataflow::{
    ChooseRandom, ComponentSpec, Concat, DataFlow, FakeData, Flow, FromFn, FromIter, FromList, Mix, Sample,
    SampleRng, Seed, Zip,
};

/// Every source and adaptor used in pipelines. Channels, single-use iterators and unordered maps
/// cannot be reopened and have their own tests.
pub(crate) const KINDS: [&str; 38] = [
    "FakeData",
    "FakeData.constant",
    "FromList",
    "FromFn",
    "FromIter",
    "FromIter.sized",
    "map",
    "map_random",
    "map_component",
    "select",
    "filter",
    "filter_map",
    "skip_errors",
    "batch",
    "batch.keep_remainder",
    "batch_padded",
    "batch_by_shape",
    "shuffle",
    "shuffle_window",
    "shard",
    "shard.equal",
    "take",
    "fixed_size",
    "repeat",
    "repeat_forever",
    "repeat_each",
    "Concat",
    "Zip",
    "ChooseRandom",
    "Mix",
    "cache",
    "print",
    "prefetch",
    "deadline",
    "map_parallel",
    "map_batch",
    "failing map",
    "cache_on_disk",
];

/// A pipeline under construction. It depends on the seed but not on the number of workers.
pub(crate) struct Build {
    rng: SampleRng,
    workers: usize,
    text: String,
    kinds: BTreeSet<&'static str>,
    /// Whether the pipeline so far is infinite.
    endless: bool,
    /// Directories of on-disk caches, kept until the pipeline is dropped.
    caches: Vec<TempDir>,
}

impl Build {
    pub(crate) fn new(seed: Seed, workers: usize) -> Build {
        Build {
            rng: seed.rng(0, 0),
            workers,
            text: String::new(),
            kinds: BTreeSet::new(),
            endless: false,
            caches: Vec::new(),
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.kinds.iter().copied()
    }

    pub(crate) fn pipeline(&mut self) -> Flow {
        let mut flow = self.flow(1);
        // Any pipeline may end with a parallel stage.
        if self.rng.bernoulli(0.5) {
            flow = self.parallel(flow);
        }
        flow
    }

    fn note(&mut self, kind: &'static str) {
        self.kinds.insert(kind);
        self.text.push_str(kind);
        self.text.push(' ');
    }

    fn pick(&mut self, n: u64) -> u64 {
        self.rng.below(n)
    }

    /// A source with up to four adaptors, which may have further inputs of smaller depth.
    fn flow(&mut self, depth: u32) -> Flow {
        let mut flow = self.source();
        for _ in 0..self.pick(5) {
            flow = self.adaptor(flow, depth);
        }
        flow
    }

    fn source(&mut self) -> Flow {
        let size = 3 + self.pick(14);
        let spec = vec![ComponentSpec::new(DType::F32, [2]), ComponentSpec::new(DType::I32, [])];
        match self.pick(6) {
            0 => {
                self.note("FakeData");
                FakeData::new(size, spec).range(-3.0, 40.0).into_flow()
            }
            1 => {
                self.note("FakeData.constant");
                FakeData::new(size, spec).range(0.0, 9.0).constant().into_flow()
            }
            2 => {
                self.note("FromList");
                FromList::new((0..size).map(numbered).collect()).into_flow()
            }
            3 => {
                self.note("FromFn");
                FromFn::new(size, |i| Ok(numbered(i * 3))).into_flow()
            }
            4 => {
                self.note("FromIter");
                // Passes of different lengths.
                FromIter::new(move |epoch| (0..size + epoch % 3).map(move |i| Ok(numbered(i + 100 * epoch))))
                    .into_flow()
            }
            _ => {
                self.note("FromIter.sized");
                FromIter::new(move |epoch| (0..size).map(move |i| Ok(numbered(i + 50 * epoch))))
                    .with_size(size)
                    .into_flow()
            }
        }
    }

    fn adaptor(&mut self, flow: Flow, depth: u32) -> Flow {
        let n = 2 + self.pick(5);
        match self.pick(29) {
            0 => {
                self.note("map");
                flow.map(|s| Ok(s.into_iter().chain([HostTensor::scalar(7u8)]).collect())).into_flow()
            }
            1 => {
                self.note("map_random");
                flow.map_random(jitter).into_flow()
            }
            2 => {
                self.note("map_component");
                flow.map_component(0, |t| HostTensor::new([t.len()], t.to_f64_vec())).into_flow()
            }
            3 => {
                self.note("select");
                flow.select([1, 0, 1]).into_flow()
            }
            4 if !self.endless => {
                self.note("filter");
                flow.filter(move |s| Ok(number(s)? % n != 0)).into_flow()
            }
            5 if !self.endless => {
                self.note("filter_map");
                flow.filter_map(move |s| Ok((number(&s)? % n != 1).then(|| s[..2].to_vec()))).into_flow()
            }
            6 => {
                self.note("failing map");
                flow.map(
                    move |s| if number(&s)? % 5 == n % 5 { Err(Error::argument("bad luck")) } else { Ok(s) },
                )
                .into_flow()
            }
            7 if !self.endless => {
                self.note("skip_errors");
                flow.map(
                    move |s| if number(&s)? % 4 == n % 4 { Err(Error::argument("left out")) } else { Ok(s) },
                )
                .skip_errors(n)
                .into_flow()
            }
            8 => {
                self.note("batch.keep_remainder");
                flow.batch(n as usize).keep_remainder().into_flow()
            }
            9 if flow.size().is_none_or(|size| size >= n) => {
                self.note("batch");
                flow.batch(n as usize).into_flow()
            }
            10 => {
                self.note("batch_padded");
                ragged(flow).batch_padded(n as usize, -1.0).keep_remainder().into_flow()
            }
            11 => {
                self.note("batch_by_shape");
                let grouped = ragged(flow).batch_by_shape(n as usize, 0);
                if self.rng.bernoulli(0.5) {
                    grouped.keep_remainder().into_flow()
                } else {
                    grouped.into_flow()
                }
            }
            12 | 13 => {
                let is_indexed =
                    flow.size().is_some() && flow.open_indexed(Seed::new(0)).is_ok_and(|l| l.is_some());
                if is_indexed {
                    self.note("shuffle");
                    return flow.shuffle().into_flow();
                }
                self.note("shuffle_window");
                flow.shuffle_window(n as usize).into_flow()
            }
            14 => {
                self.note("shuffle_window");
                flow.shuffle_window(n as usize).into_flow()
            }
            15 => {
                let shard = flow.clone().shard(self.pick(n), n);
                if flow.size().is_some() && self.rng.bernoulli(0.5) {
                    self.note("shard.equal");
                    return shard.equal().into_flow();
                }
                self.note("shard");
                shard.into_flow()
            }
            16 => {
                self.note("take");
                self.endless = false;
                flow.take(n * 2).into_flow()
            }
            17 if flow.size() != Some(0) => {
                self.note("fixed_size");
                self.endless = false;
                flow.fixed_size(n * 3).into_flow()
            }
            18 => {
                self.note("repeat");
                flow.repeat(self.pick(4)).into_flow()
            }
            19 if flow.size() != Some(0) => {
                self.note("repeat_forever");
                self.endless = true;
                flow.repeat_forever().into_flow()
            }
            20 => {
                self.note("repeat_each");
                flow.repeat_each(n).into_flow()
            }
            21 if depth > 0 => {
                self.note("Concat(");
                let parts = self.parts(flow, depth);
                self.note("Concat");
                Concat::new(parts).into_flow()
            }
            22 if depth > 0 => {
                self.note("Zip(");
                let parts = self.parts(flow, depth);
                self.note("Zip");
                Zip::new(parts).into_flow()
            }
            23 if depth > 0 => {
                self.note("ChooseRandom(");
                let parts = self.parts(flow, depth);
                self.note("ChooseRandom");
                if self.rng.bernoulli(0.5) || parts.len() != 2 {
                    return ChooseRandom::uniform(parts).into_flow();
                }
                ChooseRandom::new(parts.into_iter().zip([0.25, 0.75])).into_flow()
            }
            24 if depth > 0 => {
                self.note("Mix(");
                let parts = self.parts(flow, depth);
                self.note("Mix");
                Mix::new(parts.into_iter().filter(|p| p.size().is_some())).into_flow()
            }
            25 if !self.endless => {
                self.note("cache");
                flow.cache().into_flow()
            }
            26 if !self.endless => {
                self.note("cache_on_disk");
                // A failing sample aborts writing the cache file.
                let may_fail =
                    ["failing map", "skip_errors", "fixed_size"].iter().any(|kind| self.kinds.contains(kind));
                let flow = if may_fail { flow.skip_errors(1000).into_flow() } else { flow };
                let number = self.caches.len();
                self.caches.push(tempfile::tempdir().expect("a folder"));
                flow.cache_on_disk(self.caches[number].path().join("cache")).into_flow()
            }
            27 => {
                self.note("print");
                flow.print(0).into_flow()
            }
            _ => self.parallel(flow),
        }
    }

    /// This flow and one or two more.
    fn parts(&mut self, flow: Flow, depth: u32) -> Vec<Flow> {
        let mut parts = vec![flow];
        for _ in 0..1 + self.pick(2) {
            let endless = self.endless;
            parts.push(self.flow(depth - 1));
            self.endless |= endless;
        }
        parts
    }

    fn parallel(&mut self, flow: Flow) -> Flow {
        let workers = self.workers;
        match self.pick(5) {
            0 => {
                self.note("prefetch");
                flow.prefetch(3).into_flow()
            }
            1 => {
                self.note("deadline");
                flow.timeout(std::time::Duration::from_secs(60)).into_flow()
            }
            2 => {
                self.note("map_batch");
                let components = [ComponentSpec::new(DType::F64, [3]), ComponentSpec::new(DType::I64, [])];
                flow.map_batch(workers, 3, components, |sample, rng, slot| {
                    slot.component::<f64>(0)?[1..].fill(rng.uniform() + sample[0].len() as f64);
                    slot.component::<i64>(1)?[0] = number(&sample)? as i64;
                    Ok(())
                })
                .keep_remainder()
                .into_flow()
            }
            _ => {
                self.note("map_parallel");
                flow.map_parallel(workers, jitter).into_flow()
            }
        }
    }
}

fn numbered(i: u64) -> Sample {
    vec![HostTensor::new([2], vec![i as f32, 0.5]).expect("two elements"), HostTensor::scalar(i as i32)]
}

/// A number computed from the bytes of any sample.
fn number(sample: &[HostTensor]) -> Result<u64> {
    let bytes = sample.iter().flat_map(|t| t.as_bytes());
    Ok(bytes.fold(7u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)) >> 20)
}

/// Adds a random component.
fn jitter(mut sample: Sample, rng: &mut SampleRng) -> Result<Sample> {
    sample.push(HostTensor::scalar(rng.normal() as f32 + rng.below(3) as f32));
    Ok(sample)
}

/// Flattens the first component to one to three elements and keeps the second.
fn ragged(flow: Flow) -> Flow {
    flow.map(|sample| {
        let n = 1 + number(&sample)? % 3;
        let values: Vec<f64> = (0..n).map(|i| i as f64).collect();
        Ok(vec![HostTensor::new([n as usize], values)?, HostTensor::scalar(number(&sample)? as i32)])
    })
    .into_flow()
}
