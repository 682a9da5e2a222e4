//! Servers, learners and Ray clusters that a configuration names.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tamis_config::{BackendKind, Config};
use tamis_rollout::clock::Bell;
use tamis_rollout::http::{Address, HttpClient, HttpSettings, Transport as _};
use tamis_rollout::wire::{Call, HttpAnswer};
use tamis_train::api_key::api_key;

use super::Finding;

/// Longest time for an answer.
const LONGEST: Duration = Duration::from_secs(10);

/// The same for a connection on this machine.
const CONNECT: Duration = Duration::from_millis(500);

/// Requests a path from an address. The error is a sentence.
fn get(url: &str, key: Option<&str>, path: &str) -> Result<HttpAnswer, String> {
    let address = Address::parse(url).map_err(|error| error.to_string())?;
    let settings = HttpSettings { connect_timeout: LONGEST / 2, ..HttpSettings::default() };
    let mut client =
        HttpClient::start(settings, address.is_encrypted()).map_err(|error| error.to_string())?;
    let bell = Bell::default();
    let mut line = client.line(address, key, bell.clone()).map_err(|error| error.to_string())?;
    line.send(1, Call::get(path), LONGEST);
    let began = Instant::now();
    while began.elapsed() < LONGEST * 2 {
        bell.wait(LONGEST / 100);
        if let Some((_, exchange)) = line.receive().pop() {
            return exchange.map_err(|fault| fault.to_string());
        }
    }
    Err(format!("no answer within {} s", LONGEST.as_secs()))
}

/// The servers of `rollout.servers`.
pub(super) fn servers(config: &Config) -> Vec<Finding> {
    let rollout = &config.rollout;
    let key = match api_key("rollout.", rollout.api_key_file.as_deref(), rollout.api_key_env.as_deref()) {
        Ok(key) => key,
        Err(error) => {
            return vec![Finding::bad(
                error.to_string(),
                "rollout.api_key_file names a file, rollout.api_key_env a variable",
            )];
        }
    };
    rollout.servers.iter().map(|url| server(config, url, key.as_deref())).collect()
}

fn server(config: &Config, url: &str, key: Option<&str>) -> Finding {
    let wrong = |text: String, hint: &str| Finding::bad(format!("server {url}: {text}"), hint);
    match get(url, key, "/v1/models") {
        Err(error) => return wrong(error, "start it, or correct rollout.servers"),
        Ok(answer) if matches!(answer.status, 401 | 403) => {
            return wrong(
                format!("it refuses the key (status {})", answer.status),
                "rollout.api_key_file or rollout.api_key_env must hold the key that it was started with",
            );
        }
        Ok(answer) if answer.status != 200 => {
            return wrong(
                format!("/v1/models answers with status {}", answer.status),
                "is it an inference server? rollout.servers has the address without a path",
            );
        }
        Ok(_) => {}
    }
    if config.rollout.backend == BackendKind::Vllm
        && get(url, key, "/is_paused").is_ok_and(|answer| answer.status == 404)
    {
        return wrong(
            "it takes no new weights: its routes for them are off".to_owned(),
            "start it with VLLM_SERVER_DEV_MODE=1 in its environment",
        );
    }
    let version = get(url, key, "/version").ok().filter(|answer| answer.status == 200);
    let version = version.and_then(|answer| serde_json::from_slice::<serde_json::Value>(&answer.body).ok());
    let version = version.and_then(|json| json["version"].as_str().map(|text| format!(", version {text}")));
    Finding::good(format!("server {url} answers{}", version.unwrap_or_default()))
}

/// Usual ports of services that runs use.
const USUAL_PORTS: [(u16, &str); 5] = [
    (6379, "the head of a Ray cluster"),
    (8265, "the dashboard of a Ray cluster"),
    (8000, "vLLM and `tamis serve` by default"),
    (30_000, "SGLang by default"),
    (8700, "a learner by default"),
];

/// Whether processes can get free ports, and which of the usual ones are in use.
pub(super) fn ports() -> Vec<Finding> {
    let mut found = vec![match TcpListener::bind((Ipv4Addr::LOCALHOST, 0)) {
        Ok(_) => Finding::good("processes find free ports of 127.0.0.1".to_owned()),
        Err(error) => Finding::bad(
            format!("no port of 127.0.0.1 can be listened on: {error}"),
            "the loopback interface has to be up",
        ),
    }];
    for (port, what) in USUAL_PORTS {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpStream::connect_timeout(&address, CONNECT).is_ok() {
            found.push(Finding::note(format!("port {port} is in use: that of {what}")));
        }
    }
    found
}

/// The learner at `learner.url`.
pub(super) fn learner(config: &Config, url: &str) -> Finding {
    let named = &config.learner;
    let key = match api_key("learner.", named.api_key_file.as_deref(), named.api_key_env.as_deref()) {
        Ok(key) => key,
        Err(error) => {
            return Finding::bad(
                error.to_string(),
                "learner.api_key_file names a file, learner.api_key_env a variable",
            );
        }
    };
    match get(url, key.as_deref(), "/v1/info") {
        Err(error) => Finding::bad(
            format!("learner at {url}: {error}"),
            "start it (`tamis learner --listen ...`, `python -m tamis.learner --listen ...`), or correct learner.url",
        ),
        Ok(answer) if matches!(answer.status, 401 | 403) => Finding::bad(
            format!("learner at {url}: it refuses the key (status {})", answer.status),
            "learner.api_key_file must hold the key of its --api-key-file",
        ),
        Ok(answer) if answer.status != 200 => Finding::bad(
            format!("learner at {url}: /v1/info answers with status {}", answer.status),
            "is it a learner? The address has no path",
        ),
        Ok(_) => Finding::good(format!("learner at {url} answers")),
    }
}
