//! Optimizers: their rules against PyTorch's, what goes around them, and what the engine makes of their updates.

mod accumulation;
mod golden;
mod net;
mod plans;
mod processors;
mod schedules;
mod tiny_variables;
mod wrappers;
