//! A server of calls and the HTTP client, over a port and over a socket in the file system.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tamis_rollout::call_server::{Answer, CallAddress, CallLimits, CallServer, Question};
use tamis_rollout::clock::Bell;
use tamis_rollout::http::{Address, Exchange, HttpClient, HttpSettings, ServerLine, Transport as _};
use tamis_rollout::wire::{Call, FaultClass, HttpMethod};

const LIMITS: CallLimits = CallLimits {
    max_body_bytes: 1000,
    max_json_bytes: 100,
    max_connections: 8,
    idle_timeout: Duration::from_secs(10),
};

fn text(status: u16, text: String) -> Answer {
    Answer { status, content_type: "text/plain; charset=utf-8", body: text.into() }
}

fn listen(address: &CallAddress) -> CallServer {
    let at_once =
        |question: &Question| (question.method == HttpMethod::Get).then(|| text(200, "alive".to_owned()));
    CallServer::listen(address, LIMITS, Arc::new(at_once)).expect("listens")
}

fn line(address: &CallAddress) -> (HttpClient, ServerLine, Bell) {
    let bell = Bell::default();
    let mut client = HttpClient::start(HttpSettings::default(), false).expect("a client");
    let address = Address::parse(&address.to_string()).expect("an address");
    let line = client.line(address, Some("secret"), bell.clone()).expect("a line");
    (client, line, bell)
}

/// The next answer, which is the only one.
fn receive(line: &mut ServerLine, bell: &Bell) -> (u64, Exchange) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        bell.wait(Duration::from_millis(50));
        let mut all = line.receive();
        if let Some(first) = all.pop() {
            assert!(all.is_empty());
            return first;
        }
        assert!(Instant::now() < until, "no answer");
    }
}

fn post(body: Vec<u8>) -> Call {
    let headers = vec![("tamis-seq", "7".to_owned())];
    Call { body, content_type: "application/x-safetensors", headers, ..Call::post_empty("/v1/forward") }
}

fn converse(address: &CallAddress) {
    let server = listen(address);
    let (_client, mut line, bell) = line(server.address());
    line.send(1, post(b"tokens".to_vec()), Duration::from_secs(10));
    let call = server.next(Duration::from_secs(10)).expect("a call");
    let question = &call.question;
    assert_eq!((question.method, question.path.as_str()), (HttpMethod::Post, "/v1/forward"));
    assert_eq!(question.content_type, "application/x-safetensors");
    assert_eq!(
        (question.header("tamis-seq"), question.header("authorization")),
        (Some("7"), Some("Bearer secret"))
    );
    assert_eq!(&question.body[..], b"tokens");

    // While it is worked on, others are answered that need no owner.
    line.send(2, Call::get("/v1/health"), Duration::from_secs(10));
    let (number, alive) = receive(&mut line, &bell);
    assert_eq!((number, alive.expect("answered").body), (2, b"alive".to_vec()));
    call.answer(text(422, "no".to_owned()));
    let (number, answered) = receive(&mut line, &bell);
    assert_eq!((number, answered.expect("answered").status), (1, 422));

    line.send(3, post(vec![0; 1001]), Duration::from_secs(10));
    assert_eq!(receive(&mut line, &bell).1.expect("answered").status, 413);
    line.send(6, Call { content_type: "application/json", ..post(vec![b' '; 101]) }, Duration::from_secs(10));
    let refused = receive(&mut line, &bell).1.expect("answered");
    assert_eq!(refused.status, 413);
    assert!(String::from_utf8_lossy(&refused.body).contains("100 bytes, the limit unless it is"));
    assert!(server.next(Duration::ZERO).is_none(), "nobody else hears of it");

    // A dropped call has no answer, and later calls are refused.
    line.send(4, post(b"late".to_vec()), Duration::from_secs(10));
    let call = server.next(Duration::from_secs(10)).expect("a call");
    drop(call);
    assert_eq!(receive(&mut line, &bell).1.expect_err("no answer").class, FaultClass::Reset);
    drop(server);
    line.send(5, Call::get("/v1/health"), Duration::from_secs(10));
    let class = receive(&mut line, &bell).1.expect_err("nobody").class;
    assert!(matches!(class, FaultClass::Connect | FaultClass::Reset), "{class:?}");
}

#[test]
fn calls_over_a_port() {
    converse(&CallAddress::Tcp(([127, 0, 0, 1], 0).into()));
}

#[cfg(unix)]
#[test]
fn calls_over_a_socket_for_the_user_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("learner.sock");
    let address = CallAddress::Unix(path.clone());
    converse(&address);
    assert!(!path.exists(), "it goes with the server");
    // One that a killed server left behind is replaced; one that is in use, or a file, is not.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
    let server = listen(&address);
    assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
    let second = CallServer::listen(&address, LIMITS, Arc::new(|_: &Question| None));
    assert!(second.is_err(), "in use");
    drop(server);
    std::fs::write(&path, "mine").expect("written");
    assert!(CallServer::listen(&address, LIMITS, Arc::new(|_: &Question| None)).is_err());
    assert_eq!(std::fs::read_to_string(&path).expect("there"), "mine");
}

#[test]
fn an_address_of_a_socket_is_read_as_it_is_written() {
    let address = Address::parse("unix:/run/tamis/learner.sock").expect("an address");
    assert_eq!(address.to_string(), "unix:/run/tamis/learner.sock");
    let error = Address::parse("unix:").expect_err("no path").to_string();
    assert!(error.contains("no path behind unix:"), "{error}");
}
