//! The chat page at `/`: one file, which only sends requests to this server and shows texts as plain text.
//!
//! The browser enforces this, too. By its policy, the page may not load anything or contact other servers,
//! only the script with this answer's nonce runs, and no text can become HTML (trusted types).

use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};

use crate::route;
use crate::stream::AnswerBody;

const PAGE: &str = include_str!("chat.html");

/// Placeholder of the nonce in the page.
const NONCE: &str = "NONCE";

/// The page with an unpredictable nonce.
pub(crate) fn respond(nonce: u64) -> Response<AnswerBody> {
    let nonce = format!("{nonce:016x}");
    let page = PAGE.replace(NONCE, &nonce).into_bytes();
    let mut response = route::respond(StatusCode::OK, Some("text/html; charset=utf-8"), page);
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'"
    );
    let headers = response.headers_mut();
    headers.extend(HeaderValue::try_from(policy).ok().map(|policy| (CONTENT_SECURITY_POLICY, policy)));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_needs_nothing_outside() {
        // Addresses, and anything else that loads something.
        for outside in
            ["://", "src=", "@import", "url(", "<iframe", "<object", "<embed", "import(", "WebSocket"]
        {
            assert!(!PAGE.contains(outside), "{outside}");
        }
        let quoted = |before: &str| -> Vec<&str> {
            PAGE.split(before).skip(1).filter_map(|rest| rest.split('"').next()).collect()
        };
        assert_eq!(quoted("href=\""), ["data:,"]);
        assert_eq!(PAGE.matches("fetch(").count(), 1);
        assert_eq!(quoted("ask(\""), ["v1/models", "v1/chat/completions", "v1/completions"]);
    }

    #[test]
    fn no_text_can_become_html() {
        let writers = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "DOMParser",
            "setHTML",
            "srcdoc",
            "createContextualFragment",
            "eval(",
            "Function(",
            " onclick=",
            "javascript:",
        ];
        for writer in writers {
            assert!(!PAGE.contains(writer), "{writer}");
        }
        let response = respond(7);
        let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'nonce-0000000000000007'; style-src"),
            "{policy}"
        );
        assert!(
            policy.contains("require-trusted-types-for 'script'") && !policy.contains("unsafe"),
            "{policy}"
        );
        // For script and style. Browsers ignore a nonce anywhere else.
        assert_eq!(PAGE.matches("nonce=\"NONCE\">").count(), 2);
        assert_eq!(PAGE.matches("<script").count() + PAGE.matches("<style").count(), 2);
        assert!(!PAGE.contains("style=\""));
    }
}
