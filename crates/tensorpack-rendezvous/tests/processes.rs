//! Ranks as processes: this program starts itself again, and stops or kills some of them.
#![cfg(unix)]

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_rendezvous::{Launch, LaunchOptions, NextStep, Options, Rendezvous, Token};
use tensorpack_testing::assert_mentions;

const CHILD: &str = "TENSORPACK_TEST_RANK_PROCESS";
const LONG: Duration = Duration::from_secs(60);
/// A rank that is silent this long has failed. Ranks that run are not starved that long.
const PEER_TIMEOUT: Duration = Duration::from_secs(4);

/// In a child process: joins, runs steps until it is told to stop, and prints how it ended.
#[test]
fn rank_process() {
    if env::var_os(CHILD).is_none() {
        return;
    }
    println!("\nended {}", run_rank().unwrap_or_else(|e| format!("with {:?}: {}", e.kind(), e.message())));
}

fn run_rank() -> tensorpack_tensor::Result<String> {
    let launch = Launch::detect(&LaunchOptions::default())?;
    let options = Options::new()
        .heartbeat(Duration::from_millis(100))
        .peer_timeout(PEER_TIMEOUT)
        .join_timeout(LONG)
        .on_warning(|text| println!("\nwarning {text}"));
    let rank = Rendezvous::start(&launch, None, &Token::from_env()?, &options)?;
    println!("\njoined {}", std::process::id());
    // The test writes a line to ask for the end.
    let asked = thread::spawn(|| std::io::stdin().lines().next().and_then(Result::ok));
    rank.set_activity("training");
    let mut step = 0;
    while rank.begin_step(step)? == NextStep::Run {
        // In place of a collective: no rank gets ahead.
        rank.barrier("step", LONG)?;
        thread::sleep(Duration::from_millis(5));
        if asked.is_finished() && rank.last_step().is_none() {
            rank.request_stop()?;
        }
        step += 1;
    }
    rank.leave(LONG)?;
    Ok(format!("after {step} steps"))
}

struct Rank {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<(Instant, String)>,
}

impl Rank {
    /// Waits for a line that begins with `word`.
    #[track_caller]
    fn line(&self, word: &str) -> (Instant, String) {
        loop {
            let (at, line) = self.lines.recv_timeout(LONG).expect("a rank's line");
            if let Some(rest) = line.strip_prefix(word) {
                return (at, rest.trim().to_owned());
            }
        }
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // A stopped process is killed, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts ranks and waits until all have joined.
fn start(size: u32) -> Vec<Rank> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let token = Token::random();
    let start = |rank: u32| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "rank_process", "--nocapture"]).env(CHILD, "1");
        command.env("TENSORPACK_RANK", rank.to_string()).env("TENSORPACK_SIZE", size.to_string());
        command.env("TENSORPACK_LOCAL_SIZE", size.to_string());
        command
            .env("TENSORPACK_COORDINATOR", format!("127.0.0.1:{port}"))
            .env(Token::VARIABLE, token.as_str());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (send, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            stdout.lines().map_while(Result::ok).for_each(|line| drop(send.send((Instant::now(), line))));
        });
        Rank { stdin: child.stdin.take(), child, lines }
    };
    let ranks: Vec<Rank> = (0..size).map(start).collect();
    ranks.iter().for_each(|rank| drop(rank.line("joined")));
    // Some steps, so that errors can name one.
    thread::sleep(Duration::from_millis(600));
    ranks
}

/// Checks that all ranks but `failed` end in time with an error that names it.
#[track_caller]
fn assert_all_learn(ranks: &[Rank], failed: usize, since: Instant, within: Duration, terms: &[&str]) {
    for (i, rank) in ranks.iter().enumerate().filter(|(i, _)| *i != failed) {
        let (at, ended) = rank.line("ended");
        let took = at.saturating_duration_since(since);
        assert!(took < within, "rank {i} learned it after {took:?}");
        assert_mentions(&ended, &["Peer", &format!("rank {failed} on "), "step ", "training"]);
        assert_mentions(&ended, terms);
    }
}

#[test]
fn eight_processes_agree_on_the_last_step() {
    for size in [1, 8] {
        let mut ranks = start(size);
        let asking = &mut ranks[size as usize / 2];
        asking.stdin.take().unwrap().write_all(b"stop\n").unwrap();
        let ends: Vec<String> = ranks.iter().map(|rank| rank.line("ended").1).collect();
        assert_mentions(&ends[0], &["after", "steps"]);
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        for rank in &mut ranks {
            assert!(rank.child.wait().unwrap().success());
        }
    }
}

#[test]
fn a_killed_rank_is_named_at_once() {
    for failed in [3, 1] {
        let ranks = start(4);
        let since = Instant::now();
        ranks[failed].signal("KILL");
        // Well within the peer timeout: the connection's end tells.
        assert_all_learn(&ranks, failed, since, PEER_TIMEOUT, &["lost"]);
    }
}

#[test]
fn a_killed_coordinator_is_named_at_once() {
    let ranks = start(4);
    let since = Instant::now();
    ranks[0].signal("KILL");
    assert_all_learn(&ranks, 0, since, PEER_TIMEOUT, &["lost", "coordinator"]);
}

#[test]
fn a_stopped_rank_is_named_after_the_peer_timeout() {
    for failed in [2, 0] {
        let ranks = start(4);
        let since = Instant::now();
        ranks[failed].signal("STOP");
        assert_all_learn(&ranks, failed, since, PEER_TIMEOUT + Duration::from_secs(4), &["no heartbeat"]);
        assert!(since.elapsed() > PEER_TIMEOUT - Duration::from_millis(500));
    }
}

#[test]
fn a_short_pause_harms_nobody() {
    for paused in [1, 0] {
        let mut ranks = start(3);
        ranks[paused].signal("STOP");
        thread::sleep(PEER_TIMEOUT / 4);
        ranks[paused].signal("CONT");
        thread::sleep(Duration::from_millis(300));
        ranks[0].stdin.take().unwrap().write_all(b"stop\n").unwrap();
        for rank in &ranks {
            assert_mentions(rank.line("ended").1, &["after", "steps"]);
        }
    }
}

/// A whole job that is suspended and resumed, as with a laptop's lid or a debugger: nobody was
/// silent while others listened.
#[test]
fn a_pause_of_all_ranks_is_no_failure() {
    let mut ranks = start(2);
    ranks.iter().for_each(|rank| rank.signal("STOP"));
    thread::sleep(PEER_TIMEOUT + Duration::from_millis(500));
    ranks.iter().for_each(|rank| rank.signal("CONT"));
    thread::sleep(Duration::from_millis(500));
    ranks[1].stdin.take().unwrap().write_all(b"stop\n").unwrap();
    for rank in &ranks {
        assert_mentions(rank.line("ended").1, &["after", "steps"]);
    }
}
