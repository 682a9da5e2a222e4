//! Laws of a loss whose values and derivatives are given: it is the loss that they are of.

use proptest::prelude::*;
use tamis_core::objective::{
    Clip, Evaluation, GivenLoss, Importance, Normalisers, Objective, PolicyLoss, PythonLoss,
};
use tamis_core::own_function::OwnFunction;

use crate::batch::{Gathered, batch, objective, run};

const CLIP: Clip =
    Clip { clip_low: 0.2, clip_high: 0.28, dual_clip: None, delta: None, log_ratio_limit: None };

fn python() -> PolicyLoss {
    PolicyLoss::Python(PythonLoss { check_derivative: true, function: OwnFunction::of("my.py") })
}

/// What a function would return for [`CLIP`]: values and derivatives, NaN at masked tokens.
fn given(gathered: &Gathered) -> (Vec<f64>, Vec<f64>) {
    let rows = gathered.offsets.windows(2).zip(&gathered.advantage);
    let advantages = rows.flat_map(|(pair, &advantage)| std::iter::repeat_n(advantage, pair[1] - pair[0]));
    let [logprob, old, ..] = &gathered.columns;
    let token = |(t, advantage): (usize, f64)| {
        if !gathered.mask[t] {
            return (f64::NAN, f64::NAN);
        }
        let found = CLIP.token(logprob[t] - old[t], advantage);
        (found.loss, found.dloss)
    };
    advantages.enumerate().map(token).unzip()
}

proptest! {
    #[test]
    fn a_given_loss_is_the_one_that_its_numbers_are_of(objective in objective(), batch in batch()) {
        let built_in = Objective { policy: PolicyLoss::Clip(CLIP), importance: Importance::Token, ..objective };
        prop_assume!(built_in.check().is_ok());
        let own = Objective { policy: python(), ..built_in.clone() };
        let gathered = batch.whole();
        let (value, derivative) = given(&gathered);
        let mut columns = gathered.columns();
        let (expected, slopes) = run(&built_in, &columns, &batch.normalisers);
        columns.given = Some(GivenLoss { value: &value, derivative: &derivative });
        let (found, own_slopes) = run(&own, &columns, &batch.normalisers);
        prop_assert_eq!(found.loss.to_bits(), expected.loss.to_bits());
        prop_assert_eq!(own_slopes.logprob, slopes.logprob);
        prop_assert_eq!(own_slopes.entropy, slopes.entropy);
    }
}

#[test]
fn a_given_loss_without_its_column_is_refused() {
    let gathered = Gathered {
        offsets: vec![0, 1],
        mask: vec![true],
        columns: std::array::from_fn(|_| vec![-1.0]),
        advantage: vec![1.0],
        group_tokens: vec![1.0],
        group_sequences: vec![1.0],
        selection: vec![0],
    };
    let own = Objective::of(python(), tamis_core::objective::Aggregation::TokenSum);
    let evaluate = |columns| {
        let normalisers = Normalisers { tokens: 1.0, sequences: 1.0, groups: 1.0, dp_size: 1.0 };
        own.evaluate(&columns, &normalisers, &own.initial_state(), &mut Evaluation::<f64>::default())
    };
    let error = evaluate(gathered.columns()).unwrap_err().to_string();
    assert_eq!(error, "column `given` is missing; a loss in Python, which `tamis train` calls, needs it");
    let short = GivenLoss { value: &[1.0], derivative: &[] };
    let columns = tamis_core::objective::Columns { given: Some(short), ..gathered.columns() };
    let error = evaluate(columns).unwrap_err().to_string();
    assert_eq!(error, "column `given.derivative` has 0 values, expected 1");
}
