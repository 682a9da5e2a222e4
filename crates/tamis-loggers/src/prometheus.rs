//! An HTTP endpoint that Prometheus scrapes: `/metrics` has the latest value of every metric of the run, in
//! the text exposition format 0.0.4.
//! A metric's name is its pattern in the catalogue without the variable parts, which become labels:
//! `rewards/{name}/mean` is `tamis_rewards_mean{run="tiny",name="acc"}`. HELP is the catalogue's sentence. A
//! metric that a step does not have keeps its last value.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tamis_run::directory::LogPositions;
use tamis_run::durable::DiskError;
use tamis_run::log::progress::Console;
use tamis_run::log::{Logger, RunEnding};
use tamis_run::metrics::Metrics;
use tamis_run::metrics::catalogue;

/// Longest wait for a request, and for an answer to be taken.
const PATIENCE: Duration = Duration::from_secs(2);

const LOOK: Duration = Duration::from_millis(10);

/// Bytes of a request at most.
const LONGEST_REQUEST: u64 = 16 << 10;

/// Serves the metrics of a run.
#[derive(Debug)]
pub struct PrometheusLogger {
    families: Arc<Mutex<Families>>,
    server: Option<Server>,
}

impl PrometheusLogger {
    /// Listens at an address (`HOST:PORT`). If it is taken, that is reported, and the run continues
    /// without.
    pub fn start(address: &str, run: &str, voice: &Console) -> Self {
        let families = Arc::new(Mutex::new(Families::new(run)));
        let server = match Server::start(address, &families) {
            Ok(server) => {
                voice.say(&format!("logger `prometheus`: http://{}/metrics", server.address));
                Some(server)
            }
            Err(error) => {
                voice.warn(&format!(
                    "the logger `prometheus` cannot listen at {address}; the run continues without it: {error} (set its `address` to \
                    another port, or to port 0 for a free one)"
                ));
                None
            }
        };
        Self { families, server }
    }

    /// The address that it listens at, if it does.
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(|server| server.address)
    }
}

impl Logger for PrometheusLogger {
    fn name(&self) -> &'static str {
        "prometheus"
    }

    fn log(&mut self, step: u64, metrics: &Metrics) -> Result<(), DiskError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        self.families.lock().unwrap_or_else(PoisonError::into_inner).take(step, now, metrics);
        Ok(())
    }

    fn amend(&mut self, step: u64, added: &Metrics) -> Result<(), DiskError> {
        self.log(step, added)
    }

    fn begin_close(&mut self, _: RunEnding) {
        if let Some(server) = &self.server {
            server.is_closing.store(true, Ordering::Relaxed);
        }
    }

    fn finish_close(&mut self) {
        self.server = None;
    }

    fn sync(&mut self, _: &mut LogPositions) -> Result<(), DiskError> {
        Ok(())
    }
}

/// The latest value of every metric, by family and labels.
#[derive(Debug)]
struct Families {
    run: String,
    step: Option<(u64, f64)>,
    /// HELP and the values by labels, by name of the family.
    values: BTreeMap<String, (String, BTreeMap<String, f64>)>,
}

impl Families {
    fn new(run: &str) -> Self {
        Self { run: run.to_owned(), step: None, values: BTreeMap::new() }
    }

    fn take(&mut self, step: u64, now: f64, metrics: &Metrics) {
        self.step = Some((step, now));
        for (name, value) in metrics.iter() {
            let definition = catalogue::find(name);
            let parts = definition.and_then(|definition| catalogue::parts(definition.pattern, name));
            let pattern = definition.map_or(name, |definition| definition.pattern);
            let mut labels = format!("run=\"{}\"", escape_label(&self.run));
            for (label, text) in parts.unwrap_or_default() {
                let _ = write!(labels, ",{label}=\"{}\"", escape_label(text));
            }
            let help = definition.map_or_else(String::new, |definition| {
                let unit =
                    if definition.unit.is_empty() { "" } else { &format!(" Unit: {}.", definition.unit) };
                format!("{}{unit}", definition.meaning)
            });
            let family = self.values.entry(family_name(pattern)).or_insert_with(|| (help, BTreeMap::new()));
            family.1.insert(labels, value);
        }
    }

    fn exposition(&self) -> String {
        let mut text = String::new();
        let run = format!("run=\"{}\"", escape_label(&self.run));
        let mut own = |name: &str, help: &str, value: f64| {
            let _ = write!(
                text,
                "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{{run}}} {}\n",
                number(value)
            );
        };
        own("tamis_up", "1 while the run is active.", 1.0);
        if let Some((step, time)) = self.step {
            own("tamis_step", "The last step that was logged.", step as f64);
            own("tamis_step_timestamp_seconds", "When it was logged, in seconds since 1970.", time);
        }
        for (name, (help, values)) in &self.values {
            let _ = write!(text, "# HELP {name} {}\n# TYPE {name} gauge\n", escape_help(help));
            for (labels, value) in values {
                let _ = writeln!(text, "{name}{{{labels}}} {}", number(*value));
            }
        }
        text
    }
}

/// Name of a family: `tamis_` and the literal parts of the pattern, joined by single underscores.
fn family_name(pattern: &str) -> String {
    let mut name = String::from("tamis");
    let (mut is_variable, mut is_open) = (false, true);
    for c in pattern.chars() {
        match c {
            '{' => (is_variable, is_open) = (true, true),
            '}' => is_variable = false,
            _ if is_variable => {}
            c if c.is_ascii_alphanumeric() => {
                if std::mem::take(&mut is_open) {
                    name.push('_');
                }
                name.push(c);
            }
            _ => is_open = true,
        }
    }
    name
}

fn escape_label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn escape_help(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

fn number(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        value if value.is_nan() => "NaN".to_owned(),
        value => format!("{value:?}"),
    }
}

/// A thread that answers one connection after the other.
#[derive(Debug)]
struct Server {
    address: SocketAddr,
    is_closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(address: &str, families: &Arc<Mutex<Families>>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let is_closing = Arc::new(AtomicBool::new(false));
        let (closing, families) = (is_closing.clone(), families.clone());
        let serve = move || {
            for connection in listener.incoming() {
                if closing.load(Ordering::Relaxed) {
                    return;
                }
                match connection {
                    // A client that leaves in the middle of its request does not matter to the run.
                    Ok(connection) => drop(answer(&connection, &families)),
                    // Out of file descriptors, it would find that out again and again.
                    Err(_) => std::thread::sleep(PATIENCE),
                }
            }
        };
        let thread = std::thread::Builder::new().name("logger-prometheus".to_owned()).spawn(serve)?;
        Ok(Self { address, is_closing, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::Relaxed);
        let mut address = self.address;
        if address.ip().is_unspecified() {
            let here: std::net::IpAddr = match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            };
            address.set_ip(here);
        }
        // A connection wakes the thread, which then sees that it is to end; one that waits for a client is
        // left.
        let limit = Instant::now() + PATIENCE;
        if TcpStream::connect_timeout(&address, PATIENCE).is_ok()
            && let Some(thread) = self.thread.take()
        {
            while !thread.is_finished() && Instant::now() < limit {
                std::thread::sleep(LOOK);
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

/// Reads until then at most, whatever comes little by little.
struct Until<'c>(&'c TcpStream, Instant);

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        self.0.set_read_timeout(Some(left))?;
        self.0.read(buffer)
    }
}

fn answer(connection: &TcpStream, families: &Mutex<Families>) -> std::io::Result<()> {
    connection.set_write_timeout(Some(PATIENCE))?;
    let request = Until(connection, Instant::now() + PATIENCE);
    let mut lines = BufReader::new(request.take(LONGEST_REQUEST)).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    // The headers are read to their end; otherwise unread bytes could cut the answer off.
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let mut words = request.split_ascii_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => {
            let text = families.lock().unwrap_or_else(PoisonError::into_inner).exposition();
            ("200 OK", "text/plain; version=0.0.4; charset=utf-8", text)
        }
        ("GET" | "HEAD", _) => {
            ("404 Not Found", "text/plain; charset=utf-8", "the metrics are at /metrics\n".to_owned())
        }
        _ => ("405 Method Not Allowed", "text/plain; charset=utf-8", "only GET\n".to_owned()),
    };
    let length = body.len();
    let body = if method == "HEAD" { "" } else { &body };
    let mut connection = connection;
    write!(
        connection,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    connection.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::captured::Captured;
    use tamis_run::metrics::catalogue::CATALOGUE;

    fn voice() -> (Captured, Console) {
        let screen = Captured::default();
        (screen.clone(), Console::plain(Box::new(screen), None, 0))
    }

    fn ask(address: SocketAddr, request: &str) -> (String, String) {
        let mut connection = TcpStream::connect(address).expect("connects");
        connection.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
        (head.to_owned(), body.to_owned())
    }

    const GET: &str = "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";

    #[test]
    fn a_scrape_has_the_latest_value_of_every_metric() {
        let (screen, console) = voice();
        let mut logger = PrometheusLogger::start("127.0.0.1:0", "a \"b\"", &console);
        let address = logger.address().expect("listens");
        assert_eq!(screen.text(), format!("logger `prometheus`: http://{address}/metrics\n"));
        let mut metrics = Metrics::new();
        metrics.set("actor/lr", 1e-6);
        metrics.set("rewards/acc/mean", 0.25);
        metrics.set("rewards/format/mean", f64::NAN);
        metrics.set("actor/grad_norm", f64::INFINITY);
        logger.log(1, &metrics).expect("log");
        metrics.set("rewards/acc/mean", 0.5);
        logger.log(2, &metrics).expect("log");
        let (head, body) = ask(address, GET);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("version=0.0.4"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        let body: Vec<&str> = body.lines().filter(|line| !line.contains("timestamp")).collect();
        insta::assert_snapshot!(body.join("\n"), @r#"
        # HELP tamis_up 1 while the run is active.
        # TYPE tamis_up gauge
        tamis_up{run="a \"b\""} 1.0
        # HELP tamis_step The last step that was logged.
        # TYPE tamis_step gauge
        tamis_step{run="a \"b\""} 2.0
        # HELP tamis_actor_grad_norm Norm of the gradient before clipping.
        # TYPE tamis_actor_grad_norm gauge
        tamis_actor_grad_norm{run="a \"b\""} +Inf
        # HELP tamis_actor_lr Learning rate of the step's last update.
        # TYPE tamis_actor_lr gauge
        tamis_actor_lr{run="a \"b\""} 1e-6
        # HELP tamis_rewards_mean Mean of the score `name`, unweighted, over the trajectories that have it.
        # TYPE tamis_rewards_mean gauge
        tamis_rewards_mean{run="a \"b\"",name="acc"} 0.5
        tamis_rewards_mean{run="a \"b\"",name="format"} NaN
        "#);
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 405"));
        assert_eq!(ask(address, "HEAD /metrics HTTP/1.1\r\n\r\n").1, "");
        logger.begin_close(RunEnding::Finished);
        logger.finish_close();
        assert!(TcpListener::bind(address).is_ok(), "the port is free again");
    }

    #[test]
    fn a_port_that_is_taken_is_told_and_nothing_fails() {
        let (screen, console) = voice();
        let holder = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = holder.local_addr().expect("address").to_string();
        let mut logger = PrometheusLogger::start(&address, "tiny", &console);
        assert_eq!(logger.address(), None);
        logger.log(1, &Metrics::new()).expect("nothing fails");
        insta::assert_snapshot!(screen.text().replace(&address, "ADDRESS"), @"warning: the logger `prometheus` cannot listen at ADDRESS; the run continues without it: Address already in use (os error 98) (set its `address` to another port, or to port 0 for a free one)");
    }

    /// A silent or slow client does not delay others for long.
    #[test]
    fn a_client_that_does_not_end_its_request_is_left() {
        let (_, console) = voice();
        let logger = PrometheusLogger::start("127.0.0.1:0", "tiny", &console);
        let address = logger.address().expect("listens");
        let mut slow = TcpStream::connect(address).expect("connects");
        let drip = std::thread::spawn(move || {
            while slow.write_all(b"G").is_ok() {
                std::thread::sleep(LOOK);
            }
        });
        assert!(ask(address, GET).0.starts_with("HTTP/1.1 200"));
        drop(logger);
        drip.join().expect("it was closed");
    }

    /// Two metrics of one family would have to have the same labels.
    #[test]
    fn every_pattern_of_the_catalogue_has_a_family_of_its_own() {
        let mut families: BTreeMap<String, &str> = BTreeMap::new();
        for pattern in CATALOGUE.iter().flat_map(|section| section.metrics).map(|metric| metric.pattern) {
            let name = family_name(pattern);
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{name}");
            let labels: Vec<&str> =
                pattern.split('{').skip(1).filter_map(|rest| rest.split('}').next()).collect();
            for label in &labels {
                let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                assert!(label.bytes().all(is_word) && *label != "run", "{pattern}");
            }
            if let Some(other) = families.insert(name.clone(), pattern) {
                panic!("{name} stands for {other} and {pattern}");
            }
        }
    }
}
