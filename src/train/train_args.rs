//! The options that every training program understands.

use super::data_parallel::Devices;
use super::train_config::Data;
use super::{
    AsyncMultiGpuTrainer, Configured, DistributedTrainerParameterServer, DistributedTrainerReplicated,
    NanPolicy, NoOpTrainer, QueueInputTrainer, RunConfig, SimpleTrainer, SingleCostTrainer, StepsPerLaunch,
    SyncMultiGpuTrainerParameterServer, SyncMultiGpuTrainerReplicated, TrainConfig, largest_batch,
};
use crate::callback::{Callback, LearningRateFinder, OverfitCheck};
use crate::command_line;
use crate::graph::Precision;
use crate::io::smart_init;
use crate::runtime::{Device, parse_bytes};
use clap::builder::{PossibleValue, PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser};
use serde_json::{Value, json};
use std::path::PathBuf;
use tensorpack_dataflow::DataFlow;
use tensorpack_rendezvous::{Launch, LaunchOptions};
use tensorpack_tensor::{Error, Result};

/// The options of a training program, to be parsed alone or flattened into a program's own options.
///
/// If an option is repeated, its last value wins. A program with further options flattens these
/// into its own:
///
/// ```no_run
/// use clap::Parser;
/// use tensorpack::train::TrainArgs;
/// # fn config(_: Option<std::path::PathBuf>) -> tensorpack::train::TrainConfig { unimplemented!() }
///
/// /// Trains on photographs.
/// #[derive(Parser)]
/// struct Args {
///     #[command(flatten)]
///     train: TrainArgs,
///     /// The folder of photographs.
///     #[arg(long, value_name = "DIR")]
///     data: Option<std::path::PathBuf>,
/// }
///
/// fn main() -> tensorpack::Result<()> {
///     // This program has no long schedule.
///     let args: Args = tensorpack::command_line::parse_without(&["--full"])?;
///     args.train.configure(config(args.data))?.train()?;
///     Ok(())
/// }
/// ```
#[doc(alias = "CommandLine")]
#[derive(Args, Clone, Debug, Default)]
// Without `None` this documentation would become the description of programs that have none.
#[command(about = None, long_about = None, args_override_self = true)]
pub struct TrainArgs {
    /// The last epoch.
    #[arg(long, value_name = "N")]
    pub max_epoch: Option<u64>,
    /// Steps in an epoch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps_per_epoch: Option<u64>,
    /// Steps that one launch on an accelerator runs, or auto; defaults to 1.
    #[arg(long, value_name = "N")]
    pub steps_per_launch: Option<StepsPerLaunch>,
    /// The trainer; defaults to simple.
    #[arg(long, value_name = "NAME", value_parser = trainer_names())]
    pub trainer: Option<String>,
    /// Devices such as cpu:0,cpu:1, one tower on each; reference: f64, for debugging.
    #[arg(long, value_name = "LIST", value_delimiter = ',', action = ArgAction::Set)]
    pub devices: Vec<Device>,
    /// Threads of each device.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub threads_per_device: Option<usize>,
    /// The precision: f32, tf32 (on NVIDIA GPUs), bf16 or f16; defaults to tf32.
    #[arg(long, value_name = "TYPE", value_parser = precision_names())]
    pub precision: Option<Precision>,
    /// The memory limit of each device, such as 2GB; parts of a step that does not fit are computed
    /// twice.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub memory_limit: Option<usize>,
    /// Print the largest batch that fits into memory, and train nothing.
    #[arg(long, conflicts_with_all = ["dry_run", "overfit", "find_lr"])]
    pub find_batch: bool,
    /// The log directory; an existing run in it is resumed.
    #[arg(long, value_name = "DIR")]
    pub logdir: Option<PathBuf>,
    /// A file or checkpoint with initial values of variables.
    #[arg(long, value_name = "PATH")]
    pub load: Option<PathBuf>,
    /// Start a new run, even if the directory has one.
    #[arg(long)]
    pub fresh: bool,
    /// Show only warnings and errors; log.log has everything.
    #[arg(long)]
    pub quiet: bool,
    /// The seed of all random numbers.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Train on constant data, to measure speed.
    #[arg(long)]
    pub fake: bool,
    /// Train for the original's long schedule.
    #[arg(long)]
    pub full: bool,
    /// Fail if the program does not reach its stated result.
    #[arg(long)]
    pub assert: bool,
    /// Show a table of the model's layers before the first step.
    #[arg(long)]
    pub summary: bool,
    /// Check the graph, the first batch, the memory and the callbacks, and train nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Train on N batches only, and fail if their cost does not fall by a factor of 10.
    #[arg(long, value_name = "N")]
    pub overfit: Option<u64>,
    /// Try learning rates from 1e-7 to 10 and suggest one.
    #[arg(long)]
    pub find_lr: bool,
    /// A TOML file of options: max-epoch = 3.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// An option: --set max-epoch=3. It replaces what the file says.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

fn precision_names() -> impl TypedValueParser<Value = Precision> {
    let names = Precision::ALL.map(|precision| PossibleValue::new(precision.name()));
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Precision>())
}

fn trainer_names() -> PossibleValuesParser {
    let names = ["simple", "queue", "sync-ps", "sync-replicated", "async", "dist-ps", "dist-replicated"]
        .map(PossibleValue::new);
    PossibleValuesParser::new(names.into_iter().chain([PossibleValue::new("noop").hide(true)]))
}

// A program with only these options. (A doc comment would become its description.)
#[derive(Parser)]
struct Program {
    #[command(flatten)]
    train: TrainArgs,
}

impl TrainArgs {
    /// Parses the command line of a program with only these options. See [`command_line::parse`].
    pub fn parse() -> Result<TrainArgs> {
        Ok(command_line::parse::<Program>()?.train)
    }

    /// Parses the command line of a program with only these options, described by `about`, like
    /// [`command_line::parse_without`]: some options may not apply to it.
    ///
    /// ```no_run
    /// # fn main() -> tensorpack::Result<()> {
    /// use tensorpack::train::TrainArgs;
    /// let args = TrainArgs::parse_program("Trains a convnet on MNIST", &["--fake"])?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn parse_program(about: &'static str, without: &[&str]) -> Result<TrainArgs> {
        let matches = command_line::process_matches(Program::command().about(about), without)?;
        TrainArgs::from_arg_matches(&matches).map_err(|e| Error::argument(e.to_string()))
    }

    /// Parses a list of options, without a program name in front.
    #[doc(alias = "of")]
    pub fn parse_options<S: Into<String>>(options: impl IntoIterator<Item = S>) -> Result<TrainArgs> {
        let words = std::iter::once("program".to_string()).chain(options.into_iter().map(Into::into));
        Ok(command_line::parse_from::<Program>(words)?.train)
    }

    /// Returns an error if one of these options was given, for a program to which they do not
    /// apply.
    pub fn without(&self, options: &[&str]) -> Result<()> {
        for option in options {
            let given = match *option {
                "--max-epoch" => self.max_epoch.is_some(),
                "--steps-per-epoch" => self.steps_per_epoch.is_some(),
                "--steps-per-launch" => self.steps_per_launch.is_some(),
                "--trainer" => self.trainer.is_some(),
                "--devices" => !self.devices.is_empty(),
                "--threads-per-device" => self.threads_per_device.is_some(),
                "--precision" => self.precision.is_some(),
                "--memory-limit" => self.memory_limit.is_some(),
                "--find-batch" => self.find_batch,
                "--logdir" => self.logdir.is_some(),
                "--load" => self.load.is_some(),
                "--fresh" => self.fresh,
                "--quiet" => self.quiet,
                "--seed" => self.seed.is_some(),
                "--fake" => self.fake,
                "--full" => self.full,
                "--assert" => self.assert,
                "--summary" => self.summary,
                "--dry-run" => self.dry_run,
                "--overfit" => self.overfit.is_some(),
                "--find-lr" => self.find_lr,
                "--config" => self.config.is_some(),
                "--set" => !self.set.is_empty(),
                _ => return Err(Error::argument(format!("TrainArgs has no option {option}"))),
            };
            if given {
                return Err(Error::argument(format!("{option} does not apply to this program")));
            }
        }
        Ok(())
    }

    /// Returns the configuration with the given options applied. It is a [`TrainConfig`] or, for a
    /// trainer that already has a graph, a [`RunConfig`].
    ///
    /// With `--dry-run` or `--find-lr` the process ends with status 0 when training has: the
    /// program does not go on with a model that is not trained. `--overfit` and `--find-batch` need
    /// [`TrainArgs::configure`], which knows the data and the model.
    pub fn apply<C: AsMut<RunConfig>>(&self, config: C) -> Result<C> {
        if self.overfit.is_some() {
            return Err(Error::argument(
                "--overfit does not apply to this program: it trains with its own data",
            ));
        }
        self.without(&["--find-batch"])?;
        self.apply_to_run(config)
    }

    fn apply_to_run<C: AsMut<RunConfig>>(&self, mut config: C) -> Result<C> {
        let run = config.as_mut();
        run.max_epoch = self.max_epoch.unwrap_or(run.max_epoch);
        run.steps_per_epoch = self.steps_per_epoch.or(run.steps_per_epoch);
        run.steps_per_launch = self.steps_per_launch.unwrap_or(run.steps_per_launch);
        run.session.threads = self.threads_per_device.or(run.session.threads);
        run.session.memory_limit = self.memory_limit.or(run.session.memory_limit);
        if let Some(seed) = self.seed {
            // The command line replaces both ways in which a program can set its seed.
            run.seed = None;
            run.session.seed = seed;
        }
        run.precision = self.precision.or(run.precision);
        run.logdir = self.logdir.clone().or(run.logdir.take());
        run.fresh |= self.fresh;
        run.quiet |= self.quiet;
        if let [device, ..] = self.devices[..] {
            run.session.device = device;
        }
        if let Some(path) = &self.load {
            run.session_init = Some(smart_init(path)?);
        }
        run.options = self.given();
        run.task_options = self.task_options(&run.options);
        run.summary |= self.summary;
        run.is_program = true;
        if self.find_lr {
            self.replace_callbacks(run, LearningRateFinder::new());
            // A rate at which the cost is not finite ends the search, not the program.
            run.nan = NanPolicy::Skip(u32::MAX);
            // The search ends by itself, after 200 steps.
            run.max_epoch = run.starting_epoch + 200;
        }
        if self.dry_run {
            (run.dry_run, run.then_exit) = (true, true);
        }
        Ok(config)
    }

    /// Trains with one callback only, writes nothing, and then ends the process.
    fn replace_callbacks(&self, run: &mut RunConfig, callback: impl Callback + 'static) {
        run.callbacks = vec![Box::new(callback)];
        run.monitors = Some(Vec::new());
        run.logdir = None;
        run.then_exit = true;
    }

    /// Returns the options that were given, for the manifest of the run: those of the program, too.
    fn given(&self) -> Value {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.to_string_lossy().into_owned());
        let on = |is_on: bool| is_on.then_some(true);
        let devices: Vec<String> = self.devices.iter().map(Device::to_string).collect();
        let all = json!({
            "max-epoch": self.max_epoch,
            "steps-per-epoch": self.steps_per_epoch,
            "steps-per-launch": self.steps_per_launch.map(|steps| format!("{steps:?}")),
            "trainer": self.trainer,
            "devices": (!devices.is_empty()).then_some(devices),
            "threads-per-device": self.threads_per_device,
            "precision": self.precision.map(|precision| precision.to_string()),
            "memory-limit": self.memory_limit,
            "logdir": path(&self.logdir),
            "load": path(&self.load),
            "fresh": on(self.fresh),
            "quiet": on(self.quiet),
            "seed": self.seed,
            "fake": on(self.fake),
            "full": on(self.full),
            "assert": on(self.assert),
            "summary": on(self.summary),
            "config": path(&self.config),
            "set": (!self.set.is_empty()).then_some(&self.set),
        });
        let given = all.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        let mut options = command_line::process_options();
        options.extend(given.map(|(name, value)| (name.clone(), value.clone())));
        options.into()
    }

    /// Returns those of the given options that choose what is trained: `--fake`, `--full` and those of
    /// the program itself.
    fn task_options(&self, given: &Value) -> Value {
        let command = Program::command();
        let is_general = |name: &str| command.get_arguments().any(|arg| arg.get_long() == Some(name));
        let chooses = |name: &str| matches!(name, "fake" | "full") || !is_general(name);
        let given = given.as_object().into_iter().flatten();
        Value::Object(
            given.filter(|(name, _)| chooses(name)).map(|(name, v)| (name.clone(), v.clone())).collect(),
        )
    }

    /// Limits the data to the batches of `--overfit`, if it was given.
    fn limit_data(&self, mut config: TrainConfig) -> Result<TrainConfig> {
        let Some(batches) = self.overfit else { return Ok(config) };
        let Data::Dataflow(flow) = config.data else {
            return Err(Error::argument(
                "--overfit does not apply to this program: its input is no dataflow",
            ));
        };
        let flow = flow.take(batches).cache().into_flow();
        // The data may have fewer.
        let batches = flow.size().map_or(batches, |size| batches.min(size));
        config.data = Data::Dataflow(flow);
        self.replace_callbacks(&mut config.run, OverfitCheck::new(batches));
        config.run.steps_per_epoch = self.steps_per_epoch.or(Some(batches.max(100)));
        config.run.max_epoch = self.max_epoch.unwrap_or(20);
        Ok(config)
    }

    /// Returns the selected trainer. Defaults to [`SimpleTrainer`]. Returns an error if there are more
    /// devices than towers, or if towers cannot share these devices.
    pub fn trainer(&self) -> Result<SingleCostTrainer> {
        self.check_devices(command_line::process_takes("--trainer"))?;
        match self.trainer.as_deref() {
            None | Some("simple") => Ok(SimpleTrainer::new().into()),
            Some("queue") => Ok(QueueInputTrainer::new().into()),
            Some("noop") => Ok(NoOpTrainer::new().into()),
            Some("sync-ps") => Ok(SyncMultiGpuTrainerParameterServer::on(self.devices()).into()),
            Some("sync-replicated") => Ok(SyncMultiGpuTrainerReplicated::on(self.devices()).into()),
            Some("dist-ps") => Ok(DistributedTrainerParameterServer::on(self.devices()).into()),
            Some("dist-replicated") => Ok(DistributedTrainerReplicated::on(self.devices()).into()),
            Some("async") => Ok(AsyncMultiGpuTrainer::on(self.devices()).into()),
            Some(other) => Err(Error::argument(format!("--trainer: unknown trainer {other:?}"))),
        }
    }

    /// Returns an error if there are more devices than towers. `can_select` says whether the program has
    /// the option `--trainer`.
    fn check_devices(&self, can_select: bool) -> Result<()> {
        let (devices, towers) = (self.devices().len(), self.towers());
        if devices <= towers {
            return Devices::new(self.devices()).check();
        }
        let (trainer, advice) = match can_select {
            true => {
                let name = self.trainer.as_deref().unwrap_or("simple");
                (format!("the trainer {name}"), "select another one, such as --trainer sync-replicated")
            }
            false => ("this program".into(), "list one device: the program has no trainer for several"),
        };
        let why = format!("--devices lists {devices} devices, but {trainer} uses one");
        Err(Error::argument(why).note(advice))
    }

    /// Returns the number of towers of the selected trainer in all processes that train together. The
    /// launcher of the process tells how many these are.
    pub fn all_towers(&self) -> Result<usize> {
        let processes = match self.trainer.as_deref() {
            Some("dist-ps" | "dist-replicated") => Launch::detect(&LaunchOptions::default())?.size as usize,
            _ => 1,
        };
        Ok(processes * self.towers())
    }

    /// Returns the number of towers of the selected trainer, in this process. Each takes its own
    /// batch.
    pub fn towers(&self) -> usize {
        match self.trainer.as_deref() {
            Some("sync-ps" | "sync-replicated" | "async" | "dist-ps" | "dist-replicated") => {
                self.devices().len()
            }
            _ => 1,
        }
    }

    /// Returns the selected devices. Defaults to `cpu:0`.
    fn devices(&self) -> Vec<Device> {
        if self.devices.is_empty() { vec![Device::Cpu(0)] } else { self.devices.clone() }
    }

    /// Applies the options to a configuration and pairs it with the trainer:
    /// `configure(config)?.train()`.
    ///
    /// With `--dry-run`, `--overfit` or `--find-lr` the process ends with status 0 when training
    /// has. The last two replace the callbacks of the configuration, and write nothing. With
    /// `--find-batch`, prints the [`largest_batch`] and ends the program with status 0.
    pub fn configure(&self, config: TrainConfig) -> Result<Configured> {
        let config = self.limit_data(self.apply_to_run(config)?)?;
        let configured = Configured { config, trainer: self.trainer()? };
        if self.find_batch {
            crate::say!("{}", largest_batch(configured.config, configured.trainer)?);
            std::process::exit(0);
        }
        Ok(configured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::SessionOptions;
    use tensorpack_tensor::ErrorKind;

    fn args(text: &str) -> Result<TrainArgs> {
        TrainArgs::parse_options(text.split_whitespace())
    }

    #[test]
    fn options_are_parsed_and_applied() {
        let options = "--max-epoch 3 --seed 7 --logdir /tmp/x --fresh --threads-per-device 2 --steps-per-launch 16 \
             --precision bf16 --memory-limit 1.5GB";
        let args = args(options).unwrap();
        let config = args.apply(RunConfig::new()).unwrap();
        let options = config.session_options().unwrap();
        assert_eq!((config.max_epoch, options.seed, options.threads), (3, 7, Some(2)));
        assert_eq!(config.logdir.unwrap().to_str(), Some("/tmp/x"));
        assert!(config.fresh);
        assert_eq!(config.steps_per_launch, StepsPerLaunch::Exactly(16));
        assert_eq!((config.precision, options.memory_limit), (Some(Precision::Bf16), Some(1_500_000_000)));
    }

    /// A program that trains with a graph of its own would ignore it.
    #[test]
    fn find_batch_applies_to_models_only() {
        let e = args("--find-batch").unwrap().apply(RunConfig::new()).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
        assert!(e.message().contains("--find-batch"), "{e}");
    }

    #[test]
    fn the_command_line_replaces_the_seed_of_the_program() {
        let options = || SessionOptions { seed: 5, ..SessionOptions::default() };
        for program in [RunConfig::new().seed(5), RunConfig::new().session(options())] {
            let config = args("--seed 7").unwrap().apply(program).unwrap();
            assert_eq!(config.session_options().unwrap().seed, 7);
        }
    }

    #[test]
    fn the_last_value_of_a_repeated_option_wins() {
        let args = args("--seed 1 --fresh --devices cpu:0,cpu:1 --seed 2 --fresh --devices cpu:2").unwrap();
        assert_eq!((args.seed, args.fresh, &args.devices[..]), (Some(2), true, &[Device::Cpu(2)][..]));
    }

    #[test]
    fn only_multi_tower_trainers_use_all_devices() {
        let towers = |text: &str| args(text).unwrap().towers();
        assert_eq!(towers("--trainer sync-replicated --devices cpu:0,cpu:1"), 2);
        assert_eq!(towers("--trainer sync-ps"), 1);
        assert_eq!(towers("--devices cpu:0,cpu:1"), 1);
    }

    #[test]
    fn trainers_have_a_tower_on_each_device() {
        for name in ["sync-ps", "sync-replicated", "async"] {
            let args = args(&format!("--trainer {name} --devices cpu:0,cpu:1,cpu:2")).unwrap();
            assert_eq!((args.towers(), args.trainer().unwrap().strategy().towers()), (3, 3), "{name}");
        }
    }

    #[test]
    fn several_devices_need_a_trainer_with_several_towers() {
        for trainer in ["", "--trainer simple", "--trainer queue"] {
            let e = args(&format!("{trainer} --devices cpu:0,cpu:1")).unwrap().trainer().err().unwrap();
            assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
            assert!(e.message().contains("--devices"), "{e}");
        }
    }

    /// A program with a trainer of its own asks only for [`TrainArgs::trainer`].
    #[test]
    fn towers_need_devices_of_their_own() {
        for devices in ["cpu:0,cpu:0", "cpu:0,reference"] {
            let line = format!("--trainer sync-replicated --devices {devices}");
            let e = args(&line).unwrap().trainer().err().unwrap();
            assert!(devices.split(',').any(|device| e.message().contains(device)), "{e}");
        }
    }

    #[test]
    fn without_a_launcher_all_towers_are_in_this_process() {
        for (trainer, towers) in [("simple", 1), ("sync-replicated", 2), ("dist-replicated", 2)] {
            let devices = if towers == 2 { "cpu:0,cpu:1" } else { "cpu:0" };
            let args = args(&format!("--trainer {trainer} --devices {devices}")).unwrap();
            assert_eq!(args.all_towers().unwrap(), towers, "{trainer}");
        }
    }

    #[test]
    fn no_trainer_is_advised_where_none_can_be_selected() {
        let e = |can_select| args("--devices cpu:0,cpu:1").unwrap().check_devices(can_select).unwrap_err();
        assert!(e(true).to_string().contains("--trainer"), "{}", e(true));
        assert!(!e(false).to_string().contains("--trainer"), "{}", e(false));
        assert_eq!(e(false).kind(), ErrorKind::Argument);
        args("--devices cpu:1").unwrap().check_devices(false).unwrap();
    }

    #[test]
    fn every_listed_trainer_exists() {
        let command = Program::command();
        let trainer = command.get_arguments().find(|arg| arg.get_id() == "trainer").unwrap();
        let names = trainer.get_possible_values();
        assert_eq!(names.len(), 8);
        for name in names {
            args(&format!("--trainer {}", name.get_name())).unwrap().trainer().unwrap();
        }
    }

    #[test]
    fn bad_options_are_errors_that_name_them() {
        let lines = [
            "--max-epoch",
            "--seed x",
            "--color red",
            "--trainer none",
            "--devices cpu:x",
            "--precision f8",
            "--memory-limit 2gallons",
            "--steps-per-epoch 0",
            "--threads-per-device 0",
            "--find-batch --dry-run",
            "--find-batch --find-lr",
            "--find-batch --overfit 2",
            "epoch",
        ];
        for line in lines {
            let error = args(line).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument, "{line}");
            assert!(error.message().contains(line.split(' ').next().unwrap()), "{line}: {error}");
        }
        let error = args("--trainer none").unwrap_err();
        assert!(error.to_string().contains("sync-replicated"), "{error}");
    }

    #[test]
    fn an_option_that_does_not_apply_is_an_error() {
        let all = "--max-epoch 1 --steps-per-epoch 1 --steps-per-launch 2 --trainer simple --devices cpu:0 \
                   --threads-per-device 1 --precision bf16 --memory-limit 1GB --logdir a --load b --fresh --quiet --seed 1 --fake --full \
                   --assert --summary --dry-run --overfit 3 --find-lr --set seed=1 --config Cargo.toml";
        let mut all =
            Program::try_parse_from(["program"].into_iter().chain(all.split_whitespace())).unwrap().train;
        // It cannot be given together with others.
        all.find_batch = true;
        let none = args("").unwrap();
        let command = Program::command();
        let options: Vec<_> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
        assert_eq!(options.len(), 23);
        for option in options {
            let option = format!("--{option}");
            let error = all.without(&[&option]).unwrap_err();
            assert!(error.message().contains(&option), "{error}");
            none.without(&[&option]).unwrap();
        }
        assert!(none.without(&["--color"]).is_err());
    }

    #[test]
    fn settings_come_from_a_file_then_set_then_the_command_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run.toml");
        let text = "seed = 1\nmax_epoch = 2\nlogdir = \"a b\"\nfresh = true\nquiet = false\ndevices = [\"cpu:0\", \"cpu:1\"]\n";
        std::fs::write(&file, text).unwrap();
        let parse = |words: &[&str]| {
            let config = ["--config", file.to_str().unwrap()];
            TrainArgs::parse_options(words.iter().chain(&config).map(|word| word.to_string()))
        };
        let args =
            parse(&["--seed", "3", "--set", "max-epoch=4", "--set=seed=9", "--set", "assert=true"]).unwrap();
        assert_eq!((args.seed, args.max_epoch, args.fresh, args.quiet), (Some(3), Some(4), true, false));
        assert_eq!((args.logdir.as_deref().and_then(|p| p.to_str()), args.assert), (Some("a b"), true));
        assert_eq!(args.devices, [Device::Cpu(0), Device::Cpu(1)]);
        let options = args.apply(RunConfig::new()).unwrap().options;
        assert_eq!(
            (&options["seed"], &options["max-epoch"], &options["full"]),
            (&3.into(), &4.into(), &Value::Null)
        );
        // The program's own options are settings, too; unknown keys are errors with the nearest
        // name.
        for (words, named) in [
            (&["--set", "sed=3"][..], ["sed", "seed"]),
            (&["--set", "seed"], ["seed", "key=value"]),
            (&["--set", "fresh=maybe"], ["fresh", "true or false"]),
            (&["--set", "seed=x"], ["seed", "x"]),
        ] {
            let e = parse(words).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
            assert!(named.iter().all(|part| e.to_string().contains(part)), "{e}");
        }
        let options = TrainArgs::parse_options(["--memory-limit", "2GB"])
            .unwrap()
            .apply(RunConfig::new())
            .unwrap()
            .options;
        assert_eq!(options["memory-limit"], 2_000_000_000u64);
        std::fs::write(&file, "max_epochs = 2\n").unwrap();
        let e = parse(&[]).unwrap_err();
        assert!(e.to_string().contains("max-epoch") && e.to_string().contains("run.toml"), "{e}");
        std::fs::write(&file, "max_epoch = 2\nmax-epoch = 3\n").unwrap();
        assert!(parse(&[]).unwrap_err().to_string().contains("twice"));
        std::fs::write(&file, "max_epoch = \n").unwrap();
        assert!(parse(&[]).unwrap_err().to_string().contains("run.toml"));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(parse(&[]).unwrap_err().kind(), ErrorKind::Io);
    }

    #[test]
    fn checks_train_without_callbacks_and_directory() {
        let config = || RunConfig::new().callback(crate::callback::ModelSaver::new());
        let run = args("--find-lr").unwrap().apply(config()).unwrap();
        let callbacks: Vec<String> = run.callbacks.iter().map(|c| c.name()).collect();
        assert_eq!((callbacks, run.logdir, run.then_exit), (vec!["LearningRateFinder".into()], None, true));
        let run = args("--dry-run").unwrap().apply(config()).unwrap();
        assert_eq!((run.callbacks.len(), run.dry_run, run.then_exit), (1, true, true));
        assert!(args("--overfit 2").unwrap().apply(config()).is_err());
        let run = args("").unwrap().apply(config()).unwrap();
        assert!(!run.dry_run && !run.then_exit && run.logdir.is_some());
    }

    /// The help itself ends the process: see the tests of `command_line`.
    #[test]
    fn options_that_do_not_apply_to_a_program() {
        let parse = |words: &[&str]| {
            let words = ["program"].iter().chain(words).map(|word| word.to_string());
            let matches = command_line::matches_without(
                Program::command(),
                &["--fake", "--full"],
                words.collect::<Vec<_>>(),
            )?;
            Ok::<_, Error>(TrainArgs::from_arg_matches(&matches).unwrap())
        };
        assert_eq!(parse(&["--seed", "3"]).unwrap().seed, Some(3));
        for given in ["--fake", "--full"] {
            let e = parse(&[given]).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
            assert!(e.message().contains(given), "{e}");
        }
        assert!(command_line::matches_without(Program::command(), &["--color"], ["program"]).is_err());
    }

    #[test]
    fn a_program_may_add_options_and_keeps_its_description() {
        /// Trains on photographs.
        #[derive(Parser)]
        struct Own {
            #[command(flatten)]
            train: TrainArgs,
            #[arg(long)]
            data: Option<String>,
        }
        let own: Own =
            command_line::parse_from(["own", "--seed", "7", "--data", "folder", "--fresh"]).unwrap();
        assert_eq!((own.train.seed, own.train.fresh, own.data.as_deref()), (Some(7), true, Some("folder")));
        assert!(command_line::parse_from::<Own>(["own", "--data"]).is_err());
        let help = Own::command().render_help().to_string();
        assert!(help.starts_with("Trains on photographs"), "{help}");
        assert!(help.contains("--steps-per-epoch <N>"), "{help}");
    }
}
