use std::process::{Command, Stdio};

use super::*;

/// A shell program that answers on its port after it has printed something.
fn server(folder: &Path, script: &str) -> ServerProcess {
    let port = free_ports(1).expect("a port")[0];
    std::fs::write(folder.join("health"), "").expect("a file");
    let serve =
        format!("exec python3 -m http.server {port} --bind 127.0.0.1 --directory {}", folder.display());
    ServerProcess {
        words: ["/bin/sh", "-c", &script.replace("SERVE", &serve)].map(str::to_owned).to_vec(),
        environment: vec![("GREETING".to_owned(), "hello".to_owned())],
        shown: "a server".to_owned(),
        what: "server",
        place: ServerPlace::Port(port),
        log: folder.join("server.log"),
    }
}

fn listen() -> (Say, Arc<Mutex<Vec<String>>>) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let lines = heard.clone();
    (Arc::new(move |line: &str| lines.lock().expect("lock").push(line.to_owned())), heard)
}

fn limits(startup: u64) -> LaunchLimits {
    LaunchLimits::of_servers(Duration::from_secs(startup), None)
}

fn never() -> AtomicBool {
    AtomicBool::new(false)
}

fn is_alive(pid: &str) -> bool {
    let asked = Command::new("kill").args(["-0", pid.trim()]).stderr(Stdio::null()).status();
    asked.expect("kill").success()
}

fn soon(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what} did not come about");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_server_is_waited_for_and_ends_with_the_value_and_its_children_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let child = folder.path().join("child");
    let script =
        format!("echo $GREETING $CUDA_DEVICE_ORDER; sleep 1000 & echo $! > {}; SERVE", child.display());
    let servers =
        LaunchedServers::start(vec![server(folder.path(), &script)], limits(60), &never(), listen().0)
            .expect("it answers")
            .expect("waited for");
    assert!(servers.addresses()[0].starts_with("http://127.0.0.1:"));
    let child = std::fs::read_to_string(child).expect("a number");
    assert!(is_alive(&child));
    let log = std::fs::read_to_string(folder.path().join("server.log")).expect("a log");
    assert!(log.starts_with("$ a server\nhello PCI_BUS_ID\n"), "{log}");
    drop(servers);
    soon("the end of its child", || !is_alive(&child));
}

#[test]
fn a_server_that_does_not_come_up_is_told_with_its_last_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = |script: &str, timeout: u64| {
        let process = server(folder.path(), script);
        let started = LaunchedServers::start(vec![process], limits(timeout), &never(), listen().0);
        started.err().expect("it does not come up").to_string()
    };
    assert_eq!(
        start("for i in $(seq 30); do echo line $i; done; exit 7", 60).replace('\n', "|"),
        format!(
            "`a server` ended (exit status: 7) before it answered; its output ends:|{}",
            (11..=30).map(|i| format!("line {i}")).collect::<Vec<_>>().join("|")
        )
    );
    let late = start("echo never; sleep 1000", 1);
    assert!(late.starts_with("`a server` did not answer within 1 s; its output ends:\n"), "{late}");
    assert!(late.ends_with("never"), "{late}");
    let mut nothing = server(folder.path(), "");
    nothing.words = vec!["no-such-program".to_owned()];
    let error = LaunchedServers::start(vec![nothing], limits(5), &never(), listen().0).err().expect("none");
    assert!(
        matches!(&error, LaunchError::Start { source, .. } if source.kind() == io::ErrorKind::NotFound),
        "{error}"
    );
    let interrupted = AtomicBool::new(true);
    let given_up = LaunchedServers::start(
        vec![server(folder.path(), "sleep 1000")],
        limits(5),
        &interrupted,
        listen().0,
    );
    assert!(given_up.is_ok_and(|servers| servers.is_none()));
}

#[test]
fn no_two_servers_have_the_same_port() {
    let ports = free_ports(200).expect("ports");
    assert_eq!(std::collections::BTreeSet::from_iter(&ports).len(), 200, "{ports:?}");
}

#[test]
fn pauses_before_restarts_double() {
    assert_eq!([0, 1, 2, 5, 6, 40].map(|restarts| pause_after(restarts).as_secs()), [1, 2, 4, 32, 60, 60]);
}

/// Without a restart left its workers end too, and a pause delays no other server.
#[test]
fn workers_of_a_server_that_ended_end_with_it() {
    for (most_restarts, last) in [(0, "the server is not restarted after 0 restarts"), (1, "in 1 s")] {
        let folder = tempfile::tempdir().expect("a folder");
        let worker = folder.path().join("worker");
        let script = format!("sleep 1000 & echo $! > {}.new; mv {0}.new {0}; exit 1", worker.display());
        let running = Running::start(server(folder.path(), &script)).expect("started");
        let (say, heard) = listen();
        let is_over = AtomicBool::new(false);
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                Servers(vec![running]).watch(
                    LaunchLimits { restarts: most_restarts, ..limits(0) },
                    0,
                    &is_over,
                    &Ended::default(),
                    &say,
                );
            });
            soon("its end", || !heard.lock().expect("lock").is_empty());
            soon("the end of its worker", || {
                !is_alive(&std::fs::read_to_string(&worker).unwrap_or_default())
            });
            is_over.store(true, Ordering::SeqCst);
        });
        assert!(began.elapsed() < Duration::from_secs(20));
        let heard = heard.lock().expect("lock").join("\n");
        assert!(heard.contains(last), "{heard}");
    }
}

/// A server that records the number of each of its processes, and the messages about it.
struct Watched {
    servers: LaunchedServers,
    folder: tempfile::TempDir,
    place: ServerPlace,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Watched {
    fn start(limits: LaunchLimits) -> Self {
        Self::changed(limits, |_, _| {})
    }

    /// Watches a process that is changed before it starts, beside a separate folder.
    fn changed(limits: LaunchLimits, change: impl FnOnce(&mut ServerProcess, &Path)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let script = format!("echo $$ >> {}; SERVE", folder.path().join("pids").display());
        let mut process = server(folder.path(), &script);
        change(&mut process, folder.path());
        let (place, (say, heard)) = (process.place.clone(), listen());
        let servers = LaunchedServers::start(vec![process], limits, &never(), say).expect("up");
        Self { servers: servers.expect("waited for"), folder, place, heard }
    }

    fn pids(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.path().join("pids")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn signal_first(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.pids()[0]]).status().expect("kill").success());
    }

    fn await_start(&self, number: usize) {
        soon("the next start", || self.pids().len() == number && answers(&self.place, HEALTH_TIMEOUT));
    }

    /// Ends it; returns the messages until then.
    fn end(self) -> String {
        drop(self.servers);
        self.heard.lock().expect("lock").join("\n")
    }
}

#[test]
fn a_server_that_ends_is_started_again() {
    let watched = Watched::start(limits(60));
    watched.signal_first("-KILL");
    watched.await_start(2);
    let second = watched.pids().remove(1);
    let heard = watched.end();
    assert!(heard.contains("ended (signal: 9 (SIGKILL))"), "{heard}");
    assert!(heard.contains("the server restarts in 1 s, restart 1 of at most 8"), "{heard}");
    assert!(!is_alive(&second));
}

/// A server starts once a resource comes back that was lacking: a disk that was full, a process too many.
#[test]
fn a_server_that_cannot_be_started_again_at_once_is_tried_again() {
    let appear =
        |folder: &Path| std::os::unix::fs::symlink("/bin/sh", folder.join("program")).expect("a program");
    let watched = Watched::changed(limits(60), |process, folder| {
        appear(folder);
        process.words[0] = folder.join("program").display().to_string();
    });
    std::fs::remove_file(watched.folder.path().join("program")).expect("gone");
    watched.signal_first("-KILL");
    let has = |what: &str| watched.heard.lock().expect("lock").iter().any(|line| line.contains(what));
    soon("the try that fails", || has("next attempt in 2 s"));
    assert!(has("the server cannot be restarted: cannot start `a server`: No such file"));
    appear(watched.folder.path());
    watched.await_start(2);
}

/// A stopped process exists, accepts connections, and sends nothing.
#[test]
fn a_server_that_hangs_is_ended_and_started_again() {
    let watched = Watched::start(LaunchLimits { silence: Some(Duration::from_secs(2)), ..limits(60) });
    watched.signal_first("-STOP");
    watched.await_start(2);
    let heard = watched.end();
    assert!(heard.contains("has not answered a health check for 2 s, and is stopped"), "{heard}");
    assert!(heard.contains("restarts in 1 s, restart 1 of at most 8"), "{heard}");
}

#[test]
fn a_server_that_is_of_no_use_is_ended_and_started_again() {
    let watched = Watched::start(limits(60));
    for starts in [2, 3] {
        watched.servers.restart(0);
        watched.await_start(starts);
    }
    watched.servers.restart(7);
    let heard = watched.end();
    assert!(heard.contains("is no longer usable, and is stopped"), "{heard}");
    assert!(heard.contains("restart 2 of at most 8"), "{heard}");
}

/// As when the system is out of memory while models are loaded.
#[test]
fn a_server_that_is_killed_before_it_answers_is_started_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = folder.path().join("first");
    let script = format!("[ -e {0} ] || {{ touch {0}; kill -9 $$; }}; SERVE", first.display());
    let (say, heard) = listen();
    let process = server(folder.path(), &script);
    drop(LaunchedServers::start(vec![process], limits(60), &never(), say).expect("up").expect("waited for"));
    let heard = heard.lock().expect("lock").join("\n");
    assert!(heard.contains("(signal: 9 (SIGKILL)) before it answered, and is restarted"), "{heard}");
    // A process that another supervises is not restarted.
    std::fs::remove_file(first).expect("gone");
    let limits = LaunchLimits::once(Duration::from_secs(60));
    let error = LaunchedServers::start(vec![server(folder.path(), &script)], limits, &never(), listen().0);
    let error = error.err().expect("ended");
    assert!(matches!(error, LaunchError::Ended { by_signal: true, .. }), "{error}");
}

#[test]
fn a_server_that_ran_for_long_has_all_restarts_again() {
    let watched = Watched::start(LaunchLimits { restarts: 1, healthy: Duration::ZERO, ..limits(60) });
    for starts in 2..5 {
        watched.servers.restart(0);
        soon("the next start", || watched.pids().len() == starts);
    }
    let heard = watched.end();
    assert_eq!(heard.matches("restarts in 1 s, restart 1 of at most 1").count(), 3, "{heard}");
}
