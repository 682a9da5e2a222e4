//! A server whose calls are answered one after the other by the thread that owns the state they use.
//!
//! One background thread reads requests and writes answers; [`CallServer::next`] returns the calls in
//! the order of arrival. Calls that need no owner (such as health checks) are answered at once, even
//! while another runs.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::body::{BodyFault, BodyLimits, BodyRoom, HeldBody};
pub use crate::caller::is_same;
use crate::caller::stranger;
use crate::connections::{AnyListener, ConnectionLimits, accept, set_or};
use crate::wire::HttpMethod;

/// Media type of a body whose numbers are columns.
pub const SAFETENSORS: &str = "application/x-safetensors";

/// An address that calls come in at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallAddress {
    /// A port.
    Tcp(SocketAddr),
    /// A socket in the file system that only the user can open.
    Unix(PathBuf),
}

/// In the form that clients use.
impl std::fmt::Display for CallAddress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "http://{address}"),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// Limits of a server of calls.
#[derive(Debug, Clone, Copy)]
pub struct CallLimits {
    /// Bytes of a request's body, at most; longer ones are refused with 413.
    pub max_body_bytes: usize,
    /// Most bytes of a body that is not a safetensors file: its parsed form takes many times its bytes.
    pub max_json_bytes: usize,
    /// Connections at once, at most.
    pub max_connections: usize,
    /// Longest time that a client may take to send a request or to read some of an answer.
    pub idle_timeout: Duration,
}

/// A request, whole.
#[derive(Debug)]
pub struct Question {
    /// Its method.
    pub method: HttpMethod,
    /// Its path, without a query.
    pub path: String,
    /// Media type of the body; empty if there is none.
    pub content_type: String,
    /// The body.
    pub body: Bytes,
    /// Why it does not come from this machine, if it does not.
    pub stranger: Option<String>,
    headers: hyper::HeaderMap,
    _room: Option<OwnedSemaphorePermit>,
}

impl Question {
    /// An answer with these headers; those that are not valid in HTTP are left out.
    pub fn new(
        method: HttpMethod,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
        headers: &[(&str, &str)],
    ) -> Self {
        let header = |&(name, value): &(&str, &str)| {
            Some((HeaderName::from_str(name).ok()?, HeaderValue::from_str(value).ok()?))
        };
        let headers: hyper::HeaderMap = headers.iter().filter_map(header).collect();
        Self {
            method,
            path: path.to_owned(),
            content_type: content_type.to_owned(),
            body: body.into(),
            stranger: stranger(&headers, "localhost"),
            headers,
            _room: None,
        }
    }

    /// Whether it has a header, text or not.
    pub fn has_header(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }

    /// A header, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Media type.
    pub content_type: &'static str,
    /// The body.
    pub body: Bytes,
}

/// A call that waits for its answer. If it is dropped, its connection is closed without one.
pub struct WaitingCall {
    /// The request.
    pub question: Question,
    answer: oneshot::Sender<Answer>,
}

impl WaitingCall {
    /// Sends the answer. If the client has left, the answer is lost.
    pub fn answer(self, answer: Answer) {
        let _ = self.answer.send(answer);
    }
}

/// Answers a call at once, or leaves it to the owner.
pub type AnswerAtOnce = dyn Fn(&Question) -> Option<Answer> + Send + Sync;

/// A server of calls; it ends with the value.
pub struct CallServer {
    address: CallAddress,
    calls: Receiver<WaitingCall>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CallServer {
    /// Listens on an address; port 0 is any free one.
    ///
    /// # Errors
    /// An address that cannot be listened on.
    pub fn listen(address: &CallAddress, limits: CallLimits, at_once: Arc<AnswerAtOnce>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (listener, address) = {
            let _entered = runtime.enter();
            bind(address)?
        };
        let (sender, calls) = channel::<WaitingCall>();
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let connections =
            ConnectionLimits { max_connections: limits.max_connections, idle_timeout: limits.idle_timeout };
        // A call may come again while its body is still worked on.
        let room = Arc::new(BodyRoom::new(2, limits.max_body_bytes));
        let is_port = matches!(address, CallAddress::Tcp(_));
        let thread = std::thread::Builder::new().name("calls".to_owned()).spawn(move || {
            let answer = move |request: Request<Incoming>| {
                let (sender, at_once, room) = (sender.clone(), Arc::clone(&at_once), Arc::clone(&room));
                async move {
                    let answer = match read(request, &room, limits, is_port).await {
                        Err(answer) => answer,
                        Ok(question) => match at_once(&question) {
                            Some(answer) => answer,
                            None => ask(&sender, question).await?,
                        },
                    };
                    Ok::<_, RecvError>(respond(answer))
                }
            };
            runtime.block_on(accept(listener, connections, answer, set_or(&stopping, || false), || {}));
            runtime.shutdown_background();
        })?;
        Ok(Self { address, calls, stop, thread: Some(thread) })
    }

    /// Address that it listens on.
    pub fn address(&self) -> &CallAddress {
        &self.address
    }

    /// The next call; `None` if none arrives in this time.
    pub fn next(&self, timeout: Duration) -> Option<WaitingCall> {
        self.calls.recv_timeout(timeout).ok()
    }
}

impl Drop for CallServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Dropping the calls that still wait closes their connections.
        while self.calls.try_recv().is_ok() {}
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let CallAddress::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn bind(address: &CallAddress) -> io::Result<(AnyListener, CallAddress)> {
    match address {
        CallAddress::Tcp(address) => {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((AnyListener::Tcp(tokio::net::TcpListener::from_std(listener)?), CallAddress::Tcp(address)))
        }
        #[cfg(unix)]
        CallAddress::Unix(path) => Ok((AnyListener::Unix(bind_unix(path)?), CallAddress::Unix(path.clone()))),
        #[cfg(not(unix))]
        CallAddress::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Binds a socket of mode 0600. An existing one without a listener is replaced.
#[cfg(unix)]
fn bind_unix(path: &Path) -> io::Result<tokio::net::UnixListener> {
    use std::os::unix::fs::PermissionsExt as _;
    if std::os::unix::net::UnixStream::connect(path).is_err()
        && path.symlink_metadata().is_ok_and(|found| !found.is_file() && !found.is_dir())
    {
        std::fs::remove_file(path)?;
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    tokio::net::UnixListener::from_std(listener)
}

/// A request with its body, or the refusal of it: `{"error": {"kind": "request", "message", "hint": null}}`.
async fn read(
    request: Request<Incoming>,
    room: &BodyRoom,
    limits: CallLimits,
    is_port: bool,
) -> Result<Question, Answer> {
    let (head, body) = request.into_parts();
    let refuse = |status: u16, message: String| {
        let error = json!({"error": {"kind": "request", "message": message, "hint": null}});
        Answer { status, content_type: "application/json", body: error.to_string().into() }
    };
    let method = match head.method {
        Method::GET => HttpMethod::Get,
        Method::POST => HttpMethod::Post,
        other => return Err(refuse(405, format!("{other} is not supported: use GET or POST"))),
    };
    let content_type =
        head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let has_columns = content_type.split(';').next().unwrap_or_default().trim() == SAFETENSORS;
    let most =
        if has_columns { limits.max_body_bytes } else { limits.max_json_bytes.min(limits.max_body_bytes) };
    let read = room.read(body, BodyLimits { most, patience: limits.idle_timeout }).await;
    let HeldBody { bytes, room } = read.map_err(|fault| match fault {
        BodyFault::TooLarge(most) if has_columns => {
            refuse(413, format!("the body is longer than {most} bytes"))
        }
        BodyFault::TooLarge(most) => {
            refuse(413, format!("the body is longer than {most} bytes, the limit unless it is {SAFETENSORS}"))
        }
        BodyFault::Slow(patience) => {
            refuse(408, format!("the body did not arrive within {} s", patience.as_secs_f64()))
        }
        BodyFault::NoRoom => refuse(408, "the memory for request bodies is full".to_owned()),
        BodyFault::Broken(reason) => refuse(400, format!("the body is incomplete: {reason}")),
    })?;
    Ok(Question {
        method,
        path: head.uri.path().to_owned(),
        content_type: content_type.to_owned(),
        body: bytes.into(),
        stranger: if is_port { stranger(&head.headers, "localhost") } else { None },
        headers: head.headers,
        _room: room,
    })
}

async fn ask(sender: &std::sync::mpsc::Sender<WaitingCall>, question: Question) -> Result<Answer, RecvError> {
    let (answer, answered) = oneshot::channel();
    // If calls are no longer taken, the call is dropped without an answer.
    let _ = sender.send(WaitingCall { question, answer });
    answered.await
}

fn respond(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(answer.body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    response
}
