//! verl's distillation loss by policy gradient: the gain of each token, and the clipped loss of it.

use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator as _, OnPolicyDistillation, TeacherGain};
use tamis_core::objective::{AdvantageColumn, Clip, Columns, KlEstimator, Objective, PolicyLoss};
use tamis_core::ragged::Ragged;
use tamis_golden::numbers;

use crate::verl_loss::{aggregation, divisors, normalisers};
use crate::{cases, close, column, lengths, mask, number, offsets, only_known, tolerance};

#[test]
fn verl_distillation() {
    for case in cases("verl_distillation") {
        let (params, outputs) = (&case["params"], &case["outputs"]);
        only_known(
            &case,
            "params",
            &["loss_mode", "loss_max_clamp", "loss_agg_mode", "clip_ratio", "clip_ratio_c"],
        );
        only_known(&case, "inputs", &["lengths", "mask", "padded_len", "logp", "old_logp", "teacher_logp"]);
        only_known(&case, "outputs", &["advantage", "loss", "dloss_dlogp"]);
        let (lengths, mask) = (lengths(&case), mask(&case));
        let (logprob, old) = (column(&case, "logp").unwrap(), column(&case, "old_logp").unwrap());
        let teacher = column(&case, "teacher_logp").unwrap();
        let estimator: KlEstimator = params["loss_mode"].as_str().unwrap().parse().unwrap();
        let gain = TeacherGain {
            estimator: estimator.kind,
            clip: params["loss_max_clamp"].as_f64(),
            ..TeacherGain::default()
        };
        // verl compares with the current policy, in every update.
        let ragged = |column: &[f64]| Ragged::from_lengths(column.to_vec(), &lengths).unwrap();
        let (policy, rated) = (ragged(&logprob), ragged(&teacher));
        let on = Ragged::from_lengths(mask.clone(), &lengths).unwrap();
        let rewards = Ragged::from_rows(lengths.iter().map(|_| [0.0]));
        let batch = AdvantageBatch {
            mask: Some(&on),
            old_logprobs: Some(&policy),
            teacher_logprobs: Some(&rated),
            ..AdvantageBatch::of_rewards(&rewards)
        };
        let advantages = OnPolicyDistillation { gain }.advantages(&batch).unwrap();
        close(&case, "advantage", advantages.values(), &numbers(&outputs["advantage"]), tolerance(&case));

        let clip = number(&params["clip_ratio"]);
        let loss = PolicyLoss::Clip(Clip::verl(clip, clip, number(&params["clip_ratio_c"])));
        let mode = params["loss_agg_mode"].as_str().unwrap();
        let divisors = divisors(&case, &serde_json::Value::Null);
        let objective = Objective { divisors, ..Objective::of(loss, aggregation(mode)) };
        let offsets = offsets(&lengths);
        let columns = Columns {
            old: Some(&old),
            ..Columns::new(&offsets, &mask, &logprob, AdvantageColumn::PerToken(advantages.values()))
        };
        let normalisers = normalisers(&serde_json::Value::Null, &lengths, &mask);
        let (outcome, derivatives) =
            objective.value_and_gradient(&columns, &normalisers, &objective.initial_state()).unwrap();
        close(&case, "loss", &[outcome.loss], &[number(&outputs["loss"])], tolerance(&case));
        let expected = numbers(&outputs["dloss_dlogp"]);
        close(&case, "dloss_dlogp", &derivatives.logprob, &expected, tolerance(&case));
    }
}
