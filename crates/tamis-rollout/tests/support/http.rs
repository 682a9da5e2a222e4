//! HTTP by hand, so that answers can be broken in every way.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// The path with the query.
    pub(crate) path: String,
    pub(crate) key: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or(serde_json::Value::Null)
    }
}

/// The ways in which an answer gets to its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    Whole,
    /// The connection ends in the middle of the body.
    Half,
    /// A few bytes at a time.
    Trickle(Duration),
    /// The connection is closed without an answer.
    Reset,
    /// Nothing ever comes.
    Hang,
    /// The answer comes twice.
    Twice,
}

#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) body: Vec<u8>,
    pub(crate) delivery: Delivery,
    /// Seconds until the next request, as `Retry-After`.
    pub(crate) retry_after: Option<u32>,
}

impl Reply {
    pub(crate) fn json(status: u16, body: &serde_json::Value) -> Self {
        Self {
            status,
            content_type: "application/json",
            body: body.to_string().into_bytes(),
            delivery: Delivery::Whole,
            retry_after: None,
        }
    }

    pub(crate) fn empty() -> Self {
        Self { status: 200, content_type: "text/plain", body: Vec::new(), ..Self::json(200, &().into()) }
    }
}

pub(crate) type Handling = Pin<Box<dyn Future<Output = Reply> + Send>>;
pub(crate) type Heard = Arc<Mutex<Vec<Request>>>;
pub(crate) type Handler = Arc<dyn Fn(Request) -> Handling + Send + Sync>;

/// A server on a thread of its own; it ends when it is dropped, with all its connections.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) num_connections: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl TestServer {
    /// At a free port, or at the given one.
    pub(crate) fn start(address: Option<SocketAddr>, handler: Handler) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (tell, answered) = std::sync::mpsc::channel();
        let num_connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&num_connections);
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let socket = TcpSocket::new_v4().expect("a socket");
                socket.set_reuseaddr(true).expect("an address used again");
                socket.bind(address.unwrap_or(([127, 0, 0, 1], 0).into())).expect("an address");
                let listener: TcpListener = socket.listen(8192).expect("listens");
                tell.send(listener.local_addr().expect("an address")).expect("told");
                tokio::pin!(stopped);
                loop {
                    tokio::select! {
                        _ = &mut stopped => return,
                        accepted = listener.accept() => {
                            let Ok((stream, _)) = accepted else { continue };
                            let (handler, counted) = (Arc::clone(&handler), Arc::clone(&counted));
                            counted.fetch_add(1, Ordering::Relaxed);
                            tokio::spawn(async move {
                                let _ = serve(stream, handler).await;
                                counted.fetch_sub(1, Ordering::Relaxed);
                            });
                        }
                    }
                }
            });
        });
        let address = answered.recv().expect("an address");
        Self { address, num_connections, stop: Some(stop), thread: Some(thread) }
    }

    /// A server that names one model, and its answers to all other requests.
    pub(crate) fn of_model(
        model: &'static str,
        answer: impl Fn(&Request) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let handler: Handler = Arc::new(move |request: Request| {
            let models = || serde_json::json!({"object": "list", "data": [{"id": model, "object": "model"}]});
            let is_of_models = request.path == "/v1/models";
            let reply = if is_of_models { Reply::json(200, &models()) } else { answer(&request) };
            Box::pin(async move { reply })
        });
        Self::start(None, handler)
    }

    /// The same, with the requests that it answered.
    pub(crate) fn heard(
        model: &'static str,
        answer: impl Fn(&Request) -> Reply + Send + Sync + 'static,
    ) -> (Self, Heard) {
        let heard = Heard::default();
        let hear = Arc::clone(&heard);
        let server = Self::of_model(model, move |request| {
            hear.lock().expect("requests").push(request.clone());
            answer(request)
        });
        (server, heard)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(mut stream: TcpStream, handler: Handler) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        let Some((_, headers, body)) = read_message(&mut stream, &mut buffer).await? else { return Ok(()) };
        let mut words = headers.split_whitespace();
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let key = header(&headers, "authorization").map(str::to_owned);
        let request = Request { method: method.to_owned(), path: path.to_owned(), key, body };
        // A client that leaves abandons its request.
        let mut byte = [0];
        let reply = tokio::select! {
            reply = handler(request) => reply,
            _ = stream.peek(&mut byte) => return Ok(()),
        };
        let head = format!(
            "HTTP/1.1 {} X\r\ncontent-type: {}\r\ncontent-length: {}\r\n{}\r\n",
            reply.status,
            reply.content_type,
            reply.body.len(),
            reply.retry_after.map_or_else(String::new, |seconds| format!("retry-after: {seconds}\r\n"))
        );
        let whole = [head.as_bytes(), &reply.body].concat();
        match reply.delivery {
            Delivery::Whole => stream.write_all(&whole).await?,
            Delivery::Twice => stream.write_all(&whole.repeat(2)).await?,
            Delivery::Half => {
                stream.write_all(&whole[..head.len() + reply.body.len() / 2]).await?;
                return Ok(());
            }
            Delivery::Trickle(pause) => {
                for part in whole.chunks(16) {
                    stream.write_all(part).await?;
                    tokio::time::sleep(pause).await;
                }
            }
            Delivery::Reset => return Ok(()),
            Delivery::Hang => {
                let _ = stream.read(&mut byte).await;
                return Ok(());
            }
        }
    }
}

fn header<'a>(headers: &'a str, name: &str) -> Option<&'a str> {
    headers.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// The next message of a connection: its first line and headers, and its body; `None` at its end.
async fn read_message(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> std::io::Result<Option<(u16, String, Vec<u8>)>> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let headers = String::from_utf8_lossy(&buffer[..end]).into_owned();
    let length: usize =
        header(&headers, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while buffer.len() < end + length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    let body = buffer[end..end + length].to_vec();
    buffer.drain(..end + length);
    let status = headers.split_whitespace().nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Ok(Some((status, headers, body)))
}

/// Forwards a request to another server, on a separate connection.
pub(crate) async fn forward(address: SocketAddr, request: &Request) -> std::io::Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!(
        "{} {} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        request.method,
        request.path,
        request.body.len()
    );
    stream.write_all(&[head.as_bytes(), &request.body].concat()).await?;
    let mut buffer = Vec::new();
    match read_message(&mut stream, &mut buffer).await? {
        Some((status, _, body)) => Ok((status, body)),
        None => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}
