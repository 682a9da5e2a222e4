use tamis_core::group::{FinishReason, Trajectory};
use tamis_core::objective::Aggregation;
use tamis_core::random::Purpose;

use super::*;
use crate::learner::{LearnerError, LearnerInfo, OptimizerReport, Wave};
use crate::support;

/// A critic that gives every token the same value, and records its calls.
struct Constant {
    info: LearnerInfo,
    value: f32,
    /// Tokens of the held pass.
    num_held: usize,
    /// The derivatives of each pass.
    printed: Vec<Vec<f32>>,
    rates: Vec<f64>,
    /// Updates from this one on have a gradient that is not finite.
    breaks_at: usize,
}

impl Constant {
    fn new(value: f32) -> Self {
        Self {
            info: LearnerInfo::default(),
            value,
            num_held: 0,
            printed: Vec::new(),
            rates: Vec::new(),
            breaks_at: usize::MAX,
        }
    }
}

impl Learner for Constant {
    fn info(&self) -> &LearnerInfo {
        &self.info
    }

    fn forward(&mut self, network: Network, wave: &Wave<'_>, _: f64) -> Pass<TokenColumns> {
        assert_eq!(network, Network::Critic);
        Ok(TokenColumns { values: vec![self.value; wave.num_tokens()], ..TokenColumns::default() })
    }

    fn forward_hold(&mut self, network: Trained, wave: &Wave<'_>) -> Pass<TokenColumns> {
        self.num_held = wave.num_tokens();
        self.forward(network.into(), wave, 1.0)
    }

    fn backward(&mut self, derivatives: TokenColumns) -> Pass<()> {
        assert_eq!(derivatives.values.len(), self.num_held);
        self.printed.push(derivatives.values);
        Ok(())
    }

    fn discard(&mut self) -> Result<(), LearnerError> {
        Ok(())
    }

    fn optim_step(&mut self, _: Trained, learning_rate: f64) -> Result<OptimizerReport, LearnerError> {
        let skipped = self.rates.len() >= self.breaks_at;
        self.rates.push(learning_rate);
        Ok(OptimizerReport { grad_norm: if skipped { f64::NAN } else { 2.0 }, skipped })
    }

    fn grad_norm(&mut self, _: Trained) -> Result<f64, LearnerError> {
        Err(LearnerError::NoCritic)
    }
}

fn trajectory(reward: f64, mask: &[bool], finish_reason: FinishReason) -> Trajectory {
    Trajectory { finish_reason, ..support::trajectory(mask.to_vec(), reward) }
}

fn group(prompt: u32, trajectories: Vec<Trajectory>) -> Group {
    Group { prompt_token_ids: vec![prompt; 2], ..support::group(0, trajectories) }
}

/// Two groups: three tokens including one of the environment, one token, a truncated one of two; an
/// unscored one of two.
fn groups() -> [Group; 2] {
    use FinishReason::{Length, Stop};
    [
        group(1, vec![trajectory(1.0, &[true, false, true], Stop), trajectory(0.0, &[true], Stop)]),
        group(2, vec![trajectory(1.0, &[true, true], Length), trajectory(f64::NAN, &[true, true], Stop)]),
    ]
}

fn settings(size: usize, micro_batch: MicroBatch) -> CriticSettings {
    CriticSettings {
        mini_batch_size: NonZeroUsize::new(size).unwrap_or(NonZeroUsize::MIN),
        epochs: 1,
        shuffle: None,
        micro_batch,
        loss: ValueTerm::of(Some(0.5), Aggregation::TokenMean),
    }
}

/// Returns 0 to 7, old values 1 throughout.
fn columns() -> (Ragged<f64>, Ragged<f64>) {
    let returns = Ragged::from_rows([vec![0.0, 1.0, 2.0], vec![3.0], vec![4.0, 5.0], vec![6.0, 7.0]]);
    let old = Ragged::from_rows([vec![1.0; 3], vec![1.0], vec![1.0; 2], vec![f64::NAN; 2]]);
    (old, returns)
}

fn updated(learner: &mut Constant, settings: &CriticSettings) -> CriticReport {
    let groups = groups();
    let groups: Vec<&Group> = groups.iter().collect();
    let (old, returns) = columns();
    let batch = CriticBatch { groups: &groups, old: &old, returns: &returns, kept: None };
    update_critic(learner, batch, settings, 0.25).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn one_update_by_hand() {
    let mut learner = Constant::new(1.0);
    let report = updated(&mut learner, &settings(2, MicroBatch::Tokens(100)));
    // Five tokens: not the environment's, not the unscored trajectory's; the truncated one counts. Errors 1,
    // -1, -2, -3, -4 over 5.
    assert_eq!(learner.printed, [vec![0.2, 0.0, -0.2, -0.4, -0.6, -0.8]]);
    assert_eq!((report.num_updates, report.num_skipped, learner.rates), (1, 0, vec![0.25]));
    let expected = [("critic/vf_loss", 3.1), ("critic/vf_clipfrac", 0.0), ("critic/vpred_mean", 1.0)];
    for ((name, value), (expected_name, expected)) in report.metrics.iter().zip(expected) {
        assert_eq!(*name, expected_name);
        assert!((value - expected).abs() < 1e-12, "{name} {value}");
    }
    // Two above the old value: held at 1.5. There the error is the larger for the returns of 2 and
    // more, and nothing pulls.
    let mut learner = Constant::new(3.0);
    let report = updated(&mut learner, &settings(2, MicroBatch::Tokens(100)));
    assert_eq!(learner.printed, [vec![0.6, 0.0, 0.2, 0.0, 0.0, 0.0]]);
    assert!((report.metrics[1].1 - 0.6).abs() < 1e-12);
}

#[test]
fn micro_batches_change_nothing() {
    let whole = {
        let mut learner = Constant::new(0.3);
        let report = updated(&mut learner, &settings(2, MicroBatch::Tokens(100)));
        (learner.printed.concat(), report)
    };
    for micro_batch in [MicroBatch::Tokens(1), MicroBatch::Sequences(2), MicroBatch::Tokens(6)] {
        let mut learner = Constant::new(0.3);
        let report = updated(&mut learner, &settings(2, micro_batch));
        assert!(learner.printed.len() > 1);
        assert_eq!((learner.printed.concat(), report), whole);
    }
}

#[test]
fn mini_batches_epochs_and_broken_gradients() {
    let mut learner = Constant { breaks_at: 3, ..Constant::new(1.0) };
    let report = updated(&mut learner, &CriticSettings { epochs: 2, ..settings(1, MicroBatch::Tokens(100)) });
    // A group each: three tokens, then two.
    let first = vec![1.0 / 3.0, 0.0, -1.0 / 3.0, -2.0 / 3.0];
    let second = vec![-1.5, -2.0];
    assert_eq!(learner.printed, [first.clone(), second.clone(), first, second]);
    assert_eq!((report.num_updates, report.num_skipped), (3, 1));
    assert_eq!(report.skipped, [false, false, false, true]);
    assert!((report.grad_norm - 2.0).abs() < 1e-12);
    let shuffle = Some(Key::new(1, Purpose::Critic));
    let mut orders = Vec::new();
    for epochs in 1..8 {
        let mut learner = Constant::new(1.0);
        updated(&mut learner, &CriticSettings { epochs, shuffle, ..settings(1, MicroBatch::Tokens(100)) });
        orders = learner.printed.chunks(2).map(|pair| pair[0].len()).collect();
    }
    assert!(orders.contains(&4) && orders.contains(&2), "every epoch has its own order: {orders:?}");
}

#[test]
fn metrics_are_means_over_the_updates_that_have_them() {
    // The second update is left out, and its loss of 6.25 with it: errors 1, -1 and -2 of the first remain.
    let mut learner = Constant { breaks_at: 1, ..Constant::new(1.0) };
    let report = updated(&mut learner, &settings(1, MicroBatch::Tokens(100)));
    assert_eq!((report.num_updates, report.num_skipped), (1, 1));
    assert_eq!(report.metrics[0].0, "critic/vf_loss");
    assert!((report.metrics[0].1 - 1.0).abs() < 1e-12, "{report:?}");
    // None at all: no figure rather than 0.
    let mut learner = Constant { breaks_at: 0, ..Constant::new(1.0) };
    let report = updated(&mut learner, &settings(1, MicroBatch::Tokens(100)));
    assert_eq!((report.num_updates, report.metrics, report.skipped), (0, Vec::new(), vec![true, true]));
    assert!(report.grad_norm.is_nan());

    // Nothing scored in the second group: nothing to train on, and no update.
    let unscored = trajectory(f64::NAN, &[true, true], FinishReason::Stop);
    let [first, _] = groups();
    let groups = [first, group(2, vec![unscored.clone(), unscored])];
    let groups: Vec<&Group> = groups.iter().collect();
    let (old, returns) = columns();
    let batch = CriticBatch { groups: &groups, old: &old, returns: &returns, kept: None };
    let settings = settings(1, MicroBatch::Tokens(100));
    let mut learner = Constant::new(3.0);
    let report =
        update_critic(&mut learner, batch, &settings, 0.25).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((report.num_updates, learner.rates), (1, vec![0.25]));
    // Held at 1.5 for the returns of 2 and 3: losses 4.5, 0.5 and 1.125 over three tokens.
    let expected =
        [("critic/vf_loss", 6.125 / 3.0), ("critic/vf_clipfrac", 1.0 / 3.0), ("critic/vpred_mean", 3.0)];
    assert_eq!(report.metrics.len(), expected.len());
    for ((name, value), (expected_name, expected)) in report.metrics.iter().zip(expected) {
        assert_eq!(*name, expected_name);
        assert!((value - expected).abs() < 1e-12, "{name} {value}");
    }
}

/// Nothing scored, or no token of the policy: the weights stay, and neither momentum nor decay moves them.
#[test]
fn a_mini_batch_with_nothing_to_train_on_takes_no_optimizer_step() {
    let unscored = trajectory(f64::NAN, &[true, true], FinishReason::Stop);
    let masked = trajectory(1.0, &[false, false], FinishReason::Stop);
    for member in [unscored, masked] {
        let groups = [group(1, vec![member.clone(), member])];
        let groups: Vec<&Group> = groups.iter().collect();
        let columns = Ragged::from_rows([vec![1.0; 2], vec![1.0; 2]]);
        let batch = CriticBatch { groups: &groups, old: &columns, returns: &columns, kept: None };
        let mut learner = Constant::new(1.0);
        let settings = CriticSettings { epochs: 2, ..settings(1, MicroBatch::Tokens(100)) };
        let report =
            update_critic(&mut learner, batch, &settings, 0.25).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(learner.printed, Vec::<Vec<f32>>::new(), "no pass");
        assert_eq!(learner.rates, [0.0; 0], "no step");
        assert_eq!(report, CriticReport::default());
    }
}

#[test]
fn values_come_back_by_trajectory() {
    let groups = groups();
    let sequences: Vec<LearnerSequence<'_>> = groups
        .iter()
        .flat_map(|group| {
            let of = |trajectory| LearnerSequence::of_text(&group.prompt_token_ids, trajectory);
            group.trajectories.iter().map(move |trajectory| of(&trajectory.token_ids))
        })
        .collect();
    let rows = values(&mut Constant::new(0.5), &sequences, MicroBatch::Sequences(3))
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(rows, Ragged::from_rows([vec![0.5; 3], vec![0.5], vec![0.5; 2], vec![0.5; 2]]));
}
