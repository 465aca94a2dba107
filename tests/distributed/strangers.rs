//! Strangers at the port of the coordinator: refused, reported once, and without influence.

use crate::launch::{Installation, Outcome, Turn, undisturbed};
use crate::task::{Net, Task};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tensorpack_rendezvous::{Options, Rendezvous, Token};
use tensorpack_testing::assert_mentions;

const RANKS: usize = 2;

/// Connects as soon as the coordinator listens.
fn connect(address: SocketAddr) -> TcpStream {
    let begun = Instant::now();
    loop {
        match TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
            // Before anybody listens, TCP may connect a socket to itself, which takes the port.
            Ok(stream) if stream.local_addr().unwrap() != address => return stream,
            Ok(_) => {}
            Err(e) => assert!(begun.elapsed() < Duration::from_secs(60), "{e}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends bytes and returns whether the coordinator then closes the connection.
fn is_refused(address: SocketAddr, bytes: &[u8]) -> bool {
    let mut stream = connect(address);
    // The coordinator may close it before everything is sent.
    let _ = stream.write_all(bytes);
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(n) => n == 0,
        Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn strangers_are_refused_and_harm_nothing() {
    let _turn = Turn::Training.take();
    let dir = tempfile::tempdir().unwrap();
    let whole = undisturbed(&Task::new(Net::Dense, RANKS, dir.path()), RANKS);
    for installation in Installation::sample("strangers") {
        let dir = tempfile::tempdir().unwrap();
        // Long enough for all of them.
        let task = Task { slower: Duration::from_millis(200), ..Task::new(Net::Dense, 1, dir.path()) };
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut run = installation.start_with(RANKS, &task, |command| {
            command.env("TENSORPACK_COORDINATOR", address.to_string());
            command.env(Token::VARIABLE, Token::random().as_str());
        });
        // Held open without a word, more of them than the coordinator keeps.
        let silent: Vec<TcpStream> = (0..100).map(|_| connect(address)).collect();
        let oversized = [&u32::MAX.to_le_bytes()[..], &[0; 4096]].concat();
        let malformed = [&5u32.to_le_bytes()[..], b"hello"].concat();
        for bytes in [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], &oversized, &malformed, &[0; 64]] {
            assert!(is_refused(address, bytes), "{bytes:?}");
        }
        for rank in [0, 1] {
            let options = Options::new().join_timeout(Duration::from_secs(5));
            let wrong =
                Rendezvous::join(&address.to_string(), rank, RANKS as u32, &Token::random(), &options);
            assert_mentions(wrong.err().unwrap(), &["token"]);
        }
        assert!(run.report(0).is_none(), "the run ended before the strangers were done");
        run.assert_finishes();
        drop(silent);
        // Before there is a log file, too.
        let log = run.output();
        assert_eq!(log.matches("refused a connection from 127.0.0.1").count(), 1, "{log}");
        Outcome::read(&task).assert_same(&whole, &format!("{:?}", installation.library));
    }
}
