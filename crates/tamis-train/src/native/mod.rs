//! The native engine as learner and, beside it, as generator: one set of weights for both, so a run is
//! exactly on-policy.

mod critic;
mod generator;
mod learner;

pub use critic::NativeCritic;
pub use generator::NativeGenerator;
pub(crate) use learner::KEEP_LOGITS_BYTES;

use std::sync::Arc;

use tamis_core::group::PolicyVersion;
use tamis_model::{AdamW, AdamWConfig, Gradients, Model, Threads, Workspace};
use tamis_rollout::{Publication, Weights};

use generator::SharedWeights;

use crate::interrupt::Interrupt;
use crate::prompts::codec::Codec;

/// Settings of the native engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineSettings {
    /// Worker threads; the results do not depend on it.
    pub threads: usize,
    /// The temperature that log-probabilities are taken at, that of rollouts.
    pub temperature: f64,
    /// Largest norm of the gradient.
    pub max_grad_norm: Option<f64>,
    /// Recompute activations in the backward pass.
    pub recompute_activations: bool,
    /// Sequences generated at once.
    pub max_num_seqs: usize,
    /// Optimizer constants.
    pub optimizer: AdamWConfig,
}

/// Weights and optimizer of a policy on this machine; [`NativeGenerator`] samples from them.
pub struct NativeEngine {
    threads: Arc<Threads>,
    settings: EngineSettings,
    codec: Codec,
    model: Arc<Model>,
    shared: SharedWeights,
    reference: Option<Model>,
    critic: Option<NativeCritic>,
    optimizer: AdamW,
    gradients: Gradients,
    workspace: Workspace,
    version: PolicyVersion,
    interrupt: Interrupt,
    updates: UpdateProgress,
    before: Option<Before>,
}

/// The policy before a step of which parts are trained on while the rest is generated.
struct Before {
    model: Arc<Model>,
    optimizer: AdamW,
}

/// Progress of a step's updates, for an interrupt that comes between.
#[derive(Debug, Clone, Copy)]
struct UpdateProgress {
    /// Weights have moved since they began.
    has_moved: bool,
    /// The state before them is not lost with this process, or not worth keeping.
    is_kept: bool,
}

impl NativeEngine {
    /// Around a model; its optimizer starts afresh.
    pub fn new(model: Model, codec: Codec, settings: EngineSettings) -> Self {
        let threads = Arc::new(Threads::new(settings.threads));
        let model = Arc::new(model);
        let shared = SharedWeights::default();
        shared.set(&model);
        Self {
            shared,
            optimizer: AdamW::new(&model, settings.optimizer),
            gradients: Gradients::new(&model),
            workspace: Workspace::default(),
            version: PolicyVersion(0),
            reference: None,
            critic: None,
            interrupt: Interrupt::new(),
            updates: UpdateProgress { has_moved: false, is_kept: true },
            before: None,
            threads,
            settings,
            codec,
            model,
        }
    }

    /// Gives up generation and passes of every model, between two of its layers, once this interrupt is
    /// requested; updates as [`Self::begin_updates`] says.
    #[must_use]
    pub fn with_interrupt(mut self, interrupt: &Interrupt) -> Self {
        self.interrupt = interrupt.clone();
        self
    }

    /// Begins the updates of a step. An interrupt gives them up between two layers, and nothing of the step
    /// may be used then: where weights have moved already only if the state before the step is kept elsewhere
    /// (`is_kept`, as it is until this is called). Else there would be no state to go on from but an older
    /// one, so the rest of the step is finished.
    pub fn begin_updates(&mut self, is_kept: bool) {
        self.updates = UpdateProgress { has_moved: false, is_kept };
    }

    /// Keeps weights and optimizer as they are, once, until the next publication: a step is begun of which
    /// the rest is still generated. Until then generators go on with these weights, and
    /// [`Self::give_up_updates`] brings them back.
    pub fn keep_before(&mut self) {
        if self.before.is_none() {
            self.before = Some(Before { model: Arc::clone(&self.model), optimizer: self.optimizer.clone() });
        }
    }

    /// Takes back all updates since [`Self::keep_before`], where it was called.
    pub fn give_up_updates(&mut self) {
        if let Some(before) = self.before.take() {
            (self.model, self.optimizer) = (before.model, before.optimizer);
            self.gradients.clear();
            self.updates.has_moved = false;
        }
    }

    /// Says that the step of the updates is part of the state of the run.
    pub fn end_updates(&mut self) {
        self.updates.has_moved = false;
    }

    /// Whether updates of a step that has not ended have moved weights, of the policy or of its critic.
    pub fn has_moved(&self) -> bool {
        self.updates.has_moved
    }

    /// The weights as the present step began.
    fn model_before(&self) -> &Arc<Model> {
        self.before.as_ref().map_or(&self.model, |before| &before.model)
    }

    /// Whether what trains is given up now. From here on passes hear of the interrupt where they may.
    fn gives_up(&mut self) -> bool {
        let may = self.updates.is_kept || !self.updates.has_moved || self.before.is_some();
        self.workspace.stop_on(may.then(|| self.interrupt.flag()));
        may && self.interrupt.is_requested()
    }

    /// Worker threads.
    pub fn num_threads(&self) -> usize {
        self.threads.num_threads()
    }

    /// The weights.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The tokenizer and what belongs to it.
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &AdamW {
        &self.optimizer
    }

    /// The optimizer, to load its state.
    pub fn optimizer_mut(&mut self) -> &mut AdamW {
        &mut self.optimizer
    }

    /// Begins the optimizer anew: moments zero, step count zero.
    pub fn reset_optimizer(&mut self, config: AdamWConfig) {
        self.settings.optimizer = config;
        self.optimizer = AdamW::new(&self.model, config);
    }

    /// Keeps a reference policy for the divergence.
    pub fn set_reference(&mut self, reference: Model) {
        self.reference = Some(reference);
    }

    /// The reference policy.
    pub fn reference(&self) -> Option<&Model> {
        self.reference.as_ref()
    }

    /// Gives the weights as they are the next version, under which generators are to have them.
    pub fn publish(&mut self) -> Publication {
        self.version = PolicyVersion(self.version.0 + 1);
        self.before = None;
        self.shared.set(&self.model);
        Publication { version: self.version, weights: Weights::InProcess }
    }

    /// The temperature that log-probabilities are taken at.
    pub fn temperature(&self) -> f64 {
        self.settings.temperature
    }

    /// Version of the weights that generators have, or are being given.
    pub fn version(&self) -> PolicyVersion {
        self.version
    }

    /// Sets the version, on resume.
    pub fn set_version(&mut self, version: PolicyVersion) {
        self.version = version;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;
    use tamis_core::random::{Key, Purpose};
    use tamis_model::{Architecture, TransformerConfig};
    use tamis_text::tokenizer::Tokenizer;

    use super::*;
    use crate::interrupt::Halt;
    use crate::learner::{Learner, LearnerSequence, Pass};

    fn engine(interrupt: &Interrupt) -> NativeEngine {
        let tokenizer = Tokenizer::characters("ab").expect("a tokenizer");
        let codec = Codec::new(tokenizer, None, Map::new(), None).expect("a codec");
        let config = TransformerConfig::new(Architecture::Qwen3, 8, 16, 32, 2, 2, 16);
        let model = Model::init(config, Key::new(1, Purpose::Init)).expect("a model");
        let settings = EngineSettings {
            threads: 1,
            temperature: 1.0,
            max_grad_norm: None,
            recompute_activations: false,
            max_num_seqs: 4,
            optimizer: AdamWConfig::default(),
        };
        NativeEngine::new(model, codec, settings).with_interrupt(interrupt)
    }

    /// Forward and backward; Ctrl-C comes between the two where it is to.
    fn pass(engine: &mut NativeEngine, pressed: Option<&Interrupt>) -> Pass<()> {
        let sequences = [LearnerSequence { prompt: &[1, 2], completion: &[3, 4, 5] }];
        engine.forward_backward(&sequences, &mut |logprobs, _, coefficients| {
            coefficients.logprob = vec![-1.0; logprobs.len()];
            if let Some(interrupt) = pressed {
                interrupt.signal();
            }
            Ok(())
        })
    }

    /// Updates of one step with Ctrl-C in the last of them: `(given up, weights as before)`.
    fn updates(num_updates: usize, is_kept: bool) -> (bool, bool) {
        let interrupt = Interrupt::new();
        let mut engine = engine(&interrupt);
        let before = engine.model().clone();
        engine.begin_updates(is_kept);
        for update in 0..num_updates {
            match pass(&mut engine, (update + 1 == num_updates).then_some(&interrupt)) {
                Ok(()) => assert!(!engine.optimizer_step(0.1).expect("a step").skipped),
                Err(Halt::Interrupted) => {
                    assert_eq!(engine.take_gradient_norm().ok(), Some(0.0), "nothing of it is left");
                    assert!(matches!(pass(&mut engine, None), Err(Halt::Interrupted)));
                    return (true, engine.model().same_weights(&before));
                }
                Err(Halt::Failed(error)) => panic!("{error}"),
            }
        }
        (false, engine.model().same_weights(&before))
    }

    #[test]
    fn an_update_is_given_up_unless_its_step_has_moved_what_is_kept_nowhere() {
        assert_eq!(updates(1, false), (true, true));
        assert_eq!(updates(1, true), (true, true));
        assert_eq!(updates(2, true), (true, false), "the checkpoint has the state before");
        assert_eq!(updates(2, false), (false, false), "finished");
    }
}
