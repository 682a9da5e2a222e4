//! Environments behind an HTTP server that speaks `tamis-environment/1`: `POST /hello`, `/levels`, `/reset`,
//! `/step`, `/close`.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tamis_env::environment::EnvironmentFault;
use tamis_env::environment::foreign::{
    Body, EnvironmentLine, Introduction, PROTOCOL, body, read_answer, read_introduction,
};

use crate::clock::Bell;
use crate::http::{Address, HttpClient, HttpSettings, Transport as _};
use crate::wire::{Call, FaultClass, read_json};

/// Time limit of a `close`, which is not waited for.
const CLOSE: Duration = Duration::from_secs(30);

/// A server of environments.
pub struct EnvironmentServer {
    client: Mutex<HttpClient>,
    address: Address,
    key: Option<String>,
}

impl EnvironmentServer {
    /// Connects to a server and reads its description; `key` is sent as `Authorization: Bearer`.
    ///
    /// # Errors
    /// An invalid address, no answer within the limit, or an invalid answer.
    pub fn connect(
        url: &str,
        key: Option<String>,
        settings: &Value,
        limit: Duration,
    ) -> Result<(Self, Introduction), EnvironmentFault> {
        let broke = |error: &dyn std::fmt::Display| EnvironmentFault::Broke(format!("{url}: {error}"));
        let address = Address::parse(url).map_err(|error| broke(&error))?;
        let client = HttpClient::start(HttpSettings::default(), address.is_encrypted());
        let server = Self { client: Mutex::new(client.map_err(|error| broke(&error))?), address, key };
        let hello = body(json!({"protocol": PROTOCOL, "settings": settings}));
        let introduction = read_introduction(server.ask(0, "hello", hello, limit)?)?;
        Ok((server, introduction))
    }

    /// Sends a call over its own line, and waits for the answer if `waits`.
    fn call(&self, op: &str, asked: Body, limit: Duration, waits: bool) -> Result<Body, EnvironmentFault> {
        let broke = |words: String| EnvironmentFault::Broke(format!("its environment's server: {words}"));
        let bell = Bell::default();
        let line = self.client.lock().unwrap_or_else(PoisonError::into_inner).line(
            self.address.clone(),
            self.key.as_deref(),
            bell.clone(),
        );
        let mut line = line.map_err(|error| broke(error.to_string()))?;
        line.send(1, Call::post(&format!("/{op}"), &Value::Object(asked)), limit);
        if !waits {
            return Ok(Body::new());
        }
        // The client ends the call in time; the extra second is for its report of that.
        let end = Instant::now().checked_add(limit.saturating_add(Duration::from_secs(1)));
        let exchange = loop {
            if let Some((_, exchange)) = line.receive().pop() {
                break exchange;
            }
            // A limit beyond the clock's range means no limit.
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(EnvironmentFault::TimedOut { limit });
            }
            bell.wait(left);
        };
        let answer = exchange.map_err(|fault| match fault.class {
            FaultClass::TimedOut => EnvironmentFault::TimedOut { limit },
            _ => broke(fault.detail),
        })?;
        // An error of the protocol is more precise than its status.
        match (answer.success(), read_json::<Body>(&answer.body)) {
            (_, Ok(read)) if read.contains_key("error") => read_answer(read),
            (Err(fault), _) | (Ok(()), Err(fault)) => Err(broke(fault.detail)),
            (Ok(()), Ok(read)) => Ok(read),
        }
    }
}

impl EnvironmentLine for EnvironmentServer {
    fn ask(
        &self,
        _place: u64,
        op: &'static str,
        asked: Body,
        limit: Duration,
    ) -> Result<Body, EnvironmentFault> {
        self.call(op, asked, limit, true)
    }

    /// A server is not started again from here.
    fn note_ended(&self) {}

    fn tell(&self, _place: u64, op: &'static str, asked: Body) {
        _ = self.call(op, asked, CLOSE, false);
    }
}
