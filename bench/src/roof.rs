//! How close kernels come to what the machine can do: the lower of its arithmetic peak and its copy bandwidth times
//! the kernel's operations per byte, both measured in the same run.

use std::fmt::Write;
use tensorpack::Result;
use tensorpack::runtime::cpu::{Isa, Team};
use tensorpack::runtime::{KernelTime, Machine};

/// How many kernels are shown.
const ROWS: usize = 40;

/// Prints the kernels that take longest, by the best of their runs.
pub(crate) fn print_table(times: &[KernelTime], threads: Option<usize>) -> Result<()> {
    let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let machine = Machine::measure(&mut Team::new(threads), Isa::detect());
    println!("machine: {:.0} GFLOP/s in multiply-adds, {:.1} GB/s copied", machine.gflops, machine.copy_gbs);
    let total: f64 = times.iter().filter(|t| t.runs > 0).map(|t| t.best_seconds).sum();
    let mut rows: Vec<&KernelTime> = times.iter().filter(|t| t.runs > 0).collect();
    rows.sort_by(|a, b| b.best_seconds.total_cmp(&a.best_seconds));
    let mut table = format!("sum of best times {:.3} ms\n", total * 1e3);
    let _ =
        writeln!(table, "{:>6} {:>9} {:>9} {:>9} {:>6}  kernel", "share", "us", "GFLOP/s", "GB/s", "roof");
    for t in rows.iter().take(ROWS) {
        let seconds = t.best_seconds;
        let (gflops, gbs) = (t.flops / seconds / 1e9, t.bytes / seconds / 1e9);
        let roof = machine.roof_seconds(t.flops, t.bytes) / seconds;
        let _ = writeln!(
            table,
            "{:>5.1}% {:>9.1} {gflops:>9.1} {gbs:>9.1} {:>5.0}%  {}",
            100.0 * seconds / total,
            seconds * 1e6,
            100.0 * roof,
            t.name
        );
    }
    print!("{table}");
    Ok(())
}
