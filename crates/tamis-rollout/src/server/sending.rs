//! The learner's side of weights that a server takes over a communicator (NCCL): the requests to the
//! learner while the server is asked for the other half.
//!
//! ```text
//! learner                       server
//! join        unique id ----->  init_weight_transfer_engine      each with all of its workers, at once
//! send     ----- NCCL ------->  update_weights
//! ```
//!
//! Each server has its own communicator, so that one which hangs costs the others nothing. It is kept
//! for the next version, and abandoned after any error; the server then gets a folder, which the
//! learner writes of the same weights.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::http::{Exchange, Transport};
use crate::wire::{Call, Fault, FaultClass, HttpAnswer};

/// Name of the file that describes what a learner holds for servers.
pub const TRANSFER: &str = "transfer.json";

/// Name of the folder, beside that file, with the same weights for a server that they could not be sent to.
pub(super) const WRITTEN: &str = "weights";

/// Number of versions in a row that could not be sent, after which a server is given folders until it is
/// started again.
const MOST_FAILURES: u32 = 3;

/// Number of times that a server's workers may hang in NCCL. After that it gets folders for the rest of
/// the run, and is not restarted for that. If they never reached the learner, once is enough: the next
/// attempt would fail too, and each one costs the whole time-out and a start of the server.
const MOST_HANGS: u32 = 3;

/// The fix for a useless server that the run cannot restart.
pub(super) const START_AGAIN: &str = "start it again";

/// Time that either side has beyond its own limit to report that it was too slow, and for a server to
/// answer once its communicator is gone.
pub const GRACE: Duration = Duration::from_secs(10);

/// Ends a server and starts it again.
pub type Restart = Arc<dyn Fn() + Send + Sync>;

/// History of transfers to the server at one place: kept for the whole run, across processes and
/// learners.
#[derive(Debug, Clone, Default)]
pub struct Past(Arc<Mutex<Left>>);

#[derive(Debug, Default)]
struct Left {
    /// Number of times that it became useless.
    num_hangs: u32,
    /// Why it gets folders, until that is reported.
    reason: Option<String>,
    /// An update of its weights began, and has not ended: the server may have parts of it.
    is_updating: bool,
}

impl Past {
    fn with<T>(&self, act: impl FnOnce(&mut Left) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn is_updating(&self) -> bool {
        self.with(|left| left.is_updating)
    }

    pub(super) fn note_update(&self, begins: bool) {
        self.with(|left| left.is_updating = begins);
    }
}

/// The weights that a learner holds for servers.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Snapshot {
    snapshot: String,
    /// The learner's library, with its version.
    #[serde(default)]
    library: String,
    names: Value,
    dtype_names: Value,
    shapes: Value,
}

impl Snapshot {
    pub(super) fn read(folder: &Path) -> Result<Self, String> {
        let path = folder.join(TRANSFER);
        let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = tamis_file::read(&path, u64::MAX).map_err(|error| told(&error))?;
        serde_json::from_slice(&text).map_err(|error| told(&error))
    }

    /// vLLM's `update_info`, as text.
    pub(super) fn update_info(&self) -> String {
        json!({"names": self.names, "dtype_names": self.dtype_names, "shapes": self.shapes}).to_string()
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Ask<'a> {
    /// A communicator with this many workers.
    Join(u64),
    /// The snapshot through the communicator.
    Send(&'a Snapshot),
    /// The snapshot as a folder.
    Write(&'a Snapshot, &'a Path),
}

/// Answer to [`Ask::Join`].
#[derive(Debug, Deserialize)]
pub(super) struct Joined {
    communicator: String,
    /// The text that the server's workers get.
    init_info: Value,
}

/// Time limits of sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendTimes {
    /// Limit to make a communicator, and to send through it.
    pub timeout: Duration,
    /// That either side has beyond it ([`GRACE`]).
    pub grace: Duration,
}

/// The learner that sends, as one server's client asks it.
pub struct Sender {
    transport: Box<dyn Transport>,
    incarnation: String,
    times: SendTimes,
    restart: Option<Restart>,
    past: Past,
    communicator: Option<String>,
    /// Number of the present request.
    asked: Option<u64>,
    next: u64,
    /// Versions in a row that could not be sent.
    failures: u32,
    /// Whether it was reported that this server takes none.
    said: bool,
}

impl Sender {
    /// The learner at the other end of a transport, in the state that `incarnation` names. `restart`:
    /// if the server can be restarted; `past`: the history of its place.
    pub fn new(
        transport: Box<dyn Transport>,
        incarnation: String,
        times: SendTimes,
        restart: Option<Restart>,
        past: Past,
    ) -> Self {
        let (communicator, asked, next, failures, said) = (None, None, 0, 0, false);
        Self { transport, incarnation, times, restart, past, communicator, asked, next, failures, said }
    }

    /// Time in which a server may answer once its communicator is gone.
    pub(super) fn grace(&self) -> Duration {
        self.times.grace
    }

    /// Longest time of a server's part.
    pub(super) fn limit(&self) -> Duration {
        self.times.timeout + self.times.grace
    }

    pub(super) fn has_communicator(&self) -> bool {
        self.communicator.is_some()
    }

    pub(super) fn tries(&self) -> bool {
        self.failures < MOST_FAILURES && self.past.with(|left| left.num_hangs < MOST_HANGS)
    }

    fn post(&mut self, name: &str, body: &Value, timeout: Duration) -> u64 {
        let call = Call::post(&format!("/v1/transfer/{name}"), body);
        let call = Call { headers: vec![("tamis-incarnation", self.incarnation.clone())], ..call };
        self.next += 1;
        self.transport.send(self.next, call, timeout);
        self.next
    }

    /// Sends a request; `limit` is for those without their own.
    pub(super) fn ask(&mut self, ask: Ask<'_>, limit: Duration) {
        let seconds = self.times.timeout.as_secs_f64();
        let communicator = self.communicator.clone().unwrap_or_default();
        let (name, body, limit) = match ask {
            Ask::Join(workers) => ("join", json!({"workers": workers, "timeout": seconds}), self.limit()),
            Ask::Send(of) => {
                let body = json!({"communicator": communicator, "snapshot": of.snapshot, "timeout": seconds});
                ("send", body, self.limit())
            }
            Ask::Write(of, folder) => ("write", json!({"snapshot": of.snapshot, "folder": folder}), limit),
        };
        self.asked = Some(self.post(name, &body, limit));
    }

    pub(super) fn receive(&mut self) -> Option<Exchange> {
        let asked = self.asked;
        let found = self.transport.receive().into_iter().find(|(number, _)| Some(*number) == asked);
        let (_, exchange) = found?;
        self.asked = None;
        Some(exchange.map_err(|fault| of_learner(&fault)))
    }

    /// Reads the answer to [`Ask::Join`]: the text for the server.
    pub(super) fn read_joined(&mut self, answer: &HttpAnswer) -> Result<String, Fault> {
        let Joined { communicator, init_info } = answer.json().map_err(|fault| of_learner(&fault))?;
        self.communicator = Some(communicator);
        Ok(init_info.to_string())
    }

    /// `Ok` if the answer is a success.
    pub(super) fn read_done(answer: &HttpAnswer) -> Result<(), Fault> {
        answer.success().map_err(|fault| of_learner(&fault))
    }

    /// Abandons the communicator and the request to the learner.
    pub(super) fn give_up(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.transport.cancel(asked);
        }
        if let Some(communicator) = self.communicator.take() {
            // If this does not arrive, the learner's own time-out ends soon.
            self.post("abort", &json!({"communicator": communicator}), self.times.grace);
        }
    }

    pub(super) fn note_failure(&mut self) {
        self.failures += 1;
    }

    pub(super) fn note_success(&mut self) {
        self.failures = 0;
    }

    pub(super) fn past(&self) -> &Past {
        &self.past
    }

    /// It is useless once its workers have begun to connect to the learner, or once weights were sent.
    pub(super) fn note_hang(&self, is_meeting: bool, detail: &str) {
        self.past.with(|left| {
            left.num_hangs =
                if is_meeting { left.num_hangs.max(MOST_HANGS - 1) + 1 } else { left.num_hangs + 1 };
            let why = if is_meeting {
                "its workers and the learner's first rank did not connect. Probably the server's node cannot reach the ports that NCCL \
                chooses on that rank's node: a firewall, or another interface \
                 (`NCCL_SOCKET_IFNAME`)"
            } else {
                "that happened too often"
            };
            if left.num_hangs == MOST_HANGS {
                left.reason = Some(format!(
                    "{detail}; {why}. This holds for the rest of this run; `publish.mode: folder` does so for all servers from the start"
                ));
            }
        });
    }

    /// Why this server is given folders for the rest of the run, once.
    pub(super) fn take_reason(&self) -> Option<String> {
        self.past.with(|left| left.reason.take())
    }

    /// The server may be another process from now on.
    pub(super) fn forget(&mut self) {
        self.give_up();
        (self.failures, self.said) = (0, false);
    }

    /// Whether this is the first report.
    pub(super) fn says(&mut self) -> bool {
        !std::mem::replace(&mut self.said, true)
    }

    /// Has the server restarted if that is possible; returns what is done, in words.
    pub(super) fn restart_server(&self) -> &'static str {
        match &self.restart {
            Some(restart) if self.past.with(|left| left.num_hangs <= MOST_HANGS) => {
                restart();
                // Its partial weights are dropped with the process.
                self.past.note_update(false);
                "it is stopped and restarted"
            }
            _ => START_AGAIN,
        }
    }

    /// Known reasons why two libraries may fail to connect; `theirs` is the version that the server is
    /// built with.
    pub(super) fn explain(snapshot: &Snapshot, theirs: Option<&str>) -> String {
        match (theirs, snapshot.library.strip_prefix("NCCL ")) {
            (Some(theirs), Some(ours)) if theirs != ours => format!(
                "; NCCL refuses unequal versions: the learner has {ours}, and this vLLM comes with {theirs} \
                 (VLLM_NCCL_SO_PATH may name another)"
            ),
            _ => String::new(),
        }
    }
}

/// A fault of the learner, not of the server.
fn of_learner(fault: &Fault) -> Fault {
    Fault::new(FaultClass::Transfer, format!("the learner: {}", fault.detail))
}
