//! Connections, and the orderly end of the server.

use super::router::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tensorpack::Result;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};

/// How long the server still accepts connections when it ends, and how long idle ones then stay
/// open, so that requests that are on their way are answered.
const LINGER: Duration = Duration::from_secs(1);
/// The pause after a failed accept, such as one for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections and serves them.
pub(super) struct Server {
    router: Arc<Router>,
    /// A permit for each open connection.
    connections: Arc<Semaphore>,
    max_connections: u32,
    timeout: Duration,
}

impl Server {
    pub(super) fn new(router: Arc<Router>, max_connections: u32, timeout: Duration) -> Server {
        let connections = Arc::new(Semaphore::new(max_connections as usize));
        Server { router, connections, max_connections, timeout }
    }

    /// Serves until a signal asks the process to end, and then until every request that was accepted
    /// is answered. A second signal ends it at once.
    pub(super) async fn run(self, listener: TcpListener) -> Result<ExitCode> {
        let mut signals = Signals::new()?;
        let (drain, draining) = watch::channel(false);
        loop {
            tokio::select! {
                accepted = self.accept(&listener) => self.spawn(accepted, &draining),
                () = signals.next() => break,
            }
        }
        self.router.drain();
        // Clients notice that the server ends before it refuses connections: it is no longer ready,
        // and every response closes its connection.
        let accept_all = async {
            loop {
                self.spawn(self.accept(&listener).await, &draining);
            }
        };
        let _: Result<Infallible, _> = timeout(LINGER, accept_all).await;
        self.accept_waiting(listener, &draining).await?;
        // Nobody receives it if there are no connections.
        let _ = drain.send(true);
        // A request may take this long to arrive and again to be answered.
        let longest = LINGER + 2 * self.timeout;
        let closed = timeout(longest, self.connections.acquire_many(self.max_connections));
        let all_closed = tokio::select! {
            closed = closed => closed.is_ok(),
            () = signals.next() => false,
        };
        Ok(if all_closed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Accepts the next connection once there may be one more.
    async fn accept(&self, listener: &TcpListener) -> (TcpStream, OwnedSemaphorePermit) {
        let permit = self.connections.clone().acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return (stream, permit),
                // The client may have gone; a lack of resources may pass.
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    /// Accepts the connections that the system holds for this process, and then no more.
    async fn accept_waiting(&self, listener: TcpListener, draining: &watch::Receiver<bool>) -> Result<()> {
        // Without the runtime, which may not have noticed all of them yet.
        let listener = listener.into_std()?;
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true)?;
            let permit = self.connections.clone().acquire_owned().await;
            let permit = permit.expect("the semaphore is never closed");
            self.spawn((TcpStream::from_std(stream)?, permit), draining);
        }
        Ok(())
    }

    /// Serves a connection in a task of its own.
    fn spawn(&self, (stream, permit): (TcpStream, OwnedSemaphorePermit), draining: &watch::Receiver<bool>) {
        let (router, timeout, draining) = (self.router.clone(), self.timeout, draining.clone());
        tokio::spawn(async move {
            serve(stream, router, timeout, draining).await;
            drop(permit);
        });
    }
}

async fn serve(
    stream: TcpStream,
    router: Arc<Router>,
    timeout: Duration,
    mut draining: watch::Receiver<bool>,
) {
    // Responses are written as a whole, so there is nothing to wait for.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let router = router.clone();
        async move { Ok::<_, Infallible>(router.answer(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeout)
        // A client may close its side after a request and still read the response.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let asked_to_end = async {
        // An error means that the server is gone, which cannot be while this connection is open.
        let _ = draining.wait_for(|draining| *draining).await;
        sleep(LINGER).await;
    };
    tokio::select! {
        // An error is the client's: a broken request or connection.
        _ = connection.as_mut() => return,
        () = asked_to_end => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// The signals that ask the process to end.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {})
    }

    /// Waits for the next signal.
    async fn next(&mut self) {
        // Without a handler nothing can be waited for, and the default of the system ends the process.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
