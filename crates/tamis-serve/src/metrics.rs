//! Counters of the server, and `/metrics`, which prints them under vLLM's names.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tamis_model::CompletionEnd;

/// Counters and gauges; the worker and the connections share them.
#[derive(Debug, Default)]
pub(crate) struct ServeMetrics {
    /// Accepted samples that have not ended.
    in_flight: AtomicUsize,
    pub(crate) running: AtomicUsize,
    pub(crate) waiting: AtomicUsize,
    /// Samples that wait until a pause is over.
    pub(crate) deferred: AtomicUsize,
    pub(crate) cached_tokens: AtomicUsize,
    pub(crate) max_cached_tokens: AtomicUsize,
    pub(crate) prompt_tokens: AtomicU64,
    /// Prompt tokens that were reused from another sample or prompt instead of computed.
    pub(crate) shared_prompt_tokens: AtomicU64,
    pub(crate) generated_tokens: AtomicU64,
    stopped: AtomicU64,
    at_length: AtomicU64,
    aborted: AtomicU64,
    not_finite: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) reloads: AtomicU64,
    latency: Sum,
    to_first_token: Sum,
    pub(crate) is_paused: AtomicBool,
    /// Whether it is paused in a way in which vLLM 0.33 refuses new requests.
    pub(crate) is_drained: AtomicBool,
    pub(crate) is_stopping: AtomicBool,
    version: Mutex<Arc<str>>,
}

#[derive(Debug, Default)]
struct Sum {
    count: AtomicU64,
    microseconds: AtomicU64,
}

impl Sum {
    fn add(&self, took: Duration) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.microseconds.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }
}

impl ServeMetrics {
    /// Reserves room for samples; `false` if there is none.
    pub(crate) fn enter(&self, count: usize, limit: usize) -> bool {
        let room = |now: usize| now.checked_add(count).filter(|&after| after <= limit);
        self.in_flight.fetch_update(Ordering::SeqCst, Ordering::SeqCst, room).is_ok()
    }

    /// Releases the room of ended samples.
    pub(crate) fn leave(&self, count: usize) {
        self.in_flight.fetch_sub(count, Ordering::SeqCst);
    }

    /// Accepted samples that have not ended.
    pub(crate) fn num_in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    pub(crate) fn count_finished(&self, finish: CompletionEnd, took: Duration) {
        let counter = match finish {
            CompletionEnd::Stop => &self.stopped,
            CompletionEnd::Length => &self.at_length,
            CompletionEnd::Aborted => &self.aborted,
            CompletionEnd::NotFinite => &self.not_finite,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.latency.add(took);
    }

    pub(crate) fn record_first_token(&self, took: Duration) {
        self.to_first_token.add(took);
    }

    /// Label of the current weights.
    pub(crate) fn version(&self) -> Arc<str> {
        self.version.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_version(&self, version: Arc<str>) {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = version;
    }
}

/// A value of a metric with its labels beside the model's.
type Row = (&'static str, f64);

/// One of the sums of a server's metrics.
type SumOf = fn(&ServeMetrics) -> &Sum;

/// The text of `/metrics`, with a row of each model.
pub(crate) fn text(models: &[(&str, &ServeMetrics)]) -> String {
    let escaped = |name: &str| -> String {
        name.chars()
            .flat_map(|c| match c {
                '"' | '\\' => vec!['\\', c],
                '\n' => vec!['\\', 'n'],
                other => vec![other],
            })
            .collect()
    };
    let models: Vec<(String, &ServeMetrics)> = models
        .iter()
        .map(|(name, metrics)| (format!("engine=\"0\",model_name=\"{}\"", escaped(name)), *metrics))
        .collect();
    let mut text = String::new();
    let mut put = |kind: &str, metric: &str, help: &str, rows: &dyn Fn(&ServeMetrics) -> Vec<Row>| {
        let _ = write!(text, "# HELP {metric} {help}\n# TYPE {metric} {kind}\n");
        for (labels, metrics) in &models {
            for (more, value) in rows(metrics) {
                let _ = writeln!(text, "{metric}{{{labels}{more}}} {value}");
            }
        }
    };
    let whole = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    let gauge = |gauge: &AtomicUsize| gauge.load(Ordering::Relaxed) as f64;
    let one = |value: f64| vec![("", value)];
    put("gauge", "vllm:num_requests_running", "Samples that run.", &|of| one(gauge(&of.running)));
    put("gauge", "vllm:num_requests_waiting", "Samples that wait.", &|of| {
        one(gauge(&of.waiting) + gauge(&of.deferred))
    });
    put(
        "gauge",
        "vllm:num_requests_waiting_by_reason",
        "Samples that wait: for room, or for the end of a pause.",
        &|of| {
            vec![(",reason=\"capacity\"", gauge(&of.waiting)), (",reason=\"deferred\"", gauge(&of.deferred))]
        },
    );
    put(
        "gauge",
        "vllm:kv_cache_usage_perc",
        "Share of the cached positions whose room is taken; 1 is all.",
        &|of| one(gauge(&of.cached_tokens) / of.max_cached_tokens.load(Ordering::Relaxed).max(1) as f64),
    );
    put("counter", "vllm:num_preemptions_total", "Samples put off for lack of room.", &|_| one(0.0));
    put("counter", "vllm:prompt_tokens_total", "Prompt tokens.", &|of| one(whole(&of.prompt_tokens)));
    put(
        "counter",
        "vllm:prefix_cache_queries_total",
        "Prompt tokens looked for among those computed already.",
        &|of| one(whole(&of.prompt_tokens)),
    );
    put(
        "counter",
        "vllm:prefix_cache_hits_total",
        "Prompt tokens found there: those of other samples of a prompt, and beginnings that prompts have in common.",
        &|of| one(whole(&of.shared_prompt_tokens)),
    );
    put("counter", "vllm:generation_tokens_total", "Tokens generated.", &|of| {
        one(whole(&of.generated_tokens))
    });
    put("counter", "vllm:request_success_total", "Samples that ended.", &|of| {
        vec![
            (",finished_reason=\"stop\"", whole(&of.stopped)),
            (",finished_reason=\"length\"", whole(&of.at_length)),
            (",finished_reason=\"abort\"", whole(&of.aborted)),
            (",finished_reason=\"error\"", whole(&of.not_finite)),
        ]
    });
    put("counter", "vllm:admission_rejections_total", "Requests refused for lack of room.", &|of| {
        vec![(",reason=\"max_num_queued_reqs\"", whole(&of.rejected))]
    });
    put("counter", "tamis:weight_reloads_total", "Times that other weights were loaded.", &|of| {
        one(whole(&of.reloads))
    });
    let sums: [(&str, &str, SumOf); 2] = [
        ("vllm:e2e_request_latency_seconds", "From arrival to the last token.", |of| &of.latency),
        ("vllm:time_to_first_token_seconds", "From arrival to the first token, of streamed samples.", |of| {
            &of.to_first_token
        }),
    ];
    for (metric, help, sum) in sums {
        let _ = write!(text, "# HELP {metric} {help}\n# TYPE {metric} summary\n");
        for (labels, metrics) in &models {
            let sum = sum(metrics);
            let _ = writeln!(text, "{metric}_count{{{labels}}} {}", whole(&sum.count));
            let _ = writeln!(text, "{metric}_sum{{{labels}}} {}", whole(&sum.microseconds) / 1e6);
        }
    }
    text
}
