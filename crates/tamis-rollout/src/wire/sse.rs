//! Server-sent events: the answers that arrive in parts.

/// The `data` of each event in a body, whole or broken off, without the closing `[DONE]`.
///
/// Lines end in LF or CRLF; several `data` lines of one event are joined by a line break; comments and other
/// fields are left out. An event that is not closed by an empty line has not arrived.
///
/// ```
/// let body = b"data: {\"a\":1}\n\n: ping\n\ndata: {\"b\":2}\r\n\r\ndata: [DONE]\n\ndata: {\"half";
/// let (events, is_done) = tamis_rollout::wire::sse::events(body);
/// assert_eq!(events, ["{\"a\":1}", "{\"b\":2}"]);
/// assert!(is_done);
/// ```
pub fn events(body: &[u8]) -> (Vec<String>, bool) {
    let mut events = Vec::new();
    let mut is_done = false;
    let mut data: Option<String> = None;
    let text = String::from_utf8_lossy(body);
    for line in text.split_inclusive('\n') {
        let Some(line) = line.strip_suffix('\n') else { break };
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() {
            match data.take() {
                Some(done) if done.trim() == "[DONE]" => is_done = true,
                Some(event) => events.push(event),
                None => {}
            }
        } else if let Some(value) = line.strip_prefix("data:") {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => data = Some(value.to_owned()),
            }
        }
    }
    (events, is_done)
}
