//! The launcher of a run (`python -m tamis.cluster`): a child that starts learner and servers on this machine
//! or on Ray, watches them, and ends them when its input ends, however this process does.
//!
//! Commands and events are lines of JSON; `python/tamis/cluster/__main__.py` lists them.

mod launcher;
mod role;

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tamis_config::{BackendKind, Config, LaunchConfig, LauncherKind, LearnerBackend, ServerCommand};
use tamis_rollout::launch::{LaunchError, LaunchedServers, Say};

use crate::assemble::AssembleError;
use crate::assemble::api_key::random_key;
use crate::interrupt::{Halt, Interrupt};
use crate::learner::torch::{default_interpreter, interpreter};
use crate::plan::machines::Machine;
pub(crate) use launcher::COMMAND;
use launcher::Launcher;
pub use role::Role;
use role::{Asked, Standing, StartLauncher, State, is_late};

/// Interval of looks at what came.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longest time for the launcher to find a cluster's machines.
const LONGEST_LOOK: Duration = Duration::from_secs(120);
/// Most restarts of servers, of all together.
const MOST_RESTARTS: u32 = 8;

/// The launcher of a run, started when something is first asked of it, and again where it is gone. It outlives
/// a learner that is lost.
#[derive(Default, Clone)]
pub struct Cluster {
    current: Arc<Mutex<Option<Arc<Launcher>>>>,
    server_key: Arc<OnceLock<String>>,
    times: Times,
}

/// Longest times of a launcher that lives, after which it is ended and another one started.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// For an answer, beyond what is waited for may itself take.
    answer: Duration,
    /// For a role to end: longer than the launcher's own limit of it.
    end: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self { answer: Duration::from_secs(60), end: Duration::from_secs(45) }
    }
}

/// Processes that were started: by this process, or through a launcher.
pub enum Started {
    /// By this process.
    Here(LaunchedServers),
    /// Through a launcher.
    Through(Box<Role>),
}

impl Started {
    /// Where they answer now. One that was started again may answer elsewhere than before.
    pub fn addresses(&self) -> Vec<String> {
        match self {
            Self::Here(servers) => servers.addresses().to_vec(),
            Self::Through(role) => role.addresses(),
        }
    }

    /// Has the one at this place of [`Self::addresses`] ended and started again.
    pub fn restart(&self, place: usize) {
        match self {
            Self::Here(servers) => servers.restart(place),
            Self::Through(role) => role.restart(place),
        }
    }

    /// What became of one that ended and is not started again.
    pub fn ended(&self) -> Option<String> {
        match self {
            Self::Here(servers) => servers.ended(),
            Self::Through(role) => role.ended(),
        }
    }

    /// Ends those of which one is given up: others in their place need the GPUs of those that live.
    pub(crate) fn end_used_up(standing: &mut Option<Arc<Self>>) {
        drop(standing.take_if(|servers| servers.ended().is_some()));
    }

    /// The key that they ask for, where the run drew one.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Here(_) => None,
            Self::Through(role) => role.key.as_deref(),
        }
    }

    /// Waits until those whose launcher was lost are up again or given up, or for an interrupt.
    pub fn await_return(&self, interrupt: &Interrupt) {
        let Self::Through(role) = self else { return };
        while role.is_returning() && !interrupt.is_requested() {
            std::thread::sleep(LOOK_EVERY);
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
    /// The key that they ask for.
    key: Option<String>,
    /// Whether another launcher is started for them where theirs is lost.
    returns: bool,
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
        let [heartbeat, startup, call] = [learner.heartbeat, learner.startup_timeout, learner.timeout]
            .map(|time| time.as_secs_f64().to_string());
        let mut argv =
            vec!["{python}", "-m", "tamis.learner", "--listen", "{listen}", "--heartbeat", &heartbeat];
        argv.extend(["--startup-timeout", &startup, "--call-timeout", &call]);
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
        let startup_timeout = learner.startup_timeout;
        let key = key.map(str::to_owned);
        let up = Up { role: "learner", count: 1, settings, startup_timeout, key, returns: false };
        self.up(config, up, logs, say, interrupt)
    }

    /// Starts the servers of `rollout.launch`, by a command in which what the place decides is not known yet,
    /// and waits until all answer; `key`: what they are to ask for. Their output goes to files in
    /// `logs/servers`.
    ///
    /// # Errors
    /// Where one does not come up; none is left then.
    pub fn start_servers(
        &self,
        config: &Config,
        (launch, command, key): (&LaunchConfig, &ServerCommand, String),
        logs: &Path,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Role, Halt<LaunchError>> {
        let mut environment: Map<String, Value> =
            command.environment.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        if config.rollout.backend == BackendKind::Vllm {
            // Where nobody else on the machine reads it, as anybody does arguments.
            environment.insert("VLLM_API_KEY".to_owned(), json!(key));
        }
        let Value::Object(settings) = json!({
            "argv": command.words, "shown": command.to_string(), "environment": environment,
            "python": python(config), "per_node": launch.tensor_parallel,
            "share": config.cluster.colocate.then_some("learner"), "restarts": MOST_RESTARTS, "key": key,
            "silence": launch.lost_timeout.map(|time| time.as_secs_f64()),
            "log": absolute(logs).join("servers").join("server_{number}.log"),
        }) else {
            unreachable!("an object")
        };
        let (role, count, startup_timeout) = ("server", launch.replicas, launch.startup_timeout);
        // Where the launcher has the learner, too, the run begins anew with both.
        let returns = config.learner.backend != LearnerBackend::Torch || config.learner.url.is_some();
        let up = Up { role, count, settings, startup_timeout, key: Some(key), returns };
        self.up(config, up, logs, say, interrupt)
    }

    /// The machines of the cluster, for what a run is planned on.
    ///
    /// # Errors
    /// Where the launcher cannot be started, ends, or does not tell in time.
    pub fn look(
        &self,
        config: &Config,
        logs: &Path,
        interrupt: &Interrupt,
    ) -> Result<Vec<Machine>, Halt<LaunchError>> {
        let ask = || -> Result<_, Halt<LaunchError>> {
            let launcher = self.launcher(&StartLauncher::new(config, logs)).map_err(Halt::Failed)?;
            launcher.send(&json!({"command": "look"}));
            Ok(launcher)
        };
        let (mut launcher, mut restarts, mut began) = (ask()?, 0, Instant::now());
        loop {
            if interrupt.is_requested() {
                return Err(Halt::Interrupted);
            }
            match launcher.machines() {
                Some(Ok(machines)) => return Ok(machines),
                Some(Err(_)) if launcher.is_lost() && restarts < MOST_RESTARTS => {
                    (launcher, restarts, began) = (ask()?, restarts + 1, Instant::now());
                }
                Some(Err(failure)) => return Err(Halt::Failed(failure.into_error(LONGEST_LOOK))),
                None => {}
            }
            if let Some(error) = is_late(&launcher, began, LONGEST_LOOK, self.times.answer) {
                return Err(Halt::Failed(error));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// The key of the servers that this run starts, the same for all of them as long as it runs.
    ///
    /// # Errors
    /// Where none can be drawn.
    pub(crate) fn server_key(&self) -> Result<String, AssembleError> {
        if let Some(key) = self.server_key.get() {
            return Ok(key.clone());
        }
        let drawn = random_key()?;
        Ok(self.server_key.get_or_init(|| drawn).clone())
    }

    fn up(
        &self,
        config: &Config,
        up: Up,
        logs: &Path,
        say: &Say,
        interrupt: &Interrupt,
    ) -> Result<Role, Halt<LaunchError>> {
        let Up { role: name, count, mut settings, startup_timeout, key, returns } = up;
        settings.extend([
            ("command".to_owned(), json!("up")),
            ("role".to_owned(), json!(name)),
            ("count".to_owned(), json!(count)),
            ("startup_timeout".to_owned(), json!(startup_timeout.as_secs_f64())),
            ("folder".to_owned(), json!(std::env::current_dir().ok())),
        ]);
        let start = StartLauncher::new(config, logs);
        let launcher = self.launcher(&start).map_err(Halt::Failed)?;
        let asked =
            Asked { name, count, command: Value::Object(settings), startup_timeout, say: say.clone() };
        let generation = asked.send_to(&launcher);
        // Dropped, it ends what has come up so far.
        let standing = Mutex::new(Standing {
            launcher,
            generation,
            addresses: Vec::new(),
            state: State::Up { since: Instant::now() },
            restarts: 0,
        });
        let role = Role { cluster: self.clone(), start, asked, key, returns, standing };
        let began = Instant::now();
        loop {
            if interrupt.is_requested() {
                return Err(Halt::Interrupted);
            }
            let mut standing = role.standing();
            match role.asked.outcome(&standing.launcher, began, self.times.answer) {
                Some(Ok(addresses)) => {
                    standing.addresses = addresses;
                    drop(standing);
                    return Ok(role);
                }
                // Somebody killed the launcher, or the system did: another one may do it.
                Some(Err(error)) if role.returns && standing.launcher.is_lost() => {
                    role.lose(&mut standing, error.to_string());
                    break;
                }
                Some(Err(error)) => {
                    drop(standing);
                    return Err(Halt::Failed(error));
                }
                None => {
                    drop(standing);
                    std::thread::sleep(LOOK_EVERY);
                }
            }
        }
        while !interrupt.is_requested() {
            match role.fate() {
                None => std::thread::sleep(LOOK_EVERY),
                Some(Ok(())) => return Ok(role),
                Some(Err(message)) => return Err(Halt::Failed(LaunchError::Refused { message, hint: None })),
            }
        }
        Err(Halt::Interrupted)
    }

    /// The launcher that runs, or a new one.
    fn launcher(&self, start: &StartLauncher) -> Result<Arc<Launcher>, LaunchError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(launcher) = current.as_ref().filter(|launcher| !launcher.is_over()) {
            return Ok(Arc::clone(launcher));
        }
        let arguments = ["--launcher", start.kind.as_str(), "--address", &start.address];
        // A cluster that was there comes back, and one that never was is a mistake to be told of.
        let was_there =
            |launcher: &Arc<Launcher>| launcher.connected_at().is_some() || !launcher.wait.is_zero();
        let wait = if current.as_ref().is_some_and(was_there) { start.wait } else { Duration::ZERO };
        let launcher = Arc::new(Launcher::start(&start.python, &arguments, &start.log, wait)?);
        *current = Some(Arc::clone(&launcher));
        Ok(launcher)
    }

    /// Ends a launcher that does not end a role in time, with all that it started.
    fn give_up(&self, launcher: &Launcher, role: &str) {
        launcher.kill(&match launcher.connected_at() {
            Some(_) => format!("it did not end the {role} within {} s", self.times.end.as_secs()),
            None => format!("nobody waits for the {role} any more"),
        });
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

    use tamis_rollout::launch::{HEALTHY, LaunchLimits, Place, ServerProcess, free_ports};

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

        /// Number of the launcher.
        fn launcher(&self) -> String {
            let current = self.cluster.current.lock().expect("lock");
            current.as_ref().expect("one").id().to_string()
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
            place: Place::Port(port),
            folder: None,
            log: setting.folder.path().join(format!("{port}.log")),
        });
        let limits = LaunchLimits::once(Duration::from_secs(60));
        let never = std::sync::atomic::AtomicBool::new(false);
        let launched = LaunchedServers::start(processes.collect(), limits, &never, Arc::new(|_: &str| {}));
        let launched = Started::Here(launched.expect("they come up").expect("not interrupted"));
        let mut standing = Some(Arc::new(launched));
        Started::end_used_up(&mut standing);
        let found = setting.pids("server", 2);
        assert!(standing.is_some() && found.iter().all(|pid| kill("-0", pid)));
        assert!(kill("-KILL", &found[0]));
        soon("the news", || standing.as_ref().is_some_and(|servers| servers.ended().is_some()));
        assert!(kill("-0", &found[1]));
        Started::end_used_up(&mut standing);
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
        // It is found where something is asked for, too.
        assert!(kill("-STOP", &second));
        let argv = json!(["sleep", "1000"]);
        let error = setting.up("server", json!({"device": "cpu", "argv": argv}), 1).err().expect("late");
        assert!(error.contains("`python -m tamis.cluster` did not answer within 3 s"), "{error}");
        let ended = gang.ended().expect("told");
        let said = "the launcher (`python -m tamis.cluster`) ended (signal: 9 (SIGKILL): it did not answer within 3 s)";
        assert_eq!(ended, said);
        let third = setting.gang(1);
        assert_eq!(third.ended(), None);
        // What is left of its predecessor does not end it.
        drop(gang);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(third.ended(), None);
        assert!(kill("-0", &setting.pids("0", 3)[2]));
    }

    #[test]
    fn a_launcher_that_says_what_is_no_event_is_ended_and_replaced() {
        let mut setting = Setting::new();
        let program = setting.folder.path().join("python");
        let first = setting.folder.path().join("first");
        // It goes on with its input open, and every later one is a real one.
        let script = format!(
            "#!/bin/sh\nif mkdir {0}; then echo hello; exec sleep 1000; fi\nexec python3 \"$@\"\n",
            first.display()
        );
        std::fs::write(&program, script).expect("written");
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("a program");
        setting.config.learner.python = program.display().to_string();
        let error = setting.up("learner", json!({"argv": ["sleep", "1000"]}), 60).err().expect("refused");
        assert_eq!(
            error,
            "`python -m tamis.cluster` ended (signal: 9 (SIGKILL): it said `hello`, which is no event of \
             this build) before it answered"
        );
        assert_eq!(setting.gang(1).ended(), None);
    }

    /// A cluster that never was there is not waited for.
    #[test]
    fn a_launcher_in_place_of_another_waits_for_its_cluster() {
        let mut setting = Setting::new();
        let program = setting.folder.path().join("python");
        let given = setting.folder.path().join("given");
        let script = format!("#!/bin/sh\necho \"$@\" >> {}\nexec python3 \"$@\"\n", given.display());
        std::fs::write(&program, script).expect("written");
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("a program");
        setting.config.learner.python = program.display().to_string();
        setting.config.learner.startup_timeout = Duration::from_secs(77);
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
        let argv = json!(["{python}", "-c", SERVER, "{host}", "{port}", setting.folder.path().join("pids")]);
        let up = || setting.up("server", json!({"device": "cpu", "argv": argv}), 60).expect("it comes up");
        let server = up();
        assert!(kill("-KILL", &setting.pids("server", 1)[0]));
        soon("the news", || server.ended().is_some());
        let ended = server.ended().expect("told");
        assert!(ended.starts_with("server 1 on ") && ended.contains("(signal: 9 (SIGKILL))"), "{ended}");
        let other = up();
        // What is left of the first does not end the second.
        drop(server);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(other.ended(), None);
        assert!(kill("-0", &setting.pids("server", 2)[1]));
    }

    #[test]
    fn servers_whose_launcher_is_killed_are_started_again_by_another() {
        let setting = Setting::new();
        let argv = json!(["{python}", "-c", SERVER, "{host}", "{port}", setting.folder.path().join("pids")]);
        let server = setting.up("server", json!({"device": "cpu", "argv": argv, "restarts": 8}), 60);
        let server = server.expect("it comes up");
        let before = server.addresses();
        assert!(kill("-KILL", &setting.launcher()));
        soon("the news", || server.is_returning());
        assert_eq!(server.ended(), None);
        let server = Started::Through(Box::new(server));
        server.await_return(&Interrupt::new());
        assert_eq!(setting.pids("server", 2).iter().filter(|pid| kill("-0", pid)).count(), 1);
        assert_ne!(server.addresses(), before);
        let heard = setting.heard.lock().expect("lock").join("\n");
        let said =
            "ended (signal: 9 (SIGKILL)); another launcher starts its servers in 1 s, restart 1 of at most 8";
        assert!(heard.contains(said), "{heard}");
        drop(server);
        assert!(!kill("-0", &setting.pids("server", 2)[1]));
    }

    /// The run that begins or resumes is the one that was asked for, also where its launcher is killed on the way.
    #[test]
    fn a_launcher_that_is_killed_before_its_servers_answer_is_replaced() {
        let setting = Setting::new();
        let pids = setting.folder.path().join("pids");
        // The first start of it takes for ever.
        let slow =
            format!("[ -e {0}.slow ] || {{ touch {0}.slow; sleep 1000; }}; exec \"$@\"", pids.display());
        let argv = json!(["/bin/sh", "-c", slow, "sh", "{python}", "-c", SERVER, "{host}", "{port}", pids]);
        let server = std::thread::scope(|scope| {
            let up = scope.spawn(|| setting.up("server", json!({"device": "cpu", "argv": argv}), 60));
            soon("its start", || pids.with_extension("slow").exists());
            assert!(kill("-KILL", &setting.launcher()));
            up.join().expect("no panic").expect("it comes up")
        });
        assert_eq!(setting.pids("server", 1).iter().filter(|pid| kill("-0", pid)).count(), 1);
        assert_eq!(server.addresses().len(), 1);
        let heard = setting.heard.lock().expect("lock").join("\n");
        assert!(
            heard.contains("another launcher starts its servers in 1 s, restart 1 of at most 8"),
            "{heard}"
        );
    }

    #[test]
    fn servers_that_no_launcher_can_start_again_are_given_up() {
        let setting = Setting::new();
        let argv = json!(["{python}", "-c", SERVER, "{host}", "{port}", setting.folder.path().join("pids")]);
        let server = setting.up("server", json!({"device": "cpu", "argv": argv}), 60).expect("it comes up");
        server.standing().restarts = MOST_RESTARTS - 1;
        assert!(kill("-KILL", &setting.launcher()));
        soon("the news", || server.is_returning());
        // The next one does not come to anything.
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
        let argv = json!(["{python}", "-c", SERVER, "{host}", "{port}", setting.folder.path().join("pids")]);
        let server = setting.up("server", json!({"device": "cpu", "argv": argv}), 60).expect("it comes up");
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
