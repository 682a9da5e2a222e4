use std::process::Command;

use tamis_rollout::launch::{HEALTHY, LaunchLimits, LaunchedServers, ServerPlace, ServerProcess, free_ports};
use tamis_train::launcher::{await_return, end_used_up};

use super::*;

/// A rank that writes down its process number. The first one answers on its socket.
const RANK: &str = "
import os, socket, sys, time
with open(sys.argv[2], 'a') as file:
    file.write(f'{os.getpid()} {os.environ[\"RANK\"]}\\n')
print('rank', os.environ['RANK'], flush=True)
listener = socket.socket(socket.AF_UNIX)
if os.environ['RANK'] == '0':
    listener.bind(sys.argv[1].removeprefix('unix:'))
    listener.listen()
time.sleep(1000)
";
const SERVER: &str = "
import http.server, os, sys
with open(sys.argv[3], 'a') as file:
    file.write(f'{os.getpid()} server\\n')
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
";

struct Setting {
    folder: tempfile::TempDir,
    cluster: Cluster,
    config: Config,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Setting {
    fn new() -> Self {
        let mut config = Config::default();
        config.cluster.launcher = LauncherKind::Local;
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder, cluster: Cluster::default(), config, heard: Arc::default() }
    }

    fn up(&self, role: &'static str, settings: Value, seconds: u64) -> Result<Role, String> {
        let Value::Object(mut settings) = settings else { panic!("an object") };
        let log = self.folder.path().join(format!("{role}_{{number}}.log"));
        settings.extend([("log".to_owned(), json!(log)), ("python".to_owned(), json!("python3"))]);
        let startup_timeout = Duration::from_secs(seconds);
        let up = Up { role, count: 1, settings, startup_timeout, key: None, returns: role == "server" };
        let heard = self.heard.clone();
        let say: Say = Arc::new(move |line: &str| heard.lock().expect("lock").push(line.to_owned()));
        let started = self.cluster.up(&self.config, up, self.folder.path(), &say, &Interrupt::new());
        started.map_err(|halt| halt.to_string())
    }

    fn gang(&self, ranks: usize) -> Role {
        let argv = json!(["{python}", "-c", RANK, "{listen}", self.folder.path().join("pids")]);
        let settings = json!({"is_gang": true, "per_node": ranks, "device": "cpu", "argv": argv});
        self.up("learner", settings, 60).expect("it comes up")
    }

    /// A server with so many restarts.
    fn server(&self, restarts: u32) -> Role {
        let argv = json!(["{python}", "-c", SERVER, "{host}", "{port}", self.folder.path().join("pids")]);
        let settings = json!({"device": "cpu", "argv": argv, "restarts": restarts});
        self.up("server", settings, 60).expect("it comes up")
    }

    /// Replaces the interpreter by a shell script.
    fn interpret_by(&mut self, script: &str) {
        let program = self.folder.path().join("python");
        std::fs::write(&program, script).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("a program");
        self.config.learner.python = program.display().to_string();
    }

    fn heard(&self) -> String {
        self.heard.lock().expect("lock").join("\n")
    }

    fn launcher(&self) -> String {
        let current = self.cluster.current.lock().expect("lock");
        current.as_ref().expect("one").id().to_string()
    }

    fn pids(&self, what: &str, count: usize) -> Vec<String> {
        let mut found = Vec::new();
        soon("all processes", || {
            let text = std::fs::read_to_string(self.folder.path().join("pids")).unwrap_or_default();
            let of = text.lines().filter_map(|line| line.strip_suffix(&format!(" {what}")));
            found = of.map(str::to_owned).collect();
            found.len() == count
        });
        found
    }
}

fn kill(signal: &str, pid: &str) -> bool {
    Command::new("kill")
        .args([signal, pid])
        .stderr(std::process::Stdio::null())
        .status()
        .expect("kill")
        .success()
}

fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what} did not come about");
        std::thread::sleep(LOOK_EVERY);
    }
}

#[test]
fn a_gang_that_is_lost_is_told_and_another_begins_beside_servers_that_stay() {
    let setting = Setting::new();
    let server = setting.server(8);
    let gang = setting.gang(2);
    assert!(gang.addresses()[0].starts_with("unix:/"), "{:?}", gang.addresses());
    assert_eq!((gang.ended(), server.ended()), (None, None));
    let second = setting.pids("1", 1).remove(0);
    assert!(kill("-KILL", &second));
    soon("the news", || gang.ended().is_some());
    let ended = gang.ended().expect("told");
    assert!(ended.starts_with("rank 1 of the learner on "), "{ended}");
    let end = format!(", process {second} ended (signal: 9 (SIGKILL)); its output ends:\nrank 1");
    assert!(ended.ends_with(&end), "{ended}");
    drop(gang);
    let first = setting.pids("0", 1).remove(0);
    assert!(!kill("-0", &first));
    let again = setting.gang(1);
    assert_eq!((again.ended(), server.ended()), (None, None));
    assert_eq!(setting.pids("server", 1).len(), 1);
    // A server that dies is reported, and restarted at its address.
    assert!(kill("-KILL", &setting.pids("server", 1)[0]));
    setting.pids("server", 2);
    let heard = setting.heard();
    assert!(heard.contains("ended (signal: 9 (SIGKILL))"), "{heard}");
    assert!(heard.contains("server 1 restarts in 1 s, restart 1 of at most 8"), "{heard}");
    drop((again, server));
    assert!(!kill("-0", &setting.pids("0", 2)[1]));
}

#[test]
fn a_launcher_that_is_killed_is_a_loss_and_the_next_start_has_another() {
    let setting = Setting::new();
    let gang = setting.gang(1);
    let rank = setting.pids("0", 1).remove(0);
    assert!(kill("-KILL", &setting.launcher()));
    soon("the news", || gang.ended().is_some());
    let ended = gang.ended().expect("told");
    assert!(
        ended.starts_with("the launcher (`python -m tamis.cluster`) ended (signal: 9 (SIGKILL))"),
        "{ended}"
    );
    soon("the end of the rank", || !kill("-0", &rank));
    drop(gang);
    let again = setting.gang(1);
    assert_eq!(again.ended(), None);
    assert_eq!(setting.pids("0", 2).len(), 2);
}

#[test]
fn servers_of_which_one_is_given_up_are_ended_before_others_take_their_place() {
    let setting = Setting::new();
    let pids = setting.folder.path().join("pids");
    let processes = free_ports(2).expect("ports").into_iter().map(|port| ServerProcess {
        words: ["python3", "-c", SERVER, "127.0.0.1", &port.to_string(), &pids.display().to_string()]
            .map(str::to_owned)
            .to_vec(),
        environment: Vec::new(),
        shown: "a server".to_owned(),
        what: "server",
        place: ServerPlace::Port(port),
        log: setting.folder.path().join(format!("{port}.log")),
    });
    let limits = LaunchLimits::once(Duration::from_secs(60));
    let never = std::sync::atomic::AtomicBool::new(false);
    let launched = LaunchedServers::start(processes.collect(), limits, &never, Arc::new(|_: &str| {}));
    let launched = launched.expect("they come up").expect("not interrupted");
    let mut standing: Option<Arc<dyn Launched>> = Some(Arc::new(launched));
    end_used_up(&mut standing);
    let found = setting.pids("server", 2);
    assert!(standing.is_some() && found.iter().all(|pid| kill("-0", pid)));
    assert!(kill("-KILL", &found[0]));
    soon("the news", || standing.as_ref().is_some_and(|servers| servers.ended().is_some()));
    assert!(kill("-0", &found[1]));
    end_used_up(&mut standing);
    assert!(standing.is_none() && !kill("-0", &found[1]));
}

#[test]
fn a_launcher_that_is_stopped_is_replaced_in_time() {
    let mut setting = Setting::new();
    setting.cluster.times = Times { answer: Duration::from_secs(2), end: Duration::from_secs(2) };
    let gang = setting.gang(1);
    let rank = setting.pids("0", 1).remove(0);
    let first = setting.launcher();
    assert!(kill("-STOP", &first));
    let began = Instant::now();
    drop(gang);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    soon("the end of the rank", || !kill("-0", &rank));
    let gang = setting.gang(1);
    let second = setting.launcher();
    assert_ne!(first, second);
    // A request finds that it hangs, too.
    assert!(kill("-STOP", &second));
    let argv = json!(["sleep", "1000"]);
    let error = setting.up("server", json!({"device": "cpu", "argv": argv}), 1).err().expect("late");
    assert!(error.contains("`python -m tamis.cluster` did not answer within 3 s"), "{error}");
    let ended = gang.ended().expect("told");
    let said =
        "the launcher (`python -m tamis.cluster`) ended (signal: 9 (SIGKILL): it did not answer within 3 s)";
    assert_eq!(ended, said);
    let third = setting.gang(1);
    assert_eq!(third.ended(), None);
    // Dropping its predecessor does not end it.
    drop(gang);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(third.ended(), None);
    assert!(kill("-0", &setting.pids("0", 3)[2]));
}

#[test]
fn a_launcher_that_says_what_is_no_event_is_ended_and_replaced() {
    let mut setting = Setting::new();
    let first = setting.folder.path().join("first");
    // The first one hangs with its input open. Every later one is real.
    setting.interpret_by(&format!(
        "#!/bin/sh\nif mkdir {0}; then echo hello; exec sleep 1000; fi\nexec python3 \"$@\"\n",
        first.display()
    ));
    let error = setting.up("learner", json!({"argv": ["sleep", "1000"]}), 60).err().expect("refused");
    assert_eq!(
        error,
        "`python -m tamis.cluster` ended (signal: 9 (SIGKILL): it sent `hello`, which is not an event of this build) before it answered"
    );
    assert_eq!(setting.gang(1).ended(), None);
}

/// A cluster that never existed is not waited for.
#[test]
fn a_launcher_in_place_of_another_waits_for_its_cluster() {
    let mut setting = Setting::new();
    let given = setting.folder.path().join("given");
    let script = format!("#!/bin/sh\necho \"$@\" >> {}\nexec python3 \"$@\"\n", given.display());
    setting.interpret_by(&script);
    setting.config.learner.startup_timeout = tamis_core::setting::TimeSpan::seconds(77);
    let gang = setting.gang(1);
    assert!(kill("-KILL", &setting.launcher()));
    soon("the news", || gang.ended().is_some());
    drop(gang);
    setting.gang(1);
    let waits: Vec<String> = std::fs::read_to_string(given)
        .expect("written")
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(waits, ["0", "77"]);
}

#[test]
fn a_server_that_is_given_up_is_told_and_another_takes_its_place() {
    let setting = Setting::new();
    let server = setting.server(0);
    assert!(kill("-KILL", &setting.pids("server", 1)[0]));
    soon("the news", || server.ended().is_some());
    let ended = server.ended().expect("told");
    assert!(ended.starts_with("server 1 on ") && ended.contains("(signal: 9 (SIGKILL))"), "{ended}");
    let other = setting.server(0);
    // Dropping the first does not end the second.
    drop(server);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(other.ended(), None);
    assert!(kill("-0", &setting.pids("server", 2)[1]));
}

#[test]
fn servers_whose_launcher_is_killed_are_started_again_by_another() {
    let setting = Setting::new();
    let server = setting.server(8);
    let before = server.addresses();
    assert!(kill("-KILL", &setting.launcher()));
    soon("the news", || server.is_returning());
    assert_eq!(server.ended(), None);
    await_return(&server, &Interrupt::new());
    assert_eq!(setting.pids("server", 2).iter().filter(|pid| kill("-0", pid)).count(), 1);
    assert_ne!(server.addresses(), before);
    let heard = setting.heard();
    let said =
        "ended (signal: 9 (SIGKILL)); another launcher starts its servers in 1 s, restart 1 of at most 8";
    assert!(heard.contains(said), "{heard}");
    drop(server);
    assert!(!kill("-0", &setting.pids("server", 2)[1]));
}

/// The first request is served even if its launcher is killed on the way.
#[test]
fn a_launcher_that_is_killed_before_its_servers_answer_is_replaced() {
    let setting = Setting::new();
    let pids = setting.folder.path().join("pids");
    // The first start never finishes.
    let slow = format!("[ -e {0}.slow ] || {{ touch {0}.slow; sleep 1000; }}; exec \"$@\"", pids.display());
    let argv = json!(["/bin/sh", "-c", slow, "sh", "{python}", "-c", SERVER, "{host}", "{port}", pids]);
    let server = std::thread::scope(|scope| {
        let up = scope.spawn(|| setting.up("server", json!({"device": "cpu", "argv": argv}), 60));
        soon("its start", || pids.with_extension("slow").exists());
        assert!(kill("-KILL", &setting.launcher()));
        up.join().expect("no panic").expect("it comes up")
    });
    assert_eq!(setting.pids("server", 1).iter().filter(|pid| kill("-0", pid)).count(), 1);
    assert_eq!(server.addresses().len(), 1);
    let heard = setting.heard();
    assert!(heard.contains("another launcher starts its servers in 1 s, restart 1 of at most 8"), "{heard}");
}

#[test]
fn servers_that_no_launcher_can_start_again_are_given_up() {
    let setting = Setting::new();
    let server = setting.server(0);
    server.standing().restarts = MOST_RESTARTS - 1;
    assert!(kill("-KILL", &setting.launcher()));
    soon("the news", || server.is_returning());
    // The next one fails to start.
    std::fs::remove_file(setting.folder.path().join("pids")).expect("removed");
    std::fs::create_dir(setting.folder.path().join("pids")).expect("made");
    server.standing().state = State::Again { at: Instant::now() };
    soon("the end", || server.ended().is_some());
    let ended = server.ended().expect("told");
    assert!(ended.contains("before it answered"), "{ended}");
}

#[test]
fn what_was_up_for_long_has_all_restarts_again() {
    let setting = Setting::new();
    let server = setting.server(0);
    let long_ago = Instant::now().checked_sub(HEALTHY).expect("an instant");
    {
        let mut standing = server.standing();
        (standing.restarts, standing.state) = (MOST_RESTARTS, State::Up { since: long_ago });
    }
    assert!(kill("-KILL", &setting.launcher()));
    soon("the news", || server.is_returning());
    assert_eq!(server.standing().restarts, 1);
}

#[test]
fn what_does_not_come_up_is_told_with_its_last_words() {
    let mut setting = Setting::new();
    let fail = |setting: &Setting, settings: Value, seconds| setting.up("learner", settings, seconds).err();
    let argv = ["/bin/sh", "-c", "echo broken; exit 3"];
    let error = fail(&setting, json!({"is_gang": true, "argv": argv}), 60).expect("it ends");
    assert!(
        error.ends_with("ended (exit status: 3) before it answered; its output ends:\nbroken"),
        "{error}"
    );
    let error = fail(&setting, json!({"is_gang": true, "argv": ["sleep", "1000"]}), 1).expect("it is late");
    assert!(error.contains("did not answer within 1 s"), "{error}");
    let error = fail(&setting, json!({"nodes": 2, "argv": ["sleep", "1000"]}), 60).expect("refused");
    assert_eq!(error, "2 nodes are asked for, and this launcher starts processes on one machine");
    setting.config.learner.python = "no-such-python".to_owned();
    setting.cluster = Cluster::default();
    let error = fail(&setting, json!({"argv": ["sleep", "1000"]}), 60).expect("no python");
    assert_eq!(error, "cannot start `no-such-python -m tamis.cluster`");
}
