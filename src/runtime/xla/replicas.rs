//! The replicas of programs that run on the devices of several processes.

use crate::distributed::ProcessGroup;
use tensorpack_pjrt::{Client, Device};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The devices of all processes of a group, by tower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GlobalDevices {
    rank: usize,
    /// The ids of each process's devices, in the order of its towers.
    ids: Vec<Vec<i64>>,
}

/// The replicas of one program: a device of some process for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replicas {
    /// The device of each replica. Replicas are in the order of ids: XLA's GPU compiler expects that
    /// replica `i` runs on device `i`. Ids are in the order of machines, not of ranks.
    pub(super) devices: Vec<i64>,
    /// The replica that is the first tower of rank 0, and so of the run.
    pub(super) first: usize,
}

impl GlobalDevices {
    /// Returns the devices of the client's processes. Returns an error if one of them has another
    /// number of devices than `towers`.
    pub(super) fn new(client: &Client, group: &ProcessGroup, towers: usize) -> Result<GlobalDevices> {
        let devices = client.global_devices().iter().map(|d: &Device| (d.process_index(), d.id()));
        GlobalDevices::from_pairs(devices, group.rank(), group.size(), towers)
    }

    fn from_pairs(
        devices: impl Iterator<Item = (usize, i64)>,
        rank: usize,
        size: usize,
        towers: usize,
    ) -> Result<GlobalDevices> {
        let mut ids = vec![Vec::new(); size];
        for (process, id) in devices {
            let of = ids.get_mut(process).ok_or_else(|| {
                Error::new(ErrorKind::Engine, format!("XLA has a device of rank {process} of {size}"))
            })?;
            of.push(id);
        }
        for (process, of) in ids.iter_mut().enumerate() {
            if of.len() != towers {
                let why = format!("rank {process} has {} devices, but {towers} towers", of.len());
                return Err(Error::argument(why).note("every rank needs one device for each of its towers"));
            }
            of.sort_unstable();
        }
        Ok(GlobalDevices { rank, ids })
    }

    /// Returns the ids of this process's devices, in the order of towers.
    pub(super) fn local(&self) -> &[i64] {
        &self.ids[self.rank]
    }

    /// Returns the replicas of a program that runs the first `towers` towers of every process.
    pub(super) fn replicas(&self, towers: usize) -> Replicas {
        let mut devices: Vec<i64> = self.ids.iter().flat_map(|of| of.iter().take(towers)).copied().collect();
        devices.sort_unstable();
        let first = devices.iter().position(|id| *id == self.ids[0][0]).unwrap_or(0);
        Replicas { devices, first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two machines with two ranks each, which were started in turn: ids are in the order of
    /// machines.
    fn in_turn() -> GlobalDevices {
        let devices = [(0, 0), (0, 1), (2, 2), (2, 3), (1, 4), (1, 5), (3, 6), (3, 7)];
        GlobalDevices::from_pairs(devices.into_iter(), 1, 4, 2).unwrap()
    }

    #[test]
    fn replicas_are_in_the_order_of_device_ids() {
        let devices = in_turn();
        assert_eq!(devices.local(), [4, 5]);
        let replicas = devices.replicas(2);
        assert_eq!(replicas.devices, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(replicas.first, 0);
        assert_eq!(devices.replicas(1).devices, [0, 2, 4, 6]);
        // The first tower of the run need not be the first replica.
        let reversed = [(1, 0), (0, 1)].into_iter();
        let replicas = GlobalDevices::from_pairs(reversed, 1, 2, 1).unwrap().replicas(1);
        assert_eq!((replicas.devices, replicas.first), (vec![0, 1], 1));
    }

    #[test]
    fn every_rank_needs_as_many_devices_as_towers() {
        let e = GlobalDevices::from_pairs([(0, 0), (0, 1), (1, 2)].into_iter(), 0, 2, 2).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Argument);
        assert!(e.message().contains("rank 1 has 1 devices"), "{e}");
        let e = GlobalDevices::from_pairs([(0, 0), (2, 1)].into_iter(), 0, 2, 1).unwrap_err();
        assert!(e.message().contains("rank 2"), "{e}");
    }
}
