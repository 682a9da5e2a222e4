//! Servers that a run samples with: the fleet of its configuration, started if the configuration asks
//! for it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tamis_config::{
    BackendKind, Config, Intake, LOOPBACK, LaunchConfig, LauncherKind, LearnerBackend, ServerCommand,
    SurplusKind,
};
use tamis_rollout::clock::{Bell, SystemClock};
use tamis_rollout::fleet::{FaultCounts, Fleet, FleetSettings, Moves};
use tamis_rollout::http::{Address, HttpClient, HttpError, HttpSettings, Transport as _};
use tamis_rollout::launch::{
    LaunchError, LaunchLimits, Launched, LaunchedServers, Say, ServerPlace, ServerProcess, free_ports,
};
use tamis_rollout::server::{
    GRACE, OpenAi, OpenAiServer, OtherLogprobs, Past, Protocol as _, Restart, SendTimes, Sender, Server,
    ServerSettings, Sglang, SglangServer, Vllm, VllmServer,
};
use tamis_rollout::wire::vllm::sleep;
use tamis_rollout::{
    Beginning, Generator, GeneratorError, GeneratorEvent, InFlight, Journalled, Publication, SampleMemory,
    Sampling, Wait,
};

use super::published::PublishedFolders;
use super::samples::RecordedSamples;
use crate::api_key::api_key;
use crate::assemble::objective;
use crate::assemble::settings::sampling;
use crate::assemble::startup::Startup;
use crate::error::AssembleError;
use crate::error::RunError;
use crate::interrupt::{Halt, Interrupt};
use crate::launcher::ServersToStart;
use crate::learner::{LearnerEndpoint, RunLearner};
use tamis_core::fault::Fault;
use tamis_run::log::progress::Console;

/// Longest time of a health check, which computes nothing.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest time for which a server may be found paused: another process may be giving it weights.
const PAUSE_GRACE: Duration = Duration::from_secs(10);

/// Interval of checks for Ctrl-C while servers take weights in.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The sampler of a run: the learner itself, the native engine apart from it, or servers.
pub(crate) enum RunSampler {
    /// A generator that shares the learner's weights.
    Learner(Box<dyn Generator>),
    /// A learner in another process, with a memory: the same bits cannot be requested twice.
    LearnerElsewhere(Box<Journalled<Box<dyn Generator>>>),
    /// The native engine in this process, if the learner is elsewhere: it reads the folders that the
    /// learner writes.
    Native(Box<dyn Generator>),
    /// The same with a memory, see [`journals_native_samples`].
    NativeWithJournal(Box<Journalled<Box<dyn Generator>>>),
    /// Servers.
    Servers {
        generator: Box<Journalled<Fleet>>,
        /// Faults that the metrics have counted, by their names there.
        reported: BTreeMap<String, u64>,
        /// Whether they sleep while the policy learns.
        sleeps: bool,
        /// Those of them that the run started: they end with it.
        #[expect(dead_code, reason = "it is there to be dropped")]
        launched: Option<Arc<dyn Launched>>,
    },
}

/// Whether samples of the native engine are journalled. If PyTorch trains a step again, on a GPU or on other
/// ranks, its weights may differ, and the engine would sample something else.
pub(crate) fn journals_native_samples(config: &Config) -> bool {
    config.rollout.backend == BackendKind::Native && config.learner.backend == LearnerBackend::Torch
}

impl RunSampler {
    pub(crate) fn generator(&mut self) -> &mut dyn Generator {
        match self {
            Self::Learner(generator) | Self::Native(generator) => &mut **generator,
            Self::LearnerElsewhere(generator) | Self::NativeWithJournal(generator) => &mut **generator,
            Self::Servers { generator, .. } => &mut **generator,
        }
    }

    /// Whether it samples in this process, as a function of only weights and keys.
    pub(crate) fn is_native(&self) -> bool {
        matches!(self, Self::Learner(_) | Self::Native(_) | Self::NativeWithJournal(_))
    }

    /// The memory of samples that are not functions of keys.
    pub(crate) fn memory(&mut self) -> Option<&mut SampleMemory> {
        match self {
            Self::Learner(_) | Self::Native(_) => None,
            Self::LearnerElsewhere(generator) | Self::NativeWithJournal(generator) => {
                Some(generator.memory_mut())
            }
            Self::Servers { generator, .. } => Some(generator.memory_mut()),
        }
    }

    /// Has the servers sleep until weights are published, if they are to.
    ///
    /// # Errors
    /// If one reports that it cannot.
    pub(crate) fn put_to_sleep(&mut self) -> Result<(), GeneratorError> {
        match self {
            Self::Servers { generator, sleeps: true, .. } => generator.generator_mut().put_to_sleep(),
            _ => Ok(()),
        }
    }

    /// Returns the number of faults at servers since the last call, by metric: attempts at samples, and
    /// checks and publications.
    pub(crate) fn take_faults(&mut self) -> Vec<(String, u64)> {
        match self {
            Self::Servers { generator, reported, .. } => {
                new_faults(generator.generator().fault_counts(), reported)
            }
            _ => Vec::new(),
        }
    }
}

/// New counts since the last report, by metric.
fn new_faults(counts: &FaultCounts, reported: &mut BTreeMap<String, u64>) -> Vec<(String, u64)> {
    let samples = counts.samples.iter().map(|(class, &count)| ("faults", class.name(), count));
    let checks = counts.servers.iter().map(|(class, &count)| ("checks", class.name(), count));
    let all = samples.chain(checks).chain([("faults", "unknown", counts.num_unknown)]);
    let new = all.map(|(what, class, count)| {
        let name = format!("rollout/server_{what}/{class}");
        let before = reported.insert(name.clone(), count).unwrap_or(0);
        (name, count - before)
    });
    new.filter(|(_, count)| *count > 0).collect()
}

/// Whether the learner may compute the log-probabilities of sampled tokens that a server does not
/// return in our form. It may not if the sampler's own log-probabilities are trained on, or weighed
/// against the learner's.
pub(crate) fn recomputes_logprobs(config: &Config) -> Result<bool, AssembleError> {
    let (objective, _) = objective::objective(config)?;
    // A correction that weighs and rejects nothing does not read them either. Carried groups could no
    // longer get them.
    let is_weighed = objective::correction(config)?.is_some_and(|correction| {
        correction.importance.is_some() || !correction.rejections.is_empty() || correction.mode.is_bypass()
    });
    let is_read = objective.policy.weighs_behaviour() || is_weighed;
    let is_carried = config.schedule.surplus == SurplusKind::Carry;
    Ok(config.samples_at_servers() && !is_read && !is_carried)
}

/// Starts the servers of `rollout.launch` with the present weights, and waits until they answer; `None`
/// if the configuration names running servers. Their output goes to `servers/` in a folder.
///
/// # Errors
/// If one does not start. All are then ended.
pub(crate) fn launch(
    startup: Startup<'_>,
    learner: &mut dyn RunLearner,
    folders: &PublishedFolders,
) -> Result<Option<Arc<dyn Launched>>, Halt<RunError>> {
    let Startup { config, codec, launcher, folder, interrupt, ui, .. } = startup;
    let rollout = &config.rollout;
    let Some(launch) = rollout.launch.as_ref().filter(|_| rollout.servers.is_empty()) else {
        return Ok(None);
    };
    let logs = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()).join("servers");
    let say: Say = {
        let ui = ui.clone();
        Arc::new(move |message: &str| ui.say(message))
    };
    let begin = |model: &Path| {
        if config.cluster.launcher == LauncherKind::None {
            return launch_here(startup, launch, folders.intake, model, &logs, say);
        }
        let mut command = ServerCommand::new(rollout, folders.intake, model, "{host}", "{port}");
        command.ask_for_key(rollout);
        let key = match named_key(config).map_err(RunError::from)? {
            Some(key) => key,
            None => launcher.server_key().map_err(RunError::from)?,
        };
        let servers = ServersToStart { launch, command: &command, key };
        let started = launcher.start_servers(config, servers, folder, &say, interrupt);
        started.map_err(|halt| halt.map(RunError::from))
    };
    let model = folders.write_start(learner, codec)?;
    folders.disk.create_folder(&logs).map_err(RunError::from)?;
    begin(&model).map(Some).inspect_err(|_| {
        // These files are not read again. A run that did not begin leaves nothing; if they cannot be removed,
        // that is harmless.
        let _ = folders.disk.remove_folder(&folders.start());
    })
}

fn named_key(config: &Config) -> Result<Option<String>, Fault> {
    let rollout = &config.rollout;
    api_key("rollout.", rollout.api_key_file.as_deref(), rollout.api_key_env.as_deref())
}

/// Starts servers on this machine, with the weights in a folder.
fn launch_here(
    Startup { config, interrupt, .. }: Startup<'_>,
    launch: &LaunchConfig,
    intake: Intake,
    model: &Path,
    logs: &Path,
    say: Say,
) -> Result<Arc<dyn Launched>, Halt<RunError>> {
    let gpus = visible_gpus(launch, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref())?;
    let mut processes = Vec::with_capacity(launch.replicas);
    let ports = free_ports(launch.replicas).map_err(|source| {
        let what = "there are not as many free ports of 127.0.0.1";
        RunError::from(LaunchError::lacks("servers", what, source))
    })?;
    for (place, (gpus, port)) in gpus.into_iter().zip(ports).enumerate() {
        let command = ServerCommand::new(&config.rollout, intake, model, LOOPBACK, &port.to_string());
        let environment = command.environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        let gpus = gpus.map(|gpus| ("CUDA_VISIBLE_DEVICES".to_owned(), gpus));
        processes.push(ServerProcess {
            shown: command.to_string(),
            environment: environment.chain(gpus).collect(),
            words: command.words,
            what: "server",
            place: ServerPlace::Port(port),
            log: logs.join(format!("server_{}.log", place + 1)),
        });
    }
    let limits = LaunchLimits::of_servers(launch.startup_timeout.0, launch.lost_timeout.map(|limit| limit.0));
    match LaunchedServers::start(processes, limits, &interrupt.flag(), say) {
        Ok(Some(servers)) => Ok(Arc::new(servers)),
        Ok(None) => Err(Halt::Interrupted),
        Err(error) => Err(Halt::Failed(error.into())),
    }
}

/// The GPUs of each server, as `CUDA_VISIBLE_DEVICES` names them, taken in turn from those that this
/// process sees. `None` if there is only one server, which sees all of them.
fn visible_gpus(launch: &LaunchConfig, visible: Option<&str>) -> Result<Vec<Option<String>>, RunError> {
    if launch.replicas == 1 {
        return Ok(vec![None]);
    }
    let wanted = launch.replicas * launch.tensor_parallel;
    let named: Vec<String> = match visible.map(str::trim) {
        // Then CUDA sees no GPU.
        Some("") => Vec::new(),
        Some(visible) => visible.split(',').map(|gpu| gpu.trim().to_owned()).collect(),
        None => (0..wanted).map(|gpu| gpu.to_string()).collect(),
    };
    if named.len() < wanted {
        return Err(RunError::from(AssembleError::setting(
            format!(
                "rollout.launch: {} servers of {} GPUs each are {wanted} GPUs, and CUDA_VISIBLE_DEVICES names {}",
                launch.replicas,
                launch.tensor_parallel,
                named.len()
            ),
            "set `rollout.launch.replicas` and `rollout.launch.tensor_parallel` to what there is",
        )));
    }
    Ok(named.chunks(launch.tensor_parallel).take(launch.replicas).map(|gpus| Some(gpus.join(","))).collect())
}

/// Connects to the servers of a configuration, or to those that the run started, in the name of one
/// start of the run.
///
/// # Errors
/// If an address or a parameter is wrong, and [`RunError::Servers`] if none answers.
pub(crate) fn connect(
    startup: Startup<'_>,
    learner: &dyn RunLearner,
    launched: Option<Arc<dyn Launched>>,
    past: Pasts,
    folders: &PublishedFolders,
    samples: RecordedSamples,
    begin: Beginning,
) -> Result<RunSampler, RunError> {
    let Startup { config, ui, .. } = startup;
    let recomputes = recomputes_logprobs(config)?;
    let other_logprobs = if recomputes { OtherLogprobs::Recompute } else { OtherLogprobs::Refuse };
    let sends = learner.endpoint().filter(|_| folders.intake == Intake::Transfer).map(|learner| {
        let launched = launched.as_ref().map(Arc::downgrade);
        Sends {
            learner,
            launched,
            times: SendTimes { timeout: config.publish.timeout.0, grace: GRACE },
            past,
        }
    });
    let sampling = &sampling(config);
    let how = How { sampling, other_logprobs, sends };
    let vocabulary = learner.info().policy.vocab_size;
    let mut fleet = connect_fleet(startup, launched.as_ref(), vocabulary, how, Some(folders))?;
    fleet.drain_by(folders.run.join("drain"));
    if let Some((server, other)) = fleet.other_logprobs(sampling).into_iter().next() {
        if !recomputes {
            let hint = "turn that off; or start vLLM with the --logprobs-mode that fits (raw_logprobs at \
                        temperature 1, processed_logprobs without truncation); or change the settings that \
                        read the server's log-probabilities, so that the learner computes them: \
                        objective.correction.preset=disabled, \
                        schedule.surplus=discard, another loss than `decoupled`";
            return Err(AssembleError::setting(format!("rollout.servers: {server}: {other}"), hint).into());
        }
        ui.say(&format!("{server}: {other}: the learner recomputes them"));
    }
    let generator = Box::new(Journalled::new(fleet, Box::new(samples), begin));
    let sleeps = config.rollout.sleep_level > 0;
    Ok(RunSampler::Servers { generator, reported: BTreeMap::new(), sleeps, launched })
}

/// Settings of the sampling at servers.
pub(super) struct How<'a> {
    pub(super) sampling: &'a Sampling,
    /// Action when the servers' log-probabilities are of another distribution.
    pub(super) other_logprobs: OtherLogprobs,
    /// Whether and how they are sent weights.
    pub(super) sends: Option<Sends>,
}

/// The history of transfers, by the place of the server.
pub(crate) type Pasts = Arc<Mutex<BTreeMap<usize, Past>>>;

/// Sending of weights over communicators.
#[derive(Clone)]
pub(super) struct Sends {
    learner: LearnerEndpoint,
    /// Servers that can be started again.
    launched: Option<Weak<dyn Launched>>,
    times: SendTimes,
    /// By the place of the server; another server may take it over.
    past: Pasts,
}

impl Sends {
    /// For the server at a place of the addresses.
    fn sender(&self, place: usize, client: &mut HttpClient, bell: &Bell) -> Result<Sender, HttpError> {
        let LearnerEndpoint { url, token, incarnation } = &self.learner;
        let line = client.line(Address::parse(url)?, token.as_deref(), bell.clone())?;
        let restart = self.launched.clone().map(|launched| {
            Arc::new(move || {
                if let Some(launched) = launched.upgrade() {
                    launched.restart(place);
                }
            }) as Restart
        });
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        let past = past.entry(place).or_default().clone();
        Ok(Sender::new(Box::new(line), incarnation.clone(), self.times, restart, past))
    }
}

/// A fleet of the servers that were started, or of those that the configuration names, once one of them
/// answers. Weights are published to them in `folders`.
///
/// # Errors
/// As [`connect`].
pub(super) fn connect_fleet(
    startup: Startup<'_>,
    launched: Option<&Arc<dyn Launched>>,
    vocabulary: usize,
    how: How<'_>,
    folders: Option<&PublishedFolders>,
) -> Result<Fleet, RunError> {
    let Startup { config, codec, interrupt, ui, .. } = startup;
    let rollout = &config.rollout;
    let urls = launched.map_or_else(|| rollout.servers.clone(), |servers| servers.addresses());
    ui.say(&format!("connecting to {}", urls.join(", ")));
    let extra = &rollout.server_parameters.0;
    let check = match rollout.backend {
        BackendKind::Sglang => Sglang::check,
        BackendKind::OpenAi => OpenAi::check,
        BackendKind::Vllm | BackendKind::Native | BackendKind::Learner => Vllm::check,
    };
    check(how.sampling, extra).map_err(|error| {
        AssembleError::setting(format!("rollout.backend: {error}"), "change the setting that it names")
    })?;
    let key = key_of(config, launched.map(|servers| &**servers))?;
    let addresses = parse(&urls)?;
    let sends = how.sends;
    let sends_encrypted = |sends: &Sends| sends.learner.url.starts_with("https:");
    let encrypted =
        addresses.iter().any(Address::is_encrypted) || sends.as_ref().is_some_and(sends_encrypted);
    let mut client =
        HttpClient::start(HttpSettings::default(), encrypted).map_err(|error| refused(&error))?;
    let bell = Bell::default();
    let tokenizer = codec.tokenizer().clone();
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let settings = ServerSettings {
        name: String::new(),
        model: rollout.server_model.clone(),
        vocabulary,
        end_token_ids: codec.end_token_ids().to_vec(),
        image_token_id: codec.image_token_id(),
        extra: extra.clone(),
        answer_timeout: rollout.server_timeout.0,
        check_timeout: rollout.server_startup_timeout.0.min(CHECK_TIMEOUT),
        publish_timeout: rollout.server_timeout.0,
        pause_grace: PAUSE_GRACE,
        sleep_level: u8::try_from(rollout.sleep_level).unwrap_or_default(),
        nonce: format!("{:x}-{:x}", since.as_nanos(), std::process::id()),
        seeds: true,
        other_logprobs: how.other_logprobs,
        seen_as: folders.and_then(|folders| folders.seen_as.clone()),
    };
    let backend = rollout.backend;
    let mut reach = {
        let bell = bell.clone();
        move |place: usize, url: &str, address: Address| -> Result<Box<dyn Server>, HttpError> {
            let line = Box::new(client.line(address, key.as_deref(), bell.clone())?);
            let settings = Arc::new(ServerSettings { name: url.to_owned(), ..settings.clone() });
            let tokenizer = tokenizer.clone();
            Ok(match backend {
                BackendKind::Sglang => Box::new(SglangServer::new(line, settings, tokenizer)),
                BackendKind::OpenAi => Box::new(OpenAiServer::new(line, settings, tokenizer)),
                BackendKind::Vllm | BackendKind::Native | BackendKind::Learner => {
                    let server = VllmServer::new(line, settings, tokenizer);
                    match &sends {
                        Some(sends) => {
                            Box::new(server.with_sender(sends.sender(place, &mut client, &bell)?))
                        }
                        None => Box::new(server),
                    }
                }
            })
        }
    };
    let mut servers = Vec::with_capacity(urls.len());
    for (place, (url, address)) in urls.iter().zip(addresses).enumerate() {
        servers.push(reach(place, url, address).map_err(|error| refused(&error))?);
    }
    let moves = launched.cloned().map(|launched| -> Moves {
        let mut known = urls;
        Box::new(move || {
            let now = launched.addresses();
            let moved = known.iter_mut().zip(now).enumerate().filter(|(_, (before, now))| *before != now);
            let reach = moved.filter_map(|(place, (before, now))| {
                let server = reach(place, &now, Address::parse(&now).ok()?).ok()?;
                *before = now;
                Some((place, server))
            });
            reach.collect()
        })
    });
    let settings = FleetSettings {
        max_in_flight: rollout.max_in_flight,
        busy_timeout: rollout.server_timeout.0,
        start_timeout: rollout.server_startup_timeout.0,
        give_up_after: rollout.server_lost_timeout.map(|limit| limit.0),
        ..FleetSettings::default()
    };
    let say = {
        let ui = ui.clone();
        Box::new(move |message: tamis_rollout::fleet::FleetMessage| ui.warn(&message.to_string()))
    };
    let clock = Box::new(SystemClock);
    Ok(Fleet::connect_moving(servers, moves, settings, clock, bell, interrupt.flag(), say)?)
}

fn refused(error: &HttpError) -> RunError {
    AssembleError::setting(format!("rollout.servers: {error}"), "correct it and start again").into()
}

fn parse(urls: &[String]) -> Result<Vec<Address>, RunError> {
    urls.iter().map(|url| Address::parse(url)).collect::<Result<_, _>>().map_err(|error| refused(&error))
}

/// The key that servers are asked with: the one that the run drew for those that it started, or the one
/// named.
fn key_of(config: &Config, launched: Option<&dyn Launched>) -> Result<Option<String>, Fault> {
    match launched.and_then(Launched::key) {
        Some(drawn) => Ok(Some(drawn.to_owned())),
        None => named_key(config),
    }
}

/// Has servers that sleep while the policy learns free their GPU, even if others are connected to them, and
/// waits until they have done so, before a learner is loaded there. A server that does not is reported.
///
/// # Errors
/// If an address or the key is wrong.
pub(crate) fn put_to_sleep(
    config: &Config,
    launched: Option<&dyn Launched>,
    interrupt: &Interrupt,
    ui: &Console,
) -> Result<(), Halt<RunError>> {
    let rollout = &config.rollout;
    let level = u8::try_from(rollout.sleep_level).unwrap_or_default();
    if level == 0 || !config.samples_at_servers() {
        return Ok(());
    }
    let urls = match launched {
        Some(launched) => launched.addresses(),
        // Those that the run starts are not there yet.
        None => rollout.servers.clone(),
    };
    let addresses = parse(&urls)?;
    let key = key_of(config, launched).map_err(RunError::from)?;
    let is_encrypted = addresses.iter().any(Address::is_encrypted);
    let mut client =
        HttpClient::start(HttpSettings::default(), is_encrypted).map_err(|error| refused(&error))?;
    let (bell, mut asked) = (Bell::default(), Vec::with_capacity(urls.len()));
    for (url, address) in urls.iter().zip(addresses) {
        let mut line = client.line(address, key.as_deref(), bell.clone()).map_err(|error| refused(&error))?;
        line.send(0, sleep(level), rollout.server_timeout.0);
        asked.push((url, line));
    }
    while !asked.is_empty() {
        if interrupt.is_requested() {
            return Err(Halt::Interrupted);
        }
        asked.retain_mut(|(url, line)| {
            let answered =
                line.receive().pop().map(|(_, exchange)| exchange.and_then(|answer| answer.success()));
            if let Some(Err(fault)) = &answered {
                ui.warn(&format!(
                    "the server at {url} should sleep before another learner is loaded, but does not: {}",
                    fault.detail
                ));
            }
            answered.is_none()
        });
        bell.wait(LOOK_EVERY);
    }
    Ok(())
}

/// Publishes weights and waits until every server that is used holds them.
pub(crate) fn publish_to(
    generator: &mut dyn Generator,
    publication: &Publication,
    interrupt: &Interrupt,
) -> Result<(), Halt<RunError>> {
    generator.publish(publication, InFlight::Wait).map_err(RunError::from)?;
    let published = GeneratorEvent::Published { version: publication.version };
    loop {
        let soon = Instant::now() + LOOK_EVERY;
        let events = generator.next(Wait::Until(soon)).map_err(RunError::from)?;
        if interrupt.is_requested() {
            return Err(Halt::Interrupted);
        }
        if events.contains(&published) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use tamis_rollout::wire::FaultClass;

    use super::*;

    fn gpus(
        replicas: usize,
        tensor_parallel: usize,
        visible: Option<&str>,
    ) -> Result<Vec<Option<String>>, String> {
        let launch = LaunchConfig {
            replicas,
            tensor_parallel,
            args: Vec::new(),
            command: Vec::new(),
            startup_timeout: tamis_core::setting::TimeSpan::seconds(1),
            lost_timeout: None,
        };
        visible_gpus(&launch, visible).map_err(|error| error.to_string())
    }

    #[test]
    fn each_server_gets_the_next_of_the_gpus_that_are_there() {
        let some = |gpus: &[&str]| Ok(gpus.iter().map(|gpus| Some((*gpus).to_owned())).collect());
        assert_eq!(gpus(1, 2, Some("3,5")), Ok(vec![None]));
        assert_eq!(gpus(2, 2, None), some(&["0,1", "2,3"]));
        assert_eq!(gpus(2, 1, Some("3, GPU-7,9")), some(&["3", "GPU-7"]));
        assert_eq!(
            gpus(2, 2, Some("3,5")),
            Err("rollout.launch: 2 servers of 2 GPUs each are 4 GPUs, and CUDA_VISIBLE_DEVICES names 2"
                .to_owned())
        );
    }

    #[test]
    fn faults_are_told_once_by_their_metrics() {
        let mut reported = BTreeMap::new();
        let mut counts = FaultCounts::default();
        assert_eq!(new_faults(&counts, &mut reported), []);
        counts.samples.insert(FaultClass::TimedOut, 2);
        counts.servers.insert(FaultClass::Probe, 1);
        let both = [("rollout/server_faults/timed_out", 2), ("rollout/server_checks/probe", 1)];
        assert_eq!(new_faults(&counts, &mut reported), both.map(|(name, count)| (name.to_owned(), count)));
        counts.samples.insert(FaultClass::TimedOut, 5);
        counts.num_unknown = 1;
        let new = [("rollout/server_faults/timed_out", 3), ("rollout/server_faults/unknown", 1)];
        assert_eq!(new_faults(&counts, &mut reported), new.map(|(name, count)| (name.to_owned(), count)));
    }
}
