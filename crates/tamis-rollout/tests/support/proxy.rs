//! Between a client and a server: spoils some of the samples, each in one way, and counts each way.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tamis_core::random::{Key, Purpose};

use super::http::{Delivery, Handler, Reply, TestServer, forward};

/// One way to spoil an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Spoiling {
    ServerError,
    Reset,
    Hang,
    HalfBody,
    WrongJson,
    WrongTokenCount,
    NanLogprob,
    /// Slow, but whole.
    Trickle,
    /// The answer comes twice.
    Duplicate,
    /// The answer to another request.
    Mixed,
    Busy,
}

pub(crate) struct FaultProxy {
    pub(crate) server: TestServer,
    /// Number of samples spoiled in each way.
    pub(crate) spoiled: Arc<Mutex<BTreeMap<Spoiling, u64>>>,
}

impl FaultProxy {
    /// A proxy in front of a server; this many of a thousand samples are spoiled, each in one of these
    /// ways.
    pub(crate) fn start(upstream: SocketAddr, seed: u64, thousandths: u64, ways: &[Spoiling]) -> Self {
        let spoiled = Arc::new(Mutex::new(BTreeMap::new()));
        let (counted, drawn) = (Arc::clone(&spoiled), Arc::new(AtomicU64::new(0)));
        let (key, ways): (Key, Arc<[Spoiling]>) = (Key::new(seed, Purpose::Shuffle), ways.into());
        let handler: Handler = Arc::new(move |request| {
            let (counted, drawn, ways) = (Arc::clone(&counted), Arc::clone(&drawn), Arc::clone(&ways));
            Box::pin(async move {
                let is_sample = request.path == "/inference/v1/generate"
                    && request.json()["sampling_params"]["prompt_logprobs"].is_null()
                    && request.json()["sampling_params"]["allowed_token_ids"].is_null();
                let draw = drawn.fetch_add(1, Ordering::Relaxed);
                let way = (is_sample && key.below(2 * draw, 1000) < thousandths)
                    .then(|| ways[key.below(2 * draw + 1, ways.len() as u64) as usize]);
                if let Some(way) = way {
                    *counted.lock().unwrap().entry(way).or_default() += 1;
                }
                if way == Some(Spoiling::Reset) {
                    return Reply { delivery: Delivery::Reset, ..Reply::empty() };
                }
                let Ok((status, body)) = forward(upstream, &request).await else {
                    return Reply { delivery: Delivery::Reset, ..Reply::empty() };
                };
                let whole = Reply { status, body, ..Reply::json(status, &Value::Null) };
                match way {
                    Some(way) => spoil(way, whole),
                    None => whole,
                }
            })
        });
        Self { server: TestServer::start(None, handler), spoiled }
    }
}

fn spoil(way: Spoiling, whole: Reply) -> Reply {
    let changed = |change: fn(&mut Value)| {
        let mut body: Value = serde_json::from_slice(&whole.body).unwrap_or(Value::Null);
        change(&mut body);
        Reply { body: body.to_string().into_bytes(), ..whole.clone() }
    };
    match way {
        Spoiling::ServerError => {
            Reply::json(500, &json!({"error": {"message": "EngineCore", "type": "InternalServerError"}}))
        }
        Spoiling::Busy => Reply::json(429, &json!({"detail": "too many"})),
        Spoiling::Reset => Reply { delivery: Delivery::Reset, ..whole },
        Spoiling::Hang => Reply { delivery: Delivery::Hang, ..whole },
        Spoiling::HalfBody => Reply { delivery: Delivery::Half, ..whole },
        Spoiling::WrongJson => Reply { body: b"<html>502 Bad Gateway</html>".to_vec(), ..whole },
        Spoiling::WrongTokenCount => changed(|body| {
            if let Some(ids) = body["choices"][0]["token_ids"].as_array_mut() {
                ids.push(json!(3));
            }
        }),
        Spoiling::NanLogprob => {
            let text =
                String::from_utf8_lossy(&whole.body).replacen("\"logprob\":-", "\"logprob\":NaN,\"was\":", 1);
            Reply { body: text.into_bytes(), ..whole }
        }
        Spoiling::Trickle => Reply { delivery: Delivery::Trickle(Duration::from_millis(1)), ..whole },
        Spoiling::Duplicate => Reply { delivery: Delivery::Twice, ..whole },
        Spoiling::Mixed => changed(|body| body["request_id"] = json!("generate-tokens-somebody-else")),
    }
}
