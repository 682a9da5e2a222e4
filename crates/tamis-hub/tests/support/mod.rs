//! A hub in this process: the addresses, headers and errors of huggingface.co, and a second host for large
//! files.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};

/// The query of every large file's address, as if the address were signed.
pub(crate) const SIGNATURE: &str = "X-Amz-Signature=5190ed";

/// A fault in the answer to a request.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// The connection ends after this many bytes of the body.
    Cut(usize),
    /// This status, with these headers.
    Status(u16, Vec<(&'static str, String)>),
    /// One byte of the body is changed.
    Corrupt,
    /// `X-Linked-Size` has this length instead of the body's.
    SaysSize(u64),
    /// This ETag instead of the right one.
    Tagged(&'static str),
    /// The body comes one byte after the other, with a pause before each.
    Drip(Duration),
    /// The requested range is ignored.
    IgnoreRange,
    /// The body comes after this delay.
    Late(Duration),
    /// The answer is this text.
    Text(&'static str),
    /// A redirect to the same path with a part of it replaced, as after a repository was renamed.
    Moved(&'static str, &'static str),
}

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// Whether it reached the host of large files.
    pub(crate) is_cdn: bool,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Repo {
    /// Files by commit.
    pub(crate) commits: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// Commits by branch.
    pub(crate) refs: BTreeMap<String, String>,
    /// `configs` of the card.
    pub(crate) card: Option<serde_json::Value>,
    /// The token without which the repository is hidden.
    pub(crate) private_to: Option<String>,
    /// The token without which its files are refused.
    pub(crate) gated_to: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    repos: BTreeMap<String, Repo>,
    requests: Vec<Request>,
    faults: Vec<(String, usize, Fault)>,
}

/// A hub that answers until the test ends.
#[derive(Clone)]
pub(crate) struct FakeHub {
    pub(crate) endpoint: String,
    cdn: String,
    state: Arc<Mutex<State>>,
}

/// The commit of this number.
pub(crate) fn commit(number: u8) -> String {
    format!("{number:02x}").repeat(20)
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hexadecimal(digest(&SHA256, bytes).as_ref())
}

pub(crate) fn git_sha1(bytes: &[u8]) -> String {
    let whole = [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat();
    hexadecimal(digest(&SHA1_FOR_LEGACY_USE_ONLY, &whole).as_ref())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

impl FakeHub {
    pub(crate) fn start() -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a port");
        let (hub, cdn) = (listen(), listen());
        let address =
            |listener: &TcpListener| format!("http://{}", listener.local_addr().expect("an address"));
        let this = Self { endpoint: address(&hub), cdn: address(&cdn), state: Arc::default() };
        for (listener, is_cdn) in [(hub, false), (cdn, true)] {
            let this = this.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let this = this.clone();
                    std::thread::spawn(move || while this.answer(&stream, is_cdn).is_some() {});
                }
            });
        }
        this
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the state")
    }

    /// Puts files into a repository (`models/owner/name`) at this commit, and moves the branch to it.
    pub(crate) fn put(&self, repo: &str, branch: &str, commit: &str, files: &[(&str, &[u8])]) {
        let mut state = self.state();
        let repo = state.repos.entry(repo.to_owned()).or_default();
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        repo.commits.insert(commit.to_owned(), files);
        repo.refs.insert(branch.to_owned(), commit.to_owned());
    }

    pub(crate) fn change(&self, repo: &str, change: impl FnOnce(&mut Repo)) {
        change(self.state().repos.get_mut(repo).expect("the repository"));
    }

    /// The next `times` requests whose path contains this text get the fault.
    pub(crate) fn fault(&self, path: &str, times: usize, fault: Fault) {
        self.state().faults.push((path.to_owned(), times, fault));
    }

    /// The requests since the last call.
    pub(crate) fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state().requests)
    }

    /// Answers one request; `None` if the connection ends.
    fn answer(&self, stream: &TcpStream, is_cdn: bool) -> Option<()> {
        let request = read_request(stream, is_cdn)?;
        let mut stream = stream;
        let (fault, mut answer) = {
            let mut state = self.state();
            state.requests.push(request.clone());
            let fault = state
                .faults
                .iter_mut()
                .find(|(path, left, _)| *left > 0 && request.path.contains(path.as_str()));
            let fault = fault.map(|(_, left, fault)| {
                *left -= 1;
                fault.clone()
            });
            (fault, self.plain_answer(&state, &request))
        };
        let from = request
            .headers
            .get("range")
            .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
        if let Some(from) =
            from.filter(|_| answer.status == 200 && !matches!(fault, Some(Fault::IgnoreRange)))
        {
            let length = answer.body.len();
            answer
                .headers
                .push(("Content-Range", format!("bytes {from}-{}/{length}", length.saturating_sub(1))));
            answer.body.drain(..from);
            answer.status = 206;
        }
        let mut cut = usize::MAX;
        let mut drip = None;
        match fault {
            Some(Fault::Cut(after)) => cut = after,
            Some(Fault::Status(status, headers)) => answer = Answer { status, headers, body: b"{}".to_vec() },
            Some(Fault::Corrupt) => answer.body.iter_mut().take(1).for_each(|byte| *byte ^= 1),
            Some(Fault::SaysSize(size)) => {
                answer.headers.retain(|(name, _)| *name != "X-Linked-Size");
                answer.headers.push(("X-Linked-Size", size.to_string()));
            }
            Some(Fault::Tagged(tag)) => {
                answer.headers.retain(|(name, _)| !name.ends_with("ETag"));
                answer.headers.push(("ETag", format!("\"{tag}\"")));
            }
            Some(Fault::Drip(pause)) => drip = Some(pause),
            Some(Fault::Late(wait)) => std::thread::sleep(wait),
            Some(Fault::Text(text)) => answer.body = text.as_bytes().to_vec(),
            Some(Fault::Moved(from, to)) => {
                let place = request.path.replacen(from, to, 1);
                answer = Answer { status: 307, headers: vec![("Location", place)], body: Vec::new() };
            }
            Some(Fault::IgnoreRange) | None => {}
        }
        let mut head = format!("HTTP/1.1 {} X\r\nContent-Length: {}\r\n", answer.status, answer.body.len());
        for (name, value) in &answer.headers {
            head.extend([*name, ": ", value, "\r\n"]);
        }
        head += "\r\n";
        stream.write_all(head.as_bytes()).ok()?;
        if request.method != "HEAD" {
            if let Some(pause) = drip {
                for byte in &answer.body {
                    std::thread::sleep(pause);
                    stream.write_all(&[*byte]).ok()?;
                }
                return Some(());
            }
            let is_cut = cut < answer.body.len();
            stream.write_all(&answer.body[..cut.min(answer.body.len())]).ok()?;
            if is_cut {
                stream.shutdown(std::net::Shutdown::Both).ok()?;
                return None;
            }
        }
        Some(())
    }

    fn plain_answer(&self, state: &State, request: &Request) -> Answer {
        let path = request.path.split('?').next().unwrap_or_default();
        let refused = |status: u16, code: &str| Answer {
            status,
            headers: vec![("X-Error-Code", code.to_owned())],
            body: br#"{"error": "refused"}"#.to_vec(),
        };
        if request.is_cdn {
            let blob = path.trim_start_matches("/blob/");
            let files =
                state.repos.values().flat_map(|repo| repo.commits.values()).flat_map(BTreeMap::values);
            let body = files.into_iter().find(|bytes| sha256(bytes) == blob);
            return match body {
                Some(body) if request.path.contains(SIGNATURE) => Answer {
                    status: 200,
                    // Facts from another host are not used.
                    headers: vec![("ETag", "\"of-the-cdn\"".to_owned())],
                    body: body.clone(),
                },
                _ => refused(403, "Signature"),
            };
        }
        let token = request.headers.get("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let unquoted = |text: &str| text.replace("%2F", "/").replace("%20", " ");
        let found = |path: &str| {
            state.repos.iter().find_map(|(name, repo)| {
                let rest = path.strip_prefix(name.as_str())?;
                Some((repo, rest.to_owned())).filter(|_| rest.starts_with('/'))
            })
        };
        let is_hidden = |repo: &Repo| repo.private_to.as_deref().is_some_and(|to| token != Some(to));
        let commit_of = |repo: &Repo, revision: &str| {
            let commit = repo.refs.get(revision).cloned().unwrap_or_else(|| revision.to_owned());
            Some(commit).filter(|commit| repo.commits.contains_key(commit))
        };
        if let Some(rest) = path.strip_prefix("/api/") {
            let Some((repo, rest)) = found(rest).filter(|(repo, _)| !is_hidden(repo)) else {
                return refused(if token.is_some() { 404 } else { 401 }, "RepoNotFound");
            };
            let revision = unquoted(rest.trim_start_matches("/revision/"));
            let Some(commit) = commit_of(repo, &revision) else { return refused(404, "RevisionNotFound") };
            let siblings: Vec<_> = repo.commits[&commit]
                .iter()
                .map(|(name, bytes)| serde_json::json!({"rfilename": name, "size": bytes.len()}))
                .collect();
            let answer = serde_json::json!({
                "sha": commit, "siblings": siblings, "cardData": {"configs": repo.card}
            });
            return Answer { status: 200, headers: Vec::new(), body: answer.to_string().into_bytes() };
        }
        let path = match path.strip_prefix("/datasets/") {
            Some(rest) => format!("datasets/{rest}"),
            None => format!("models{path}"),
        };
        let Some((repo, rest)) = found(&path).filter(|(repo, _)| !is_hidden(repo)) else {
            return refused(if token.is_some() { 404 } else { 401 }, "RepoNotFound");
        };
        if repo.gated_to.as_deref().is_some_and(|to| token != Some(to)) {
            return refused(if token.is_some() { 403 } else { 401 }, "GatedRepo");
        }
        let (revision, file) = rest.trim_start_matches("/resolve/").split_once('/').unwrap_or_default();
        let file = unquoted(file);
        let Some(commit) = commit_of(repo, &unquoted(revision)) else {
            return refused(404, "RevisionNotFound");
        };
        let Some(bytes) = repo.commits[&commit].get(&file) else { return refused(404, "EntryNotFound") };
        let mut headers = vec![("X-Repo-Commit", commit)];
        if [".safetensors", ".parquet"].iter().any(|ending| file.ends_with(ending)) {
            let sha256 = sha256(bytes);
            headers.push(("Location", format!("{}/blob/{sha256}?{SIGNATURE}", self.cdn)));
            headers.push(("X-Linked-Size", bytes.len().to_string()));
            headers.push(("ETag", format!("\"{}\"", git_sha1(b"a pointer"))));
            headers.push(("X-Linked-ETag", format!("\"{sha256}\"")));
            return Answer { status: 302, headers, body: b"Found. Redirecting".to_vec() };
        }
        headers.push(("ETag", format!("W/\"{}\"", git_sha1(bytes))));
        Answer { status: 200, headers, body: bytes.clone() }
    }
}

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

fn read_request(stream: &TcpStream, is_cdn: bool) -> Option<Request> {
    let mut lines = BufReader::with_capacity(1, stream.take(1 << 16));
    let mut line = || {
        let mut line = String::new();
        lines.read_line(&mut line).ok().filter(|&count| count > 0)?;
        Some(line.trim_end().to_owned())
    };
    let first = line()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let line = line()?;
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    Some(Request { is_cdn, method, path, headers })
}
