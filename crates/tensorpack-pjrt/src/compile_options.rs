//! Options of a compilation.

use crate::OptionValue;
use tensorpack_protobuf::Message;
use tensorpack_tensor::{Error, Result};

/// The number of replicas and partitions of a program, its devices, and overrides of XLA's flags.
#[doc(alias = "CompileOptionsProto")]
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
    /// Options for one device: the first of the client.
    pub fn new() -> CompileOptions {
        CompileOptions { replicas: 1, partitions: 1, devices: Vec::new(), settings: Vec::new() }
    }

    /// Sets the number of replicas: devices that run the same program and exchange data in
    /// collectives. Defaults to 1.
    #[must_use]
    pub fn replicas(mut self, n: usize) -> CompileOptions {
        self.replicas = n;
        self
    }

    /// Sets the number of partitions: devices that each run a part of the program (SPMD). Defaults
    /// to 1.
    #[must_use]
    pub fn partitions(mut self, n: usize) -> CompileOptions {
        self.partitions = n;
        self
    }

    /// Sets the ids of the devices: those of the first replica's partitions, then the second's, and
    /// so on. Defaults to the client's choice.
    #[doc(alias = "DeviceAssignment")]
    #[must_use]
    pub fn devices(mut self, ids: impl IntoIterator<Item = i64>) -> CompileOptions {
        self.devices = ids.into_iter().collect();
        self
    }

    /// Overrides one of XLA's flags, such as `xla_gpu_deterministic_ops`. Compiling fails if the
    /// plugin does not know it.
    #[doc(alias = "env_option_overrides")]
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<OptionValue>) -> CompileOptions {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// The number of devices that the program runs on.
    pub fn device_count(&self) -> usize {
        self.replicas * self.partitions
    }

    /// The ids of the devices, in the order of [`CompileOptions::devices`]. Empty if the client chooses
    /// them.
    pub fn device_ids(&self) -> &[i64] {
        &self.devices
    }

    /// Encodes the options as a `CompileOptionsProto`. Equal options have equal encodings.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let (replicas, partitions) = (self.replicas, self.partitions);
        if replicas == 0 || partitions == 0 {
            let why = format!(
                "a program needs at least one replica and partition, not {replicas} and {partitions}"
            );
            return Err(Error::argument(why));
        }
        // An `ExecutableBuildOptionsProto` without a device ordinal.
        let mut build = Message::new().int64(1, -1).int64(4, replicas as i64).int64(5, partitions as i64);
        if partitions > 1 {
            // Use SPMD partitioning.
            build = build.int64(6, 1);
        }
        if !self.devices.is_empty() {
            build = build.message(9, &self.assignment()?);
        }
        let mut options = Message::new().message(3, &build);
        for (name, value) in &self.settings {
            let entry = Message::new().string(1, name).message(2, &setting(name, value)?);
            options = options.message(7, &entry);
        }
        Ok(options.into_bytes())
    }

    /// Encodes a `DeviceAssignmentProto`: for each partition, the devices of its replicas.
    fn assignment(&self) -> Result<Message> {
        let (given, needed) = (self.devices.len(), self.device_count());
        if given != needed {
            let why = format!("the program runs on {needed} devices, but {given} were given");
            return Err(Error::argument(why));
        }
        let mut message = Message::new().int64(1, self.replicas as i64).int64(2, self.partitions as i64);
        for partition in 0..self.partitions {
            let devices = self.devices.iter().skip(partition).step_by(self.partitions).copied();
            message = message.message(3, &Message::new().packed_int64(1, devices));
        }
        Ok(message)
    }
}

/// Encodes an `OptionOverrideProto`.
fn setting(name: &str, value: &OptionValue) -> Result<Message> {
    let message = Message::new();
    Ok(match value {
        OptionValue::Text(text) => message.string(1, text),
        OptionValue::Bool(bool) => message.int64(2, i64::from(*bool)),
        OptionValue::Int(int) => message.int64(3, *int),
        OptionValue::Float(float) => message.double(4, *float),
        OptionValue::Ints(_) => {
            return Err(Error::argument(format!("{name}: a flag of XLA cannot be a list of integers")));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_numbered_by_replica_and_written_by_partition() {
        let options = CompileOptions::new().replicas(2).partitions(2).devices([10, 11, 12, 13]);
        let assignment = options.assignment().unwrap().into_bytes();
        assert_eq!(assignment, [8, 2, 16, 2, 26, 4, 10, 2, 10, 12, 26, 4, 10, 2, 11, 13]);
    }

    #[test]
    fn inconsistent_options_are_errors() {
        assert!(CompileOptions::new().replicas(0).encode().is_err());
        let e = CompileOptions::new().replicas(3).devices([0]).encode().unwrap_err();
        assert_eq!(e.kind(), tensorpack_tensor::ErrorKind::Argument);
        assert!(e.message().contains("3 devices"), "{e}");
        let list = CompileOptions::new().setting("x", OptionValue::Ints(vec![1]));
        assert!(list.encode().is_err());
    }
}
