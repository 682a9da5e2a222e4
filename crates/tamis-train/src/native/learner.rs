//! The native engine as a learner: passes, updates and what a step may take back.
//!
//! Weights are changed in place unless samples in flight or a kept state need the old ones. A pass that
//! Ctrl-C interrupts leaves no gradient.

use std::path::Path;
use std::sync::Arc;

use tamis_core::group::PolicyVersion;
use tamis_model::{
    AdamW, Candidates, Coefficients, HeldPass, Model, PassOptions, Sequence, SequenceError, Workspace,
    backward, backward_beside, forward_hold, forward_hold_beside, score, score_with_top, values,
    values_backward, values_forward_hold,
};
use tamis_rollout::Generator;

use super::generate::OpenSamples;
use super::generator::NativeGenerator;
use super::{Kept, Learning, NativeEngine, work_of};
use crate::interrupt::Halt;
use crate::learner::generate::{Generate, GrownSamples};
use crate::learner::progress::UpdateProgress;
use crate::learner::texts::Texts;
use crate::learner::work::{TrainingWork, WorkDone};
use crate::learner::{
    Changing, CopyTo, Learner, LearnerError, LearnerInfo, LoadContent, Network, NotFinite, OptimizerReport,
    Pass, RunLearner, SaveContent, Saved, TokenColumns, TopColumns, Trained, Wave,
};

/// The tokens of each sequence of a wave: prompt and completion.
fn join_tokens(wave: &Wave<'_>) -> Vec<Vec<u32>> {
    wave.sequences.iter().map(|sequence| [sequence.prompt, sequence.completion].concat()).collect()
}

fn as_engine<'a>(tokens: &'a [Vec<u32>], wave: &Wave<'_>) -> Vec<Sequence<'a>> {
    tokens
        .iter()
        .zip(&wave.sequences)
        .map(|(tokens, sequence)| Sequence { tokens, start: sequence.prompt.len() })
        .collect()
}

fn sequence_error(error: &SequenceError) -> Halt<LearnerError> {
    match error {
        SequenceError::GivenUp => Halt::Interrupted,
        error @ SequenceError::Fault(_) => Halt::Failed(LearnerError::Engine { reason: error.to_string() }),
    }
}

impl NativeEngine {
    /// Whether a pass is abandoned now. From here on, passes that may be abandoned check the interrupt.
    fn gives_up(&mut self) -> bool {
        self.workspace.stop_on(self.progress.stop_flag());
        self.progress.gives_up()
    }

    fn of(&mut self, network: Trained) -> Result<&mut Learning, LearnerError> {
        match network {
            Trained::Policy => Ok(&mut self.policy),
            Trained::Critic => self.critic.as_mut().ok_or(LearnerError::NoCritic),
        }
    }

    /// A pass of a network that gives probabilities.
    fn with_probabilities<T>(
        &mut self,
        network: Network,
        pass: impl FnOnce(&Model, &mut Workspace) -> Result<T, SequenceError>,
    ) -> Pass<T> {
        let model = match network {
            Network::Policy => &self.policy.model,
            Network::Before => self.kept.as_ref().map_or(&self.policy.model, |kept| &kept.policy.0),
            Network::Base => return Err(Halt::Failed(LearnerError::NoAdapter)),
            Network::Teacher(number) => {
                self.teachers.get(number).ok_or(LearnerError::NoTeacher { number })?
            }
            Network::Reference => self.reference.as_ref().ok_or(LearnerError::NoReference)?,
            Network::Critic => {
                let reason = "a critic gives no probabilities".to_owned();
                return Err(Halt::Failed(LearnerError::Misused { reason }));
            }
        };
        pass(model, &mut self.workspace).map_err(|error| sequence_error(&error))
    }

    /// Ends a pass of a network. If it was interrupted, its gradient is incomplete and is cleared.
    fn end_pass<T>(&mut self, network: Trained, passed: Result<T, SequenceError>) -> Pass<T> {
        if matches!(passed, Err(SequenceError::GivenUp)) {
            self.of(network)?.gradients.clear();
        }
        passed.map_err(|error| sequence_error(&error))
    }
}

impl Learner for NativeEngine {
    fn info(&self) -> &LearnerInfo {
        &self.info
    }

    fn forward(&mut self, network: Network, wave: &Wave<'_>, sharpness: f64) -> Pass<TokenColumns> {
        if self.gives_up() {
            return Err(Halt::Interrupted);
        }
        if let Some(texts) = Texts::of(wave) {
            return Ok(texts.places.spread(&self.forward(network, &texts.wave, sharpness)?));
        }
        let tokens = join_tokens(wave);
        let batch = as_engine(&tokens, wave);
        let threads = Arc::clone(&self.threads);
        if network == Network::Critic {
            let critic = self.critic.as_ref().ok_or(LearnerError::NoCritic)?;
            let predicted = values(&threads, &critic.model, &mut self.workspace, &batch);
            let values = predicted.map_err(|error| sequence_error(&error))?.values().to_vec();
            return Ok(TokenColumns { values, ..TokenColumns::default() });
        }
        let temperature = (self.settings.temperature / sharpness) as f32;
        let scores = self.with_probabilities(network, |model, workspace| {
            score(&threads, model, workspace, &batch, temperature)
        })?;
        Ok(TokenColumns {
            logprobs: scores.logprobs.values().to_vec(),
            entropies: scores.entropies.values().to_vec(),
            ..TokenColumns::default()
        })
    }

    fn forward_top(&mut self, network: Network, wave: &Wave<'_>, number: usize) -> Pass<TopColumns> {
        if self.gives_up() {
            return Err(Halt::Interrupted);
        }
        if let Some(texts) = Texts::of(wave) {
            return Ok(texts.places.spread_top(&self.forward_top(network, &texts.wave, number)?));
        }
        let tokens = join_tokens(wave);
        let batch = as_engine(&tokens, wave);
        let (threads, temperature) = (Arc::clone(&self.threads), self.settings.temperature as f32);
        let (scores, top) = self.with_probabilities(network, |model, workspace| {
            score_with_top(&threads, model, workspace, &batch, temperature, number)
        })?;
        Ok(TopColumns {
            logprobs: scores.logprobs.values().to_vec(),
            tokens: top.tokens,
            top_logprobs: top.logprobs,
        })
    }

    fn forward_hold(&mut self, network: Trained, wave: &Wave<'_>) -> Pass<TokenColumns> {
        (self.held, self.held_texts) = (None, None);
        if self.gives_up() {
            self.of(network)?.gradients.clear();
            return Err(Halt::Interrupted);
        }
        if let Some(texts) = Texts::of(wave) {
            let columns = self.forward_hold(network, &texts.wave)?;
            self.held_texts = Some(texts.places.clone());
            return Ok(texts.places.spread(&columns));
        }
        let tokens = join_tokens(wave);
        let batch = as_engine(&tokens, wave);
        let recompute = self.settings.recompute_activations;
        let options = match network {
            Trained::Policy => PassOptions {
                temperature: self.settings.temperature as f32,
                recompute,
                ..PassOptions::default()
            },
            Trained::Critic => PassOptions { recompute, ..PassOptions::default() },
        };
        let (threads, model) = (Arc::clone(&self.threads), Arc::clone(&self.of(network)?.model));
        let per_token = wave.num_candidates();
        let others: Vec<u32> =
            wave.sequences.iter().flat_map(|sequence| sequence.candidates).copied().collect();
        let passed: Result<(TokenColumns, HeldPass), _> = match network {
            Trained::Policy if per_token > 0 => {
                let candidates = Candidates { per_token, tokens: &others };
                let passed =
                    forward_hold_beside(&threads, &model, &mut self.workspace, &batch, candidates, options);
                passed.map(|(scores, candidates, held)| {
                    let (logprobs, entropies) = (scores.logprobs, scores.entropies);
                    let (logprobs, entropies) = (logprobs.values().to_vec(), entropies.values().to_vec());
                    (TokenColumns { logprobs, entropies, candidates, ..TokenColumns::default() }, held)
                })
            }
            Trained::Policy => {
                forward_hold(&threads, &model, &mut self.workspace, &batch, options).map(|(scores, held)| {
                    let (logprobs, entropies) = (scores.logprobs, scores.entropies);
                    let (logprobs, entropies) = (logprobs.values().to_vec(), entropies.values().to_vec());
                    (TokenColumns { logprobs, entropies, ..TokenColumns::default() }, held)
                })
            }
            Trained::Critic => values_forward_hold(&threads, &model, &mut self.workspace, &batch, options)
                .map(|(values, held)| {
                    (TokenColumns { values: values.values().to_vec(), ..TokenColumns::default() }, held)
                }),
        };
        let (columns, held) = self.end_pass(network, passed)?;
        self.held = Some((network, held));
        if network == Trained::Policy {
            self.work.hold(wave);
        }
        Ok(columns)
    }

    fn backward(&mut self, derivatives: TokenColumns) -> Pass<()> {
        let (network, held) = self.held.take().ok_or(LearnerError::NothingHeld)?;
        let texts = self.held_texts.take();
        let derivatives = match texts {
            Some(texts) => texts.gather(&derivatives),
            None => derivatives,
        };
        if self.gives_up() {
            self.of(network)?.gradients.clear();
            return Err(Halt::Interrupted);
        }
        let threads = Arc::clone(&self.threads);
        let learning = match network {
            Trained::Policy => &mut self.policy,
            Trained::Critic => self.critic.as_mut().ok_or(LearnerError::NoCritic)?,
        };
        let Learning { model, gradients, .. } = learning;
        let TokenColumns { logprobs, entropies, values, candidates } = derivatives;
        let passed = match network {
            Trained::Policy => {
                let entropy = (!entropies.is_empty()).then_some(entropies);
                let coefficients = Coefficients { logprob: logprobs, entropy };
                let workspace = &mut self.workspace;
                if held.num_candidates() == 0 {
                    backward(&threads, model, workspace, held, coefficients, gradients)
                } else {
                    backward_beside(&threads, model, workspace, held, coefficients, &candidates, gradients)
                }
            }
            Trained::Critic => values_backward(&threads, model, &mut self.workspace, held, values, gradients),
        };
        self.end_pass(network, passed)?;
        if network == Trained::Policy {
            self.work.add();
        }
        Ok(())
    }

    fn discard(&mut self) -> Result<(), LearnerError> {
        self.held = None;
        Ok(())
    }

    fn optim_step(&mut self, network: Trained, learning_rate: f64) -> Result<OptimizerReport, LearnerError> {
        let threads = Arc::clone(&self.threads);
        // The weights are copied only if samples in flight still use them, or if the previous ones are kept
        // for a restore.
        let Learning { model, optimizer, gradients, max_grad_norm } = self.of(network)?;
        let report = optimizer.step(&threads, Arc::make_mut(model), gradients, learning_rate, *max_grad_norm);
        gradients.clear();
        if network == Trained::Policy {
            self.info.num_steps = self.policy.optimizer.num_steps();
            self.work.step();
            if self.kept.is_none() {
                self.shared.set(&self.policy.model);
            }
        }
        if !report.skipped {
            self.progress.note_moved();
        }
        Ok(OptimizerReport { grad_norm: report.grad_norm, skipped: report.skipped })
    }

    fn grad_norm(&mut self, network: Trained) -> Result<f64, LearnerError> {
        if network == Trained::Policy {
            self.work.clear();
        }
        let threads = Arc::clone(&self.threads);
        let gradients = &mut self.of(network)?.gradients;
        let norm = tamis_model::gradient_norm(&threads, gradients);
        gradients.clear();
        Ok(norm)
    }
}

impl RunLearner for NativeEngine {
    fn take_work(&mut self) -> Option<WorkDone> {
        let done = self.work.take()?;
        Some(WorkDone { peak: self.peak(), ..done })
    }

    fn training_work(&mut self) -> Option<TrainingWork> {
        let peak = self.peak();
        Some(work_of(self.policy.model.config(), peak))
    }

    fn progress(&mut self) -> &mut UpdateProgress {
        &mut self.progress
    }

    fn keep(&mut self) -> Result<(), LearnerError> {
        if self.kept.is_none() {
            let copy = |learning: &Learning| (Arc::clone(&learning.model), learning.optimizer.clone());
            let critic = self.critic.as_ref().map(copy);
            self.kept = Some(Kept { policy: copy(&self.policy), critic });
            self.progress.note_kept(true);
        }
        Ok(())
    }

    fn restore(&mut self) -> Result<(), LearnerError> {
        let Some(kept) = self.kept.take() else { return Ok(()) };
        let put_back = |learning: &mut Learning, (model, optimizer): (Arc<Model>, AdamW)| {
            (learning.model, learning.optimizer) = (model, optimizer);
            learning.gradients.clear();
        };
        put_back(&mut self.policy, kept.policy);
        if let (Some(critic), Some(kept)) = (&mut self.critic, kept.critic) {
            put_back(critic, kept);
        }
        self.held = None;
        self.info.num_steps = self.policy.optimizer.num_steps();
        self.progress.note_restored();
        Ok(())
    }

    fn copy_policy(&mut self, to: CopyTo) -> Result<(), LearnerError> {
        match to {
            CopyTo::Reference => self.reference = Some(self.policy.model.as_ref().clone()),
            CopyTo::Critic => {
                let critic = self.begin_critic(self.policy.model.critic());
                self.critic = Some(critic.ok_or(LearnerError::NoCritic)?);
                // A held pass of the previous critic has no gradient here.
                self.held.take_if(|(network, _)| *network == Trained::Critic);
            }
        }
        self.note_sizes();
        Ok(())
    }

    fn reset_optimizer(&mut self, network: Trained) -> Result<(), LearnerError> {
        let Learning { model, optimizer, .. } = self.of(network)?;
        *optimizer = AdamW::new(model, optimizer.config());
        self.note_sizes();
        Ok(())
    }

    fn find_not_finite(&mut self) -> Result<Option<NotFinite>, LearnerError> {
        let critic = self.critic.as_ref();
        let places = [
            (Changing::Policy, self.policy.model.non_finite()),
            (Changing::PolicyMoments, self.policy.optimizer.non_finite()),
            (Changing::Critic, critic.and_then(|critic| critic.model.non_finite())),
            (Changing::CriticMoments, critic.and_then(|critic| critic.optimizer.non_finite())),
        ];
        let mut found = places.into_iter();
        Ok(found.find_map(|(what, tensor)| Some(NotFinite { what, tensor: tensor?.to_owned() })))
    }

    fn publish(&mut self, _: PolicyVersion) -> Result<(), LearnerError> {
        self.kept = None;
        self.progress.note_kept(false);
        self.shared.set(&self.policy.model);
        self.samples.as_mut().map_or(Ok(()), OpenSamples::begin_anew)
    }

    fn save(&mut self, folder: &Path, content: SaveContent) -> Result<Saved, LearnerError> {
        self.save_files(folder, content)
    }

    fn load(&mut self, folder: &Path, content: LoadContent) -> Result<(), LearnerError> {
        Ok(self.load_files(folder, content)?)
    }

    fn generate(&mut self, asked: Generate) -> Pass<GrownSamples> {
        self.sample_for(asked)
    }

    fn generator(&self, version: PolicyVersion) -> Option<Box<dyn Generator>> {
        let codec = self.codec.as_ref()?;
        Some(Box::new(NativeGenerator::of(self, codec, version)))
    }
}
