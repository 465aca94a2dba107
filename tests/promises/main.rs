//! Tests of promises of the training interface (`docs/checklist.md`) that do not show in a trained
//! model: data is prefetched, towers do not wait for each other, layers share their variables.

mod asynchronous_towers;
mod defaults;
mod every_layer;
mod every_optimizer;
mod freezing;
mod line;
mod local_variables;
mod prefetching;
mod scope_names;
