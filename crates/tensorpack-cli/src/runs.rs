//! `tensorpack runs`: lists, shows and compares runs.

use crate::run_dir::{Point, Run};
use crate::table::{json_number, number, table};
use clap::{Args, Subcommand};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tensorpack::Result;
use tensorpack::serde_json::{Map, Value, json};

#[derive(Subcommand)]
pub(crate) enum RunsCommand {
    /// List the runs in directories and below them: start, restarts, progress, statistics.
    Ls {
        /// Directories of runs, or directories with runs below them.
        #[arg(required = true)]
        dirs: Vec<PathBuf>,
        /// The statistics to list; defaults to up to three of validation.
        #[arg(short, long = "statistic", value_name = "NAME")]
        statistics: Vec<String>,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Show a run: what ran, where, and all its statistics.
    Show {
        /// The directory of the run.
        dir: PathBuf,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Compare runs: settings that differ, and the last values of all statistics.
    Compare {
        /// The directories of the runs.
        #[arg(required = true, num_args = 2..)]
        dirs: Vec<PathBuf>,
        #[command(flatten)]
        format: FormatArgs,
    },
}

/// The form of the output.
#[derive(Args)]
pub(crate) struct FormatArgs {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl RunsCommand {
    /// Returns the output.
    pub(crate) fn run(&self) -> Result<String> {
        let print = |format: &FormatArgs, value: Value, text: String| match format.json {
            true => format!("{value:#}\n"),
            false => text,
        };
        match self {
            RunsCommand::Ls { dirs, statistics, format } => {
                let runs = Run::find(dirs)?;
                Ok(print(format, runs.iter().map(summary).collect(), list(&runs, statistics)))
            }
            RunsCommand::Show { dir, format } => {
                let run = Run::read(dir)?;
                let value = json!({"summary": summary(&run), "starts": run.starts});
                Ok(print(format, value, show(&run)))
            }
            RunsCommand::Compare { dirs, format } => {
                let runs: Vec<Run> = dirs.iter().map(|dir| Run::read(dir)).collect::<Result<_>>()?;
                let (settings, statistics) = (differences(&runs), last_values(&runs));
                let of_runs =
                    |values: &Vec<Option<f64>>| values.iter().map(|x| x.map(json_number)).collect::<Value>();
                let last = statistics.iter().map(|(name, values)| (name.clone(), of_runs(values)));
                let value = json!({
                    "runs": runs.iter().map(Run::name).collect::<Vec<_>>(),
                    "differences": settings,
                    "statistics": last.collect::<Map<_, _>>(),
                });
                Ok(print(format, value, compare(&runs, &settings, &statistics)))
            }
        }
    }
}

/// The lowest and the highest of points.
fn extremes(points: &[Point]) -> Option<[Point; 2]> {
    let numbers = || points.iter().copied().filter(|p| !p.value.is_nan());
    let lowest = numbers().min_by(|a, b| a.value.total_cmp(&b.value))?;
    let highest = numbers().max_by(|a, b| a.value.total_cmp(&b.value))?;
    Some([lowest, highest])
}

fn summary(run: &Run) -> Value {
    let (epoch, step) = run.progress();
    let point = |p: &Point| json!({"value": json_number(p.value), "epoch": p.epoch, "step": p.step});
    let statistic = |name: String| {
        let points = run.statistic(&name);
        let value = json!({
            "last": points.last().map(point),
            "lowest": extremes(&points).map(|e| point(&e[0])),
            "highest": extremes(&points).map(|e| point(&e[1])),
        });
        (name, value)
    };
    json!({
        "run": run.name(),
        "started": run.starts.first().map(|start| start["time"].clone()),
        "restarts": run.starts.len().saturating_sub(1),
        "epoch": epoch,
        "step": step,
        "statistics": run.names().into_iter().map(statistic).collect::<Map<_, _>>(),
    })
}

fn list(runs: &[Run], statistics: &[String]) -> String {
    let names: Vec<String> = match statistics {
        [] => {
            let mut all: Vec<String> =
                runs.iter().flat_map(Run::names).filter(|n| n.starts_with("val")).collect();
            all.sort();
            all.dedup();
            all.truncate(3);
            all
        }
        names => names.to_vec(),
    };
    let header = ["run", "started", "restarts", "epoch", "step"].map(String::from);
    let mut rows = vec![header.into_iter().chain(names.iter().cloned()).collect::<Vec<_>>()];
    for run in runs {
        let (epoch, step) = run.progress();
        let started = run.starts.first().and_then(|start| start["time"].as_str()).unwrap_or("");
        let restarts = run.starts.len().saturating_sub(1);
        let first = [run.name(), started.into(), restarts.to_string(), epoch.to_string(), step.to_string()];
        let last = |name: &String| run.statistic(name).last().map_or_else(String::new, |p| number(p.value));
        rows.push(first.into_iter().chain(names.iter().map(last)).collect());
    }
    table(&rows)
}

fn show(run: &Run) -> String {
    let mut rows = Vec::new();
    if let Some(start) = run.starts.last() {
        for (name, value) in flat(start) {
            rows.push(vec![name, value]);
        }
    }
    let mut text = String::new();
    for row in &rows {
        text += &format!("{}: {}\n", row[0], row[1]);
    }
    if run.starts.len() > 1 {
        text += &format!("restarts: {}\n", run.starts.len() - 1);
    }
    let (epoch, step) = run.progress();
    text += &format!("progress: epoch {epoch}, step {step}\n\n");
    let header = ["statistic", "last", "lowest", "at epoch", "highest", "at epoch"];
    let mut rows = vec![header.map(String::from).to_vec()];
    for name in run.names() {
        let points = run.statistic(&name);
        let last = points.last().map_or_else(String::new, |p| number(p.value));
        // A statistic that was never a number has no extremes.
        let extremes = extremes(&points).into_iter().flatten();
        let extremes = extremes.flat_map(|p| [number(p.value), p.epoch.to_string()]);
        rows.push([name, last].into_iter().chain(extremes).collect());
    }
    text + &table(&rows)
}

/// Returns the entries of a start, nested ones with names such as `settings.seed`.
fn flat(value: &Value) -> BTreeMap<String, String> {
    fn add(name: String, value: &Value, all: &mut BTreeMap<String, String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                add(name, value, all);
            }),
            Value::Null => {}
            Value::String(text) => drop(all.insert(name, text.clone())),
            other => drop(all.insert(name, other.to_string())),
        }
    }
    let mut all = BTreeMap::new();
    add(String::new(), value, &mut all);
    all
}

/// Returns what differs between the last starts of runs: for each name the value in each run.
fn differences(runs: &[Run]) -> BTreeMap<String, Vec<Option<String>>> {
    // These differ between any two starts.
    const VOLATILE: [&str; 5] = ["time", "logdir", "host.process", "host.available_memory", "options.logdir"];
    let starts: Vec<BTreeMap<String, String>> =
        runs.iter().map(|run| run.starts.last().map(flat).unwrap_or_default()).collect();
    let mut all: BTreeMap<String, Vec<Option<String>>> = BTreeMap::new();
    for name in starts.iter().flat_map(BTreeMap::keys).filter(|name| !VOLATILE.contains(&name.as_str())) {
        let values: Vec<Option<String>> = starts.iter().map(|start| start.get(name).cloned()).collect();
        if values.iter().any(|value| *value != values[0]) {
            all.insert(name.clone(), values);
        }
    }
    all
}

/// Returns the last value of each statistic in each run.
fn last_values(runs: &[Run]) -> BTreeMap<String, Vec<Option<f64>>> {
    let last = |name: &str| runs.iter().map(|run| run.statistic(name).last().map(|p| p.value)).collect();
    runs.iter().flat_map(Run::names).map(|name| (name.clone(), last(&name))).collect()
}

fn compare(
    runs: &[Run],
    settings: &BTreeMap<String, Vec<Option<String>>>,
    statistics: &BTreeMap<String, Vec<Option<f64>>>,
) -> String {
    let header = std::iter::once(String::new()).chain(runs.iter().map(Run::name));
    let mut rows = vec![header.collect::<Vec<_>>()];
    for (name, values) in settings {
        let cells = values.iter().map(|value| value.clone().unwrap_or_else(|| "-".into()));
        rows.push(std::iter::once(name.clone()).chain(cells).collect());
    }
    for (name, values) in statistics {
        let cells = values.iter().map(|value| value.map_or_else(|| "-".into(), number));
        rows.push(std::iter::once(name.clone()).chain(cells).collect());
    }
    table(&rows)
}
