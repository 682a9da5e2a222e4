//! Connections of a server: how many, how slow they may be, and how they end.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::body::{Body, Incoming};
use hyper::rt::{ReadBufCursor, Timer};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Sleep, sleep};

/// Interval at which a connection checks whether to stop.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Longest time for connections to send the rest of their answers when the server stops.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Limits of the connections of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    /// Connections at once, at most; others wait to be accepted.
    pub(crate) max_connections: usize,
    /// Longest time that a client may take to send a request, to read some of an answer, or to say nothing
    /// between two.
    pub(crate) idle_timeout: Duration,
}

/// Where connections come from.
pub(crate) enum Listener {
    /// A port.
    Tcp(tokio::net::TcpListener),
    /// A socket in the file system.
    #[cfg(unix)]
    Unix(tokio::net::UnixListener),
}

/// Both ends of a connection.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                Ok(Box::new(stream))
            }
            #[cfg(unix)]
            Self::Unix(listener) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

/// Waits until the flag is set or the other condition holds.
pub(crate) async fn set_or(stop: &AtomicBool, other: impl Fn() -> bool) {
    while !stop.load(Ordering::SeqCst) && !other() {
        sleep(LOOK_EVERY).await;
    }
}

/// Accepts and answers until `ended` is; then `stop` is called, and what is in flight may still be answered
/// for a while. An error in place of an answer closes the connection.
pub(crate) async fn accept<A, F, B, E>(
    listener: Listener,
    limits: ConnectionLimits,
    answer: A,
    ended: impl Future<Output = ()>,
    stop: impl FnOnce(),
) where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<B>, E>> + Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let most = limits.max_connections.max(1);
    let room = Arc::new(Semaphore::new(most));
    let (stopping, stop_signal) = watch::channel(false);
    let mut ended = pin!(ended);
    loop {
        let mut next = pin!(async {
            let permit = room.clone().acquire_owned().await;
            (listener.accept().await, permit)
        });
        let accepted = std::future::poll_fn(|context| {
            if ended.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            next.as_mut().poll(context).map(Some)
        });
        let Some((accepted, permit)) = accepted.await else { break };
        let Ok(stream) = accepted else {
            // Out of file handles, or a client that went away already.
            sleep(LOOK_EVERY).await;
            continue;
        };
        let (answer, stop_signal) = (answer.clone(), stop_signal.clone());
        tokio::spawn(async move {
            let _permit = permit;
            converse(answer, stream, limits.idle_timeout, stop_signal).await;
        });
    }
    drop(listener);
    stop();
    let _ = stopping.send(true);
    drop(stop_signal);
    let all = u32::try_from(most).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(LAST_WORDS, room.acquire_many(all)).await;
}

/// Answers the requests of one connection.
async fn converse<A, F, B, E>(
    answer: A,
    stream: Box<dyn Stream>,
    patience: Duration,
    mut stop_signal: watch::Receiver<bool>,
) where
    A: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = Result<Response<B>, E>> + Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connection = Connection { stream, patience, stalled: None };
    let service = service_fn(answer);
    let mut serving = pin!(
        http1::Builder::new()
            .timer(Clock)
            .header_read_timeout(patience)
            .max_buf_size(1 << 18)
            .serve_connection(connection, service)
    );
    let mut stop_signal = pin!(async move {
        let _ = stop_signal.wait_for(|stops| *stops).await;
    });
    let mut is_told = false;
    // What went wrong is the client's doing, and it knows.
    let _ = std::future::poll_fn(|context| {
        if !is_told && stop_signal.as_mut().poll(context).is_ready() {
            is_told = true;
            serving.as_mut().graceful_shutdown();
        }
        serving.as_mut().poll(context)
    })
    .await;
}

/// A stream whose other end must take what is written within a time.
struct Connection {
    stream: Box<dyn Stream>,
    patience: Duration,
    /// Since when nothing could be written.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    /// The outcome of a write, or an error where it has been waited for too long.
    fn patient<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl hyper::rt::Read for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // Through a buffer of our own, as hyper's may not be initialised.
        let mut bytes = [0; 1 << 14];
        let length = bytes.len().min(into.remaining());
        let mut buffer = ReadBuf::new(&mut bytes[..length]);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
        into.put_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.patient(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.patient(context, written)
    }
}

/// Tokio's clock, for hyper.
#[derive(Debug, Clone, Copy)]
struct Clock;

struct Alarm(Pin<Box<Sleep>>);

impl Future for Alarm {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

impl hyper::rt::Sleep for Alarm {}

impl Timer for Clock {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Alarm(Box::pin(sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Alarm(Box::pin(tokio::time::sleep_until(deadline.into()))))
    }
}
