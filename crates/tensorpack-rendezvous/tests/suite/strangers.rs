//! Connections that have no part in the run do no harm.

use crate::run::{LONG, collecting, coordinator, join_all, options, token};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_rendezvous::{Rendezvous, Token, sample_messages};
use tensorpack_tensor::{CounterRng, ErrorKind};
use tensorpack_testing::{assert_mentions, test_cases};

fn frame(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u32).to_le_bytes(), message].concat()
}

/// Sends bytes and returns what comes back before the coordinator closes the connection.
fn send(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The coordinator may close it while this writes.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
    }
    answer
}

#[test]
fn strangers_are_refused_and_logged_once_while_ranks_go_on() {
    let (options, warnings) = collecting();
    let (coordinator, address) = coordinator(2, &options);
    let ranks = join_all(coordinator, 2, &options);
    let hello = &sample_messages()[0];
    let mut future = hello.clone();
    future[5] = 77;
    let join = &sample_messages()[1];
    let stored = &sample_messages()[2];
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        Vec::new(),
        vec![0; 4],
        // More than a message may have before the token was proved.
        frame(&[0; 1025]),
        u32::MAX.to_le_bytes().to_vec(),
        frame(stored),
        frame(hello),
        // No token, and a wrong one.
        [frame(hello), frame(stored)].concat(),
        [frame(hello), frame(join)].concat(),
        frame(&future),
    ] {
        let answer = send(address, &bytes);
        // Nothing but a challenge and a refusal.
        assert!(answer.len() < 512, "{} bytes for {bytes:?}", answer.len());
    }
    assert_mentions(String::from_utf8_lossy(&send(address, &frame(&future))), &["version 77"]);
    assert_mentions(
        String::from_utf8_lossy(&send(address, &[frame(hello), frame(join)].concat())),
        &["token"],
    );
    let warnings = warnings.lock().unwrap().clone();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_mentions(&warnings[0], &["127.0.0.1", "refused"]);
    let (zero, one) = (&ranks[0], &ranks[1]);
    thread::scope(|scope| {
        scope.spawn(|| one.barrier("b", LONG).unwrap());
        zero.barrier("b", LONG).unwrap();
    });
    assert_eq!(zero.try_get("größer").unwrap(), None);
}

/// A rank with another token learns that from the coordinator's proof; this client does not check
/// it, as an attacker would not.
#[test]
fn a_proof_for_another_rank_or_token_is_refused() {
    let (options, _) = collecting();
    let (coordinator, address) = coordinator(1, &options);
    for sample in 0..200u64 {
        let mut join = sample_messages()[1].clone();
        let n = join.len();
        for (i, byte) in join[n - 32..].iter_mut().enumerate() {
            *byte = CounterRng::new(sample, "proof").word(0, i as u64) as u8;
        }
        let answer = send(address, &[frame(&sample_messages()[0]), frame(&join)].concat());
        assert_mentions(String::from_utf8_lossy(&answer), &["another token"]);
    }
    Rendezvous::join_own(coordinator, 1, &token(), &options).unwrap().leave(LONG).unwrap();
}

#[test]
fn random_bytes_do_no_harm() {
    let (options, _) = collecting();
    let (coordinator, address) = coordinator(1, &options);
    let rank = Rendezvous::join_own(coordinator, 1, &token(), &options).unwrap();
    for seed in 0..u64::from(test_cases(300)) {
        let rng = CounterRng::new(seed, "stranger");
        let byte = |i: u64| rng.word(0, i) as u8;
        let len = rng.word(1, 0) % 300;
        let random: Vec<u8> = (0..len.into()).map(byte).collect();
        // Alone, as a message, after a valid beginning, and messages with one byte changed.
        let samples = sample_messages();
        let mut changed = samples[rng.word(2, 0) as usize % samples.len()].clone();
        let at = rng.word(3, 0) as usize % changed.len();
        changed[at] = byte(1000);
        let hello = frame(&samples[0]);
        for bytes in [
            random.clone(),
            frame(&random),
            [hello.clone(), frame(&random)].concat(),
            [hello, frame(&changed)].concat(),
        ] {
            send(address, &bytes);
        }
    }
    rank.put("alive", b"yes").unwrap();
    assert_eq!(rank.get("alive", LONG).unwrap(), b"yes");
    rank.leave(LONG).unwrap();
}

#[test]
fn connections_that_say_nothing_keep_no_rank_out() {
    let (options, _) = collecting();
    let (coordinator, address) = coordinator(2, &options);
    let started = Instant::now();
    let idle: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    // The oldest are closed to make room, before their time of five seconds is over.
    let mut oldest = &idle[0];
    oldest.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    match oldest.read(&mut [0]) {
        Ok(n) => assert_eq!(n, 0),
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
    }
    let ranks = join_all(coordinator, 2, &options);
    // No rank waited for the others to time out.
    assert!(started.elapsed() < Duration::from_millis(4900), "{:?}", started.elapsed());
    drop(ranks);
}

/// One byte at a time, each in time, but all of them too slow.
#[test]
fn a_slow_handshake_ends_in_time() {
    let (options, warnings) = collecting();
    let (_coordinator, address) = coordinator(2, &options);
    let mut stream = TcpStream::connect(address).unwrap();
    let (started, hello) = (Instant::now(), frame(&sample_messages()[0]));
    for byte in hello.iter().cycle().take(120) {
        if stream.write_all(&[*byte]).is_err() {
            break;
        }
        thread::sleep(Duration::from_millis(if started.elapsed().as_secs() > 4 { 100 } else { 400 }));
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_mentions(&warnings.lock().unwrap()[0], &["in time"]);
}

/// Another program, or an attacker's, in the coordinator's place.
#[test]
fn a_false_coordinator_learns_nothing_and_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // The challenge is the only sample with a nonce and a proof, which is made up.
        let has = |message: &[u8], byte: u8| message.windows(16).any(|part| part == [byte; 16]);
        let is_challenge = |message: &Vec<u8>| has(message, 7) && has(message, 9);
        let challenge = sample_messages().into_iter().find(is_challenge).unwrap();
        stream.write_all(&frame(&challenge)).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        received
    });
    let secret = Token::random();
    let error = Rendezvous::join(&address, 1, 2, &secret, &options()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert_mentions(error, &["token"]);
    // Only the greeting: length, kind, magic, version, nonce.
    assert_eq!(serve.join().unwrap().len(), 4 + 1 + 4 + 2 + 16);
}

/// Copies bytes until the connection ends.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Many strangers at a time make the coordinator close connections that have not joined yet. Here
/// something between the two closes the first one, when the rank has sent all of its part.
#[test]
fn a_rank_whose_connection_is_closed_before_it_has_joined_tries_again() {
    let (coordinator, address) = coordinator(2, &options());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let between = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut rank, _) = listener.accept().unwrap();
        let mut served = TcpStream::connect(address).unwrap();
        let mut greeting = [0; 4 + 1 + 4 + 2 + 16];
        rank.read_exact(&mut greeting).unwrap();
        served.write_all(&greeting).unwrap();
        let mut challenge = vec![0; 1024];
        let len = served.read(&mut challenge).unwrap();
        rank.write_all(&challenge[..len]).unwrap();
        // The length of the answer; the rest is not read.
        rank.read_exact(&mut [0; 4]).unwrap();
        drop((rank, served));
        let (rank, _) = listener.accept().unwrap();
        let served = TcpStream::connect(address).unwrap();
        let (to, from) = (served.try_clone().unwrap(), rank.try_clone().unwrap());
        thread::spawn(move || copy(from, to));
        copy(served, rank);
    });
    let joining = thread::spawn(move || Rendezvous::join(&between, 1, 2, &token(), &options()));
    let rank0 = Rendezvous::join_own(coordinator, 2, &token(), &options()).unwrap();
    let rank1 = joining.join().unwrap().unwrap();
    rank1.put("here", b"1").unwrap();
    assert_eq!(rank0.get("here", LONG).unwrap(), b"1");
}
