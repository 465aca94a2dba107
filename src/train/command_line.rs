//! The options that every example understands.

use super::{
    AsyncMultiGpuTrainer, Configured, NoOpTrainer, QueueInputTrainer, SimpleTrainer, SingleCostTrainer,
    SyncMultiGpuTrainerParameterServer, SyncMultiGpuTrainerReplicated, TrainConfig,
};
use crate::io::smart_init;
use crate::runtime::Device;
use std::path::PathBuf;
use tensorpack_tensor::{Error, Result};

/// What was said on the command line of a training program.
///
/// ```text
/// --max-epoch N  --steps-per-epoch N  --trainer simple|queue|sync-ps|sync-replicated|async  --devices cpu:0,cpu:1
/// --threads-per-device N  --logdir DIR  --load PATH  --fresh  --seed N  --fake  --full  --assert
/// ```
#[derive(Clone, Debug, Default)]
pub struct CommandLine {
    /// The last epoch.
    pub max_epoch: Option<u64>,
    /// Steps in an epoch.
    pub steps_per_epoch: Option<u64>,
    /// Which trainer.
    pub trainer: Option<String>,
    /// Where to run.
    pub devices: Vec<Device>,
    /// Threads of each device.
    pub threads_per_device: Option<usize>,
    /// Where the run is written.
    pub logdir: Option<PathBuf>,
    /// What to begin from.
    pub load: Option<PathBuf>,
    /// Whether to begin anew.
    pub fresh: bool,
    /// The seed.
    pub seed: Option<u64>,
    /// Whether to use data that cost nothing, to measure speed.
    pub fake: bool,
    /// Whether to follow the long schedule.
    pub full: bool,
    /// Whether to fail if the stated result is missed.
    pub assert: bool,
}

const HELP: &str = "\
--max-epoch N            the last epoch
--steps-per-epoch N      steps in an epoch
--trainer NAME           simple, queue, sync-ps, sync-replicated, async
--devices LIST           such as cpu:0,cpu:1: a tower on each; reference: f64, for debugging
--threads-per-device N   threads of each device
--logdir DIR             where the run is written; one that is there is resumed
--load PATH              values of variables to begin from
--fresh                  begin anew, even if there is a run in the directory
--seed N                 what all randomness is drawn from
--fake                   data that cost nothing, to measure speed
--full                   the long schedule
--assert                 fail if the stated result is missed";

impl CommandLine {
    /// The options of this program. `--help` prints them and ends the program; an unknown one is an error.
    pub fn parse() -> Result<CommandLine> {
        CommandLine::of(std::env::args().skip(1))
    }

    /// The options of this program, which has this one more; and its value, if it was given.
    pub fn parse_with(option: &str) -> Result<(CommandLine, Option<String>)> {
        CommandLine::of_with(std::env::args().skip(1), option)
    }

    fn of_with(
        options: impl IntoIterator<Item = String>,
        own: &str,
    ) -> Result<(CommandLine, Option<String>)> {
        let mut options: Vec<String> = options.into_iter().collect();
        let Some(at) = options.iter().position(|option| option == own) else {
            return Ok((CommandLine::of(options)?, None));
        };
        let value = options.drain(at..options.len().min(at + 2)).nth(1);
        let value = value.ok_or_else(|| Error::argument(format!("{own} needs a value")))?;
        Ok((CommandLine::of(options)?, Some(value)))
    }

    /// The options in a list.
    pub fn of(options: impl IntoIterator<Item = String>) -> Result<CommandLine> {
        let mut parsed = CommandLine::default();
        let mut options = options.into_iter();
        while let Some(option) = options.next() {
            let mut value =
                || options.next().ok_or_else(|| Error::argument(format!("{option} needs a value")));
            match option.as_str() {
                "--max-epoch" => parsed.max_epoch = Some(number(&option, &value()?)?),
                "--steps-per-epoch" => parsed.steps_per_epoch = Some(number(&option, &value()?)?),
                "--trainer" => parsed.trainer = Some(value()?),
                "--devices" => {
                    parsed.devices = value()?.split(',').map(str::parse).collect::<Result<_>>()?;
                }
                "--threads-per-device" => parsed.threads_per_device = Some(number(&option, &value()?)?),
                "--logdir" => parsed.logdir = Some(value()?.into()),
                "--load" => parsed.load = Some(value()?.into()),
                "--fresh" => parsed.fresh = true,
                "--seed" => parsed.seed = Some(number(&option, &value()?)?),
                "--fake" => parsed.fake = true,
                "--full" => parsed.full = true,
                "--assert" => parsed.assert = true,
                "--help" | "-h" => {
                    println!("{HELP}");
                    std::process::exit(0);
                }
                _ => return Err(Error::argument(format!("there is no option {option}")).note(HELP)),
            }
        }
        Ok(parsed)
    }

    /// That none of these options was given, for a program to which they mean nothing.
    pub fn without(&self, options: &[&str]) -> Result<()> {
        let given = |option: &&&str| match **option {
            "--load" => self.load.is_some(),
            "--fake" => self.fake,
            "--full" => self.full,
            "--assert" => self.assert,
            "--trainer" => self.trainer.is_some(),
            "--devices" => !self.devices.is_empty(),
            _ => false,
        };
        match options.iter().find(given) {
            Some(option) => Err(Error::argument(format!("{option} means nothing here"))),
            None => Ok(()),
        }
    }

    /// The configuration, with what was said here instead of what it said.
    pub fn apply(&self, mut config: TrainConfig) -> Result<TrainConfig> {
        config.max_epoch = self.max_epoch.unwrap_or(config.max_epoch);
        config.steps_per_epoch = self.steps_per_epoch.or(config.steps_per_epoch);
        config.session.threads = self.threads_per_device.or(config.session.threads);
        config.session.seed = self.seed.unwrap_or(config.session.seed);
        config.logdir = self.logdir.clone().or(config.logdir);
        config.fresh |= self.fresh;
        if let [device, ..] = self.devices[..] {
            config.session.device = device;
        }
        if let Some(path) = &self.load {
            config.session_init = Some(smart_init(path)?);
        }
        Ok(config)
    }

    /// The trainer that was asked for; [`SimpleTrainer`] if none was.
    pub fn trainer(&self) -> Result<SingleCostTrainer> {
        match self.trainer.as_deref() {
            None | Some("simple") => Ok(SimpleTrainer::new().into()),
            Some("queue") => Ok(QueueInputTrainer::new().into()),
            Some("noop") => Ok(NoOpTrainer::new().into()),
            Some("sync-ps") => Ok(SyncMultiGpuTrainerParameterServer::on(self.devices()).into()),
            Some("sync-replicated") => Ok(SyncMultiGpuTrainerReplicated::on(self.devices()).into()),
            Some("async") => Ok(AsyncMultiGpuTrainer::on(self.devices()).into()),
            Some(other) => Err(Error::argument(format!("there is no trainer {other:?}"))),
        }
    }

    /// How many towers that trainer builds, each taking a batch of its own.
    pub fn towers(&self) -> usize {
        match self.trainer.as_deref() {
            Some("sync-ps" | "sync-replicated" | "async") => self.devices().len(),
            _ => 1,
        }
    }

    /// The devices that were named; the first if none was.
    fn devices(&self) -> Vec<Device> {
        if self.devices.is_empty() { vec![Device::Cpu(0)] } else { self.devices.clone() }
    }

    /// Configuration and trainer together.
    pub fn configure(&self, config: TrainConfig) -> Result<Configured> {
        Ok(Configured { config: self.apply(config)?, trainer: self.trainer()? })
    }
}

fn number<T: std::str::FromStr>(option: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| Error::argument(format!("{option} takes a number, not {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<CommandLine> {
        CommandLine::of(text.split_whitespace().map(String::from))
    }

    #[test]
    fn options_are_read_and_applied() {
        let line = of("--max-epoch 3 --seed 7 --logdir /tmp/x --fresh --threads-per-device 2").unwrap();
        let config = line.apply(TrainConfig::default()).unwrap();
        assert_eq!((config.max_epoch, config.session.seed, config.session.threads), (3, 7, Some(2)));
        assert_eq!(config.logdir.unwrap().to_str(), Some("/tmp/x"));
        assert!(config.fresh);
    }

    #[test]
    fn a_tower_on_each_device_where_the_trainer_has_several() {
        let towers = |text: &str| of(text).unwrap().towers();
        assert_eq!(towers("--trainer sync-replicated --devices cpu:0,cpu:1"), 2);
        assert_eq!(towers("--trainer sync-ps"), 1);
        assert_eq!(towers("--devices cpu:0,cpu:1"), 1);
    }

    #[test]
    fn a_program_may_have_an_option_of_its_own() {
        let with = |text: &str| CommandLine::of_with(text.split_whitespace().map(String::from), "--data");
        let (line, data) = with("--seed 7 --data folder --fresh").unwrap();
        assert_eq!((line.seed, line.fresh, data.as_deref()), (Some(7), true, Some("folder")));
        assert_eq!(with("--fresh").unwrap().1, None);
        assert!(with("--fresh --data").unwrap_err().message().contains("--data needs a value"));
        assert!(with("--data a --data b").unwrap_err().message().contains("no option --data"));
    }

    #[test]
    fn trainers_have_a_tower_on_each_device() {
        for name in ["sync-ps", "sync-replicated", "async"] {
            let line = of(&format!("--trainer {name} --devices cpu:0,cpu:1,cpu:2")).unwrap();
            assert_eq!((line.towers(), line.trainer().unwrap().strategy().towers()), (3, 3), "{name}");
        }
    }

    #[test]
    fn what_means_nothing_is_an_error() {
        assert!(of("--max-epoch").unwrap_err().message().contains("needs a value"));
        assert!(of("--seed x").unwrap_err().message().contains("takes a number"));
        assert!(of("--colour red").unwrap_err().message().contains("no option --colour"));
        assert!(of("--fake").unwrap().without(&["--fake"]).is_err());
        assert!(of("--full").unwrap().without(&["--fake"]).is_ok());
    }
}
