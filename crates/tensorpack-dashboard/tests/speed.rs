//! How long a hundred long runs take to open, in a release build.

use crate::devtools::Browser;
use crate::sample_runs::{Noise, serve};
use serde_json::json;
use std::fmt::Write as _;
use std::fs;
use std::time::Instant;

#[test]
fn a_hundred_runs_of_a_hundred_thousand_points_open_fast() {
    if !tensorpack_testing::opted_in("TENSORPACK_TEST_DASHBOARD_SPEED") {
        return;
    }
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    for run in 0..100 {
        let dir = folder.path().join(format!("run-{run}"));
        fs::create_dir(&dir).unwrap();
        let (mut text, mut noise) = (String::new(), Noise::new(run));
        for step in 1..=100_000 {
            let cost = 1.0 / (f64::from(step) * 1e-3 + 1.0 + run as f64 * 0.05) * (1.0 + 0.2 * noise.next());
            let _ =
                writeln!(text, r#"{{"epoch_num":{},"global_step":{step},"cost":{cost}}}"#, 1 + step / 1000);
        }
        fs::write(dir.join("steps.jsonl"), text).unwrap();
    }
    let (begun, used) = (Instant::now(), processor_seconds());
    let (_, url) = serve(folder.path(), |_| ());
    browser.open(&format!("{url}#runs=all"), 1400, 900);
    browser.wait(
        "window.dashboard?.charts()['steps/cost']?.curves.reduce((s, c) => s + c.total, 0) === 10000000",
    );
    let (opened, used) = (begun.elapsed(), processor_seconds() - used);
    let frames = browser.evaluate(
        "new Promise(done => { const times = []; let last = performance.now(); const step = now => { \
         times.push(now - last); last = now; scrollBy(0, 20); \
         times.length < 60 ? requestAnimationFrame(step) : done(Math.max(...times.slice(2))); }; \
         requestAnimationFrame(step); })",
    );
    println!("opened in {opened:?}, {used:.2} s of processor time in the server; longest frame: {frames} ms");
    browser.screenshot("speed");
    // The elapsed time is that of an idle machine only.
    assert!(cfg!(debug_assertions) || used < 2.0, "{used} s");
    assert_eq!(browser.problems, Vec::<String>::new());
    assert_eq!(browser.evaluate("document.querySelectorAll('.run').length"), json!(100));
}

/// The processor time that this process has used, which does not depend on how busy the machine is.
fn processor_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    // User and system time in hundredths of a second.
    (ticks(11) + ticks(12)) / 100.0
}
