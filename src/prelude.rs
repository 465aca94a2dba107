//! What programs import: `use tensorpack::prelude::*`.

pub use crate::autodiff::gradients;
pub use crate::callback::{
    Callback, ClassificationError, EarlyStopping, InferenceRunner, MaxSaver, MinSaver, ModelSaver,
    PeriodicTrigger, ScalarStats, ScheduledHyperParamSetter,
};
pub use crate::control::Scan;
pub use crate::ctc::CtcOptions;
pub use crate::graph::{Graph, Init, LossScale, Op, Precision, Tensor, TensorSpec, Variable, VariableSpec};
pub use crate::nn::{
    Activation, BatchNorm, BatchRenorm, Conv1d, Conv2d, Conv2dTranspose, Conv3d, DepthwiseConv2d, Dropout,
    Embedding, GroupNorm, Gru, GruCell, InstanceNorm, KvCache, LayerNorm, Linear, LinearWrap, Lstm, LstmCell,
    LstmState, Maxout, MultiHeadAttention, PRelu, RecurrentOptions, describe_trainables, l1_regularizer,
    l2_regularizer, regularize_cost, regularize_cost_from_collection,
};
pub use crate::ops::{
    AttentionOptions, Conv1dOptions, Conv2dOptions, Conv3dOptions, CumsumOptions, GridSampleOptions, Layout,
    NmsOptions, Padding, Padding3d, Pool3dOptions, PoolOptions, Random, ResizeOptions, RoiAlignOptions,
};
pub use crate::optim::gradproc::{
    FilterGradient, GlobalNormClip, GradProcessor, MapGradient, ScaleGradient, SummaryGradient, ValueClip,
};
pub use crate::optim::{
    Accumulate, Adagrad, Adam, AdamW, Ema, Gradient, Lamb, Momentum, Optimizer, ParamGroups, PostProcess,
    Rate, RmsProp, Schedule, Sgd, Swa, apply_gradients, compute_gradients, compute_gradients_of, minimize,
};
pub use crate::predict::{
    DatasetPredictor, ExportedModel, MultiTowerOfflinePredictor, OfflinePredictor, PredictConfig, Predictor,
};
pub use crate::runtime::{Device, Session, SessionOptions};
pub use crate::tower::{Inputs, Model, ModelDesc, TowerContext};
pub use crate::train::{
    AsyncMultiGpuTrainer, NoOpTrainer, QueueInputTrainer, RunConfig, SimpleTrainer, Strategy as _,
    SyncMultiGpuTrainer, SyncMultiGpuTrainerParameterServer, SyncMultiGpuTrainerReplicated, TrainConfig,
    launch_train_with_config,
};
pub use crate::{DType, Error, HostTensor, Result};
