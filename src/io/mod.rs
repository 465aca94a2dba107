//! State on disk: atomic checkpoints, tensor files, and the initialization of sessions from them.

mod disk;
mod run_lock;
pub mod safetensors;
pub mod npz;
mod pickle;
pub mod pytorch;
mod hub_folder;
#[cfg(feature = "hub")]
mod hub_download;
pub(crate) mod onnx;
mod checkpoint;
mod checkpoint_store;
mod checkpoint_writer;
mod weight_layout;
mod name_template;
mod weight_map;
mod ready_maps;
mod matching;
mod tensor_file;
mod session_init;

pub(crate) use checkpoint::CapturedCheckpoint;
pub use checkpoint::Checkpoint;
pub(crate) use checkpoint_store::check_tag;
pub use checkpoint_store::{CheckpointInfo, CheckpointStore, Keep, list_checkpoints};
pub(crate) use checkpoint_writer::CheckpointWriter;
pub use disk::{DirEntry, Disk, OpenFile, Parts, RealDisk};
pub(crate) use disk::{failed, write_atomically};
#[cfg(feature = "hub")]
pub use hub_download::HubRepository;
use matching::Source;
pub use run_lock::RunLock;
pub(crate) use run_lock::host;
pub use session_init::{
    ChainInit, DictRestore, JustCurrentSession, SaverRestore, SessionInit, dump_model_variables,
    export_variables, smart_init,
};
pub use tensor_file::{read_tensors, write_tensors};
pub use weight_layout::WeightLayout;
pub use weight_map::WeightMap;
