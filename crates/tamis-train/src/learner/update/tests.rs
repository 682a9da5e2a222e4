use std::collections::BTreeSet;

use proptest::prelude::*;
use tamis_core::correction::{Mode, Rejection};
use tamis_core::group::Trajectory;
use tamis_core::objective::{
    Aggregation, Cispo, CispoBound, Clip, EntropyBonus, GeoMean, PolicyLoss, Reinforce, Vespo,
};
use tamis_core::random::Purpose;

use super::*;
use crate::learner::{LearnerInfo, OptimizerReport, Wave};
use crate::support::{group, trajectory};

/// A policy with every log-probability -0.5. Records the first token of each completion with a
/// derivative.
#[derive(Default)]
struct Constant {
    info: LearnerInfo,
    /// First token and length of the held completions.
    held: Vec<(u32, usize)>,
    bore_loss: BTreeSet<u32>,
    derivatives: Vec<f32>,
    /// First token of each completion, wave by wave.
    waves: Vec<Vec<u32>>,
    num_steps: usize,
    /// Returns only log-probabilities.
    lacks_entropy: bool,
}

impl Learner for Constant {
    fn info(&self) -> &LearnerInfo {
        &self.info
    }

    fn forward(&mut self, network: Network, wave: &Wave<'_>, _: f64) -> Pass<TokenColumns> {
        let num_tokens = wave.num_tokens();
        let num_entropies = if self.lacks_entropy { 0 } else { num_tokens };
        let (logprobs, entropies) = (vec![-0.5; num_tokens], vec![1.0; num_entropies]);
        match network {
            Network::Reference | Network::Critic | Network::Teacher(_) => Err(Halt::Interrupted),
            _ => Ok(TokenColumns { logprobs, entropies, ..TokenColumns::default() }),
        }
    }

    fn forward_hold(&mut self, network: Trained, wave: &Wave<'_>) -> Pass<TokenColumns> {
        let completions = wave.sequences.iter().map(|sequence| sequence.completion);
        self.held = completions.map(|completion| (completion[0], completion.len())).collect();
        self.waves.push(self.held.iter().map(|&(first, _)| first).collect());
        self.forward(network.into(), wave, 1.0)
    }

    fn backward(&mut self, TokenColumns { logprobs, .. }: TokenColumns) -> Pass<()> {
        self.derivatives.extend(&logprobs);
        let mut rest = logprobs.as_slice();
        for (first, len) in self.held.drain(..) {
            let (own, after) = rest.split_at(len);
            if own.iter().any(|&derivative| derivative != 0.0) {
                self.bore_loss.insert(first);
            }
            rest = after;
        }
        Ok(())
    }

    fn discard(&mut self) -> Result<(), LearnerError> {
        self.held.clear();
        Ok(())
    }

    fn optim_step(&mut self, _: Trained, _: f64) -> Result<OptimizerReport, LearnerError> {
        self.num_steps += 1;
        Ok(OptimizerReport { grad_norm: 1.0, skipped: false })
    }

    fn grad_norm(&mut self, _: Trained) -> Result<f64, LearnerError> {
        Ok(1.0)
    }
}

fn member(id: u32) -> Trajectory {
    Trajectory {
        sample_index: id,
        token_ids: vec![id; 3],
        logprobs: vec![-0.6, -0.5, -0.45],
        ..trajectory(vec![true; 3], 1.0)
    }
}

fn pair(id: u32) -> Group {
    group(u64::from(id), vec![member(2 * id + 1), member(2 * id + 2)])
}

/// One epoch in order.
fn settings(mini_batch_size: usize, micro_batch: usize) -> UpdateSettings {
    UpdateSettings {
        mini_batch_size: NonZeroUsize::new(mini_batch_size).expect("a size"),
        epochs: 1,
        shuffle: None,
        micro_batch: MicroBatch::Sequences(micro_batch),
        mask_truncated: false,
        correction: None,
        key: Key::new(1, Purpose::Objective),
    }
}

fn batch<'a>(groups: &'a [&'a Group], advantages: &'a Advantages) -> TrainingBatch<'a> {
    TrainingBatch {
        groups,
        advantages,
        kept: None,
        weights: None,
        policy_factor: 1.0,
        old: &OldLogprobs::AsSampled,
        dropped: None,
        taught: None,
        reference: None,
    }
}

/// Trains on a batch by a learning rate of 0.1.
fn train(
    learner: &mut Constant,
    objective: &Objective,
    settings: &UpdateSettings,
    batch: TrainingBatch<'_>,
) -> UpdateReport {
    let plan = UpdatePlan { objective, settings, own_loss: None, learning_rate: 0.1, step: 1 };
    Updates::default().train(learner, plan, &mut objective.initial_state(), batch, 0).expect("trained")
}

/// Groups of weights 3 and 1 in an optimizer batch: three quarters and a quarter of a mean, half each
/// without.
#[test]
fn groups_weigh_in_the_loss_by_their_weights() {
    let groups = [pair(0), pair(1)];
    let groups: Vec<&Group> = groups.iter().collect();
    let advantages = Advantages::PerTrajectory(Ragged::from_rows([[1.0, -0.5], [1.0, -0.5]]));
    for aggregation in [Aggregation::TokenMean, Aggregation::SeqMeanTokenMean, Aggregation::GroupTokenMean] {
        let objective = Objective::of(PolicyLoss::Clip(Clip::symmetric(0.2)), aggregation);
        let derivatives = |weights: Option<&[f64]>| {
            let mut learner = Constant::default();
            let weighted = TrainingBatch { weights, ..batch(&groups, &advantages) };
            train(&mut learner, &objective, &settings(2, 3), weighted);
            learner.derivatives
        };
        let plain = derivatives(None);
        assert_eq!(derivatives(Some(&[1.0, 1.0])), plain);
        for (token, (found, plain)) in derivatives(Some(&[3.0, 1.0])).iter().zip(&plain).enumerate() {
            let factor = if token < 6 { 1.5 } else { 0.5 };
            assert!(
                plain.abs() > 1e-3 && (found - factor * plain).abs() < 1e-6,
                "{aggregation}, token {token}"
            );
        }
    }
}

/// If the learner skips backward passes without derivatives, members without an advantage are in
/// separate waves and cost none, unless another term of the loss has a gradient there.
#[test]
fn members_without_an_advantage_pass_apart() {
    let groups = [pair(0), pair(1), pair(2)];
    let groups: Vec<&Group> = groups.iter().collect();
    let advantages = Advantages::PerTrajectory(Ragged::from_rows([[0.0, 0.0], [1.0, -1.0], [0.0, 0.0]]));
    let plain = Objective::of(PolicyLoss::Clip(Clip::symmetric(0.2)), Aggregation::TokenMean);
    let bonus = Objective { entropy: Some(EntropyBonus::constant(0.01)), ..plain.clone() };
    let whole = vec![vec![1, 2, 3, 4, 5, 6]];
    for (objective, passes_over_zeros, waves) in [
        (&plain, true, vec![vec![3, 4], vec![1, 2, 5, 6]]),
        (&plain, false, whole.clone()),
        (&bonus, true, whole),
    ] {
        let info = LearnerInfo { passes_over_zeros, ..LearnerInfo::default() };
        let mut learner = Constant { info, ..Constant::default() };
        let report = train(&mut learner, objective, &settings(3, 6), batch(&groups, &advantages));
        assert_eq!((learner.waves, report.num_updates), (waves, 1));
    }
}

/// An update that needs no entropies is the same without them, and reports none; so is the pass for a
/// correction.
#[test]
fn a_learner_without_entropies_trains_alike() {
    let group = pair(0);
    let groups = [&group];
    let advantages = Advantages::PerTrajectory(Ragged::from_rows([[1.0, -0.5]]));
    let objective = Objective::of(PolicyLoss::Clip(Clip::symmetric(0.2)), Aggregation::TokenMean);
    let trained = |lacks_entropy| {
        let mut learner = Constant { lacks_entropy, ..Constant::default() };
        let report = train(&mut learner, &objective, &settings(1, 1), batch(&groups, &advantages));
        assert!(!report.metrics.iter().any(|(_, value)| value.is_nan()));
        (learner.derivatives, report.loss.to_bits(), report.entropy)
    };
    let ((derivatives, loss, entropy), without) = (trained(false), trained(true));
    assert_eq!((without.0, without.1), (derivatives, loss));
    assert_eq!((entropy, without.2), (Some(1.0), None));
    let mut learner = Constant { lacks_entropy: true, ..Constant::default() };
    let mini = MiniBatch::of(batch(&groups, &advantages), &first_rows(&groups), &[0], &settings(1, 1));
    let scores = mini.scores(&mut learner, &settings(1, 1)).expect("passed");
    assert_eq!((scores.logprobs, scores.entropies), (vec![-0.5; 6], Vec::new()));
}

#[test]
fn a_factor_of_the_policy_term_is_one_of_its_gradient() {
    let group = pair(0);
    let groups = [&group];
    let advantages = Advantages::PerTrajectory(Ragged::from_rows([[1.0, -0.5]]));
    let losses = [
        PolicyLoss::Clip(Clip::symmetric(0.2)),
        PolicyLoss::Reinforce(Reinforce {}),
        PolicyLoss::Cispo(Cispo {
            bound: CispoBound::Absolute,
            clip_low: 0.2,
            clip_high: 0.2,
            max_ratio: 5.0,
            log_ratio_limit: None,
        }),
        PolicyLoss::GeoMean(GeoMean {
            clip_low: 0.4,
            clip_high: 0.4,
            length_epsilon: 0.0,
            weight_epsilon: 0.0,
        }),
        PolicyLoss::Vespo(Vespo {
            k_positive: 2.0,
            lambda_positive: 3.0,
            k_negative: 0.0,
            lambda_negative: 2.0,
        }),
    ];
    for policy in losses {
        let objective = Objective::of(policy.clone(), Aggregation::TokenMean);
        let derivatives = |policy_factor: f64| {
            let mut learner = Constant::default();
            let scaled = TrainingBatch { policy_factor, ..batch(&groups, &advantages) };
            train(&mut learner, &objective, &settings(1, 2), scaled);
            learner.derivatives
        };
        let whole = derivatives(1.0);
        assert!(whole.iter().all(|derivative| derivative.abs() > 1e-3), "{policy:?}: {whole:?}");
        for factor in [0.0, 0.25] {
            for (found, whole) in derivatives(factor).iter().zip(&whole) {
                let expected = whole * factor as f32;
                assert!((found - expected).abs() < 1e-6, "{policy:?}, factor {factor}: {found} {expected}");
            }
        }
    }
}

proptest! {
    /// Among the members that nothing else leaves out, exactly those reported as rejected have no loss.
    /// If a whole mini-batch is rejected no update is made.
    #[test]
    fn what_the_correction_rejects_whole_bears_no_loss(
        groups in prop::collection::vec(
            prop::collection::vec((any::<bool>(), prop::collection::vec(any::<(bool, bool)>(), 1..4)), 1..4),
            1..5,
        ),
        mini_batch_size in 1..4_usize,
        epochs in 1..3_usize,
        is_bypass: bool,
    ) {
        let mut id = 0;
        let groups: Vec<Group> = groups
            .iter()
            .map(|members| {
                let trajectories = members.iter().map(|(is_scored, tokens)| {
                    id += 1;
                    let loss_mask = tokens.iter().map(|(is_own, _)| *is_own).collect();
                    Trajectory {
                        token_ids: vec![id; tokens.len()],
                        // Twelve times as likely to the policy as it was to the sampler, or as likely.
                        logprobs: tokens.iter().map(|(_, is_far)| if *is_far { -3.0 } else { -0.5 }).collect(),
                        ..trajectory(loss_mask, if *is_scored { 1.0 } else { f64::NAN })
                    }
                });
                group(0, trajectories.collect())
            })
            .collect();
        let groups: Vec<&Group> = groups.iter().collect();
        let members: Vec<&Trajectory> = groups.iter().flat_map(|group| &group.trajectories).collect();
        let rows = Ragged::from_rows(members.iter().map(|member| vec![-0.5_f32; member.token_ids.len()]));
        let old = OldLogprobs::Recomputed(rows);
        let advantages = Advantages::PerTrajectory(Ragged::from_rows(
            groups.iter().map(|group| vec![1.0; group.trajectories.len()]),
        ));
        let mode = if is_bypass { Mode::BypassClip } else { Mode::Decoupled };
        let mut correction = Correction { mode, ..Correction::default() };
        correction.rejections = Rejection::verl("token_k2", "1.0").unwrap();
        let settings = UpdateSettings { epochs, correction: Some(correction), ..settings(mini_batch_size, 2) };
        let objective = Objective::of(PolicyLoss::Clip(Clip::symmetric(0.2)), Aggregation::TokenMean);
        let mut learner = Constant::default();
        let recomputed = TrainingBatch { old: &old, ..batch(&groups, &advantages) };
        let report = train(&mut learner, &objective, &settings, recomputed);
        let is_rejected = |member: &&Trajectory| {
            let own: Vec<bool> = member.loss_mask.iter().zip(&member.logprobs).filter(|(own, _)| **own).map(|(_, &logprob)| logprob < -1.0).collect();
            member.is_scored() && !own.is_empty() && !own.contains(&false)
        };
        let expected: Vec<bool> = members.iter().map(is_rejected).collect();
        prop_assert_eq!(&report.rejected, &expected);
        for (member, rejected) in members.iter().zip(expected) {
            let has_tokens = member.is_scored() && member.loss_mask.contains(&true);
            prop_assert_eq!(learner.bore_loss.contains(&member.token_ids[0]), has_tokens && !rejected);
        }
        let trains = |groups: &[&Group]| {
            groups.iter().flat_map(|group| &group.trajectories).any(|member| learner.bore_loss.contains(&member.token_ids[0]))
        };
        prop_assert_eq!(learner.num_steps, epochs * groups.chunks(mini_batch_size).filter(|groups| trains(groups)).count());
    }
}
