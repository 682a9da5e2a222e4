//! A learner in another process, as the run drives it.
//!
//! Each method of [`Learner`] is one numbered call of `tamis-learner/1`. A call that
//! breaks off is sent again under its number, so it is carried out once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use tamis_core::group::PolicyVersion;
use tamis_rollout::Generator;
use tamis_rollout::http::HttpError;
use tamis_rollout::wire::Call;

use super::calls::{Calls, SharedCalls, SignsOfLife, WireSettings, lock};
use super::generator::WireGenerator;
use super::message::{MessageError, WireMessage};
use super::{
    BackwardRequest, CheckAnswer, CopyRequest, EmptyRequest, ForwardRequest, HoldRequest, InfoAnswer,
    LoadRequest, NetworkRequest, NetworksAnswer, OpenAnswer, OpenRequest, PublishRequest, RANK_SECONDS,
    SaveRequest, StepAnswer, StepRequest,
};
use crate::checkpoint::{Hexadecimal, SaveError, covers};
use crate::interrupt::{Halt, Interrupt};
use crate::learner::generate::{Generate, GrownSamples};
use crate::learner::progress::UpdateProgress;
use crate::learner::rank_balance::RankBalance;
use crate::learner::texts::{TextPlaces, Texts};
use crate::learner::torch::TorchProcess;
use crate::learner::work::{WorkDone, WorkTally};
use crate::learner::{
    CopyTo, Learner, LearnerEndpoint, LearnerError, LearnerInfo, LoadContent, Network, NotFinite,
    OptimizerReport, Pass, RunLearner, SaveContent, Saved, TokenColumns, TopColumns, Trained, Wave,
    command_of,
};
use crate::prompts::codec::Codec;

struct Opened {
    incarnation: String,
    adopted: bool,
    holds: Option<BTreeMap<String, Hexadecimal>>,
}

/// A learner that another process holds.
pub struct WireLearner {
    calls: SharedCalls,
    /// Without one there are no generators.
    codec: Option<Codec>,
    interrupt: Interrupt,
    info: LearnerInfo,
    progress: UpdateProgress,
    held: Option<Trained>,
    /// Places of its numbers, if its sequences were several texts each.
    held_texts: Option<TextPlaces>,
    balance: RankBalance,
    work: WorkTally,
    opened: Opened,
    #[expect(dead_code, reason = "its thread ends with it")]
    signs_of_life: Option<SignsOfLife>,
}

impl WireLearner {
    /// Opens a learner: what it held before is lost. `process`: that of the learner, if it is to end
    /// with this value.
    ///
    /// # Errors
    /// An invalid address or one that nothing answers on, a learner of another protocol, a refusal.
    pub fn open(
        settings: WireSettings,
        process: Option<TorchProcess>,
        request: &OpenRequest,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt<LearnerError>> {
        let (url, backend, publish) = (settings.url.clone(), settings.backend, settings.publish);
        let (entropy, distills) = (settings.entropy, settings.distills);
        let wrong = |message: String, hint: String| {
            let url = url.clone();
            Halt::Failed(LearnerError::Remote { url, what: "cannot be used", message, hint: Some(hint) })
        };
        let no_address = |error: HttpError| {
            wrong(error.to_string(), "set learner.url to http://HOST:PORT or unix:PATH".to_owned())
        };
        let command = command_of(backend);
        let no_learner = |error: MessageError| {
            let hint = format!(
                "is it a learner of this build of `tamis`? `{command}` starts one and prints its address"
            );
            wrong(error.to_string(), hint)
        };
        let mut calls = Calls::new(settings, process, interrupt).map_err(no_address)?;
        let flag = interrupt.flag();
        let mut ask = |call: &Call| -> Pass<WireMessage> {
            let answer = calls.exchange(call, Some(&flag)).map_err(|error| calls.unanswered(error))?;
            Ok(calls.read(&answer)?)
        };
        let known: InfoAnswer = ask(&Call::get("/v1/info"))?.settings().map_err(no_learner)?;
        if let Some((message, hint)) = known.find_unfit(request, publish, entropy, distills) {
            return Err(wrong(message, hint));
        }
        let (content_type, body) = WireMessage::new(request).to_body();
        let opened = ask(&Call { body, content_type, ..Call::post_empty("/v1/open") })?;
        let OpenAnswer { incarnation, dtype, networks, adopted, holds, work } =
            opened.settings().map_err(no_learner)?;
        let known: InfoAnswer = ask(&Call::get("/v1/info"))?.settings().map_err(no_learner)?;
        calls.incarnation = Some(incarnation.clone());
        let where_it_is = if calls.process.is_some() { String::new() } else { format!(" at {url}") };
        let device = format!("learner{where_it_is}: {} on {}", known.implementation, known.device);
        let num_ranks = known.num_ranks.max(1);
        calls.gives_entropy = known.capabilities.entropy;
        let weights_elsewhere = !known.capabilities.weights;
        let mut info = LearnerInfo { device, num_ranks, dtype, weights_elsewhere, ..LearnerInfo::default() };
        networks.note(&mut info);
        let (calls, interrupt) = (Arc::new(Mutex::new(calls)), interrupt.clone());
        let progress = UpdateProgress::new(&interrupt);
        let orphan_timeout = request.orphan_timeout.and_then(|time| Duration::try_from_secs_f64(time).ok());
        let signs_of_life = orphan_timeout.map(|time| SignsOfLife::begin(&url, time)).transpose();
        let signs_of_life = signs_of_life.map_err(no_address)?;
        let opened = Opened { incarnation, adopted, holds };
        Ok(Self {
            calls,
            codec: None,
            interrupt,
            info,
            progress,
            held: None,
            held_texts: None,
            balance: RankBalance::default(),
            work: WorkTally::new(work, num_ranks),
            opened,
            signs_of_life,
        })
    }

    /// The name of the state in its memory, by which a later process of the run may
    /// [adopt](OpenRequest::adopt) it.
    pub fn incarnation(&self) -> &str {
        &self.opened.incarnation
    }

    /// Whether it kept what an earlier process of the run had it load.
    pub fn is_adopted(&self) -> bool {
        self.opened.adopted
    }

    /// Whether it held this checkpoint when it was opened, to the bit.
    pub fn holds(&self, checkpoint: &Path) -> bool {
        self.opened.holds.as_ref().is_some_and(|files| covers(checkpoint, files))
    }

    /// Enables generators that sample through it, for which it needs the tokenizer.
    #[must_use]
    pub fn with_generators(self, codec: &Codec) -> Self {
        Self { codec: Some(codec.clone()), ..self }
    }

    /// A call that an interrupt does not abandon.
    fn call(&mut self, path: &str, message: &WireMessage) -> Result<WireMessage, LearnerError> {
        let called = lock(&self.calls).call(path, message, None);
        match called {
            Ok(answer) => Ok(answer),
            Err(Halt::Failed(error)) => Err(error),
            Err(Halt::Interrupted) => Err(lock(&self.calls).lost("the call was aborted")),
        }
    }

    fn ask(&mut self, path: &str, request: &impl Serialize) -> Result<WireMessage, LearnerError> {
        self.call(path, &WireMessage::new(request))
    }

    /// A pass, which an interrupt abandons if the step allows it.
    fn pass(&mut self, path: &str, message: &WireMessage) -> Pass<WireMessage> {
        if self.progress.gives_up() {
            return Err(Halt::Interrupted);
        }
        let stop: Option<Arc<AtomicBool>> = self.progress.stop_flag();
        lock(&self.calls).call(path, message, stop.as_deref())
    }

    fn columns(
        &mut self,
        path: &str,
        network: Network,
        message: &WireMessage,
        wave: &Wave<'_>,
    ) -> Pass<TokenColumns> {
        let (num_tokens, per_token) = (wave.num_tokens(), wave.num_candidates());
        let mut answer = self.pass(path, message)?;
        self.note_pass(&answer);
        let columns = answer
            .take_token_columns((num_tokens, per_token))
            .map_err(|error| lock(&self.calls).misunderstood(&error))?;
        let is_whole = if network == Network::Critic {
            columns.values.len() == num_tokens
        } else {
            let has_entropies = columns.entropies.len() == num_tokens || !lock(&self.calls).gives_entropy;
            // Candidates belong to passes that are held.
            let has_candidates = path != HOLD || columns.candidates.len() == num_tokens * per_token;
            columns.logprobs.len() == num_tokens && has_entropies && has_candidates
        };
        if is_whole {
            return Ok(columns);
        }
        let error = MessageError("a column of the tokens is missing".to_owned());
        Err(Halt::Failed(lock(&self.calls).misunderstood(&error)))
    }

    /// Counts a pass whose answer gives the computing time of each rank.
    fn note_pass(&mut self, answer: &WireMessage) {
        if let Some(seconds) = answer.numbers(RANK_SECONDS) {
            self.balance.add_pass(&seconds);
        }
    }

    fn note_networks(&mut self, answer: &WireMessage) -> Result<(), LearnerError> {
        lock(&self.calls).settings_of::<NetworksAnswer>(answer)?.note(&mut self.info);
        Ok(())
    }

    fn norm(&self, answer: &mut WireMessage) -> Result<f64, LearnerError> {
        answer.take_f64("grad_norm").map_err(|error| lock(&self.calls).misunderstood(&error))
    }
}

/// The call of a pass that is held.
const HOLD: &str = "/v1/forward_hold";

impl Learner for WireLearner {
    fn info(&self) -> &LearnerInfo {
        &self.info
    }

    fn forward(&mut self, network: Network, wave: &Wave<'_>, sharpness: f64) -> Pass<TokenColumns> {
        if let Some(texts) = Texts::of(wave) {
            return Ok(texts.places.spread(&self.forward(network, &texts.wave, sharpness)?));
        }
        let request = ForwardRequest { network, sharpness, top: None, images: None };
        let message = WireMessage::new(&request).with_wave(wave);
        self.columns("/v1/forward", network, &message, wave)
    }

    fn forward_top(&mut self, network: Network, wave: &Wave<'_>, number: usize) -> Pass<TopColumns> {
        if let Some(texts) = Texts::of(wave) {
            return Ok(texts.places.spread_top(&self.forward_top(network, &texts.wave, number)?));
        }
        let request = ForwardRequest { network, sharpness: 1.0, top: Some(number), images: None };
        let mut answer = self.pass("/v1/forward", &WireMessage::new(&request).with_wave(wave))?;
        self.note_pass(&answer);
        let top = answer.take_top(wave.num_tokens(), number);
        Ok(top.map_err(|error| lock(&self.calls).misunderstood(&error))?)
    }

    fn forward_hold(&mut self, network: Trained, wave: &Wave<'_>) -> Pass<TokenColumns> {
        self.held_texts = None;
        if let Some(texts) = Texts::of(wave) {
            let columns = self.forward_hold(network, &texts.wave)?;
            self.held_texts = Some(texts.places.clone());
            return Ok(texts.places.spread(&columns));
        }
        let message = WireMessage::new(&HoldRequest { network, images: None }).with_wave(wave);
        self.held = None;
        self.balance.add_wave(wave, self.info.num_ranks);
        let columns = self.columns(HOLD, network.into(), &message, wave)?;
        self.held = Some(network);
        if network == Trained::Policy {
            self.work.hold(wave);
        }
        Ok(columns)
    }

    fn backward(&mut self, derivatives: TokenColumns) -> Pass<()> {
        let network = self.held.take().ok_or(LearnerError::NothingHeld)?;
        let texts = self.held_texts.take();
        let derivatives = match texts {
            Some(texts) => texts.gather(&derivatives),
            None => derivatives,
        };
        let message = WireMessage::new(&BackwardRequest { discard: false });
        let message = message.with_derivatives(network.into(), derivatives);
        let answer = self.pass("/v1/backward", &message)?;
        self.note_pass(&answer);
        if network == Trained::Policy {
            self.work.add();
        }
        Ok(())
    }

    fn discard(&mut self) -> Result<(), LearnerError> {
        self.held = None;
        self.ask("/v1/backward", &BackwardRequest { discard: true }).map(|_| ())
    }

    fn optim_step(&mut self, network: Trained, learning_rate: f64) -> Result<OptimizerReport, LearnerError> {
        let mut answer = self.ask("/v1/optim_step", &StepRequest { network, learning_rate })?;
        let grad_norm = self.norm(&mut answer)?;
        let StepAnswer { skipped, num_steps } = lock(&self.calls).settings_of(&answer)?;
        if network == Trained::Policy {
            self.info.num_steps = num_steps;
            self.work.step();
        }
        if !skipped {
            self.progress.note_moved();
        }
        Ok(OptimizerReport { grad_norm, skipped })
    }

    fn grad_norm(&mut self, network: Trained) -> Result<f64, LearnerError> {
        if network == Trained::Policy {
            self.work.clear();
        }
        let mut answer = self.ask("/v1/grad_norm", &NetworkRequest { network })?;
        self.norm(&mut answer)
    }
}

impl RunLearner for WireLearner {
    fn endpoint(&self) -> Option<LearnerEndpoint> {
        let calls = lock(&self.calls);
        let WireSettings { url, token, .. } = &calls.settings;
        let incarnation = self.opened.incarnation.clone();
        Some(LearnerEndpoint { url: url.clone(), token: token.clone(), incarnation })
    }

    fn take_wire_time(&mut self) -> Option<Duration> {
        Some(std::mem::take(&mut lock(&self.calls).wire_time))
    }

    fn take_rank_balance(&mut self) -> Option<RankBalance> {
        let balance = std::mem::take(&mut self.balance);
        (self.info.num_ranks > 1).then_some(balance)
    }

    fn take_work(&mut self) -> Option<WorkDone> {
        self.work.take()
    }

    fn progress(&mut self) -> &mut UpdateProgress {
        &mut self.progress
    }

    fn keep(&mut self) -> Result<(), LearnerError> {
        self.ask("/v1/keep", &EmptyRequest {})?;
        self.progress.note_kept(true);
        Ok(())
    }

    fn restore(&mut self) -> Result<(), LearnerError> {
        if !self.progress.can_restore() {
            return Ok(());
        }
        let answer = self.ask("/v1/restore", &EmptyRequest {})?;
        self.note_networks(&answer)?;
        self.progress.note_restored();
        Ok(())
    }

    fn copy_policy(&mut self, to: CopyTo) -> Result<(), LearnerError> {
        let answer = self.ask("/v1/copy", &CopyRequest { to })?;
        self.note_networks(&answer)
    }

    fn reset_optimizer(&mut self, network: Trained) -> Result<(), LearnerError> {
        self.ask("/v1/reset_optimizer", &NetworkRequest { network })?;
        if network == Trained::Policy {
            self.info.num_steps = 0;
        }
        Ok(())
    }

    fn find_not_finite(&mut self) -> Result<Option<NotFinite>, LearnerError> {
        let answer = self.ask("/v1/check", &EmptyRequest {})?;
        Ok(lock(&self.calls).settings_of::<CheckAnswer>(&answer)?.not_finite)
    }

    fn publish(&mut self, version: PolicyVersion) -> Result<(), LearnerError> {
        self.ask("/v1/publish", &PublishRequest { version: version.0 })?;
        self.progress.note_kept(false);
        Ok(())
    }

    fn save(&mut self, folder: &Path, content: SaveContent) -> Result<Saved, LearnerError> {
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let url = lock(&self.calls).settings.url.clone();
        let is_elsewhere = |what, message| LearnerError::Remote {
            url,
            what,
            message,
            hint: Some(
                "run directory and learner must see the same file system under the same path".to_owned(),
            ),
        };
        let answer = match self.ask("/v1/save", &SaveRequest::new(&folder, content)) {
            // The folder is here.
            Err(LearnerError::Files(SaveError::Disk(error)))
                if error.cause.kind() == std::io::ErrorKind::NotFound =>
            {
                return Err(is_elsewhere("does not find what is here", folder.display().to_string()));
            }
            answer => answer?,
        };
        let saved: Saved = lock(&self.calls).settings_of(&answer)?;
        let is_here =
            |name: &str, bytes: u64| folder.join(name).metadata().is_ok_and(|found| found.len() == bytes);
        match saved.files.iter().find(|file| !is_here(&file.name, file.bytes)) {
            None => Ok(saved),
            Some(file) => {
                let message = format!("{} is not here", folder.join(&file.name).display());
                Err(is_elsewhere("wrote to a place that cannot be read here", message))
            }
        }
    }

    fn load(&mut self, folder: &Path, content: LoadContent) -> Result<(), LearnerError> {
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let answer = self.ask("/v1/load", &LoadRequest { folder, content })?;
        self.note_networks(&answer)
    }

    fn generate(&mut self, asked: Generate) -> Pass<GrownSamples> {
        let flag = self.interrupt.flag();
        super::generator::generate(&mut lock(&self.calls), &asked, Some(&flag))
    }

    fn generator(&self, version: PolicyVersion) -> Option<Box<dyn Generator>> {
        let codec = self.codec.as_ref()?;
        Some(Box::new(WireGenerator::new(Arc::clone(&self.calls), codec, version, &self.interrupt)))
    }
}
