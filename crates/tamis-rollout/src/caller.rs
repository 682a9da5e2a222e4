//! Who may ask a server that has no key: only who is on its machine. A web page that a browser on this
//! machine shows is not: neither under its own name (`Origin`), nor under one that it has pointed here
//! (`Host`).

use std::net::IpAddr;

use hyper::header::{HOST, HeaderMap, ORIGIN};

/// Explains why a request does not come from this machine. `own` is the name that the server listens
/// on. A name that is not text is always a stranger's.
pub fn stranger(headers: &HeaderMap, own: &str) -> Option<String> {
    for host in headers.get_all(HOST) {
        if !host.to_str().is_ok_and(|host| is_own(host, own)) {
            let host = String::from_utf8_lossy(host.as_bytes());
            return Some(format!(
                "this server has no key and answers only to names of its own machine, not to {host:?}: use 127.0.0.1 or localhost, or \
                start it with a key (--api-key-file)"
            ));
        }
    }
    let is_page = |origin: &str| !is_own(origin.split_once("://").map_or(origin, |parts| parts.1), own);
    if headers.get_all(ORIGIN).iter().any(|origin| origin.to_str().map_or(true, is_page)) {
        return Some("this server has no key and does not answer web pages of other machines".to_owned());
    }
    None
}

/// Whether `host[:port]` names this machine to itself.
fn is_own(host: &str, own: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |parts| parts.0),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.eq_ignore_ascii_case(own)
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether two secrets are equal. The time it takes does not depend on the first difference.
pub fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn only_names_of_this_machine_are_its_own() {
        let of = |name, values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(&name, HeaderValue::from_bytes(value).unwrap());
            }
            stranger(&headers, "box")
        };
        for own in ["localhost", "LocalHost:80", "127.0.0.1", "127.3.2.1:8000", "[::1]:80", "box:80"] {
            assert_eq!(of(HOST, &[own.as_bytes()]), None, "{own}");
            assert_eq!(of(ORIGIN, &[format!("http://{own}").as_bytes()]), None, "{own}");
        }
        assert_eq!(stranger(&HeaderMap::new(), "box"), None);
        for other in ["example.org", "localhost.example.org", "10.0.0.1:80", "", "[::2]", "null"] {
            assert!(of(HOST, &[other.as_bytes()]).unwrap().contains(&format!("{other:?}")), "{other}");
            assert!(of(ORIGIN, &[other.as_bytes()]).is_some(), "{other}");
        }
        // A header that is not text, and one beside a header of ours.
        assert!(of(HOST, &[b"box\xe9"]).is_some() && of(ORIGIN, &[b"http://box\xff"]).is_some());
        assert!(of(HOST, &[b"localhost", b"example.org"]).is_some());
        assert!(of(ORIGIN, &[b"http://localhost", b"http://example.org"]).is_some());
    }
}
