//! Frames: a message with a 32-bit length before it, on a TCP stream.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Adds the length to a message.
pub(crate) fn frame(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u32).to_le_bytes(), message].concat()
}

/// Writes a frame. After an error the stream is useless, since a part may have been written.
pub(crate) fn write_frame(stream: &mut impl Write, message: &[u8]) -> io::Result<()> {
    stream.write_all(&frame(message))
}

/// Reads a frame of at most `limit` bytes. Calls `received` after every part that arrives, so that
/// a peer that sends something large slowly does not look silent.
pub(crate) fn read_frame(
    stream: &mut impl Read,
    limit: usize,
    mut received: impl FnMut(),
) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    received();
    let length = u32::from_le_bytes(length) as usize;
    if length > limit {
        let why = format!("a message of {length} bytes; the limit is {limit}");
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    // Grows with what arrives: a length alone takes no memory.
    let (mut message, mut part) = (Vec::new(), [0; 1 << 14]);
    while message.len() < length {
        let wanted = part.len().min(length - message.len());
        match stream.read(&mut part[..wanted]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => message.extend_from_slice(&part[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        }
        received();
    }
    Ok(message)
}

/// A stream whose reads and writes all end by one deadline, however slowly the peer goes on.
pub(crate) struct Until<'a> {
    pub(crate) stream: &'a TcpStream,
    pub(crate) deadline: Instant,
}

impl Until<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        (&mut &*self.stream).read(buffer).map_err(timed_out)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        (&mut &*self.stream).write(buffer).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// On Unix a socket's timeout is reported as `WouldBlock`.
fn timed_out(e: io::Error) -> io::Error {
    if e.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { e }
}

/// Describes why reading or writing a frame failed.
pub(crate) fn describe_error(e: &io::Error) -> String {
    match e.kind() {
        ErrorKind::UnexpectedEof => "the connection was closed".to_owned(),
        ErrorKind::TimedOut => "nothing arrived in time".to_owned(),
        _ => e.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_back() {
        let mut parts = 0;
        let bytes = frame(&[5; 40_000]);
        assert_eq!(read_frame(&mut &bytes[..], 40_000, || parts += 1).unwrap(), [5; 40_000]);
        assert_eq!(parts, 4);
        assert_eq!(read_frame(&mut &frame(b"")[..], 0, || ()).unwrap(), b"");
    }

    #[test]
    fn long_and_incomplete_frames_are_errors() {
        let bytes = frame(b"12345");
        let error = |bytes: &[u8], limit| read_frame(&mut &bytes[..], limit, || ()).unwrap_err().kind();
        assert_eq!(error(&bytes, 4), ErrorKind::InvalidData);
        assert_eq!(error(&[0xff; 4], 1 << 30), ErrorKind::InvalidData);
        for len in 0..bytes.len() {
            assert_eq!(error(&bytes[..len], 5), ErrorKind::UnexpectedEof);
        }
    }
}
