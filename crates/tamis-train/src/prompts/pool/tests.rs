use std::collections::BTreeSet;

use proptest::prelude::*;
use tamis_core::schedule::selector::{DifficultyPools, Posterior, Selector, Shuffle, ZeroVarianceSkip};

use super::*;
use crate::support::{prepared, prompt};

const MEMBERS: usize = 8;

fn prompts(number: u64) -> Vec<PreparedPrompt> {
    (0..number).map(|id| prepared(prompt(id, &id.to_string()))).collect()
}

fn pool(number: u64, selector: Selector) -> PromptPool {
    let order = PromptOrder::Shuffled { seed: 3 };
    let selector = PromptSelector::new(selector, 3, MEMBERS, None);
    PromptPool::new(prompts(number), order, DataPosition::default()).expect("a place").with_selector(selector)
}

/// The same pool, restored from its saved state.
fn resumed(number: u64, selector: Selector, from: &PromptPool) -> PromptPool {
    let saved = serde_json::to_string(&(
        from.position(),
        from.given_back(),
        from.selector().map(PromptSelector::state),
    ));
    let (position, given_back, state): (_, Vec<Candidate>, _) =
        serde_json::from_str(&saved.expect("JSON")).expect("what was saved");
    let selector = PromptSelector::new(selector, 3, MEMBERS, state);
    PromptPool::new(prompts(number), PromptOrder::Shuffled { seed: 3 }, position)
        .expect("a place")
        .with_given_back(given_back)
        .with_selector(selector)
}

/// Prompts of three kinds, a third each: never, always and sometimes answered right.
fn judged(drawn: &DrawnPrompt, version: u64) -> JudgedGroup {
    let prompt = drawn.prompt.prompt.id;
    let num_correct = [0, MEMBERS as u32, 3][prompt.0 as usize % 3];
    let (version, inclusion) = (PolicyVersion(version), drawn.inclusion);
    let (num_scored, first_scored) = (MEMBERS as u32, MEMBERS as u32);
    JudgedGroup {
        prompt,
        version,
        inclusion,
        num_scored,
        num_correct,
        first_scored,
        first_correct: num_correct,
    }
}

/// A step that trains so many mixed groups, draws so many prompts at once and returns those dispatched
/// after the last one. Returns the used prompts, with their probabilities.
fn step(pool: &mut PromptPool, version: u64, groups: usize, at_once: usize) -> Vec<(u64, u64, f64)> {
    let mut drawn: Vec<DrawnPrompt> = Vec::new();
    let mixed = |drawn: &[DrawnPrompt]| -> Vec<usize> {
        (0..drawn.len()).filter(|&i| drawn[i].prompt.prompt.id.0 % 3 == 2).collect()
    };
    while mixed(&drawn).len() < groups {
        let DrawnPrompts { prompts, exhausted } = pool.draw(at_once, PolicyVersion(version));
        drawn.extend(prompts);
        if exhausted && mixed(&drawn).len() < groups {
            pool.next_epoch();
        }
    }
    let unused = drawn.split_off(mixed(&drawn)[groups - 1] + 1);
    if !unused.is_empty() {
        pool.give_back(unused);
    }
    let of_step: Vec<JudgedGroup> = drawn.iter().map(|drawn| judged(drawn, version)).collect();
    pool.learn(&of_step);
    drawn.iter().map(|drawn| (drawn.epoch, drawn.prompt.prompt.id.0, drawn.inclusion)).collect()
}

fn selectors() -> impl Strategy<Value = Selector> {
    prop_oneof![
        Just(Selector::Posterior(Posterior::default())),
        Just(Selector::ZeroVarianceSkip(ZeroVarianceSkip::default())),
        Just(Selector::DifficultyPools(DifficultyPools::default())),
        Just(Selector::Shuffle(Shuffle {})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Trained prompts do not depend on how many are drawn ahead and returned, nor on a resume.
    #[test]
    fn what_is_drawn_ahead_changes_nothing(
        selector in selectors(),
        ahead in prop::collection::vec(1..9usize, 12),
        cut in 0..12usize,
    ) {
        let (mut one_by_one, mut other) = (pool(60, selector), pool(60, selector));
        for (version, &at_once) in ahead.iter().enumerate() {
            if version == cut {
                other = resumed(60, selector, &other);
            }
            let expected = step(&mut one_by_one, version as u64, 7, 1);
            prop_assert_eq!(step(&mut other, version as u64, 7, at_once), expected);
        }
        prop_assert_eq!(one_by_one.selector(), other.selector());
        // Returned candidates are considered anew: the next candidates are the same, at any position.
        let next = |pool: &PromptPool| -> Vec<(u64, PromptId)> {
            let epoch = pool.position().epoch;
            let own = pool.sampler.rest().map(|prompt| (epoch, prompt));
            pool.given_back.iter().map(|candidate| (candidate.epoch, candidate.prompt)).chain(own).collect()
        };
        prop_assert_eq!(next(&one_by_one), next(&other));
    }
}

#[test]
fn uniform_prompts_are_drawn_seldom_and_their_groups_weigh_more() {
    let mut pool = pool(300, Selector::Posterior(Posterior::default()));
    let mut shares = Vec::new();
    for version in 0..30 {
        let used = step(&mut pool, version, 20, 1);
        let mixed = used.iter().filter(|(_, prompt, _)| prompt % 3 == 2).count();
        shares.push(mixed as f64 / used.len() as f64);
        let mut seen = BTreeSet::new();
        assert!(used.iter().all(|(epoch, prompt, _)| seen.insert((*epoch, *prompt))), "none twice a pass");
    }
    let mean = |shares: &[f64]| shares.iter().sum::<f64>() / shares.len() as f64;
    assert!(mean(&shares[..5]) < 0.45 && mean(&shares[20..]) > 0.7, "{shares:?}");
    let selector = pool.selector_mut().expect("a selector");
    let trained = [(PromptId(0), 0.1), (PromptId(2), 1.0), (PromptId(5), 1.0)];
    let report = selector.report(&trained, PolicyVersion(30));
    let named: std::collections::BTreeMap<&str, f64> = report.to_pairs().iter().copied().collect();
    assert!(named["selector/skipped_share"] > 0.2);
    // Prompt 0 is hard, and represents ten.
    assert!((named["selector/hard_share"] - 1.0 / 3.0).abs() < 1e-12);
    assert!((named["selector/hard_share_weighted"] - 10.0 / 12.0).abs() < 1e-12);
    assert!((named["selector/effective_share"] - 144.0 / 306.0).abs() < 1e-12);
    assert!((named["selector/inclusion/mean"] - 0.7).abs() < 1e-12);
    assert!((named["selector/hard_share_data"] - 1.0 / 3.0).abs() < 0.05, "{named:?}");
    assert!(named["selector/hard_share_blind"] < 0.2, "{named:?}");
    // The next report starts from zero.
    assert_eq!(
        selector
            .report(&[], PolicyVersion(30))
            .to_pairs()
            .iter()
            .find(|(name, _)| *name == "selector/skipped_share"),
        None
    );
}

/// Prompts that always come out the same are passed over; an epoch of nothing else is not data without a
/// prompt.
#[test]
fn an_epoch_takes_one_prompt_at_least() {
    let mut pool = pool(3, Selector::Posterior(Posterior { floor: 0.001, ..Posterior::default() }));
    for version in 0..40 {
        let DrawnPrompts { prompts, exhausted } = pool.draw(4, PolicyVersion(version));
        assert!(exhausted && !prompts.is_empty());
        let uniform =
            |drawn: &DrawnPrompt| JudgedGroup { num_correct: 0, first_correct: 0, ..judged(drawn, version) };
        pool.learn(&prompts.iter().map(uniform).collect::<Vec<_>>());
        pool.next_epoch();
    }
}

#[test]
fn a_prompt_that_comes_back_keeps_its_probability() {
    let mut pool = pool(40, Selector::Posterior(Posterior::default()));
    for version in 0..6 {
        step(&mut pool, version, 5, 1);
    }
    let DrawnPrompts { prompts, .. } = pool.draw(4, PolicyVersion(6));
    // The second failed, and those after it were used.
    let failed = prompts[1].clone();
    pool.give_back(vec![failed.clone()]);
    pool.learn(&[]);
    let again = &pool.draw(1, PolicyVersion(9)).prompts[0];
    assert_eq!((again.epoch, again.prompt.prompt.id), (failed.epoch, failed.prompt.prompt.id));
    assert!((again.inclusion - failed.inclusion).abs() < 1e-15);
}
