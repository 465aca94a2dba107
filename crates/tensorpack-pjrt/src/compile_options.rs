//! What a compilation is told.

use crate::OptionValue;
use crate::protobuf::Message;
use tensorpack_tensor::{Error, Result};

/// How a program is to be compiled: for how many devices, for which, and with which of XLA's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct CompileOptions {
    replicas: usize,
    partitions: usize,
    devices: Vec<i64>,
    settings: Vec<(String, OptionValue)>,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions::new()
    }
}

impl CompileOptions {
    /// For one device: the client's first.
    pub fn new() -> CompileOptions {
        CompileOptions { replicas: 1, partitions: 1, devices: Vec::new(), settings: Vec::new() }
    }

    /// The same program on `n` devices at once, which meet at collectives.
    #[must_use]
    pub fn replicas(mut self, n: usize) -> CompileOptions {
        self.replicas = n;
        self
    }

    /// One program cut into `n` parts, each on a device.
    #[must_use]
    pub fn partitions(mut self, n: usize) -> CompileOptions {
        self.partitions = n;
        self
    }

    /// The ids of the devices that it runs on: those of the first replica's partitions, then the second's, and so on.
    /// Without, the client chooses.
    #[must_use]
    pub fn devices(mut self, ids: impl IntoIterator<Item = i64>) -> CompileOptions {
        self.devices = ids.into_iter().collect();
        self
    }

    /// One of XLA's own settings, such as `xla_gpu_deterministic_ops`. Compiling fails where the plugin has no such
    /// setting.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<OptionValue>) -> CompileOptions {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// The number of devices that a program so compiled runs on.
    pub fn device_count(&self) -> usize {
        self.replicas * self.partitions
    }

    /// As XLA reads it: a `CompileOptionsProto`.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let (replicas, partitions) = (self.replicas, self.partitions);
        if replicas == 0 || partitions == 0 {
            let why = format!("a program for {replicas} replicas of {partitions} partitions runs nowhere");
            return Err(Error::argument(why));
        }
        let mut build = Message::default().int(1, -1).int(4, replicas as i64).int(5, partitions as i64);
        if partitions > 1 {
            build = build.int(6, 1);
        }
        if !self.devices.is_empty() {
            build = build.message(9, &self.assignment()?);
        }
        let mut options = Message::default().message(3, &build);
        for (name, value) in &self.settings {
            let entry = Message::default().text(1, name).message(2, &setting(name, value)?);
            options = options.message(7, &entry);
        }
        Ok(options.finish())
    }

    /// Which device runs what: for each partition, the devices of its replicas.
    fn assignment(&self) -> Result<Message> {
        let (given, needed) = (self.devices.len(), self.device_count());
        if given != needed {
            let why = format!("the program runs on {needed} devices, but {given} are named");
            return Err(Error::argument(why));
        }
        let mut message = Message::default().int(1, self.replicas as i64).int(2, self.partitions as i64);
        for partition in 0..self.partitions {
            let devices = self.devices.iter().skip(partition).step_by(self.partitions).copied();
            message = message.message(3, &Message::default().ints(1, devices));
        }
        Ok(message)
    }
}

fn setting(name: &str, value: &OptionValue) -> Result<Message> {
    let message = Message::default();
    Ok(match value {
        OptionValue::Text(text) => message.text(1, text),
        OptionValue::Bool(bool) => message.int(2, i64::from(*bool)),
        OptionValue::Int(int) => message.int(3, *int),
        OptionValue::Float(float) => message.double(4, *float),
        OptionValue::Ints(_) => {
            return Err(Error::argument(format!("{name}: a setting of a compilation is no list of numbers")));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_numbered_by_replica_and_written_by_partition() {
        let options = CompileOptions::new().replicas(2).partitions(2).devices([10, 11, 12, 13]);
        let assignment = options.assignment().unwrap().finish();
        assert_eq!(assignment, [8, 2, 16, 2, 26, 4, 10, 2, 10, 12, 26, 4, 10, 2, 11, 13]);
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        assert!(CompileOptions::new().replicas(0).encode().is_err());
        let e = CompileOptions::new().replicas(3).devices([0]).encode().unwrap_err();
        assert_eq!(e.message(), "the program runs on 3 devices, but 1 are named");
        let list = CompileOptions::new().setting("x", OptionValue::Ints(vec![1]));
        assert!(list.encode().is_err());
    }
}
