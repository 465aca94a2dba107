//! Tests of the public training interface.

mod asynchronous;
mod bad_settings;
mod boundary_signal;
mod callback_state;
mod changed_data;
mod counted_updates;
#[path = "../checkpoints/crash_disk.rs"]
mod crash_disk;
mod custom;
mod dumps;
mod exports;
#[path = "../checkpoints/failing_disk.rs"]
mod failing_disk;
mod faults;
mod full_disk;
mod gan_cifar;
#[expect(dead_code, reason = "only the model and the shared code of GANs are used")]
#[path = "../../examples/gan_wgan_gp.rs"]
mod gan_wgan_gp;
mod gans;
mod hangs;
mod hyper_params;
mod inference;
mod inference_towers;
mod inputs;
mod interface;
mod kills;
mod life_cycle;
mod log_file;
mod loss_scale;
mod models;
mod modules;
mod named_inputs;
mod not_finite;
mod overflow;
mod overflow_cases;
#[path = "../precision/overflowing_cost.rs"]
mod overflowing_cost;
mod predictors;
mod processes;
mod replicas;
mod resume;
mod resume_towers;
mod saves;
mod schedules;
mod signals;
mod slow_disk;
mod standard_error;
mod statistics;
mod stops;
mod summaries;
mod terminal;
mod timeline;
mod tower_functions;
mod towers;
mod trace;
mod trackers;
mod unknown_names;
mod uneven_batches;
mod version_0_1;
