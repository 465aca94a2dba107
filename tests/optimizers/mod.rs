//! Tests of optimizers: update rules compared with PyTorch, wrappers, and how the engine runs
//! updates.

mod accumulation;
mod golden;
mod net;
mod overflow;
mod overflow_cases;
mod plans;
mod processors;
mod schedules;
mod tiny_variables;
mod wrappers;
