//! The launcher of a run (`python -m tamis.cluster`): a child that starts learner and servers on this machine
//! or on Ray, watches them, and ends them when its input ends, however this process does.
//!
//! Commands and events are lines of JSON; `python/tamis/cluster/__main__.py` lists them.

mod launcher;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tamis_config::{Config, LaunchConfig, LauncherKind, ServerCommand};
use tamis_rollout::launch::{LaunchError, LaunchedServers, Say};

use crate::interrupt::{Halt, Interrupt};
use crate::learner::torch::{default_interpreter, interpreter};
use launcher::{Fate, Launcher};

/// Interval of looks at what came.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time beyond a role's own limit after which a launcher that says nothing is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time for a role to end.
const LONGEST_END: Duration = Duration::from_secs(30);
/// Most restarts of servers, of all together.
const MOST_RESTARTS: u32 = 8;

/// The launcher of a run, started when something is first asked of it, and again where it is gone. It outlives
/// a learner that is lost.
#[derive(Default)]
pub struct Cluster {
    current: Mutex<Option<Arc<Launcher>>>,
}

/// A gang, or servers of one kind, that a launcher started. Dropped, they are ended.
pub struct Role {
    launcher: Arc<Launcher>,
    name: &'static str,
    addresses: Vec<String>,
}

impl Role {
    /// Where they answer.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// What became of one that ended and is not started again, with the end of its output, or of the launcher.
    pub fn ended(&self) -> Option<String> {
        self.launcher.ended(self.name)
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        self.launcher.send(&json!({"command": "down", "role": self.name}));
        let began = Instant::now();
        while began.elapsed() < LONGEST_END && !self.launcher.is_down(self.name) {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Processes that were started: by this process, or through a launcher.
pub enum Started {
    /// By this process.
    Here(LaunchedServers),
    /// Through a launcher.
    Through(Role),
}

impl Started {
    /// Where they answer.
    pub fn addresses(&self) -> &[String] {
        match self {
            Self::Here(servers) => servers.addresses(),
            Self::Through(role) => role.addresses(),
        }
    }

    /// What became of one that ended and is not started again.
    pub fn ended(&self) -> Option<String> {
        match self {
            Self::Here(servers) => servers.ended(),
            Self::Through(role) => role.ended(),
        }
    }
}

/// What is asked of a launcher: a role, how many of it, and its settings (`Request` in
/// `python/tamis/cluster/request.py`).
struct Up {
    role: &'static str,
    count: usize,
    settings: Map<String, Value>,
    startup_timeout: Duration,
}

impl Cluster {
    /// Starts the learner of a configuration in PyTorch, and waits until its first rank answers. Its output goes
    /// to `learner.log` in a folder, that of further ranks beside it; `key`: what it is to ask its callers for.
    ///
    /// # Errors
    /// Where it does not come up; none of it is left then.
    pub fn start_learner(
        &self,
        config: &Config,
        key: Option<&str>,
        logs: &Path,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Role, Halt<LaunchError>> {
        let learner = &config.learner;
        let [heartbeat, startup] =
            [learner.heartbeat, learner.startup_timeout].map(|time| time.as_secs_f64().to_string());
        let mut argv =
            vec!["{python}", "-m", "tamis.learner", "--listen", "{listen}", "--heartbeat", &heartbeat];
        argv.extend(["--startup-timeout", &startup]);
        if key.is_some() {
            argv.extend(["--api-key-file", "{key_file}"]);
        }
        let shares = config.cluster.colocate;
        let Value::Object(settings) = json!({
            "is_gang": true, "package": true, "argv": argv, "python": python(config), "key": key,
            "environment": {"OMP_WAIT_POLICY": std::env::var("OMP_WAIT_POLICY").unwrap_or("passive".to_owned())},
            "nodes": learner.nodes, "per_node": learner.gpus_per_node, "device": learner.device,
            "reserve": if shares { 0 } else { config.num_server_gpus() },
            "health": "/v1/health", "log": absolute(logs).join("learner.log"),
        }) else {
            unreachable!("an object")
        };
        let up = Up { role: "learner", count: 1, settings, startup_timeout: learner.startup_timeout };
        self.up(config, up, logs, say, interrupt)
    }

    /// Starts the servers of `rollout.launch`, by a command in which `{host}` and `{port}` are not known yet,
    /// and waits until all answer. Their output goes to files in `logs/servers`.
    ///
    /// # Errors
    /// Where one does not come up; none is left then.
    pub fn start_servers(
        &self,
        config: &Config,
        (launch, command): (&LaunchConfig, &ServerCommand),
        logs: &Path,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Role, Halt<LaunchError>> {
        let environment: Map<String, Value> =
            command.environment.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let Value::Object(settings) = json!({
            "argv": command.words, "shown": command.to_string(), "environment": environment,
            "python": python(config), "per_node": launch.tensor_parallel,
            "share": config.cluster.colocate.then_some("learner"), "restarts": MOST_RESTARTS,
            "silence": launch.lost_timeout.map(|time| time.as_secs_f64()),
            "log": absolute(logs).join("servers").join("server_{number}.log"),
        }) else {
            unreachable!("an object")
        };
        let up =
            Up { role: "server", count: launch.replicas, settings, startup_timeout: launch.startup_timeout };
        self.up(config, up, logs, say, interrupt)
    }

    fn up(
        &self,
        config: &Config,
        up: Up,
        logs: &Path,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Role, Halt<LaunchError>> {
        let Up { role: name, count, mut settings, startup_timeout } = up;
        let launcher = self.launcher(config, logs).map_err(Halt::Failed)?;
        let began = Instant::now();
        settings.extend([
            ("command".to_owned(), json!("up")),
            ("role".to_owned(), json!(name)),
            ("count".to_owned(), json!(count)),
            ("startup_timeout".to_owned(), json!(startup_timeout.as_secs_f64())),
            ("folder".to_owned(), json!(std::env::current_dir().ok())),
        ]);
        launcher.expect(name, count, say);
        // Dropped, it ends what has come up so far.
        let mut role = Role { launcher, name, addresses: Vec::new() };
        role.launcher.send(&Value::Object(settings));
        loop {
            if interrupt.is_requested() {
                return Err(Halt::Interrupted);
            }
            match role.launcher.fate(name) {
                Fate::Up(addresses) => {
                    role.addresses = addresses;
                    return Ok(role);
                }
                Fate::Failed(failure) => return Err(Halt::Failed(failure.into_error(startup_timeout))),
                Fate::Open if began.elapsed() >= startup_timeout + PATIENCE => {
                    let timeout = began.elapsed();
                    let (command, output) = (launcher::COMMAND.to_owned(), role.launcher.last_lines());
                    return Err(Halt::Failed(LaunchError::Late { command, timeout, output }));
                }
                Fate::Open => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    /// The launcher that runs, or a new one.
    fn launcher(&self, config: &Config, logs: &Path) -> Result<Arc<Launcher>, LaunchError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(launcher) = current.as_ref().filter(|launcher| !launcher.is_over()) {
            return Ok(Arc::clone(launcher));
        }
        let program = std::env::current_exe().ok();
        let python = interpreter(&config.learner.python, program.as_deref());
        let cluster = &config.cluster;
        let arguments = ["--launcher", cluster.launcher.as_str(), "--address", &cluster.address];
        let launcher = Arc::new(Launcher::start(&python, &arguments, &absolute(logs).join("cluster.log"))?);
        *current = Some(Arc::clone(&launcher));
        Ok(launcher)
    }
}

/// The interpreter of what a launcher starts: on other nodes the default one is that of Ray's workers.
fn python(config: &Config) -> String {
    let python = &config.learner.python;
    if config.cluster.launcher == LauncherKind::Ray && python == default_interpreter() {
        return python.clone();
    }
    interpreter(python, std::env::current_exe().ok().as_deref())
}

fn absolute(path: &Path) -> std::path::PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;

    use super::*;

    /// A rank that writes its number down; the first answers on its socket.
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
            let up = Up { role, count: 1, settings, startup_timeout: Duration::from_secs(seconds) };
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

        /// Numbers of the processes that were started.
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
        let argv = json!(["{python}", "-c", SERVER, "{host}", "{port}", setting.folder.path().join("pids")]);
        let server = setting.up("server", json!({"device": "cpu", "argv": argv, "restarts": 8}), 60);
        let server = server.expect("it comes up");
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
        // One that dies is told, and started again at its address.
        assert!(kill("-KILL", &setting.pids("server", 1)[0]));
        setting.pids("server", 2);
        let heard = setting.heard.lock().expect("lock").join("\n");
        assert!(heard.contains("ended (signal: 9 (SIGKILL))"), "{heard}");
        assert!(heard.contains("server 1 is started again in 1 s, restart 1 of at most 8"), "{heard}");
        drop((again, server));
        assert!(!kill("-0", &setting.pids("0", 2)[1]));
    }

    #[test]
    fn a_launcher_that_is_killed_is_a_loss_and_the_next_start_has_another() {
        let setting = Setting::new();
        let gang = setting.gang(1);
        let rank = setting.pids("0", 1).remove(0);
        let launcher = {
            let current = setting.cluster.current.lock().expect("lock");
            current.as_ref().expect("one").id().to_string()
        };
        assert!(kill("-KILL", &launcher));
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
    fn what_does_not_come_up_is_told_with_its_last_words() {
        let mut setting = Setting::new();
        let fail =
            |setting: &Setting, settings: Value, seconds| setting.up("learner", settings, seconds).err();
        let argv = ["/bin/sh", "-c", "echo broken; exit 3"];
        let error = fail(&setting, json!({"is_gang": true, "argv": argv}), 60).expect("it ends");
        assert!(
            error.ends_with("ended (exit status: 3) before it answered; its output ends:\nbroken"),
            "{error}"
        );
        let error =
            fail(&setting, json!({"is_gang": true, "argv": ["sleep", "1000"]}), 1).expect("it is late");
        assert!(error.contains("did not answer within 1 s"), "{error}");
        let error = fail(&setting, json!({"nodes": 2, "argv": ["sleep", "1000"]}), 60).expect("refused");
        assert_eq!(error, "2 nodes are asked for, and this launcher starts processes on one machine");
        setting.config.learner.python = "no-such-python".to_owned();
        setting.cluster = Cluster::default();
        let error = fail(&setting, json!({"argv": ["sleep", "1000"]}), 60).expect("no python");
        assert_eq!(error, "cannot start `no-such-python -m tamis.cluster`");
    }
}
