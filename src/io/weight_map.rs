//! Maps the weights of another framework to variables here, and back.

use super::WeightLayout;
use super::name_template::{NameTemplate, Parts};
use super::safetensors::Named;
use crate::graph::NamePattern;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result, Site};

/// Rules that translate the names and layouts of a PyTorch file to those of variables here.
///
/// A rule names a layer on both sides, with placeholders for parts that vary: `{b}` stands for one
/// part of a name, and `{p*}` for several (their dots become slashes). What it does with the
/// layer's tensors depends on the kind of layer: [`WeightMap::conv`], [`WeightMap::linear`],
/// [`WeightMap::batch_norm`] and others. The first rule that matches a tensor counts.
///
/// A map is strict: a tensor without a rule and a rule without a tensor are errors, which list all
/// of them. Leave out tensors with [`WeightMap::drop`], and variables with [`WeightMap::only`] or
/// [`WeightMap::except`].
///
/// ```
/// use tensorpack::io::WeightMap;
/// use tensorpack::prelude::*;
///
/// let map = WeightMap::new()
///     .conv("layer{g}.{b}.conv{c}", "group{g}/block{b}/conv{c}")
///     .linear("fc", "linear");
/// let filter = HostTensor::zeros(DType::F32, [8, 4, 3, 3])?;
/// let weights = HostTensor::zeros(DType::F32, [10, 8])?;
/// let theirs = vec![("layer1.0.conv2.weight".into(), filter), ("fc.weight".into(), weights)];
/// let ours = map.import(theirs.clone())?;
/// assert_eq!((&ours[0].0[..], ours[0].1.sizes()), ("group1/block0/conv2/W", &[3, 3, 4, 8][..]));
/// assert_eq!((&ours[1].0[..], ours[1].1.sizes()), ("linear/W", &[8, 10][..]));
/// assert_eq!(map.export(ours)?.len(), theirs.len());
/// # Ok::<(), Error>(())
/// ```
///
/// The map translates weights, not the net. Where PyTorch has `padding=1`, a convolution here needs
/// `Padding::Explicit([[1, 1], [1, 1]])`: [`Padding::Same`](crate::ops::Padding::Same) at stride 2
/// pads after the image only, so that weights load and results differ.
#[derive(Clone, Debug, Default)]
pub struct WeightMap {
    rules: Vec<Rule>,
    prefix: String,
    only: Vec<NamePattern>,
    except: Vec<NamePattern>,
    /// The first rule that could not be made.
    error: Option<Error>,
}

/// A layer on both sides.
#[derive(Clone, Debug)]
struct Rule {
    theirs: NameTemplate,
    ours: NameTemplate,
    tensors: Vec<Tensor>,
    when: When,
    /// Ready maps have rules that only some nets need.
    is_optional: bool,
    site: Site,
}

/// A tensor of a layer on both sides.
#[derive(Clone, Copy, Debug)]
struct Tensor {
    /// The end of the name there, such as `.weight`.
    theirs: &'static str,
    /// The end of the name here, or `None` if there is no such variable.
    ours: Option<&'static str>,
    /// The part of the tensor there.
    from: Part,
    /// The part of the variable that the tensor is added to, or `None` if it is all of it.
    added_to: Option<Part>,
    layout: WeightLayout,
}

/// The condition under which a rule applies to a layer.
#[derive(Clone, Copy, Debug)]
enum When {
    Always,
    /// The layer has a tensor with this end of the name.
    Has(&'static str),
    /// The layer's `.weight` has this rank.
    WeightRank(usize),
}

/// Part `index` of `count` equal parts of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    index: usize,
    count: usize,
    of: Split,
}

/// The dimension that is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    First,
    Last,
}

const WHOLE: Part = Part { index: 0, count: 1, of: Split::First };

const fn third(index: usize) -> Part {
    Part { index, count: 3, of: Split::First }
}

const fn third_of_columns(index: usize) -> Part {
    Part { index, count: 3, of: Split::Last }
}

impl Tensor {
    const fn new(theirs: &'static str, ours: &'static str, layout: WeightLayout) -> Tensor {
        Tensor { theirs, ours: Some(ours), from: WHOLE, added_to: None, layout }
    }

    const fn same(theirs: &'static str, ours: &'static str) -> Tensor {
        Tensor::new(theirs, ours, WeightLayout::Unchanged)
    }

    const fn part(self, from: Part) -> Tensor {
        Tensor { from, ..self }
    }

    const fn added(self, to: Part) -> Tensor {
        Tensor { added_to: Some(to), ..self }
    }

    const fn dropped(theirs: &'static str, from: Part) -> Tensor {
        Tensor { theirs, ours: None, from, added_to: None, layout: WeightLayout::Unchanged }
    }
}

/// The tensors of batch normalization.
const BATCH_NORM: [Tensor; 5] = [
    Tensor::same(".weight", "/gamma"),
    Tensor::same(".bias", "/beta"),
    Tensor::same(".running_mean", "/mean/EMA"),
    Tensor::same(".running_var", "/variance/EMA"),
    Tensor::dropped(".num_batches_tracked", WHOLE),
];

const fn weight_and_bias(layout: WeightLayout) -> [Tensor; 2] {
    [Tensor::new(".weight", "/W", layout), Tensor::same(".bias", "/b")]
}

/// The tensors of attention with layers of their own for queries, keys and values, under this name.
macro_rules! separate_attention {
    ($name:literal) => {
        [
            Tensor::new(concat!($name, ".query.weight"), "/query/W", WeightLayout::OutInToInOut),
            Tensor::new(concat!($name, ".key.weight"), "/key/W", WeightLayout::OutInToInOut),
            Tensor::new(concat!($name, ".value.weight"), "/value/W", WeightLayout::OutInToInOut),
            Tensor::new(".output.dense.weight", "/out/W", WeightLayout::OutInToInOut),
            Tensor::same(concat!($name, ".query.bias"), "/query/b"),
            Tensor::dropped(concat!($name, ".key.bias"), WHOLE),
            Tensor::same(concat!($name, ".value.bias"), "/value/b"),
            Tensor::same(".output.dense.bias", "/out/b"),
        ]
    };
}

/// Converted tensors, and what could not be converted: headings and lines.
pub(super) struct Converted {
    pub(super) tensors: Named,
    pub(super) problems: Vec<(&'static str, Vec<String>)>,
    /// The names of all variables that there are tensors for, also those that are not selected.
    pub(super) names: BTreeSet<String>,
}

/// A tensor of theirs that is put together.
#[derive(Default)]
struct Exported {
    rule: usize,
    /// The end of the name.
    end: &'static str,
    parts: Vec<(Part, HostTensor)>,
}

impl WeightMap {
    /// Creates a map without rules.
    pub fn new() -> WeightMap {
        WeightMap::default()
    }

    #[track_caller]
    fn rule(self, theirs: &str, ours: &str, tensors: &[Tensor]) -> WeightMap {
        let site = Site::from(Location::caller());
        self.add(theirs, ours, tensors, When::Always, false, site)
    }

    fn add(
        mut self,
        theirs: &str,
        ours: &str,
        tensors: &[Tensor],
        when: When,
        is_optional: bool,
        site: Site,
    ) -> WeightMap {
        let parse = || {
            let (theirs, ours) = (NameTemplate::parse(theirs)?, NameTemplate::parse(ours)?);
            theirs.check_pair(&ours)?;
            Ok(Rule { theirs, ours, tensors: tensors.to_vec(), when, is_optional, site })
        };
        match parse() {
            Ok(rule) => self.rules.push(rule),
            Err(error) => drop(self.error.get_or_insert(Error::at(error, site))),
        }
        self
    }

    /// Renames one tensor, and changes its layout.
    #[must_use]
    #[track_caller]
    pub fn tensor(self, theirs: &str, ours: &str, layout: WeightLayout) -> WeightMap {
        self.rule(theirs, ours, &[Tensor::new("", "", layout)])
    }

    /// Maps a 2-D convolution, also with groups or depthwise: `.weight` to `/W` and `.bias` to `/b`.
    #[must_use]
    #[track_caller]
    pub fn conv(self, theirs: &str, ours: &str) -> WeightMap {
        self.rule(theirs, ours, &weight_and_bias(WeightLayout::OihwToHwio))
    }

    /// Maps a 1-D convolution: `.weight` to `/W` and `.bias` to `/b`.
    #[must_use]
    #[track_caller]
    pub fn conv1d(self, theirs: &str, ours: &str) -> WeightMap {
        self.rule(theirs, ours, &weight_and_bias(WeightLayout::OiwToWio))
    }

    /// Maps a linear layer: `.weight` to `/W` and `.bias` to `/b`.
    #[must_use]
    #[track_caller]
    pub fn linear(self, theirs: &str, ours: &str) -> WeightMap {
        self.rule(theirs, ours, &weight_and_bias(WeightLayout::OutInToInOut))
    }

    /// Maps a linear layer that follows a flattened image, whose sizes are `[channels, height,
    /// width]`.
    #[must_use]
    #[track_caller]
    pub fn linear_after_flatten(self, theirs: &str, ours: &str, image: [usize; 3]) -> WeightMap {
        self.rule(theirs, ours, &weight_and_bias(WeightLayout::FlatChwToFlatHwc(image)))
    }

    /// Maps batch normalization: scale, shift and running statistics. The number of batches, which
    /// has no meaning here, is dropped.
    #[must_use]
    #[track_caller]
    pub fn batch_norm(self, theirs: &str, ours: &str) -> WeightMap {
        let site = Site::from(Location::caller());
        self.add(theirs, ours, &BATCH_NORM, When::Has(".running_mean"), false, site)
    }

    /// Maps layer or group normalization: `.weight` to `/gamma` and `.bias` to `/beta`.
    #[must_use]
    #[track_caller]
    pub fn layer_norm(self, theirs: &str, ours: &str) -> WeightMap {
        self.rule(theirs, ours, &BATCH_NORM[..2])
    }

    /// Maps an embedding: `.weight` to `/W`.
    #[must_use]
    #[track_caller]
    pub fn embedding(self, theirs: &str, ours: &str) -> WeightMap {
        self.rule(theirs, ours, &[Tensor::same(".weight", "/W")])
    }

    /// Maps the first layer of `torch.nn.LSTM`; further layers are `.lstm_layer(1, ..)` and so on.
    /// Build the layer here with [`forget_bias(0.0)`](crate::nn::Lstm::forget_bias): PyTorch adds
    /// no constant to the forget gate.
    #[must_use]
    #[track_caller]
    pub fn lstm(self, theirs: &str, ours: &str) -> WeightMap {
        self.lstm_layer(0, theirs, ours)
    }

    /// Maps one layer of `torch.nn.LSTM`. PyTorch's two biases are added up.
    #[must_use]
    #[track_caller]
    pub fn lstm_layer(self, layer: usize, theirs: &str, ours: &str) -> WeightMap {
        let tensors = |[w, u, b, c]: [&'static str; 4]| {
            [
                Tensor::new(w, "/W", WeightLayout::OutInToInOut),
                Tensor::new(u, "/U", WeightLayout::OutInToInOut),
                Tensor::same(b, "/b"),
                Tensor::same(c, "/b").added(WHOLE),
            ]
        };
        match recurrent_names(layer) {
            Some(names) => self.rule(theirs, ours, &tensors(names)),
            None => self.no_layer(layer),
        }
    }

    /// Maps the first layer of `torch.nn.GRU`; further layers are `.gru_layer(1, ..)` and so on.
    #[must_use]
    #[track_caller]
    pub fn gru(self, theirs: &str, ours: &str) -> WeightMap {
        self.gru_layer(0, theirs, ours)
    }

    /// Maps one layer of `torch.nn.GRU`. PyTorch's two biases of the reset and the update gate are
    /// added up; that of the new state's recurrent part is `/c`.
    #[must_use]
    #[track_caller]
    pub fn gru_layer(self, layer: usize, theirs: &str, ours: &str) -> WeightMap {
        let tensors = |[w, u, b, c]: [&'static str; 4]| {
            [
                Tensor::new(w, "/W", WeightLayout::OutInToInOut),
                Tensor::new(u, "/U", WeightLayout::OutInToInOut),
                Tensor::same(b, "/b"),
                Tensor::same(c, "/b").part(third(0)).added(third(0)),
                Tensor::same(c, "/b").part(third(1)).added(third(1)),
                Tensor::same(c, "/c").part(third(2)),
            ]
        };
        match recurrent_names(layer) {
            Some(names) => self.rule(theirs, ours, &tensors(names)),
            None => self.no_layer(layer),
        }
    }

    #[track_caller]
    fn no_layer(mut self, layer: usize) -> WeightMap {
        let error = Error::argument(format!("layer {layer} is out of range: a map has up to 8 layers"));
        self.error.get_or_insert(error.at(Site::from(Location::caller())));
        self
    }

    /// Maps self-attention, `torch.nn.MultiheadAttention`, to
    /// [`MultiHeadAttention`](crate::nn::MultiHeadAttention). The bias of the keys is dropped: it
    /// adds the same value to all scores of a query, which the softmax cancels.
    #[must_use]
    #[track_caller]
    pub fn attention(self, theirs: &str, ours: &str) -> WeightMap {
        let weight =
            |name, i| Tensor::new(".in_proj_weight", name, WeightLayout::OutInToInOut).part(third(i));
        let tensors = [
            weight("/query/W", 0),
            weight("/key/W", 1),
            weight("/value/W", 2),
            Tensor::same(".in_proj_bias", "/query/b").part(third(0)),
            Tensor::dropped(".in_proj_bias", third(1)),
            Tensor::same(".in_proj_bias", "/value/b").part(third(2)),
            Tensor::new(".out_proj.weight", "/out/W", WeightLayout::OutInToInOut),
            Tensor::same(".out_proj.bias", "/out/b"),
        ];
        self.rule(theirs, ours, &tensors)
    }

    /// Maps attention whose queries, keys and values come from one linear layer, as in timm:
    /// `.qkv` and `.proj`. The bias of the keys is dropped, as in [`WeightMap::attention`].
    #[must_use]
    #[track_caller]
    pub fn fused_attention(self, theirs: &str, ours: &str) -> WeightMap {
        let weight = |name, i| Tensor::new(".qkv.weight", name, WeightLayout::OutInToInOut).part(third(i));
        let tensors = [
            weight("/query/W", 0),
            weight("/key/W", 1),
            weight("/value/W", 2),
            Tensor::same(".qkv.bias", "/query/b").part(third(0)),
            Tensor::dropped(".qkv.bias", third(1)),
            Tensor::same(".qkv.bias", "/value/b").part(third(2)),
            Tensor::new(".proj.weight", "/out/W", WeightLayout::OutInToInOut),
            Tensor::same(".proj.bias", "/out/b"),
        ];
        self.rule(theirs, ours, &tensors)
    }

    /// Maps the attention of Hugging Face's BERT: `.self.query`, `.self.key`, `.self.value` and
    /// `.output.dense`. The bias of the keys is dropped, as in [`WeightMap::attention`].
    #[must_use]
    #[track_caller]
    pub fn bert_attention(self, theirs: &str, ours: &str) -> WeightMap {
        self.rule(theirs, ours, &separate_attention!(".self"))
    }

    /// Maps the attention of Hugging Face's vision transformers: `.attention.query`,
    /// `.attention.key`, `.attention.value` and `.output.dense`. The bias of the keys is dropped, as
    /// in [`WeightMap::attention`].
    #[must_use]
    #[track_caller]
    pub fn vit_attention(self, theirs: &str, ours: &str) -> WeightMap {
        self.rule(theirs, ours, &separate_attention!(".attention"))
    }

    /// Maps the attention of Hugging Face's GPT-2: `.c_attn` and `.c_proj`, whose weights are
    /// `[in, out]` there, too. The bias of the keys is dropped, as in [`WeightMap::attention`], and
    /// so is the causal mask that older files contain.
    #[must_use]
    #[track_caller]
    pub fn gpt2_attention(self, theirs: &str, ours: &str) -> WeightMap {
        let weight = |name, i| Tensor::same(".c_attn.weight", name).part(third_of_columns(i));
        let tensors = [
            weight("/query/W", 0),
            weight("/key/W", 1),
            weight("/value/W", 2),
            Tensor::same(".c_attn.bias", "/query/b").part(third(0)),
            Tensor::dropped(".c_attn.bias", third(1)),
            Tensor::same(".c_attn.bias", "/value/b").part(third(2)),
            Tensor::same(".c_proj.weight", "/out/W"),
            Tensor::same(".c_proj.bias", "/out/b"),
            Tensor::dropped(".bias", WHOLE),
            Tensor::dropped(".masked_bias", WHOLE),
        ];
        self.rule(theirs, ours, &tensors)
    }

    /// Maps a linear layer whose weights are `[in, out]` on both sides, as `Conv1D` of Hugging
    /// Face's GPT-2: `.weight` to `/W` and `.bias` to `/b`.
    #[must_use]
    #[track_caller]
    pub fn linear_in_out(self, theirs: &str, ours: &str) -> WeightMap {
        self.rule(theirs, ours, &weight_and_bias(WeightLayout::Unchanged))
    }

    /// Ignores tensors of this name. A template may match any number of them, but at least one.
    #[must_use]
    #[track_caller]
    pub fn drop(self, theirs: &str) -> WeightMap {
        self.rule(theirs, theirs, &[Tensor::dropped("", WHOLE)])
    }

    /// Like [`WeightMap::drop`], for tensors that some files do not have.
    pub(super) fn drop_any(self, theirs: &str, site: Site) -> WeightMap {
        self.add(theirs, theirs, &[Tensor::dropped("", WHOLE)], When::Always, true, site)
    }

    /// Maps layers that have the same names on both sides, apart from dots and slashes, by the
    /// ranks of their weights: convolutions, linear layers and normalization. Embeddings, which
    /// look like linear layers, and recurrent layers need rules of their own before this one.
    #[must_use]
    #[track_caller]
    pub fn same_names(mut self) -> WeightMap {
        let site = Site::from(Location::caller());
        let kinds: [(When, &[Tensor]); 5] = [
            (When::Has(".running_mean"), &BATCH_NORM),
            (When::WeightRank(1), &BATCH_NORM[..2]),
            (When::WeightRank(2), &weight_and_bias(WeightLayout::OutInToInOut)),
            (When::WeightRank(3), &weight_and_bias(WeightLayout::OiwToWio)),
            (When::WeightRank(4), &weight_and_bias(WeightLayout::OihwToHwio)),
        ];
        for (when, tensors) in kinds {
            self = self.add("{p*}", "{p*}", tensors, when, true, site);
        }
        self
    }

    /// Removes this prefix from those of their names that have it, such as `module.` of
    /// `torch.nn.DataParallel`. In an [export](crate::io::export_variables), all names get it.
    #[must_use]
    pub fn strip_prefix(self, prefix: impl Into<String>) -> WeightMap {
        WeightMap { prefix: prefix.into(), ..self }
    }

    /// Loads only the variables whose whole names match one of these [patterns](NamePattern).
    #[must_use]
    #[track_caller]
    pub fn only<'a>(mut self, patterns: impl IntoIterator<Item = &'a str>) -> WeightMap {
        self.only.extend(NamePattern::list(patterns));
        self
    }

    /// Loads all variables but those whose whole names match one of these [patterns](NamePattern),
    /// such as a classifier for other classes.
    #[must_use]
    #[track_caller]
    pub fn except<'a>(mut self, patterns: impl IntoIterator<Item = &'a str>) -> WeightMap {
        self.except.extend(NamePattern::list(patterns));
        self
    }

    /// Returns whether a variable of this name is loaded.
    pub(super) fn selects(&self, name: &str) -> bool {
        (self.only.is_empty() || self.only.iter().any(|p| p.matches(name)))
            && !self.except.iter().any(|p| p.matches(name))
    }

    fn selections(&self) -> impl Iterator<Item = &NamePattern> {
        self.only.iter().chain(&self.except)
    }

    /// Checks that each pattern of [`WeightMap::only`] and [`WeightMap::except`] matches one of these
    /// names.
    pub(super) fn check_selections<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        let names: Vec<&str> = names.into_iter().collect();
        self.selections().try_for_each(|pattern| pattern.check_among("name", names.iter().copied()))
    }

    /// Converts tensors of the other framework to variables here. The error lists all tensors
    /// without a rule, rules without a tensor, and layouts that do not fit. Only a load into a graph
    /// checks that the patterns of [`WeightMap::only`] and [`WeightMap::except`] match something.
    pub fn import(&self, theirs: Named) -> Result<Named> {
        let converted = self.convert(&theirs)?;
        match converted.problems.is_empty() {
            true => Ok(converted.tensors),
            false => Err(with_lists(
                Error::new(ErrorKind::Name, "the weight map does not fit the tensors"),
                &converted.problems,
            )),
        }
    }

    /// Converts as much as possible. Returns an error only if the map itself is invalid.
    pub(super) fn convert(&self, theirs: &[(String, HostTensor)]) -> Result<Converted> {
        self.error.clone().map_or(Ok(()), Err)?;
        self.selections().try_for_each(NamePattern::check_syntax)?;
        let all: BTreeMap<&str, &HostTensor> = theirs.iter().map(|(name, t)| (&name[..], t)).collect();
        let mut used = vec![false; self.rules.len()];
        let mut without_rule = Vec::new();
        let mut failed = Vec::new();
        let mut names = BTreeSet::new();
        let mut order: Vec<String> = Vec::new();
        let mut values: BTreeMap<String, HostTensor> = BTreeMap::new();
        let mut sums: Vec<(String, Part, HostTensor)> = Vec::new();
        for (name, tensor) in theirs {
            let Some((i, parts, end)) = self.rule_of_theirs(name, &all) else {
                without_rule.push(format!("{name} {}{:?}", tensor.dtype(), tensor.sizes()));
                continue;
            };
            used[i] = true;
            let rule = &self.rules[i];
            let layer = rule.ours.name(&parts, "/");
            for t in rule.tensors.iter().filter(|t| t.theirs == end) {
                let Some(ours) = t.ours.map(|end| format!("{layer}{end}")) else { continue };
                names.insert(ours.clone());
                if !self.selects(&ours) {
                    continue;
                }
                let value = match part_of(tensor, t.from).and_then(|part| t.layout.apply(&part)) {
                    Ok(value) => value,
                    Err(e) => {
                        failed.push(format!("{name}: {}", e.message()));
                        continue;
                    }
                };
                if let Some(part) = t.added_to {
                    sums.push((ours, part, value));
                } else if values.insert(ours.clone(), value).is_some() {
                    failed.push(format!("{name}: another tensor is mapped to {ours}, too"));
                } else {
                    order.push(ours);
                }
            }
        }
        for (ours, part, value) in sums {
            let sum = match values.get(&ours) {
                Some(base) => added(base, part, &value),
                None => Err(Error::new(ErrorKind::Name, "the tensor that it is added to is missing")),
            };
            match sum {
                Ok(sum) => drop(values.insert(ours, sum)),
                Err(e) => failed.push(format!("{ours}: {}", e.message())),
            }
        }
        let unused = self.rules.iter().zip(&used).filter(|(rule, used)| !**used && !rule.is_optional);
        let unused: Vec<String> =
            unused.map(|(rule, _)| format!("{} at {}", rule.theirs.text(), rule.site)).collect();
        let lists = [
            ("tensors without a rule", without_rule),
            ("rules without a tensor", unused),
            ("wrong layout", failed),
        ];
        let problems = lists.into_iter().filter(|(_, list)| !list.is_empty()).collect();
        let tensors = order.into_iter().filter_map(|name| values.remove_entry(&name)).collect();
        Ok(Converted { tensors, problems, names })
    }

    /// Converts variables to tensors of the other framework, which [`WeightMap::import`] converts
    /// to the same variables. Where it adds tensors up or drops a part of one, the result has
    /// zeros; tensors that it drops as a whole are missing.
    pub fn export(&self, ours: Named) -> Result<Named> {
        self.error.clone().map_or(Ok(()), Err)?;
        self.selections().try_for_each(NamePattern::check_syntax)?;
        let all: BTreeMap<&str, &HostTensor> = ours.iter().map(|(name, t)| (&name[..], t)).collect();
        let mut without_rule = Vec::new();
        let mut order: Vec<String> = Vec::new();
        let mut exported: BTreeMap<String, Exported> = BTreeMap::new();
        for (name, value) in ours.iter().filter(|(name, _)| self.selects(name)) {
            let Some((i, captured, end)) = self.rule_of_ours(name, &all) else {
                without_rule.push(format!("{name} {}{:?}", value.dtype(), value.sizes()));
                continue;
            };
            let rule = &self.rules[i];
            let layer = format!("{}{}", self.prefix, rule.theirs.name(&captured, "."));
            for t in rule.tensors.iter().filter(|t| t.ours == Some(end)) {
                let theirs = format!("{layer}{}", t.theirs);
                let part = match t.added_to {
                    Some(part) => part_of(value, part).and_then(|v| HostTensor::zeros(v.dtype(), v.sizes())),
                    None => t.layout.undo(value),
                };
                let part = part.map_err(|e| e.within(name))?;
                let entry = exported.entry(theirs.clone()).or_insert_with(|| {
                    order.push(theirs.clone());
                    Exported { rule: i, end: t.theirs, parts: Vec::new() }
                });
                entry.parts.push((t.from, part));
            }
        }
        if !without_rule.is_empty() {
            let error = Error::new(ErrorKind::Name, "the weight map does not fit the variables");
            return Err(with_lists(error, &[("variables without a rule", without_rule)]));
        }
        let assemble = |theirs: String| {
            let Exported { rule, end, parts: mut found } = exported.remove(&theirs).unwrap_or_default();
            let dropped = self.rules[rule].tensors.iter().filter(|t| t.theirs == end && t.ours.is_none());
            if let Some((_, first)) = found.first() {
                let zeros = HostTensor::zeros(first.dtype(), first.sizes())?;
                found.extend(dropped.map(|t| (t.from, zeros.clone())));
            }
            let tensor = concatenated(found).map_err(|e| e.within(&theirs))?;
            Ok((theirs, tensor))
        };
        order.into_iter().map(assemble).collect()
    }

    /// Returns the first rule for a tensor of theirs, what its placeholders stand for, and the end
    /// of the name.
    fn rule_of_theirs(
        &self,
        name: &str,
        all: &BTreeMap<&str, &HostTensor>,
    ) -> Option<(usize, Parts, &'static str)> {
        let stripped = name.strip_prefix(&self.prefix).unwrap_or(name);
        let prefix = &name[..name.len() - stripped.len()];
        self.rules.iter().enumerate().find_map(|(i, rule)| {
            let ends: BTreeSet<&'static str> = rule.tensors.iter().map(|t| t.theirs).collect();
            ends.into_iter().find_map(|end| {
                let layer = stripped.strip_suffix(end)?;
                let parts = rule.theirs.parts(layer)?;
                let sibling = |end: &str| all.get(&format!("{prefix}{layer}{end}")[..]);
                let applies = match rule.when {
                    When::Always => true,
                    When::Has(end) => sibling(end).is_some(),
                    When::WeightRank(rank) => sibling(".weight").is_some_and(|t| t.sizes().len() == rank),
                };
                applies.then_some((i, parts, end))
            })
        })
    }

    /// Like [`WeightMap::rule_of_theirs`], for a variable.
    fn rule_of_ours(
        &self,
        name: &str,
        all: &BTreeMap<&str, &HostTensor>,
    ) -> Option<(usize, Parts, &'static str)> {
        self.rules.iter().enumerate().find_map(|(i, rule)| {
            rule.tensors.iter().filter_map(|t| t.ours).find_map(|end| {
                let layer = name.strip_suffix(end)?;
                let parts = rule.ours.parts(layer)?;
                let weight = rule.tensors.iter().find(|t| t.theirs == ".weight").and_then(|t| t.ours);
                let applies = match (rule.when, weight) {
                    // Layouts keep the rank.
                    (When::WeightRank(rank), Some(weight)) => {
                        let weight = all.get(&format!("{layer}{weight}")[..]);
                        weight.is_some_and(|t| t.sizes().len() == rank)
                    }
                    _ => true,
                };
                applies.then_some((i, parts, end))
            })
        })
    }
}

/// Adds notes with these lists to an error.
pub(super) fn with_lists(error: Error, lists: &[(&'static str, Vec<String>)]) -> Error {
    lists.iter().filter(|(_, list)| !list.is_empty()).fold(error, |error, (what, list)| {
        let error = error.note(format!("{what} ({}):", list.len()));
        list.iter().fold(error, |error, line| error.note(format!("  {line}")))
    })
}

/// The names of the weights and biases of layer `layer` of a recurrent net: input, recurrent.
fn recurrent_names(layer: usize) -> Option<[&'static str; 4]> {
    macro_rules! names {
        ($($n:literal),*) => {
            [$([concat!(".weight_ih_l", $n), concat!(".weight_hh_l", $n),
                concat!(".bias_ih_l", $n), concat!(".bias_hh_l", $n)]),*]
        };
    }
    names!(0, 1, 2, 3, 4, 5, 6, 7).get(layer).copied()
}

/// Returns a part of a tensor.
fn part_of(t: &HostTensor, part: Part) -> Result<HostTensor> {
    if part == WHOLE {
        return Ok(t.clone());
    }
    let mut sizes = t.sizes().to_vec();
    let split = match part.of {
        Split::First => sizes.first_mut(),
        Split::Last => sizes.last_mut(),
    };
    let Some(split) = split.filter(|n| n.is_multiple_of(part.count)) else {
        return Err(Error::shape(format!("{:?} cannot be split into {} parts", t.sizes(), part.count)));
    };
    *split /= part.count;
    let mut result = HostTensor::zeros(t.dtype(), sizes.as_slice())?;
    let length = result.as_bytes().len() / stripes(part.of, &sizes).max(1);
    let parts = t.as_bytes().chunks_exact(length.max(1)).skip(part.index).step_by(part.count);
    result.copy_from_bytes(&parts.flatten().copied().collect::<Vec<u8>>())?;
    Ok(result)
}

/// Returns the number of pieces of memory that a part of a tensor consists of.
fn stripes(of: Split, sizes: &[usize]) -> usize {
    match (of, sizes) {
        (Split::Last, [outer @ .., _]) => outer.iter().product(),
        _ => 1,
    }
}

/// Puts parts together to a tensor.
fn concatenated(mut parts: Vec<(Part, HostTensor)>) -> Result<HostTensor> {
    parts.sort_by_key(|(part, _)| part.index);
    let Some((Part { count, of, .. }, first)) = parts.first().cloned() else {
        return Err(Error::new(ErrorKind::Name, "no variable is mapped to it"));
    };
    let is_complete = parts.iter().enumerate().all(|(index, (part, t))| {
        *part == Part { index, count, of } && t.sizes() == first.sizes() && t.dtype() == first.dtype()
    });
    if !is_complete || parts.len() != count {
        let why = format!("{} of its {count} parts have variables of one shape", parts.len());
        return Err(Error::new(ErrorKind::Name, why));
    }
    if count == 1 {
        return Ok(first);
    }
    let mut sizes = first.sizes().to_vec();
    let joined = match of {
        Split::First => sizes.first_mut(),
        Split::Last => sizes.last_mut(),
    };
    let Some(joined) = joined else { return Err(Error::shape("a scalar has no parts")) };
    *joined *= count;
    let stripes = stripes(of, &sizes);
    let length = first.as_bytes().len() / stripes.max(1);
    let bytes =
        (0..stripes).flat_map(|i| parts.iter().flat_map(move |(_, t)| &t.as_bytes()[i * length..][..length]));
    let mut result = HostTensor::zeros(first.dtype(), sizes.as_slice())?;
    result.copy_from_bytes(&bytes.copied().collect::<Vec<u8>>())?;
    Ok(result)
}

/// Adds `value` to a part of `base`.
fn added(base: &HostTensor, part: Part, value: &HostTensor) -> Result<HostTensor> {
    let own = part_of(base, part)?;
    if own.sizes() != value.sizes() {
        return Err(Error::shape(format!("{:?} cannot be added to {:?}", value.sizes(), own.sizes())));
    }
    let sum: Vec<f64> = own.to_f64_vec().iter().zip(value.to_f64_vec()).map(|(a, b)| a + b).collect();
    let sum = HostTensor::from_f64(base.dtype(), own.sizes(), &sum)?;
    let parts = (0..part.count).map(|index| {
        let other = Part { index, ..part };
        Ok((other, if other == part { sum.clone() } else { part_of(base, other)? }))
    });
    concatenated(parts.collect::<Result<_>>()?)
}
