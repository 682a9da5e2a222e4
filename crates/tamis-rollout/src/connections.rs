//! Connections: how many, how slow they may be, and how they end.

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hyper::rt::{ReadBufCursor, Timer};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Sleep, sleep};

use super::App;
use super::engine::EngineCommand;
use super::route::answer;

/// Interval at which a connection checks whether to stop.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Longest time for connections to send the rest of their answers when the server stops.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Accepts and answers until `stop` is set or the worker is gone.
pub(super) async fn accept(
    listener: TcpListener,
    app: Arc<App>,
    stop: &AtomicBool,
    worker: &JoinHandle<()>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let most = app.settings.max_connections.max(1);
    let room = Arc::new(Semaphore::new(most));
    let (stopping, stop_signal) = watch::channel(false);
    let mut ended = pin!(async {
        while !stop.load(Ordering::SeqCst) && !worker.is_finished() {
            sleep(LOOK_EVERY).await;
        }
    });
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
        let Ok((stream, _)) = accepted else {
            // Out of file handles, or a client that went away already.
            sleep(LOOK_EVERY).await;
            continue;
        };
        let (app, stop_signal) = (app.clone(), stop_signal.clone());
        tokio::spawn(async move {
            let _permit = permit;
            converse(app, stream, stop_signal).await;
        });
    }
    drop(listener);
    app.metrics.is_stopping.store(true, Ordering::SeqCst);
    let _ = app.commands.send(EngineCommand::Stop);
    let _ = stopping.send(true);
    drop(stop_signal);
    let all = u32::try_from(most).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(LAST_WORDS, room.acquire_many(all)).await;
    Ok(())
}

/// Answers the requests of one connection.
async fn converse(app: Arc<App>, stream: TcpStream, mut stop_signal: watch::Receiver<bool>) {
    let _ = stream.set_nodelay(true);
    let patience = app.settings.idle_timeout;
    let connection = Connection { stream, patience, stalled: None };
    let service = service_fn(move |request| answer(app.clone(), request));
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
    stream: TcpStream,
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
