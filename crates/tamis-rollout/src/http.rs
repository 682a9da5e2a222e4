//! An HTTP client for many requests at once, behind channels: one background thread holds every
//! connection, the rest of the crate is synchronous.
//!
//! A [`HttpClient`] gives out [`ServerLine`]s, one per server. A request is sent under a number of the
//! caller's, and comes back under it as an [`Exchange`]: the whole answer, or a named error.
//! Connections are kept open and used again; a cancelled request closes its own.

use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc as blocking;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Uri;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tamis_core::fault;
use tamis_core::fault::chain;
use tokio::sync::{mpsc, oneshot};

use crate::clock::Bell;
use crate::wire::{Call, Fault, FaultClass, HttpAnswer, HttpMethod};

/// Idle connections are closed before the server does it: uvicorn, under vLLM and SGLang, closes them
/// after 5 s, and a request sent at that moment would be lost.
const IDLE: Duration = Duration::from_secs(4);

/// Limits of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpSettings {
    /// Longest time to establish a connection.
    pub connect_timeout: Duration,
    /// Most bytes of an answer.
    pub max_answer_bytes: usize,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self { connect_timeout: Duration::from_secs(10), max_answer_bytes: 64 << 20 }
    }
}

/// Why a client could not be set up.
pub type HttpError = tamis_core::fault::Fault;

fn no_thread(source: std::io::Error) -> HttpError {
    fault!("the thread of the HTTP client could not be started").with_source(source)
}

/// The address of a server: scheme, host, port and a path that goes before all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    base: String,
    /// The socket, if it is one in the file system; `base` is then only a name.
    socket: Option<PathBuf>,
}

impl Address {
    /// Reads `http://HOST:PORT`, with or without a slash or OpenAI's `/v1` at its end, or `unix:PATH`.
    pub fn parse(url: &str) -> Result<Self, HttpError> {
        let wrong =
            |reason: &str| fault!("{url:?} is not a server address ({reason}); write http://HOST:PORT");
        if let Some(path) = url.trim().strip_prefix("unix:") {
            return match (cfg!(unix), path.is_empty()) {
                (true, false) => {
                    Ok(Self { base: "http://localhost".to_owned(), socket: Some(PathBuf::from(path)) })
                }
                (true, true) => Err(wrong("no path behind unix:")),
                (false, _) => Err(wrong("this system has no such sockets")),
            };
        }
        let base = url.trim().trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let uri: Uri =
            base.parse().map_err(|error: hyper::http::uri::InvalidUri| wrong(&error.to_string()))?;
        match uri.scheme_str() {
            Some("http" | "https") => {}
            Some(_) => return Err(wrong("neither http nor https")),
            None => return Err(wrong("no http:// or https:// in front")),
        }
        if uri.host().is_none_or(str::is_empty) {
            return Err(wrong("no host"));
        }
        if uri.query().is_some() {
            return Err(wrong("a question mark"));
        }
        Ok(Self { base: base.to_owned(), socket: None })
    }

    /// Whether connections to it are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.base.starts_with("https:")
    }
}

/// In the usual form.
impl std::fmt::Display for Address {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.socket {
            Some(path) => write!(formatter, "unix:{}", path.display()),
            None => formatter.write_str(&self.base),
        }
    }
}

/// Result of a request: a whole answer of whatever status, or the reason why there is none.
pub type Exchange = Result<HttpAnswer, Fault>;

/// Sends requests under numbers and returns their outcomes: the network as a server's client sees it.
pub trait Transport: Send {
    /// Sends a request; comes back by [`Self::receive`] under the number, after this time at the latest.
    fn send(&mut self, number: u64, call: Call, timeout: Duration);

    /// Gives a request up and closes its connection; nothing comes back unless it was on its way already.
    fn cancel(&mut self, number: u64);

    /// Returns the answers that have come back since the last call.
    fn receive(&mut self) -> Vec<(u64, Exchange)>;
}

enum LineCommand {
    Send { line: u64, number: u64, sending: Box<Sending> },
    Cancel { line: u64, number: u64 },
    Done { line: u64, number: u64 },
}

/// A request on its way to the background thread.
struct Sending {
    uri: String,
    socket: Option<PathBuf>,
    call: Call,
    timeout: Duration,
    key: Option<HeaderValue>,
    back: blocking::Sender<(u64, Exchange)>,
    bell: Bell,
}

/// Many connections, held by one background thread, which ends once the client and all its lines have gone.
pub struct HttpClient {
    commands: mpsc::UnboundedSender<LineCommand>,
    num_lines: u64,
}

/// Connections that are kept open, by socket.
#[cfg(unix)]
type Sockets = Arc<std::sync::Mutex<HashMap<PathBuf, Client<UnixConnector, Full<Bytes>>>>>;

/// Connections that are kept open, to ports and to sockets.
#[derive(Clone)]
struct Connections {
    ports: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    #[cfg(unix)]
    sockets: Sockets,
}

impl Connections {
    async fn request(
        &self,
        socket: Option<PathBuf>,
        request: hyper::Request<Full<Bytes>>,
    ) -> Result<hyper::Response<Incoming>, ClientError> {
        #[cfg(unix)]
        if let Some(path) = socket {
            let client = {
                let mut known = self.sockets.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let client = || {
                    let connector = UnixConnector { path: path.clone() };
                    client_builder().build(connector)
                };
                known.entry(path.clone()).or_insert_with(client).clone()
            };
            return client.request(request).await;
        }
        #[cfg(not(unix))]
        let _ = socket;
        self.ports.request(request).await
    }
}

/// Connects to a socket in the file system, whatever the request's address is.
#[cfg(unix)]
#[derive(Clone)]
struct UnixConnector {
    path: PathBuf,
}

#[cfg(unix)]
impl tower_service::Service<Uri> for UnixConnector {
    type Response = TokioIo<tokio::net::UnixStream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = self.path.clone();
        Box::pin(async move { Ok(TokioIo::new(tokio::net::UnixStream::connect(path).await?)) })
    }
}

impl HttpClient {
    /// Starts the thread. `encrypted`: whether any server wants `https`, which needs the system's
    /// certificates.
    pub fn start(settings: HttpSettings, encrypted: bool) -> Result<Self, HttpError> {
        let connections = connections(settings, encrypted)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(no_thread)?;
        let (commands, mut received) = mpsc::unbounded_channel();
        let done = commands.downgrade();
        std::thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    let mut under_way = HashMap::new();
                    while let Some(command) = received.recv().await {
                        match command {
                            LineCommand::Send { line, number, sending } => {
                                let (cancel, cancelled) = oneshot::channel::<()>();
                                under_way.insert((line, number), cancel);
                                let connections = connections.clone();
                                let done = done.clone();
                                let limit = settings.max_answer_bytes;
                                tokio::spawn(async move {
                                    let Sending { back, bell, .. } = &*sending;
                                    let (back, bell) = (back.clone(), bell.clone());
                                    tokio::select! {
                                        exchange = exchange(connections, *sending, limit) => {
                                            // If the line is closed, this is dropped.
                                            let _ = back.send((number, exchange));
                                            bell.ring();
                                        }
                                        _ = cancelled => {}
                                    }
                                    if let Some(done) = done.upgrade() {
                                        let _ = done.send(LineCommand::Done { line, number });
                                    }
                                });
                            }
                            // The other end notices the drop.
                            LineCommand::Cancel { line, number } | LineCommand::Done { line, number } => {
                                under_way.remove(&(line, number));
                            }
                        }
                    }
                });
            })
            .map_err(no_thread)?;
        Ok(Self { commands, num_lines: 0 })
    }

    /// A line to one server; `key` is sent as `Authorization: Bearer`. The bell rings at each result.
    pub fn line(&mut self, address: Address, key: Option<&str>, bell: Bell) -> Result<ServerLine, HttpError> {
        let key = key
            .map(|key| HeaderValue::from_str(&format!("Bearer {key}")))
            .transpose()
            .map_err(|_| fault!("the API key contains a character that is not allowed in a header"))?
            .map(|mut value| {
                value.set_sensitive(true);
                value
            });
        self.num_lines += 1;
        let (back, answers) = blocking::channel();
        Ok(ServerLine {
            number: self.num_lines,
            commands: self.commands.clone(),
            address,
            key,
            back,
            answers,
            bell,
        })
    }
}

/// A way to one server.
pub struct ServerLine {
    number: u64,
    commands: mpsc::UnboundedSender<LineCommand>,
    address: Address,
    key: Option<HeaderValue>,
    back: blocking::Sender<(u64, Exchange)>,
    answers: blocking::Receiver<(u64, Exchange)>,
    bell: Bell,
}

impl ServerLine {
    fn command(&self, command: LineCommand) -> bool {
        self.commands.send(command).is_ok()
    }
}

impl Transport for ServerLine {
    fn send(&mut self, number: u64, call: Call, timeout: Duration) {
        let uri = format!("{}{}", self.address.base, call.path);
        let socket = self.address.socket.clone();
        let (key, back, bell) = (self.key.clone(), self.back.clone(), self.bell.clone());
        let sending = Box::new(Sending { uri, socket, call, timeout, key, back, bell });
        if !self.command(LineCommand::Send { line: self.number, number, sending }) {
            let fault = Fault::new(FaultClass::Connect, "the HTTP client has ended");
            let _ = self.back.send((number, Err(fault)));
            self.bell.ring();
        }
    }

    fn cancel(&mut self, number: u64) {
        self.command(LineCommand::Cancel { line: self.number, number });
    }

    fn receive(&mut self) -> Vec<(u64, Exchange)> {
        self.answers.try_iter().collect()
    }
}

fn connections(settings: HttpSettings, encrypted: bool) -> Result<Connections, HttpError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| fault!("encryption could not be set up").with_source(error))?;
    let tls = if encrypted {
        let unread = |error: std::io::Error| {
            fault!("the system's certificates, which https needs, could not be read").with_source(error)
        };
        tls.with_native_roots().map_err(unread)?.with_no_client_auth()
    } else {
        tls.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth()
    };
    let mut plain = HttpConnector::new();
    plain.enforce_http(false);
    plain.set_nodelay(true);
    plain.set_connect_timeout(Some(settings.connect_timeout));
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(plain);
    Ok(Connections {
        ports: client_builder().build(connector),
        #[cfg(unix)]
        sockets: Sockets::default(),
    })
}

fn client_builder() -> hyper_util::client::legacy::Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_idle_timeout(IDLE).pool_timer(TokioTimer::new());
    builder
}

async fn exchange(connections: Connections, sending: Sending, limit: usize) -> Exchange {
    let timeout = sending.timeout;
    tokio::time::timeout(timeout, ask(connections, sending, limit)).await.unwrap_or_else(|_| {
        Err(Fault::new(FaultClass::TimedOut, format!("no complete answer after {} s", timeout.as_secs_f64())))
    })
}

async fn ask(connections: Connections, sending: Sending, limit: usize) -> Exchange {
    let Sending { uri, socket, call, key, .. } = sending;
    let method = match call.method {
        HttpMethod::Get => hyper::Method::GET,
        HttpMethod::Post => hyper::Method::POST,
    };
    let mut request = hyper::Request::builder().method(method).uri(uri);
    if !call.body.is_empty() {
        request = request.header(CONTENT_TYPE, HeaderValue::from_static(call.content_type));
    }
    for (name, value) in &call.headers {
        request = request.header(*name, value);
    }
    if let Some(key) = key {
        request = request.header(HeaderName::from_static("authorization"), key);
    }
    let request = request
        .body(Full::new(Bytes::from(call.body)))
        .map_err(|error| Fault::new(FaultClass::Refused, error.to_string()))?;
    let response = connections.request(socket, request).await.map_err(|error| before_an_answer(&error))?;
    let (head, mut body): (_, Incoming) = response.into_parts();
    let content_type =
        head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let retry_after =
        head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let mut answer = HttpAnswer {
        status: head.status.as_u16(),
        content_type: content_type.to_owned(),
        body: Vec::new(),
        retry_after: retry_after.map(Duration::from_secs),
    };
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let detail = format!("after {} bytes of an answer: {}", answer.body.len(), chain(&error));
            Fault::new(FaultClass::HalfBody, detail)
        })?;
        if let Some(data) = frame.data_ref() {
            if answer.body.len() + data.len() > limit {
                return Err(Fault::new(FaultClass::TooLarge, format!("more than {limit} bytes")));
            }
            answer.body.extend_from_slice(data);
        }
    }
    Ok(answer)
}

fn before_an_answer(error: &ClientError) -> Fault {
    let class = if error.is_connect() { FaultClass::Connect } else { FaultClass::Reset };
    Fault::new(class, chain(error))
}
