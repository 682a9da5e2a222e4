//! Requests to the hub: which hosts get the token, redirects, and errors in words.

use std::io::{ErrorKind, Read};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tamis_core::figure;
use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::digest::is_checksum;
use crate::error::HubError;
use crate::listing::ListedFile;
use crate::settings::HubSettings;
use crate::token::HubToken;

/// Most redirects of one request.
const MAX_REDIRECTS: usize = 6;

/// Most bytes of a repository's description.
const MAX_ANSWER: u64 = 256 << 20;

/// Least bytes that must arrive within twice the longest silence.
const LEAST_BYTES: u64 = 64 << 10;

/// Longest wait, in seconds, that a hub may ask for when it limits requests.
const MAX_WAIT: u64 = 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Follow {
    /// To any host.
    Anywhere,
    /// Only on the hub: answers of other hosts about a file are not used.
    Hub,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileFacts {
    /// Name of its blob: a checksum of the content.
    pub(crate) blob: String,
    /// Bytes.
    pub(crate) size: u64,
}

#[derive(Debug)]
pub(crate) struct Client {
    agent: OnceLock<Agent>,
    endpoint: String,
    token: Option<HubToken>,
    silence: Duration,
}

impl Client {
    pub(crate) fn new(settings: &HubSettings) -> Self {
        let HubSettings { endpoint, token, silence, .. } = settings.clone();
        Self { agent: OnceLock::new(), endpoint, token, silence }
    }

    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The body of a small answer.
    pub(crate) fn read(&self, address: &str) -> Result<(StatusCode, HeaderMap, Vec<u8>), HubError> {
        let response = self.send(address, Method::Get, None, Follow::Anywhere)?.1;
        let (parts, body) = response.into_parts();
        let mut bytes = Vec::new();
        self.read_body(address, &mut body.into_reader().take(MAX_ANSWER), &mut |part| {
            bytes.extend_from_slice(part);
            Ok::<(), HubError>(())
        })?;
        Ok((parts.status, parts.headers, bytes))
    }

    /// Reads a body in parts, as long as it arrives fast enough.
    pub(crate) fn read_body<E: From<HubError>>(
        &self,
        address: &str,
        body: &mut dyn Read,
        each: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut pace = Pace::new(2 * self.silence);
        let mut bytes = vec![0; 256 << 10];
        loop {
            let count = match body.read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.unreachable(address, &error.into()).into()),
            };
            each(bytes.get(..count).unwrap_or_default())?;
            if pace.is_too_slow(count) {
                let least = figure::bytes(LEAST_BYTES);
                let reason = format!("it sends less than {least} in {} s", (2 * self.silence).as_secs());
                return Err(HubError::unreachable(origin(address), &reason, true).into());
            }
        }
    }

    /// The hub's facts about a file; on failure, status and headers. If the answer has no checksum, the one
    /// of the listing is used.
    pub(crate) fn facts(
        &self,
        address: &str,
        listed: Option<&ListedFile>,
    ) -> Result<Result<FileFacts, (StatusCode, HeaderMap)>, HubError> {
        let (_, response) = self.send(address, Method::Head, None, Follow::Hub)?;
        let (status, headers) = (response.status(), response.headers());
        if !status.is_success() && !status.is_redirection() {
            return Ok(Err((status, headers.clone())));
        }
        let answer = |what: &str| HubError::answer(&plain(address), what);
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let tag = text("x-linked-etag").or_else(|| text("etag")).map(blob_name);
        let listed = || listed.and_then(|listed| listed.checksum.clone());
        let blob = tag.flatten().or_else(listed).ok_or_else(|| {
            answer("neither its ETag nor the listing has a checksum, so the download could not be verified")
        })?;
        // The length of a redirect itself does not count.
        let own = || text("content-length").filter(|_| status.is_success());
        let size = text("x-linked-size").or_else(own).and_then(|size| size.parse().ok());
        let size = size.ok_or_else(|| answer("it does not report the size of the file"))?;
        Ok(Ok(FileFacts { blob, size }))
    }

    /// The bytes of a file from an offset on.
    pub(crate) fn bytes(&self, address: &str, from: u64) -> Result<Response<Body>, HubError> {
        Ok(self.send(address, Method::Get, Some(from).filter(|&from| from > 0), Follow::Anywhere)?.1)
    }

    /// Sends a request, and follows redirects. Returns the last address and its answer.
    fn send(
        &self,
        address: &str,
        method: Method,
        from: Option<u64>,
        follow: Follow,
    ) -> Result<(String, Response<Body>), HubError> {
        let mut address = address.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let is_hub = origin(&address) == origin(&self.endpoint);
            let agent = self.agent();
            let mut request = match method {
                Method::Get => agent.get(&address),
                Method::Head => agent.head(&address),
            };
            request = request.header("accept-encoding", "identity");
            if let Some(from) = from {
                request = request.header("range", format!("bytes={from}-"));
            }
            // Only the hub gets the token. Files come from other hosts, by signed addresses.
            if let Some(token) = self.token.as_ref().filter(|_| is_hub) {
                request = request.header("authorization", token.header());
            }
            let response = request.call().map_err(|error| self.unreachable(&address, &error))?;
            let redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let location = response.headers().get("location").and_then(|value| value.to_str().ok());
            let Some(next) = location.filter(|_| redirect).map(|next| join(&address, next)) else {
                return Ok((address, response));
            };
            let answer = |what: &str| HubError::answer(&plain(&address), what);
            let next = next.ok_or_else(|| answer("it redirects to no address"))?;
            if address.starts_with("https://") && !next.starts_with("https://") {
                return Err(answer("it redirects from https to http"));
            }
            if follow == Follow::Hub && origin(&next) != origin(&self.endpoint) {
                return Ok((address, response));
            }
            address = next;
        }
        Err(HubError::answer(&plain(&address), "it redirects in a circle"))
    }

    fn agent(&self) -> &Agent {
        self.agent.get_or_init(|| {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let roots = rustls_native_certs::load_native_certs().certs;
            let roots: Vec<_> = roots.iter().map(|root| Certificate::from_der(root).to_owned()).collect();
            let tls = TlsConfig::builder()
                .unversioned_rustls_crypto_provider(provider)
                .root_certs(RootCerts::from(roots))
                .build();
            let config = Agent::config_builder()
                .tls_config(tls)
                .user_agent(concat!("tamis/", env!("CARGO_PKG_VERSION")))
                .http_status_as_error(false)
                // Redirects are followed by this code, which knows who may see the token.
                .max_redirects(0)
                .max_redirects_will_error(false)
                .timeout_connect(Some(self.silence))
                .timeout_recv_response(Some(self.silence))
                .timeout_per_read(Some(self.silence));
            config.build().new_agent()
        })
    }

    pub(crate) fn unreachable(&self, address: &str, error: &ureq::Error) -> HubError {
        let reason = match error {
            ureq::Error::HostNotFound => "its name is not known here (no network?)".to_owned(),
            ureq::Error::Timeout(_) => format!("it is silent for {} s", self.silence.as_secs()),
            ureq::Error::Io(error) => error.to_string(),
            other => other.to_string(),
        };
        let is_passing = match error {
            ureq::Error::Timeout(_) | ureq::Error::Protocol(_) => true,
            ureq::Error::Io(error) => error.kind() != ErrorKind::ConnectionRefused,
            _ => false,
        };
        HubError::unreachable(origin(address), &reason, is_passing)
    }
}

#[derive(Debug, Clone, Copy)]
enum Method {
    Get,
    Head,
}

/// An error status of the hub that does not concern a repository.
pub(crate) fn status_error(address: &str, status: StatusCode, headers: &HeaderMap) -> HubError {
    let after = headers.get("retry-after").and_then(|value| value.to_str().ok());
    let after = after.and_then(|seconds| seconds.parse().ok()).filter(|&seconds| seconds <= MAX_WAIT);
    HubError::status(&plain(address), status.as_u16(), after)
}

/// Scheme and host of an address.
pub(crate) fn origin(address: &str) -> &str {
    let host = address.find("://").map_or(0, |place| place + 3);
    let rest = address.get(host..).unwrap_or_default();
    let end = rest.find(['/', '?', '#']).map_or(address.len(), |place| host + place);
    address.get(..end).unwrap_or(address)
}

/// An address without its query, which may hold a signature.
pub(crate) fn plain(address: &str) -> String {
    address.split(['?', '#']).next().unwrap_or(address).to_owned()
}

/// The target address of a redirect.
fn join(from: &str, to: &str) -> Option<String> {
    if to.starts_with("https://") || to.starts_with("http://") {
        Some(to.to_owned())
    } else if to.starts_with("//") {
        let scheme = from.split("//").next()?;
        Some(format!("{scheme}{to}"))
    } else if to.starts_with('/') {
        Some(format!("{}{to}", origin(from)))
    } else {
        None
    }
}

/// The name of a blob from its entity tag; `None` if the tag is not a checksum.
fn blob_name(tag: &str) -> Option<String> {
    let tag = tag.trim().trim_start_matches("W/").trim_matches('"');
    is_checksum(tag).then(|| tag.to_owned())
}

/// Measures how fast an answer arrives. One that drips would never be silent, and never end.
pub(crate) struct Pace {
    window: Duration,
    begun: Instant,
    bytes: u64,
}

impl Pace {
    /// Starts now, with windows of this length.
    pub(crate) fn new(window: Duration) -> Self {
        Self { window, begun: Instant::now(), bytes: 0 }
    }

    /// Counts received bytes. Returns whether they arrive too slowly.
    pub(crate) fn is_too_slow(&mut self, bytes: usize) -> bool {
        self.bytes += bytes as u64;
        if self.begun.elapsed() < self.window {
            return false;
        }
        let is_slow = self.bytes < LEAST_BYTES;
        *self = Self::new(self.window);
        is_slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_told_apart() {
        assert_eq!(origin("https://h.co/a?b"), "https://h.co");
        assert_eq!(origin("http://127.0.0.1:80"), "http://127.0.0.1:80");
        assert_ne!(origin("https://h.co.evil.com/x"), origin("https://h.co"));
        assert_ne!(origin("http://127.0.0.1:8080/"), origin("http://127.0.0.1:80/"));
        assert_ne!(origin("http://h.co/"), origin("https://h.co/"));
        assert_ne!(origin("https://h.co?@evil.com"), origin("https://h.co@evil.com"));
    }

    #[test]
    fn redirects_are_joined() {
        let next = |to: &str| join("https://h.co/a/b?c", to);
        assert_eq!(next("/x?y").as_deref(), Some("https://h.co/x?y"));
        assert_eq!(next("https://cdn.co/x").as_deref(), Some("https://cdn.co/x"));
        assert_eq!(next("//cdn.co/x").as_deref(), Some("https://cdn.co/x"));
        assert_eq!(next("file:///etc/passwd"), None);
    }

    #[test]
    fn tags_name_blobs() {
        let name = "0a".repeat(20);
        assert_eq!(blob_name(&format!("W/\"{name}\"")), Some(name));
        assert_eq!(blob_name("\"abc\""), None, "whatever a mirror makes up");
        assert_eq!(blob_name("\"../../x\""), None);
        assert_eq!(blob_name("\"\""), None);
    }
}
