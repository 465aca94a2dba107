//! `tensorpack weights`: shows, compares and converts files of tensors.

use crate::table::printable;
use clap::{Args, Subcommand};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::PathBuf;
use tensorpack::io::{WeightMap, read_tensors, write_tensors};
use tensorpack::{Error, HostTensor, Result};

/// Tensors with their names.
type Named = Vec<(String, HostTensor)>;

#[derive(Subcommand)]
pub(crate) enum WeightsCommand {
    /// List the tensors of files: names, dtypes and shapes; then the ready maps that fit, and a
    /// proposed map.
    Ls {
        /// Files: .safetensors, .npz, .pt, .pth, .bin, an index of shards, or a model folder.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// The dictionary to list, in a PyTorch file that has several.
        #[arg(long)]
        key: Option<String>,
    },
    /// Compare two files: names, dtypes, shapes and values. The exit status is 1 if they differ.
    Diff {
        /// The first file.
        first: PathBuf,
        /// The second file.
        second: PathBuf,
        #[command(flatten)]
        source: SourceArgs,
    },
    /// Convert a file to .safetensors or .npz, with a map to the names and layouts used here.
    Convert {
        /// The file to read.
        from: PathBuf,
        /// The file to write.
        to: PathBuf,
        #[command(flatten)]
        source: SourceArgs,
    },
}

/// How to read the first file.
#[derive(Args)]
pub(crate) struct SourceArgs {
    /// The dictionary to read, in a PyTorch file that has several.
    #[arg(long)]
    key: Option<String>,
    /// The ready map to apply.
    #[arg(long, value_parser = WeightMap::READY)]
    map: Option<String>,
}

impl SourceArgs {
    fn read(&self, path: &PathBuf) -> Result<Named> {
        let tensors = read_tensors(path, self.key.as_deref())?;
        match self.map.as_deref().and_then(WeightMap::ready) {
            Some(map) => map.import(tensors).map_err(|e| e.within(path.display())),
            None => Ok(tensors),
        }
    }
}

impl WeightsCommand {
    /// Runs the command. Returns whether two files that it compared are equal.
    pub(crate) fn run(&self, out: &mut impl Write) -> Result<bool> {
        match self {
            WeightsCommand::Ls { files, key } => {
                for file in files {
                    let tensors = read_tensors(file, key.as_deref())?;
                    if files.len() > 1 {
                        writeln!(out, "{}:", file.display())?;
                    }
                    list(&tensors, out)?;
                }
                Ok(true)
            }
            WeightsCommand::Diff { first, second, source } => {
                Ok(diff(&source.read(first)?, &read_tensors(second, None)?, out)?)
            }
            WeightsCommand::Convert { from, to, source } => {
                let tensors = source.read(from)?;
                if from == to {
                    return Err(Error::argument("the file would replace the one it is read from"));
                }
                write_tensors(to, &tensors)?;
                writeln!(out, "wrote {} tensors to {}", tensors.len(), to.display())?;
                Ok(true)
            }
        }
    }
}

fn described(tensor: &HostTensor) -> String {
    format!("{}{:?}", tensor.dtype(), tensor.sizes())
}

fn list(tensors: &Named, out: &mut impl Write) -> io::Result<()> {
    let width = tensors.iter().map(|(name, _)| printable(name).chars().count()).max().unwrap_or(0);
    for (name, tensor) in tensors {
        writeln!(out, "{:width$}  {}", printable(name), described(tensor))?;
    }
    let elements: usize = tensors.iter().map(|(_, t)| t.len()).sum();
    let bytes: usize = tensors.iter().map(|(_, t)| t.as_bytes().len()).sum();
    writeln!(out, "{} tensors, {elements} elements, {bytes} bytes", tensors.len())?;
    let fits = |name: &&str| WeightMap::ready(name).is_some_and(|map| map.import(tensors.clone()).is_ok());
    let fitting: Vec<&str> = WeightMap::READY.into_iter().filter(fits).collect();
    match fitting.is_empty() {
        true => writeln!(out, "no ready map fits")?,
        false => writeln!(out, "ready maps that fit: {}", fitting.join(", "))?,
    }
    writeln!(out, "proposed map:\n{}", proposed_map(tensors))
}

/// Prints all differences. Returns whether there is none.
pub(crate) fn diff(first: &Named, second: &Named, out: &mut impl Write) -> io::Result<bool> {
    let [a, b]: [BTreeMap<&str, &HostTensor>; 2] =
        [first, second].map(|named| named.iter().map(|(name, t)| (&name[..], t)).collect());
    let mut equal = 0;
    let names: BTreeSet<&str> = a.keys().chain(b.keys()).copied().collect();
    let count = names.len();
    for key in names {
        let name = printable(key);
        match (a.get(key), b.get(key)) {
            (Some(t), None) => writeln!(out, "only in the first: {name} {}", described(t))?,
            (None, Some(t)) => writeln!(out, "only in the second: {name} {}", described(t))?,
            (Some(x), Some(y)) if described(x) != described(y) => {
                writeln!(out, "different: {name} {} and {}", described(x), described(y))?;
            }
            (Some(x), Some(y)) if x.as_bytes() != y.as_bytes() => {
                writeln!(out, "different: {name} {}, {}", described(x), differences(x, y))?;
            }
            _ => equal += 1,
        }
    }
    writeln!(out, "{equal} of {count} tensors are equal")?;
    Ok(equal == count)
}

/// Describes by how much the elements of two tensors of the same type and shape differ. Of pairs in which
/// one is not finite there is only the number.
fn differences(x: &HostTensor, y: &HostTensor) -> String {
    let size = x.dtype().size();
    let bits = x.as_bytes().chunks(size).zip(y.as_bytes().chunks(size));
    let values = x.to_f64_vec().into_iter().zip(y.to_f64_vec());
    let differing = bits.zip(values).filter(|((x, y), _)| x != y).map(|(_, values)| values);
    let (mut count, mut not_finite, mut largest) = (0, 0, 0.0);
    for (x, y) in differing {
        count += 1;
        match x.is_finite() && y.is_finite() {
            true => largest = f64::max(largest, (x - y).abs()),
            false => not_finite += 1,
        }
    }
    let all = x.len();
    let mut text = format!("{count} of {all} values");
    if count > not_finite {
        text += &format!(" by up to {largest:.3e}");
    }
    if not_finite > 0 {
        text += &format!(", {not_finite} of them not finite");
    }
    text
}

/// Returns Rust code of a map for these tensors: one rule for layers whose names differ only in
/// numbers. Embeddings look like linear layers.
fn proposed_map(tensors: &Named) -> String {
    let all: BTreeMap<&str, &HostTensor> = tensors.iter().map(|(name, t)| (&name[..], t)).collect();
    let mut rules: Vec<String> = Vec::new();
    for (name, tensor) in tensors {
        let (layer, leaf) = name.rsplit_once('.').unwrap_or(("", name));
        let weight_rank = all.get(&format!("{layer}.weight")[..]).map(|t| t.sizes().len());
        let has = |leaf: &str| all.contains_key(&format!("{layer}.{leaf}")[..]);
        let recurrent = leaf.rsplit_once("_l").and_then(|(_, layer)| layer.parse::<usize>().ok());
        let (rule, layer) = match (leaf, weight_rank) {
            _ if layer.is_empty() => ("tensor".to_string(), &name[..]),
            _ if has("running_mean") => ("batch_norm".to_string(), layer),
            _ if has("in_proj_weight") => ("attention".to_string(), layer),
            _ if layer.ends_with(".out_proj") && {
                let outer = layer.trim_end_matches(".out_proj");
                all.contains_key(&format!("{outer}.in_proj_weight")[..])
            } =>
            {
                continue;
            }
            _ if let Some(n) = recurrent
                && let Some(u) = all.get(&format!("{layer}.weight_hh_l{n}")[..])
                && let [rows, units] = *u.sizes() =>
            {
                let kind = if rows == 3 * units { "gru" } else { "lstm" };
                (format!("{kind}_layer({n}, "), layer)
            }
            ("weight" | "bias", Some(1)) => ("layer_norm".to_string(), layer),
            ("weight" | "bias", Some(2)) => ("linear".to_string(), layer),
            ("weight" | "bias", Some(3)) => ("conv1d".to_string(), layer),
            ("weight" | "bias", Some(4)) => ("conv".to_string(), layer),
            _ => ("tensor".to_string(), &name[..]),
        };
        let theirs = with_placeholders(layer);
        let ours = theirs.replace('.', "/");
        let text = match &rule[..] {
            "tensor" => {
                format!(".tensor({theirs:?}, {ours:?}, WeightLayout::Unchanged) // {}", described(tensor))
            }
            rule if rule.ends_with(", ") => {
                let n = rule.split(['(', ',']).nth(1).unwrap_or("0");
                format!(".{rule}{theirs:?}, {:?})", format!("{ours}/{n}"))
            }
            rule => format!(".{rule}({theirs:?}, {ours:?})"),
        };
        if !rules.contains(&text) {
            rules.push(text);
        }
    }
    format!("WeightMap::new()\n    {}", rules.join("\n    "))
}

/// Replaces each number of a name with a placeholder: `layer1.0.conv2` becomes
/// `layer{a}.{b}.conv{c}`.
fn with_placeholders(name: &str) -> String {
    let (mut result, mut next, mut in_number) = (String::new(), 'a', false);
    for c in name.chars() {
        if !c.is_ascii_digit() {
            result.push(c);
        } else if !in_number {
            result.push_str(&format!("{{{next}}}"));
            next = char::from_u32(next as u32 + 1).unwrap_or('z');
        }
        in_number = c.is_ascii_digit();
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack::DType;

    fn tensors(list: &[(&str, &[usize])]) -> Named {
        list.iter()
            .map(|(n, sizes)| (n.to_string(), HostTensor::zeros(DType::F32, *sizes).unwrap()))
            .collect()
    }

    fn text(run: impl FnOnce(&mut Vec<u8>) -> io::Result<bool>) -> (String, bool) {
        let mut out = Vec::new();
        let equal = run(&mut out).unwrap();
        (String::from_utf8(out).unwrap(), equal)
    }

    #[test]
    fn a_map_is_proposed_by_names_and_ranks() {
        let proposed = proposed_map(&tensors(&[
            ("layer1.0.conv1.weight", &[4, 3, 3, 3]),
            ("layer1.0.conv2.weight", &[4, 3, 3, 3]),
            ("layer1.0.conv2.bias", &[4]),
            ("layer1.0.bn1.weight", &[4]),
            ("layer1.0.bn1.running_mean", &[4]),
            ("rnn.weight_ih_l1", &[6, 3]),
            ("rnn.weight_hh_l1", &[6, 2]),
            ("attn.in_proj_weight", &[6, 2]),
            ("attn.out_proj.weight", &[2, 2]),
            ("norm.weight", &[4]),
            ("fc.bias", &[10]),
            ("fc.weight", &[10, 4]),
            ("token", &[1, 4]),
        ]));
        let expected = [
            r#".conv("layer{a}.{b}.conv{c}", "layer{a}/{b}/conv{c}")"#,
            r#".batch_norm("layer{a}.{b}.bn{c}", "layer{a}/{b}/bn{c}")"#,
            r#".gru_layer(1, "rnn", "rnn/1")"#,
            r#".attention("attn", "attn")"#,
            r#".layer_norm("norm", "norm")"#,
            r#".linear("fc", "fc")"#,
            r#".tensor("token", "token", WeightLayout::Unchanged) // f32[1, 4]"#,
        ];
        assert_eq!(proposed, format!("WeightMap::new()\n    {}", expected.join("\n    ")));
    }

    #[test]
    fn differences_are_listed() {
        let a = tensors(&[("same", &[2]), ("shape", &[2]), ("first", &[1]), ("value", &[1])]);
        let mut b = tensors(&[("same", &[2]), ("shape", &[3]), ("second", &[1]), ("value", &[1])]);
        b[3].1 = HostTensor::new([1], vec![0.5f32]).unwrap();
        let (out, equal) = text(|out| diff(&a, &b, out));
        assert!(!equal);
        for line in [
            "only in the first: first f32[1]",
            "only in the second: second f32[1]",
            "different: shape f32[2] and f32[3]",
            "different: value f32[1], 1 of 1 values by up to 5.000e-1",
            "1 of 5 tensors are equal",
        ] {
            assert!(out.lines().any(|l| l == line), "{line} in\n{out}");
        }
        assert!(text(|out| diff(&a, &a, out)).1);
        let value = |v: f32| vec![("v".to_string(), HostTensor::new([2], vec![v, 1.0]).unwrap())];
        let (out, equal) = text(|out| diff(&value(f32::NAN), &value(2.0), out));
        assert!(!equal && out.contains("1 of them not finite"), "{out}");
        assert!(text(|out| diff(&value(f32::NAN), &value(f32::NAN), out)).1);
    }

    #[test]
    fn control_characters_of_names_are_not_printed() {
        let named = tensors(&[("a\x1b[31m\u{202e}b", &[1]), ("c\nd", &[1]), ("größe.\"x\"", &[1])]);
        let (out, _) = text(|out| list(&named, out).map(|()| true));
        assert!(!out.contains(['\x1b', '\u{202e}']) && out.contains("c\\nd"), "{out}");
        assert!(out.contains("größe.\"x\""), "{out}");
        let (out, _) = text(|out| diff(&named, &Vec::new(), out));
        assert!(!out.contains('\x1b') && out.lines().count() == 4, "{out}");
    }

    /// NaN is not equal to a number, and its distance to one is not 0.
    #[test]
    fn values_that_are_not_finite_are_counted() {
        let tensor = |values: [f32; 3]| HostTensor::new([3], values.to_vec()).unwrap();
        let a = tensor([f32::NAN, 1.0, 2.0]);
        assert_eq!(differences(&a, &tensor([0.5, 1.0, 2.0])), "1 of 3 values, 1 of them not finite");
        let both = differences(&a, &tensor([f32::INFINITY, 1.0, 2.25]));
        assert_eq!(both, "2 of 3 values by up to 2.500e-1, 1 of them not finite");
        let named = vec![("t".to_string(), a)];
        assert!(text(|out| diff(&named, &named, out)).1);
    }

    #[test]
    fn the_list_ends_with_the_maps_that_fit() {
        let named = tensors(&[("features.0.weight", &[4, 3, 3, 3]), ("classifier.1.weight", &[10, 4])]);
        let (out, _) = text(|out| list(&named, out).map(|()| true));
        assert!(out.contains("features.0.weight    f32[4, 3, 3, 3]"), "{out}");
        assert!(out.contains("2 tensors, 148 elements, 592 bytes"), "{out}");
        assert!(
            out.contains(
                "ready maps that fit: torchvision_mobilenet_v2, torchvision_efficientnet, same_names"
            ),
            "{out}"
        );
    }
}
