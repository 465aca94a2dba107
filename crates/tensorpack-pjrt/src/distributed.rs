//! Clients of several processes, whose devices form one system.

use crate::c_api::{
    PJRT_ProcessInfo, PJRT_ProcessState_kConnected as CONNECTED, PJRT_ProcessState_kError as FAILED,
};
use crate::c_struct::CStruct;
use crate::{KeyValueStore, OptionValue};
use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tensorpack_tensor::{Error, Result};

/// The longest wait for a value of the store, by default.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The part of this process in a run of several processes, for
/// [`Client::new_distributed`](crate::Client::new_distributed).
///
/// All processes must create their clients with the same number of processes and a store that they
/// share, then compile the same programs in the same order, and launch them in the same order.
#[derive(Clone)]
pub struct DistributedOptions {
    pub(crate) node_id: usize,
    pub(crate) num_nodes: usize,
    /// `None` with mocked collectives.
    pub(crate) store: Option<Arc<dyn KeyValueStore>>,
    pub(crate) longest_wait: Duration,
    pub(crate) aborts_collectives: bool,
    mock_topology: Option<String>,
}

impl DistributedOptions {
    /// Options for process `node_id` of `num_nodes` processes.
    pub fn new(node_id: usize, num_nodes: usize, store: Arc<dyn KeyValueStore>) -> DistributedOptions {
        DistributedOptions {
            node_id,
            num_nodes,
            store: Some(store),
            longest_wait: LONGEST_WAIT,
            aborts_collectives: false,
            mock_topology: None,
        }
    }

    /// Options for the first of `num_nodes` processes, of which the others do not exist: collectives
    /// do nothing. For measuring how long a program of many replicas compiles, and how long its
    /// computation takes. Only the CUDA plugin has it.
    #[doc(alias = "enable_mock_nccl")]
    pub fn mock(num_nodes: usize) -> DistributedOptions {
        DistributedOptions {
            node_id: 0,
            num_nodes,
            store: None,
            longest_wait: LONGEST_WAIT,
            aborts_collectives: false,
            mock_topology: None,
        }
    }

    /// Sets the topology of [mocked](DistributedOptions::mock) processes: partitions, hosts per
    /// partition and devices per host, as in `2x4x8`. Defaults to one host per partition.
    #[doc(alias = "mock_gpu_topology")]
    #[must_use]
    pub fn mock_topology(mut self, topology: impl Into<String>) -> DistributedOptions {
        self.mock_topology = Some(topology.into());
        self
    }

    /// Sets whether [`Client::abort_collectives`](crate::Client::abort_collectives) can end the
    /// collectives that wait for a process that failed. Defaults to false.
    #[must_use]
    pub fn abort_collectives_on_failure(mut self, abort: bool) -> DistributedOptions {
        self.aborts_collectives = abort;
        self
    }

    /// Sets the longest wait for a value of the store (default: 300 s). XLA asks for up to 24 hours.
    #[must_use]
    pub fn longest_wait(mut self, wait: Duration) -> DistributedOptions {
        self.longest_wait = wait;
        self
    }

    /// Checks the options, and returns those that the plugin takes.
    pub(crate) fn plugin_options(&self) -> Result<Vec<(String, OptionValue)>> {
        let (id, nodes) = (self.node_id, self.num_nodes);
        if id >= nodes || c_int::try_from(nodes).is_err() {
            return Err(Error::argument(format!("there is no process {id} of {nodes} processes")));
        }
        if self.store.is_some() && self.mock_topology.is_some() {
            return Err(Error::argument("a topology can only be given for mocked processes"));
        }
        let mut options = vec![
            ("node_id".into(), OptionValue::Int(id as i64)),
            ("num_nodes".into(), OptionValue::Int(nodes as i64)),
        ];
        if self.store.is_none() {
            options.push(("enable_mock_nccl".into(), OptionValue::Bool(true)));
        }
        if let Some(topology) = &self.mock_topology {
            options.push(("mock_gpu_topology".into(), OptionValue::Text(topology.clone())));
        }
        if self.aborts_collectives {
            options.push(("abort_collectives_on_failure".into(), OptionValue::Bool(true)));
        }
        Ok(options)
    }
}

impl fmt::Debug for DistributedOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DistributedOptions")
            .field("node_id", &self.node_id)
            .field("num_nodes", &self.num_nodes)
            .field("longest_wait", &self.longest_wait)
            .field("aborts_collectives", &self.aborts_collectives)
            .field("mock_topology", &self.mock_topology)
            .finish_non_exhaustive()
    }
}

/// The processes of a client whose collectives can be aborted, as plugins want them: the id and the
/// incarnation of each. A process does not restart within a run, so its incarnation is a function
/// of its id, on which all processes agree without communication.
pub(crate) struct Incarnations {
    pub(crate) task_ids: Vec<c_int>,
    pub(crate) ids: Vec<i64>,
}

impl Incarnations {
    /// The number of processes fits a `c_int`, as [`DistributedOptions::plugin_options`] has checked.
    pub(crate) fn new(num_nodes: usize) -> Incarnations {
        let task_ids = (0..num_nodes as c_int).collect();
        Incarnations { task_ids, ids: (1..=num_nodes as i64).collect() }
    }

    /// The state of all processes. The result points to `message`.
    pub(crate) fn states(&self, failed: Option<usize>, code: c_int, message: &str) -> Vec<PJRT_ProcessInfo> {
        let state = |(&task_id, &incarnation): (&c_int, &i64)| {
            let info = PJRT_ProcessInfo { task_id, incarnation_id: incarnation as u64, ..CStruct::new() };
            match failed == Some(task_id as usize) {
                false => PJRT_ProcessInfo { state: CONNECTED, error_message: c"".as_ptr(), ..info },
                true => PJRT_ProcessInfo {
                    state: FAILED,
                    error_code: code,
                    error_message: message.as_ptr().cast(),
                    error_message_size: message.len(),
                    ..info
                },
            }
        };
        self.task_ids.iter().zip(&self.ids).map(state).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack_tensor::ErrorKind;

    struct Unused;

    impl KeyValueStore for Unused {
        fn get(&self, key: &str, _: Duration) -> Result<Vec<u8>> {
            Err(Error::argument(key))
        }
        fn try_get(&self, _: &str) -> Result<Option<Vec<u8>>> {
            Ok(None)
        }
        fn put(&self, _: &str, _: &[u8]) -> Result<bool> {
            Ok(false)
        }
    }

    #[test]
    fn options_are_those_of_the_plugin() {
        let options = DistributedOptions::new(1, 2, Arc::new(Unused)).abort_collectives_on_failure(true);
        let names: Vec<_> = options.plugin_options().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["node_id", "num_nodes", "abort_collectives_on_failure"]);
        let mock = DistributedOptions::mock(16).mock_topology("2x8x1").plugin_options().unwrap();
        assert_eq!(mock[1], ("num_nodes".into(), OptionValue::Int(16)));
        assert_eq!(mock[2], ("enable_mock_nccl".into(), OptionValue::Bool(true)));
        assert_eq!(mock[3], ("mock_gpu_topology".into(), OptionValue::Text("2x8x1".into())));
    }

    #[test]
    fn contradictory_options_are_errors() {
        let store: Arc<dyn KeyValueStore> = Arc::new(Unused);
        for (id, nodes) in [(2, 2), (0, 0), (0, usize::MAX)] {
            let e = DistributedOptions::new(id, nodes, store.clone()).plugin_options().unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
        }
        let e = DistributedOptions::new(0, 2, store).mock_topology("1x2x1").plugin_options().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
    }

    #[test]
    fn only_the_failed_process_has_failed() {
        let (incarnations, message) = (Incarnations::new(3), "its connection ended");
        assert_eq!((&incarnations.task_ids[..], &incarnations.ids[..]), (&[0, 1, 2][..], &[1, 2, 3][..]));
        let connected = incarnations.states(None, 14, message);
        assert!(connected.iter().all(|p| p.state == CONNECTED && p.error_code == 0));
        let states = incarnations.states(Some(1), 14, message);
        let fields: Vec<_> =
            states.iter().map(|p| (p.task_id, p.incarnation_id, p.state, p.error_message_size)).collect();
        assert_eq!(fields, [(0, 1, CONNECTED, 0), (1, 2, FAILED, message.len()), (2, 3, CONNECTED, 0)]);
        assert_eq!(states[1].error_code, 14);
        assert!(states.iter().all(|p| p.struct_size == size_of::<PJRT_ProcessInfo>()));
    }
}
