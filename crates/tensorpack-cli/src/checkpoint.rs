//! `tensorpack checkpoint`: lists, shows, extracts, compares, averages and verifies checkpoints.

use crate::runs::FormatArgs;
use crate::table::{number, table};
use crate::weights::diff;
use clap::Subcommand;
use std::io::Write;
use std::path::{Path, PathBuf};
use tensorpack::graph::NamePattern;
use tensorpack::io::{Checkpoint, CheckpointInfo, list_checkpoints, read_tensors, write_tensors};
use tensorpack::serde_json::{Value, json};
use tensorpack::{Error, HostTensor, Result};

/// Tensors with their names.
type Named = Vec<(String, HostTensor)>;

#[derive(Subcommand)]
pub(crate) enum CheckpointCommand {
    /// List the checkpoints of runs: step, time, size, tags.
    Ls {
        /// Directories of runs.
        #[arg(required = true)]
        runs: Vec<PathBuf>,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Show the tensors of a checkpoint: shape, mean, standard deviation, extremes.
    Show {
        /// A checkpoint's folder, a run (its newest checkpoint), a tag's file, or a file of
        /// tensors.
        path: PathBuf,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Extract tensors into a .safetensors or .npz file.
    Dump {
        /// The checkpoint.
        path: PathBuf,
        /// The file to write.
        to: PathBuf,
        /// Only tensors whose whole name matches this regular expression.
        #[arg(long, value_name = "PATTERN")]
        only: Option<String>,
    },
    /// Compare two checkpoints. The exit status is 1 if they differ.
    Diff {
        /// The first checkpoint.
        first: PathBuf,
        /// The second checkpoint.
        second: PathBuf,
    },
    /// Average the floating-point tensors of several checkpoints; other tensors are the last one's.
    Average {
        /// The checkpoints.
        #[arg(required = true, num_args = 2..)]
        paths: Vec<PathBuf>,
        /// The .safetensors or .npz file to write.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Read all files of checkpoints and compare their checksums. The exit status is 1 if one is
    /// damaged.
    Verify {
        /// Folders of checkpoints, or runs (all their checkpoints).
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
}

impl CheckpointCommand {
    /// Runs the command. Returns whether what it compared is equal, or what it verified is intact.
    pub(crate) fn run(&self, out: &mut impl Write) -> Result<bool> {
        match self {
            CheckpointCommand::Ls { runs, format } => {
                let mut all = Vec::new();
                for run in runs {
                    std::fs::metadata(run).map_err(|e| Error::from(e).within(run.display()))?;
                    all.extend(list_checkpoints(run)?);
                }
                match format.json {
                    true => writeln!(out, "{:#}", all.iter().map(about).collect::<Value>())?,
                    false => out.write_all(list(&all).as_bytes())?,
                }
                Ok(true)
            }
            CheckpointCommand::Show { path, format } => {
                let tensors = read(path)?;
                match format.json {
                    true => writeln!(out, "{:#}", tensors.iter().map(statistics_json).collect::<Value>())?,
                    false => out.write_all(show(&tensors).as_bytes())?,
                }
                Ok(true)
            }
            CheckpointCommand::Dump { path, to, only } => {
                let mut tensors = read(path)?;
                if let Some(pattern) = only.as_deref().map(NamePattern::new) {
                    pattern.check(tensors.iter().map(|(name, _)| name.as_str()))?;
                    tensors.retain(|(name, _)| pattern.matches(name));
                }
                write_tensors(to, &tensors)?;
                writeln!(out, "wrote {} tensors to {}", tensors.len(), to.display())?;
                Ok(true)
            }
            CheckpointCommand::Diff { first, second } => Ok(diff(&read(first)?, &read(second)?, out)?),
            CheckpointCommand::Average { paths, output } => {
                let average = average(paths)?;
                write_tensors(output, &average)?;
                let count = average.len();
                writeln!(out, "wrote the averages of {count} tensors to {}", output.display())?;
                Ok(true)
            }
            CheckpointCommand::Verify { paths } => {
                let mut is_intact = true;
                for folder in folders(paths)? {
                    match Checkpoint::load(&folder) {
                        Ok(checkpoint) => {
                            let count = checkpoint.tensors.len();
                            writeln!(out, "{}: intact, {count} tensors", folder.display())?;
                        }
                        // A run that trains removes old checkpoints.
                        Err(_) if !folder.exists() => {
                            writeln!(out, "{}: removed meanwhile", folder.display())?;
                        }
                        Err(e) => {
                            is_intact = false;
                            writeln!(out, "{}: damaged: {e}", folder.display())?;
                        }
                    }
                }
                Ok(is_intact)
            }
        }
    }
}

/// Returns the folders of checkpoints at paths: all those of a run, or the path itself.
fn folders(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in paths {
        std::fs::metadata(path).map_err(|e| Error::from(e).within(path.display()))?;
        let inside = path.join("checkpoints");
        if !inside.is_dir() {
            all.push(path.clone());
            continue;
        }
        let before = all.len();
        // A folder whose manifest is damaged is to be reported, too.
        for entry in std::fs::read_dir(&inside).map_err(|e| Error::from(e).within(inside.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() && entry.file_name().to_string_lossy().starts_with("step-") {
                all.push(entry.path());
            }
        }
        all[before..].sort();
    }
    match all.is_empty() {
        true => Err(Error::argument("there are no checkpoints to verify")),
        false => Ok(all),
    }
}

/// Reads the tensors of a checkpoint's folder, of a run's newest checkpoint, of a tag, or of a
/// file.
fn read(path: &Path) -> Result<Named> {
    if path.is_dir() && path.join("checkpoints").is_dir() {
        let newest = list_checkpoints(path)?.pop();
        let newest =
            newest.ok_or_else(|| Error::argument(format!("{} has no checkpoint", path.display())))?;
        return Ok(Checkpoint::load(newest.path)?.tensors);
    }
    if path.is_dir() && path.join("state.json").exists() {
        return Ok(Checkpoint::load(path)?.tensors);
    }
    if let Some(folder) = tagged_folder(path)? {
        return Ok(Checkpoint::load(folder)?.tensors);
    }
    read_tensors(path, None)
}

/// Returns the folder that the file of a tag names. A tag may have the name of a statistic, with dots.
fn tagged_folder(path: &Path) -> Result<Option<PathBuf>> {
    let is_short = std::fs::metadata(path).is_ok_and(|about| about.is_file() && about.len() <= MAX_TAG);
    if !is_short {
        return Ok(None);
    }
    let bytes = std::fs::read(path).map_err(|e| Error::from(e).within(path.display()))?;
    let name = str::from_utf8(&bytes).ok().map(str::trim).filter(|name| name.starts_with("step-"));
    Ok(name.map(|name| path.with_file_name(name)))
}

/// The longest file of a tag in bytes.
const MAX_TAG: u64 = 4096;

fn about(info: &CheckpointInfo) -> Value {
    let saved = info.saved_at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    json!({
        "path": info.path.to_string_lossy(),
        "step": info.global_step,
        "sequence": info.sequence,
        "saved_at": saved.as_secs(),
        "bytes": info.bytes,
        "tags": info.tags,
    })
}

fn list(all: &[CheckpointInfo]) -> String {
    let mut rows = vec![["checkpoint", "step", "saved", "MB", "tags"].map(String::from).to_vec()];
    for info in all {
        let age = info.saved_at.elapsed().unwrap_or_default().as_secs();
        let age = match age {
            0..=119 => format!("{age} s ago"),
            120..=7199 => format!("{} min ago", age / 60),
            7200..=172_799 => format!("{} h ago", age / 3600),
            _ => format!("{} days ago", age / 86_400),
        };
        let megabytes = format!("{:.2}", info.bytes as f64 / 1e6);
        let path = info.path.display().to_string();
        rows.push(vec![path, info.global_step.to_string(), age, megabytes, info.tags.join(", ")]);
    }
    table(&rows)
}

/// Statistics of the elements of a tensor.
struct Elements {
    mean: f64,
    deviation: f64,
    lowest: f64,
    highest: f64,
    not_finite: usize,
}

impl Elements {
    /// Returns the statistics of the finite elements.
    fn new(tensor: &HostTensor) -> Elements {
        let all = tensor.to_f64_vec();
        let finite: Vec<f64> = all.iter().copied().filter(|x| x.is_finite()).collect();
        let count = finite.len() as f64;
        let mean = finite.iter().sum::<f64>() / count;
        let variance = finite.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        Elements {
            mean,
            deviation: variance.sqrt(),
            lowest: finite.iter().copied().fold(f64::INFINITY, f64::min),
            highest: finite.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            not_finite: all.len() - finite.len(),
        }
    }
}

fn statistics_json((name, tensor): &(String, HostTensor)) -> Value {
    let elements = Elements::new(tensor);
    json!({
        "name": name,
        "dtype": tensor.dtype().to_string(),
        "sizes": tensor.sizes(),
        "mean": elements.mean,
        "standard_deviation": elements.deviation,
        "lowest": elements.lowest,
        "highest": elements.highest,
        "not_finite": elements.not_finite,
    })
}

fn show(tensors: &Named) -> String {
    let header = ["tensor", "type", "shape", "mean", "std", "lowest", "highest", "not finite"];
    let mut rows = vec![header.map(String::from).to_vec()];
    for (name, tensor) in tensors {
        let e = Elements::new(tensor);
        // Without a finite element there are no statistics.
        let cell = |x: f64| if e.mean.is_nan() { "-".into() } else { number(x) };
        let numbers = [e.mean, e.deviation, e.lowest, e.highest].map(cell);
        let about = [name.clone(), tensor.dtype().to_string(), format!("{:?}", tensor.sizes())];
        rows.push([&about[..], &numbers[..], &[e.not_finite.to_string()][..]].concat());
    }
    let elements: usize = tensors.iter().map(|(_, tensor)| tensor.len()).sum();
    let bytes: usize = tensors.iter().map(|(_, tensor)| tensor.as_bytes().len()).sum();
    format!("{}{} tensors, {elements} elements, {:.2} MB\n", table(&rows), tensors.len(), bytes as f64 / 1e6)
}

/// Returns the averages of the tensors at paths, which must have the same names, types and shapes.
fn average(paths: &[PathBuf]) -> Result<Named> {
    let (Some((first, rest)), count) = (paths.split_first(), paths.len() as f64) else {
        return Ok(Vec::new());
    };
    let mut tensors = read(first)?;
    let mut sums: Vec<Vec<f64>> = tensors.iter().map(|(_, tensor)| tensor.to_f64_vec()).collect();
    for path in rest {
        let others = read(path)?;
        for ((name, tensor), sum) in tensors.iter_mut().zip(&mut sums) {
            let other = others.iter().find(|(other, _)| other == name).map(|(_, other)| other);
            let same =
                |other: &&HostTensor| other.sizes() == tensor.sizes() && other.dtype() == tensor.dtype();
            let other = other.filter(same).ok_or_else(|| {
                let why = format!(
                    "{} has no {name} of type {} and shape {:?}",
                    path.display(),
                    tensor.dtype(),
                    tensor.sizes()
                );
                Error::argument(why).note("only checkpoints of the same model can be averaged")
            })?;
            sum.iter_mut().zip(other.to_f64_vec()).for_each(|(sum, x)| *sum += x);
            if !tensor.dtype().is_float() {
                *tensor = other.clone();
            }
        }
        if others.len() != tensors.len() {
            let why = format!("{} has {} tensors, not {}", path.display(), others.len(), tensors.len());
            return Err(Error::argument(why).note("only checkpoints of the same model can be averaged"));
        }
    }
    for ((_, tensor), mut sum) in tensors.iter_mut().zip(sums) {
        if tensor.dtype().is_float() {
            sum.iter_mut().for_each(|x| *x /= count);
            *tensor = HostTensor::from_f64(tensor.dtype(), tensor.sizes(), &sum)?;
        }
    }
    Ok(tensors)
}
