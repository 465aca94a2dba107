//! Proofs of promises of the training interface (`docs/checklist.md`) that a result alone cannot
//! give: that data are read ahead, that towers do not wait, that every layer shares its variables.

mod asynchronous_towers;
mod defaults;
mod every_layer;
mod every_optimizer;
mod freezing;
mod line;
mod local_variables;
mod prefetching;
mod scope_names;
