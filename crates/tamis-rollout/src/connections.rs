//! Connections of a server: how many, how slow they may be, and how they end.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::rt::{ReadBufCursor, Timer};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant as Moment, Sleep, sleep};

/// Interval at which a connection checks whether to stop.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Interval at which a client that waits for an answer is looked for.
const LOOK_FOR_CLIENT_EVERY: Duration = Duration::from_millis(200);

/// Longest time for connections to send the rest of their answers when the server stops.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Longest silence of a client that is read from after its request was refused.
const LINGER: Duration = Duration::from_secs(2);

/// Limits of the connections of a server.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Connections at once, at most; others wait to be accepted.
    pub max_connections: usize,
    /// Longest time that a client may take to send a request, to read part of an answer, or to stay
    /// idle between two requests.
    pub idle_timeout: Duration,
}

/// The socket that accepts connections.
pub enum AnyListener {
    /// A port.
    Tcp(TcpListener),
    /// A socket in the file system.
    #[cfg(unix)]
    Unix(UnixListener),
}

/// Both ends of a connection.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {
    /// Whether the client has closed its end, even if unread bytes come before that.
    fn is_left(&self) -> bool;
}

/// Whether the socket's present state shows that the client has left.
fn is_left(ready: impl Future<Output = io::Result<tokio::io::Ready>>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(pin!(ready).poll(&mut context), Poll::Ready(Ok(ready)) if ready.is_read_closed())
}

impl Stream for TcpStream {
    fn is_left(&self) -> bool {
        is_left(self.ready(Interest::READABLE))
    }
}

#[cfg(unix)]
impl Stream for UnixStream {
    fn is_left(&self) -> bool {
        is_left(self.ready(Interest::READABLE))
    }
}

impl AnyListener {
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

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Waits until the flag is set or the other condition holds.
pub async fn set_or(stop: &AtomicBool, other: impl Fn() -> bool) {
    while !stop.load(Ordering::SeqCst) && !other() {
        sleep(LOOK_EVERY).await;
    }
}

/// Accepts and answers until `ended` completes. Then `stop` is called, and requests in flight may still
/// be answered for a while. An error instead of an answer closes the connection.
pub async fn accept<A, F, B, E>(
    listener: AnyListener,
    limits: ConnectionLimits,
    answer: A,
    ended: impl Future<Output = ()>,
    stop: impl FnOnce(),
) where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<B>, E>> + Send + 'static,
    E: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
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

/// Answers the requests of one connection. A request whose client leaves while it waits is dropped.
async fn converse<A, F, B, E>(
    answer: A,
    stream: Box<dyn Stream>,
    patience: Duration,
    mut stop_signal: watch::Receiver<bool>,
) where
    A: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = Result<Response<B>, E>> + Send + 'static,
    E: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let shared = Arc::new(Shared { stream: Mutex::new(stream), is_refused: AtomicBool::new(true) });
    let connection = Connection { shared: shared.clone(), patience, stalled: None, closing: None };
    let service = service_fn(move |request| {
        let (shared, answered) = (shared.clone(), answer(request));
        async move {
            let mut response: Response<B> = tokio::select! {
                response = answered => response.map_err(io::Error::other)?,
                () = shared.left() => return Err(io::ErrorKind::ConnectionAborted.into()),
            };
            // The rest of the body is not the next request.
            if matches!(response.status(), StatusCode::REQUEST_TIMEOUT | StatusCode::PAYLOAD_TOO_LARGE) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            shared.is_refused.store(response.status().is_client_error(), Ordering::Relaxed);
            Ok::<_, io::Error>(response)
        }
    });
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
    // The client caused the error, and knows it.
    let _ = std::future::poll_fn(|context| {
        if !is_told && stop_signal.as_mut().poll(context).is_ready() {
            is_told = true;
            serving.as_mut().graceful_shutdown();
        }
        serving.as_mut().poll(context)
    })
    .await;
}

/// State shared by the reader and writer of a connection and the watch on its client.
struct Shared {
    /// Held only while something is polled.
    stream: Mutex<Box<dyn Stream>>,
    /// Whether the last request was refused, or none was read: the client may still be writing it.
    is_refused: AtomicBool,
}

impl Shared {
    fn stream(&self) -> MutexGuard<'_, Box<dyn Stream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the client has closed its end. Hyper notices that only if no bytes follow the
    /// request.
    async fn left(&self) {
        loop {
            sleep(LOOK_FOR_CLIENT_EVERY).await;
            if self.stream().is_left() {
                return;
            }
        }
    }

    /// Reads through a buffer of our own.
    fn poll_read(
        &self,
        context: &mut Context<'_>,
        most: usize,
        then: impl FnOnce(&[u8]),
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; 1 << 14];
        let length = bytes.len().min(most);
        let mut buffer = ReadBuf::new(&mut bytes[..length]);
        ready!(Pin::new(&mut *self.stream()).poll_read(context, &mut buffer))?;
        then(buffer.filled());
        Poll::Ready(Ok(()))
    }
}

/// A stream whose other end must read written bytes within a time limit.
struct Connection {
    shared: Arc<Shared>,
    patience: Duration,
    /// Since when nothing could be written.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Since our end is closed.
    closing: Option<Closing>,
}

/// A connection whose client may still be writing. If it were closed with unread bytes, the client
/// would lose the answer with the reason.
struct Closing {
    /// Ends the wait for more.
    silent: Pin<Box<Sleep>>,
    /// Ends it also for who writes on and on.
    until: Moment,
}

impl Connection {
    /// The outcome of a write, or an error if it takes too long.
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
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // Hyper's buffer may not be initialised.
        self.shared.poll_read(context, into.remaining(), |bytes| into.put_slice(bytes))
    }
}

impl hyper::rt::Write for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.shared.stream()).poll_write(context, bytes);
        self.patient(context, written)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.shared.stream()).poll_flush(context)
    }

    /// Closes our end, and reads what the client of a refused request still writes.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { shared, patience, closing, .. } = &mut *self;
        if closing.is_none() {
            ready!(Pin::new(&mut *shared.stream()).poll_shutdown(context))?;
            if !shared.is_refused.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let start = || Closing { silent: Box::pin(sleep(LINGER)), until: Moment::now() + *patience };
        let Closing { silent, until } = closing.get_or_insert_with(start);
        loop {
            let mut count = 0;
            match shared.poll_read(context, usize::MAX, |bytes| count = bytes.len()) {
                Poll::Ready(Ok(())) if count > 0 && Moment::now() < *until => {
                    silent.as_mut().reset(Moment::now() + LINGER);
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => return silent.as_mut().poll(context).map(Ok),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.shared.stream().is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.shared.stream()).poll_write_vectored(context, slices);
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
