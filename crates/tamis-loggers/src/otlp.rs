//! Each step and its stages as spans of OpenTelemetry: OTLP over HTTP, in JSON.
//!
//! A step is one trace: the span `step` with the stages below it; the spans of a stage together last as
//! long as its `timing_s/{stage}`. Stages that run side by side in many places (`reward`) are sums and
//! not intervals, and have no span. The format is OTLP's `ExportTraceServiceRequest`: ids in
//! hexadecimal, times in nanoseconds since 1970 as texts. Requests are sent only in a build with the
//! feature `otlp`, which includes the HTTP client.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::outbox::{CAPACITY, Deliveries, Outbox, Undelivered};
use tamis_run::directory::LogPositions;
use tamis_run::durable::DiskError;
use tamis_run::log::details::StepDetails;
use tamis_run::log::progress::Console;
use tamis_run::log::{Logger, RunEnding};
use tamis_run::metrics::Metrics;
use tamis_run::metrics::timings::{STEP, Span};

/// Time limit of one request.
#[cfg(feature = "otlp")]
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest wait at the end of the run for spans that are not delivered yet.
const FINISH: Duration = Duration::from_secs(10);

/// Sends the spans of each step to a collector.
#[derive(Debug)]
pub struct OtlpLogger {
    run: String,
    /// Different from run to run: the upper half of its trace ids.
    run_id: u64,
    deliveries: Arc<Deliveries>,
    outbox: Outbox<String>,
    /// Time limit, set at the end of the run.
    limit: Option<Instant>,
    is_closed: bool,
}

impl OtlpLogger {
    /// To the collector at an address (`http://HOST:PORT/v1/traces`).
    pub fn start(endpoint: &str, run: &str, voice: Console) -> Self {
        let deliveries = Deliveries::new("otlp", voice);
        let outbox = Outbox::start(CAPACITY, deliveries.clone(), sender(endpoint, &deliveries));
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let run_id = (since.as_nanos() as u64) ^ u64::from(std::process::id()).rotate_left(40);
        Self { run: run.to_owned(), run_id, deliveries, outbox, limit: None, is_closed: false }
    }
}

/// The function that sends the body of a request.
#[cfg(feature = "otlp")]
fn sender(
    endpoint: &str,
    deliveries: &Arc<Deliveries>,
) -> impl FnMut(String) -> Result<(), Undelivered> + Send + 'static {
    let agent = ureq::Agent::new_with_config(
        ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).proxy(None).build(),
    );
    let (endpoint, deliveries) = (endpoint.to_owned(), deliveries.clone());
    move |body| {
        let sent = agent.post(&endpoint).content_type("application/json").send(body.as_bytes());
        sent.map(|_| deliveries.note_arrived(1)).map_err(|error| Undelivered {
            reason: format!("the collector at {endpoint} does not accept spans: {error}"),
            is_final: false,
        })
    }
}

/// Sends nothing.
#[cfg(not(feature = "otlp"))]
fn sender(_: &str, _: &Arc<Deliveries>) -> impl FnMut(String) -> Result<(), Undelivered> + Send + 'static {
    |_| Err(Undelivered { reason: "it is not in this build".to_owned(), is_final: true })
}

impl Logger for OtlpLogger {
    fn name(&self) -> &'static str {
        "otlp"
    }

    fn log(&mut self, _: u64, _: &Metrics) -> Result<(), DiskError> {
        Ok(())
    }

    fn amend(&mut self, _: u64, _: &Metrics) -> Result<(), DiskError> {
        Ok(())
    }

    fn log_details(&mut self, step: u64, details: &StepDetails) -> Result<(), DiskError> {
        if !details.spans.is_empty() {
            self.outbox.send(export_request(&self.run, self.run_id, step, &details.spans).to_string());
        }
        Ok(())
    }

    fn begin_close(&mut self, _: RunEnding) {
        self.outbox.end_with(None);
        self.limit.get_or_insert_with(|| Instant::now() + FINISH);
    }

    fn finish_close(&mut self) {
        let Some(limit) = self.limit else { return };
        if !std::mem::replace(&mut self.is_closed, true) {
            self.outbox.wait(limit);
            self.deliveries.tell_lost();
        }
    }

    fn sync(&mut self, _: &mut LogPositions) -> Result<(), DiskError> {
        Ok(())
    }
}

impl Drop for OtlpLogger {
    fn drop(&mut self) {
        self.begin_close(RunEnding::Failed);
        self.finish_close();
    }
}

/// The spans of a step as OTLP writes them: `step` is the parent of all others.
fn export_request(run: &str, run_id: u64, step: u64, spans: &[Span]) -> Value {
    let trace_id = format!("{run_id:016x}{step:016x}");
    // An id of zeros is invalid.
    let span_id = |place: usize| format!("{:016x}", (step << 16) + place as u64 + 1);
    let root = spans.iter().position(|span| span.stage == STEP);
    let of_span = |(place, span): (usize, &Span)| {
        let parent = root.filter(|&root| root != place).map(span_id).unwrap_or_default();
        json!({
            "traceId": trace_id,
            "spanId": span_id(place),
            "parentSpanId": parent,
            "name": span.stage,
            "kind": 1,
            "startTimeUnixNano": nanoseconds(span.began),
            "endTimeUnixNano": nanoseconds(span.began + span.time),
            "attributes": [{"key": "tamis.step", "value": {"intValue": step.to_string()}}],
        })
    };
    let spans: Vec<Value> = spans.iter().enumerate().map(of_span).collect();
    let attribute = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    json!({"resourceSpans": [{
        "resource": {"attributes": [attribute("service.name", "tamis"), attribute("tamis.run", run)]},
        "scopeSpans": [{"scope": {"name": "tamis", "version": env!("CARGO_PKG_VERSION")}, "spans": spans}],
    }]})
}

fn nanoseconds(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}
