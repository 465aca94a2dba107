//! The dashboard over a real socket and in a real browser.

mod browser;
mod devtools;
mod http;
mod sample_runs;
mod speed;
