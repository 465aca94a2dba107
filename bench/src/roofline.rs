//! Compares kernels with the roofline: the lower of the machine's arithmetic peak and its copy
//! bandwidth times the kernel's operations per byte, both measured in the same run.

use std::fmt::Write;
use tensorpack::Result;
use tensorpack::runtime::cpu::{Isa, Team};
use tensorpack::runtime::{KernelTime, Roofline};

/// The number of rows in the table.
const ROWS: usize = 30;

/// Kernels of the same kind and the same amount of work, as in identical layers.
struct KernelGroup<'a> {
    first: &'a KernelTime,
    count: usize,
    seconds: f64,
}

/// Prints the kernels that take longest by their best times; kernels of identical layers share a row.
pub(crate) fn print_table(times: &[KernelTime], threads: Option<usize>) -> Result<()> {
    let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let roofline = Roofline::measure(&mut Team::new(threads), Isa::detect());
    println!(
        "machine: {:.0} GFLOP/s in multiply-adds, {:.1} GB/s copied",
        roofline.gflops, roofline.copy_gbs
    );
    let mut groups: Vec<KernelGroup<'_>> = Vec::new();
    let kind = |t: &KernelTime| t.name.split(' ').next().map(String::from);
    for t in times.iter().filter(|t| t.runs > 0) {
        let same_work = |g: &&mut KernelGroup<'_>| {
            kind(g.first) == kind(t) && (g.first.flops, g.first.bytes) == (t.flops, t.bytes)
        };
        match groups.iter_mut().find(same_work) {
            Some(group) => (group.count, group.seconds) = (group.count + 1, group.seconds + t.best_seconds),
            None => groups.push(KernelGroup { first: t, count: 1, seconds: t.best_seconds }),
        }
    }
    groups.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let total: f64 = groups.iter().map(|g| g.seconds).sum();
    let mut table = format!("sum of best times {:.3} ms\n", total * 1e3);
    let _ = writeln!(
        table,
        "{:>6} {:>9} {:>9} {:>9} {:>9}  kernel",
        "share", "us", "GFLOP/s", "GB/s", "roofline"
    );
    for KernelGroup { first, count, seconds } in groups.iter().take(ROWS) {
        let each = seconds / *count as f64;
        let (gflops, gbs) = (first.flops / each / 1e9, first.bytes / each / 1e9);
        let attained = roofline.min_seconds(first.flops, first.bytes) / each;
        let _ = writeln!(
            table,
            "{:>5.1}% {:>9.1} {gflops:>9.1} {gbs:>9.1} {:>8.0}%  {count} x {}",
            100.0 * seconds / total,
            each * 1e6,
            100.0 * attained,
            first.name
        );
    }
    print!("{table}");
    Ok(())
}
