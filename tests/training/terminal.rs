//! What a run shows on standard error: in pseudo-terminals of several widths, and through a pipe.

use crate::models::line;
use crate::processes;
use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tensorpack::callback::{ProgressBar, TrainCx};
use tensorpack::dataflow::DataFlow;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::train::TrainArgs;

/// The options of the child, separated by spaces.
const OPTIONS: &str = "TENSORPACK_TEST_TERMINAL";
const STEPS: u64 = 20;
const STATISTICS: [&str; 3] = ["absolute_error", "largest_error", "accuracy"];

/// A line with three more statistics.
struct Watched;

impl ModelDesc for Watched {
    fn inputs(&self) -> Vec<TensorSpec> {
        crate::models::Line.inputs()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let error = Linear::new(1).apply(t, "fc", &inputs[0]) - &inputs[1];
        let absolute = error.abs().mean().named(STATISTICS[0]);
        let largest = error.abs().max_axes(&[]).named(STATISTICS[1]);
        let accuracy = (1.0 - error.abs()).mean().named(STATISTICS[2]);
        t.moving_summary(&[&absolute, &largest, &accuracy]);
        error.square().mean().named("the_cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.05).boxed()
    }
}

/// Logs after every fifth step, in turns from the training thread and from another one. Warns once.
struct Talks;

impl Callback for Talks {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let step = cx.global_step;
        if step == 7 {
            log::warn!("look out");
        }
        if step.is_multiple_of(10) {
            log::info!("note {step}.");
        } else if step.is_multiple_of(5) {
            std::thread::spawn(move || log::info!("note {step}.")).join().unwrap();
        }
        Ok(())
    }
}

#[test]
fn child() {
    let (Some(dir), Ok(options)) = (processes::dir(), std::env::var(OPTIONS)) else { return };
    let slow = options.contains("--slow");
    let options: Vec<&str> = options.split_whitespace().filter(|o| *o != "--slow").collect();
    let first = AtomicBool::new(slow);
    let data = line(4).map(move |sample| {
        if first.swap(false, Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1500));
        }
        Ok(sample)
    });
    let config = TrainConfig::new(Watched, data)
        .callback(ProgressBar::new(STATISTICS))
        .callback(Talks)
        .steps_per_epoch(STEPS)
        .max_epoch(2)
        .logdir(dir);
    TrainArgs::parse_options(options).unwrap().configure(config).unwrap().train().unwrap();
    std::process::exit(0);
}

fn command(dir: &Path, options: &str) -> Command {
    let mut command = processes::command("terminal::child", dir);
    command.env(OPTIONS, options).env("TERM", "xterm").env_remove("NO_COLOR").stdout(Stdio::null());
    command
}

/// Opens a pseudo-terminal with this many columns: the side that reads what is shown, and the side
/// that a program writes to.
fn pseudo_terminal(columns: u16) -> (File, OwnedFd) {
    // SAFETY: `name` and `size` outlive the calls that use them, which are told the length of the
    // name; the descriptors are open (asserted) and owned by nobody else.
    unsafe {
        let master = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(master >= 0 && libc::grantpt(master) == 0 && libc::unlockpt(master) == 0);
        let size = libc::winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        assert_eq!(libc::ioctl(master, libc::TIOCSWINSZ, &size), 0);
        let mut name = [0; 64];
        assert_eq!(libc::ptsname_r(master, name.as_mut_ptr(), name.len()), 0);
        let slave = libc::open(name.as_ptr(), libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(slave >= 0);
        (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
    }
}

/// Runs a child in a terminal of this many columns. Returns every byte that it wrote.
fn in_terminal(columns: u16, command: &mut Command) -> String {
    let (mut master, slave) = pseudo_terminal(columns);
    let mut child = command.stderr(Stdio::from(slave)).spawn().unwrap();
    // The command still has the other side open, without which reading ends.
    command.stderr(Stdio::null());
    let mut shown = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = master.read(&mut buffer) {
        shown.extend_from_slice(&buffer[..n]);
    }
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert!(child.wait().unwrap().success(), "{shown}");
    shown
}

/// Returns the lines that a terminal of this many columns shows in the end. It knows the control
/// sequences that move the cursor up or down, those that clear a line, and colors.
fn screen(columns: usize, written: &str) -> Vec<String> {
    let mut lines: Vec<Vec<char>> = vec![Vec::new()];
    let (mut row, mut column) = (0usize, 0usize);
    let mut chars = written.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' => column = 0,
            '\n' => row += 1,
            '\x1b' => {
                assert_eq!(chars.next(), Some('['), "an unknown control sequence");
                let mut number = String::new();
                let end = loop {
                    match chars.next().unwrap() {
                        c @ ('0'..='9' | ';') => number.push(c),
                        end => break end,
                    }
                };
                let n = number.parse().unwrap_or(1);
                match end {
                    'A' => row = row.saturating_sub(n),
                    'B' => row += n,
                    'D' => column = column.saturating_sub(n),
                    'K' if number == "2" => lines[row].clear(),
                    'K' => lines[row].truncate(column),
                    'm' => {}
                    other => panic!("an unknown control sequence: {number}{other}"),
                }
            }
            c => {
                // A terminal wraps when it has a character for which there is no room.
                if column == columns {
                    (row, column) = (row + 1, 0);
                }
                if row >= lines.len() {
                    lines.resize(row + 1, Vec::new());
                }
                let line = &mut lines[row];
                if column >= line.len() {
                    line.resize(column + 1, ' ');
                }
                line[column] = c;
                column += 1;
            }
        }
        if row >= lines.len() {
            lines.resize(row + 1, Vec::new());
        }
    }
    lines.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_string()).collect()
}

#[test]
fn log_lines_are_above_the_bar_at_every_width() {
    for columns in [60, 100, 200] {
        let dir = tempfile::tempdir().unwrap();
        let written = in_terminal(columns, command(dir.path(), "").env("TENSORPACK_PROGRESS_REFRESH", "0"));
        let lines = screen(columns.into(), &written);
        let all = lines.join("\n");
        // One bar of each epoch is left.
        for epoch in 1..=2 {
            let is_bar = |l: &&String| l.starts_with(&format!("epoch {epoch}/2 "));
            let bars: Vec<&String> = lines.iter().filter(is_bar).collect();
            let [bar] = bars[..] else { panic!("{columns} columns: {} bars\n{all}", bars.len()) };
            assert!(bar.len() < columns.into(), "{bar}");
            for term in ["20/20", "/s", "left", "cost "] {
                assert!(bar.contains(term), "{columns} columns: no {term:?} in {bar:?}");
            }
            if columns == 200 {
                assert!(STATISTICS.iter().all(|name| bar.contains(name)) && bar.contains("|=="), "{bar}");
            }
        }
        // Every log line is there once, by itself.
        for step in (5..=40).step_by(5) {
            let note = format!("note {step}.");
            let found: Vec<&String> = lines.iter().filter(|l| l.contains(&note)).collect();
            let [line] = found[..] else { panic!("{columns} columns: {} x {note}\n{all}", found.len()) };
            assert!(line.starts_with('[') && line.ends_with(&note), "{columns} columns: {line:?}\n{all}");
        }
        // The bar was drawn in between, too.
        assert!(written.contains("7/20"), "{written}");
    }
}

#[test]
fn a_pipe_gets_a_line_for_each_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let output = command(dir.path(), "").env_remove("TENSORPACK_PROGRESS_REFRESH").output().unwrap();
    let text = processes::text(&output);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains(['\r', '\x1b']), "{text:?}");
    for epoch in 1..=2 {
        let progress: Vec<&str> = text.lines().filter(|l| l.contains(&format!("epoch {epoch}: 2"))).collect();
        let [line] = progress[..] else { panic!("{progress:?}\n{text}") };
        assert!(line.contains("20/20") && line.contains("steps/s") && line.contains("cost "), "{line}");
    }
}

#[test]
fn the_end_of_an_epoch_is_one_aligned_table() {
    let dir = tempfile::tempdir().unwrap();
    let output = command(dir.path(), "").output().unwrap();
    let text = processes::text(&output);
    let lines: Vec<&str> = text.lines().collect();
    let heads: Vec<usize> = (0..lines.len()).filter(|i| lines[*i].contains("at epoch")).collect();
    assert_eq!(heads.len(), 2, "{text}");
    for (epoch, head) in heads.into_iter().enumerate() {
        let columns: Vec<&str> = lines[head].split_whitespace().collect();
        assert_eq!(columns, ["statistic", "now", "best", "at", "epoch"]);
        let rows: Vec<Vec<&str>> =
            lines[head + 1..=head + 3].iter().map(|l| l.split_whitespace().collect()).collect();
        let names: Vec<&str> = rows.iter().map(|row| row[0]).collect();
        assert_eq!(names, ["absolute_error", "accuracy", "largest_error"], "{text}");
        assert!(lines[head..=head + 3].iter().all(|l| l.len() == lines[head].len()), "not aligned: {text}");
        // The errors fall and the accuracy grows, so the last values are the best.
        for row in rows {
            assert_eq!((row[1], row[3]), (row[2], (epoch + 1).to_string().as_str()), "{row:?}: {text}");
        }
        assert!(!lines[head + 4].starts_with(' '), "{text}");
    }
}

#[test]
fn no_color_is_obeyed() {
    for (value, colors) in [(None, true), (Some("1"), false), (Some(""), true)] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = command(dir.path(), "");
        if let Some(value) = value {
            command.env("NO_COLOR", value);
        }
        let written = in_terminal(100, &mut command);
        assert!(written.contains("note 5."), "{written}");
        assert_eq!(written.contains("\x1b[32m"), colors, "NO_COLOR={value:?}: {written}");
    }
}

#[test]
fn a_quiet_run_shows_only_warnings() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = command(dir.path(), "--quiet");
    let written = in_terminal(100, command.env("TENSORPACK_PROGRESS_REFRESH", "0"));
    let lines = screen(100, &written);
    let lines: Vec<&String> = lines.iter().filter(|l| !l.is_empty()).collect();
    let [line] = lines[..] else { panic!("{written}") };
    assert!(line.contains("look out"), "{line}");
    let log = std::fs::read_to_string(dir.path().join("log.log")).unwrap();
    for term in ["note 5.", "look out", "at epoch", "epoch 2: 20/20"] {
        assert!(log.contains(term), "no {term:?}: {log}");
    }
}

/// Before the first step the log says how large the model is, and at the end where to look.
#[test]
fn a_program_says_what_it_trains_and_where_to_look() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("lines");
    let output = command(&run, "").output().unwrap();
    let text = processes::text(&output);
    assert!(output.status.success(), "{text}");
    let memory = "variables 16 B, their copy for checkpoints 16 B, values of a step ";
    let model = text.find(&format!("the model has 4 parameters; {memory}")).expect("the model");
    assert!(text[model..].lines().next().unwrap().contains(", planned peak "), "{text}");
    assert!(model < text.find("epoch 1: ").unwrap(), "{text}");
    let last = text.lines().last().unwrap();
    assert!(
        last.ends_with(&format!("to see this run: tensorpack dashboard {}", dir.path().display())),
        "{text}"
    );
}

#[test]
fn long_work_before_the_first_step_shows_itself() {
    let dir = tempfile::tempdir().unwrap();
    let written = in_terminal(100, &mut command(dir.path(), "--slow"));
    assert!(written.contains("reading the first batch ..."), "{written}");
    let lines = screen(100, &written);
    assert!(!lines.iter().any(|l| l.contains("reading the first batch ...")), "still shown: {lines:#?}");
}
