use super::*;
use crate::filter::{DropReason, GroupFilter, GroupStatistics, OutcomeScale, TopP, Verdict};
use crate::schedule::{FirstMembers, GroupFacts, GroupSummary, OnLimit, Spent};

const SCALE: Option<OutcomeScale> = Some(OutcomeScale { wrong: 0.0, correct: 1.0 });

fn summary(values: &[f64], scale: Option<OutcomeScale>) -> GroupSummary {
    GroupSummary::of(&GroupStatistics::of(values, scale), GroupFacts::default())
}

/// The first of n members are right.
fn answers(n: u32, correct: u32) -> GroupSummary {
    let values: Vec<f64> = (0..n).map(|member| f64::from(u8::from(member < correct))).collect();
    summary(&values, SCALE)
}

fn add_dropped(tally: &mut Tally, count: usize, reason: DropReason, summary: &GroupSummary) {
    for _ in 0..count {
        tally.add_judged(Verdict::Dropped(reason), summary);
    }
}

/// Adds `count` groups of eight with `correct` correct members, judged as the variance filter does.
fn add(tally: &mut Tally, count: usize, correct: u32, is_identical_in_text: bool) {
    let verdict = match correct {
        0 => Verdict::Dropped(DropReason::AllWrong),
        8 => Verdict::Dropped(DropReason::AllCorrect),
        _ => Verdict::Kept,
    };
    let summary = GroupSummary { is_identical_in_text, ..answers(8, correct) };
    for _ in 0..count {
        tally.add_judged(verdict, &summary);
    }
}

/// Numbers of groups of eight, each with so many correct members.
fn tally(groups: &[(usize, u32)]) -> Tally {
    let mut tally = Tally::default();
    for &(count, correct) in groups {
        add(&mut tally, count, correct, false);
    }
    tally
}

/// Why the run stopped and what is advised, without the counts of groups.
fn advised(diagnosis: &Diagnosis) -> String {
    let text = diagnosis.to_string();
    let is_told = |(place, line): &(usize, &str)| *place == 0 || line.trim_start().starts_with("- ");
    text.lines().enumerate().filter(is_told).map(|(_, line)| line).collect::<Vec<_>>().join("\n")
}

fn limit_reached(settings: &ScheduleSettings, rounds: u64, tally: Tally) -> Diagnosis {
    let limit = settings.max_num_gen_batches.most(settings);
    Diagnosis::new(StopCause::LimitReached, 7, tally.kept as usize, rounds, limit, tally, settings)
}

fn keys(diagnosis: &Diagnosis) -> Vec<String> {
    diagnosis.recommendations.iter().map(|advice| format!("{} {}", advice.setting, advice.change)).collect()
}

#[test]
fn a_limit_that_is_reached() {
    let tally = tally(&[(14_360, 0), (100, 8), (600, 1), (300, 4)]);
    let diagnosis = limit_reached(&ScheduleSettings::verl(1024, 1024, 8, 15), 15, tally);
    insta::assert_snapshot!(diagnosis, @r#"
    stopped in step 7: 900 of 1024 groups kept after 15 rounds (max_num_gen_batches = 15)
      by `acc`, of 15360 groups (122880 trajectories) generated:
            900    5.9%  kept
            100   0.65%  all correct
          14360   93.5%  all wrong
              0    0.0%  other uniform
              0    0.0%  unscored
              0    0.0%  identical in text
      2600 of 122880 trajectories correct (2.1%)
      what to change, the most likely remedy first:
      - data: take easier prompts in `data.train` or `data.arithmetic.levels`, or start from a policy that solves more (2600 of 122880 trajectories are correct (2.1%), 14360 of 15360 groups are all wrong)
      - rollout.n: 8 -> 32 (keeps about 8.3% of groups instead of 5.9%)
      - schedule.max_num_gen_batches: 15 -> 23 (at 5.9% kept a batch of 1024 takes about 18 rounds)
      - data.train_batch_size: 1024 -> 512 (900 groups were ready when the rounds were used up)
      - schedule.on_limit: error -> use_partial (trains on what was kept instead of stopping)
    "#);
}

#[test]
fn a_little_more_of_everything() {
    let groups = (1..8).map(|correct| (8, correct)).chain([(100, 0), (92, 8)]);
    let tally = tally(&groups.collect::<Vec<_>>());
    let diagnosis = limit_reached(&ScheduleSettings::verl(64, 62, 8, 4), 4, tally);
    insta::assert_snapshot!(advised(&diagnosis), @r#"
    stopped in step 7: 56 of 64 groups kept after 4 rounds (max_num_gen_batches = 4)
      - rollout.n: 8 -> 16 (keeps about 30.8% of groups instead of 22.6%)
      - schedule.max_num_gen_batches: 4 -> 7 (at 22.6% kept a batch of 64 takes about 5 rounds)
      - data.train_batch_size: 64 -> 32 (56 groups were ready when the rounds were used up)
      - schedule.on_limit: error -> use_partial (trains on what was kept instead of stopping)
    "#);
}

#[test]
fn too_hard() {
    let cause = StopCause::EpochWithoutKept { epoch: 0, epochs: 1 };
    let settings = ScheduleSettings::verl(128, 128, 8, 0);
    let diagnosis = Diagnosis::new(cause, 1, 0, 8, None, tally(&[(1024, 0)]), &settings);
    insta::assert_snapshot!(advised(&diagnosis), @"
    stopped in step 1: no group was kept in all of epoch 1 (8 rounds)
      - data: take easier prompts in `data.train` or `data.arithmetic.levels`, or start from a policy that solves some (none of 8192 trajectories is correct by `acc` (pass rate below 0.037% at 95%): too hard for this policy, or the verifier accepts nothing)
      - reward: score the gold answers (a verifier that rejects its own gold rejects everything)
    ");
}

#[test]
fn too_easy() {
    let diagnosis = limit_reached(&ScheduleSettings::verl(64, 64, 8, 4), 4, tally(&[(250, 8), (6, 7)]));
    insta::assert_snapshot!(advised(&diagnosis), @r#"
    stopped in step 7: 6 of 64 groups kept after 4 rounds (max_num_gen_batches = 4)
      - data: take harder prompts in `data.train` or `data.arithmetic.levels` (2042 of 2048 trajectories are correct (99.7%), 250 of 256 groups are all correct)
      - filter: -> null (a task this easy is not worth refilling for)
      - rollout.n: 8 -> 16 (keeps about 4.6% of groups instead of 2.3%)
      - data.gen_batch_size: 64 -> 854 (at 2.3% kept a batch of 64 takes about 43 rounds, too many for a higher limit alone; this many prompts a round fill it in 4)
      - data.train_batch_size: 64 -> 4 (6 groups were ready when the rounds were used up)
      - schedule.on_limit: error -> use_partial (trains on what was kept instead of stopping)
    "#);
}

#[test]
fn solved_always_or_never() {
    let cause = StopCause::EmptyRounds { rounds: 1 };
    let settings = ScheduleSettings::verl(64, 64, 8, 4);
    let diagnosis = Diagnosis::new(cause, 3, 0, 1, None, tally(&[(30, 8), (34, 0)]), &settings);
    insta::assert_snapshot!(advised(&diagnosis), @"
    stopped in step 3: a round kept no group
      - data: take prompts of middling difficulty in `data.train` or `data.arithmetic.levels` (every prompt is solved always (30 groups) or never (34), though 46.9% of trajectories are correct: more samples will not help)
    ");
}

#[test]
fn collapsed() {
    let mut tally = Tally::default();
    add(&mut tally, 40, 0, true);
    add(&mut tally, 20, 8, true);
    add(&mut tally, 4, 3, false);
    let cold = ScheduleSettings { temperature: Some(0.2), ..ScheduleSettings::verl(64, 64, 8, 1) };
    insta::assert_snapshot!(advised(&limit_reached(&cold, 1, tally)), @r#"
    stopped in step 7: 4 of 64 groups kept after 1 round (max_num_gen_batches = 1)
      - rollout.temperature: 0.2 -> 1.0 (60 of 64 groups hold the same text 8 times)
      - rollout.n: 8 -> 16 (keeps about 10.9% of groups instead of 6.2%)
      - schedule.max_num_gen_batches: 1 -> 20 (at 6.2% kept a batch of 64 takes about 16 rounds)
      - data.train_batch_size: 64 -> 4 (4 groups were ready when the rounds were used up)
      - schedule.on_limit: error -> use_partial (trains on what was kept instead of stopping)
    "#);
    let hot = ScheduleSettings { temperature: Some(1.0), ..cold.clone() };
    assert_eq!(keys(&limit_reached(&hot, 1, tally))[0], "rollout.top_p -> 1.0, and top_k, min_p off");
    let free = ScheduleSettings { cuts_sampling: Some(false), ..hot.clone() };
    assert_eq!(
        keys(&limit_reached(&free, 1, tally))[0],
        "objective.entropy.coefficient raise it, or lower train.optimizer.learning_rate, in a run from an earlier checkpoint"
    );
    let cut = ScheduleSettings { cuts_sampling: Some(true), ..hot };
    assert_eq!(keys(&limit_reached(&cut, 1, tally))[0], "rollout.top_p -> 1.0, and top_k, min_p off");
    let unknown = ScheduleSettings { temperature: None, ..cold };
    assert_eq!(keys(&limit_reached(&unknown, 1, tally))[0], "rollout.temperature raise it, to 1.0 say");
}

#[test]
fn no_scores_and_failures() {
    let mut tally = Tally::default();
    add_dropped(&mut tally, 12, DropReason::Unscored, &summary(&[f64::NAN; 4], SCALE));
    for _ in 0..4 {
        tally.add_failed(4, Spent::on_answer(7));
    }
    let cause = StopCause::SkippedSteps { steps: 11, why: SkipReason::EmptyRound };
    let diagnosis = Diagnosis::new(cause, 1, 0, 11, None, tally, &ScheduleSettings::verl(16, 16, 4, 0));
    insta::assert_snapshot!(diagnosis, @"
    stopped in step 1: 11 attempts in a row trained nothing (11 rounds)
      by `acc`, of 16 groups (64 trajectories) generated:
              0    0.0%  kept
              0    0.0%  all correct
              0    0.0%  all wrong
              0    0.0%  other uniform
             12   75.0%  unscored
              0    0.0%  identical in text
              4   25.0%  failed
      no trajectory has a score `acc`
      what to change, the most likely remedy first:
      - rollout.backend: check that generation works (4 of 16 groups failed for good; the log has their errors)
      - reward: check its inputs and results (12 of 16 groups have no `acc` for two members: the reward function gave no answer)
    ");
}

#[test]
fn a_reward_that_says_nothing() {
    let mut tally = Tally::default();
    add_dropped(&mut tally, 16, DropReason::Uniform, &summary(&[0.1; 4], SCALE));
    let cause = StopCause::EmptyRounds { rounds: 3 };
    let settings = ScheduleSettings { metric: "seq_reward".into(), ..ScheduleSettings::verl(16, 16, 4, 0) };
    insta::assert_snapshot!(advised(&Diagnosis::new(cause, 1, 0, 3, None, tally, &settings)), @"
    stopped in step 1: 3 rounds in a row kept no group
      - reward: check that it separates answers (16 of 16 groups have the same `seq_reward` for all members, neither 0 nor 1: does it tell right from wrong?)
      - data: take easier prompts in `data.train` or `data.arithmetic.levels`, or start from a policy that solves some (none of 64 trajectories is correct by `seq_reward` (pass rate below 4.7% at 95%): too hard for this policy, or the verifier accepts nothing)
      - reward: score the gold answers (a verifier that rejects its own gold rejects everything)
    ");
}

#[test]
fn groups_of_one_dropped_by_choice() {
    let mut tally = Tally::default();
    add_dropped(&mut tally, 8, DropReason::Singleton, &summary(&[17.0], None));
    let cause = StopCause::EpochWithoutKept { epoch: 2, epochs: 1 };
    let settings = ScheduleSettings { metric: "length".into(), ..ScheduleSettings::verl(8, 8, 1, 0) };
    insta::assert_snapshot!(Diagnosis::new(cause, 5, 0, 1, None, tally, &settings), @"
    stopped in step 5: no group was kept in all of epoch 3 (1 round)
      by `length`, of 8 groups (8 trajectories) generated:
              0    0.0%  kept
              0    0.0%  all correct
              0    0.0%  all wrong
              0    0.0%  other uniform
              0    0.0%  unscored
              8  100.0%  single
              0    0.0%  identical in text
      `length` does not show what is correct
      what to change, the most likely remedy first:
      - rollout.n: 1 -> 8 (a group of one has nothing to compare)
      - filter.singleton: drop -> keep (trains on single samples as verl does)
    ");
}

/// Uniform groups under a filter that compares the groups of a round: the data is the cause, not the
/// comparison.
#[test]
fn a_selection_of_uniform_groups() {
    let mut tally = tally(&[(50, 0), (4, 8), (6, 1)]);
    let outside =
        |tally: &mut Tally, count| add_dropped(tally, count, DropReason::OutsidePool, &answers(8, 4));
    outside(&mut tally, 4);
    let settings = ScheduleSettings {
        filter: Some(GroupFilter::TopP(TopP::of(0.9))),
        ..ScheduleSettings::verl(16, 16, 8, 4)
    };
    insta::assert_snapshot!(limit_reached(&settings, 4, tally), @r#"
    stopped in step 7: 6 of 16 groups kept after 4 rounds (max_num_gen_batches = 4)
      by `acc`, of 64 groups (512 trajectories) generated:
              6    9.4%  kept
              4    6.2%  all correct
             50   78.1%  all wrong
              0    0.0%  other uniform
              0    0.0%  unscored
              4    6.2%  outside pool
              0    0.0%  identical in text
      54 of 512 trajectories correct (10.5%)
      what to change, the most likely remedy first:
      - rollout.n: 8 -> 16 (about 18.7% of groups then differ within, instead of 15.0%)
      - schedule.max_num_gen_batches: 4 -> 15 (at 9.4% kept a batch of 16 takes about 11 rounds)
      - data.train_batch_size: 16 -> 4 (6 groups were ready when the rounds were used up)
      - schedule.on_limit: error -> use_partial (trains on what was kept instead of stopping)
    "#);
    // If rank left out most of them, the selection is what cannot fill the batch.
    outside(&mut tally, 60);
    assert_eq!(
        keys(&limit_reached(&settings, 4, tally))[0],
        "schedule.refill true -> false: train on what a round leaves"
    );
    // There, a group of one has no setting of its own.
    let mut single = Tally::default();
    add_dropped(&mut single, 1, DropReason::Singleton, &answers(1, 1));
    let advice = keys(&limit_reached(&settings, 4, single));
    assert!(!advice.iter().any(|key| key.starts_with("filter.singleton")), "{advice:?}");
}

#[test]
fn no_prompts() {
    let cause = StopCause::NoPrompts { epoch: 0 };
    let settings = ScheduleSettings::verl(8, 8, 4, 0);
    insta::assert_snapshot!(Diagnosis::new(cause, 1, 0, 1, None, Tally::default(), &settings), @"
    stopped in step 1: epoch 1 has no prompts
      what to change, the most likely remedy first:
      - data.train: give it prompts (epoch 1 had none: every row may have been dropped as too long)
    ");
}

#[test]
fn recommendations_would_have_helped() {
    for (wrong, mixed) in [(90, 10), (60, 40), (97, 3), (995, 5)] {
        let tally = tally(&[(wrong, 0), (mixed, 2)]);
        let settings = ScheduleSettings { on_limit: OnLimit::Error, ..ScheduleSettings::verl(256, 64, 8, 2) };
        let diagnosis = limit_reached(&settings, 2, tally);
        let keep = tally.keep_rate().unwrap();
        let number = |setting: &str| {
            let advice = diagnosis.recommendations.iter().find(|advice| advice.setting == setting)?;
            advice.change.rsplit(' ').next()?.parse::<f64>().ok()
        };
        let (limit, size) = (number("schedule.max_num_gen_batches"), number("data.gen_batch_size"));
        assert!(limit.is_some() != size.is_some());
        let expected = limit.unwrap_or(2.0) * size.unwrap_or(64.0) * keep;
        assert!(expected >= 256.0, "{expected}: {diagnosis}");
        if let Some(n) = number("rollout.n") {
            assert!((9.0..=64.0).contains(&n));
        }
    }
}

#[test]
fn what_is_set_is_not_advised() {
    let wrong = tally(&[(64, 0)]);
    let of = |settings: &ScheduleSettings, tally| keys(&limit_reached(settings, 1, tally));
    let settings = ScheduleSettings::verl(64, 64, 8, 1);
    assert!(of(&settings, wrong).contains(&"reward score the gold answers".to_owned()));
    let off = ScheduleSettings { scores_gold: Some(false), ..settings.clone() };
    assert!(of(&off, wrong).contains(&"data.check_gold off -> warn".to_owned()));
    let on = ScheduleSettings { scores_gold: Some(true), ..settings.clone() };
    let printed = of(&on, wrong);
    assert!(!printed.iter().any(|printed| printed.contains("gold")), "{printed:?}");
    assert!(printed.iter().any(|printed| printed.starts_with("reward check in rollouts/")), "{printed:?}");

    let some = tally(&[(48, 0), (16, 4)]);
    let on_limit = |on_limit| of(&ScheduleSettings { on_limit, ..settings.clone() }, some);
    assert!(on_limit(OnLimit::Error).contains(&"schedule.on_limit error -> use_partial".to_owned()));
    assert!(on_limit(OnLimit::Skip).contains(&"schedule.on_limit skip -> use_partial".to_owned()));
    let printed = on_limit(OnLimit::UsePartial);
    assert!(!printed.iter().any(|printed| printed.starts_with("schedule.on_limit")), "{printed:?}");

    // A limit that is high enough on average: a smaller round would be no remedy.
    let roomy = ScheduleSettings { max_num_gen_batches: RoundLimit::Rounds(60), ..settings.clone() };
    let printed = of(&roomy, some);
    assert!(!printed.iter().any(|printed| printed.starts_with("data.gen_batch_size")), "{printed:?}");
    // One round a step, whatever the limit.
    let once = of(&ScheduleSettings { refill: false, ..settings }, some);
    assert!(!once.iter().any(|printed| printed.starts_with("schedule.max_num_gen_batches")), "{once:?}");
}

/// Adds `count` groups of n that begin with two members, from prompts with one pass rate, in proportion to
/// their possible outcomes.
fn add_screened(tally: &mut Tally, count: f64, n: u32, p: f64) {
    let group = |tally: &mut Tally, share: f64, verdict: Verdict, members: u32, of_first: u32| {
        let correct = if members == 2 { of_first } else { n / 2 };
        let first = Some(FirstMembers { num_scored: 2, num_correct: Some(of_first) });
        let summary = GroupSummary { first, ..answers(members, correct) };
        for _ in 0..(share * count).round() as u64 {
            tally.add_judged(verdict, &summary);
        }
    };
    let screened = Verdict::Dropped(DropReason::Screened);
    group(tally, (1.0 - p) * (1.0 - p), screened, 2, 0);
    group(tally, p * p, screened, 2, 2);
    group(tally, 2.0 * p * (1.0 - p), Verdict::Kept, n, 1);
}

fn screening(first: Option<usize>) -> ScheduleSettings {
    ScheduleSettings { screen_first: first, ..ScheduleSettings::verl(256, 64, 8, 16) }
}

#[test]
fn first_members_are_advised_where_they_pay() {
    let of_screening = |diagnosis: &Diagnosis| -> Vec<String> {
        let all = diagnosis.recommendations.iter();
        all.filter(|advice| advice.setting == "schedule.screen_first")
            .map(|advice| format!("{} ({})", advice.change, advice.why))
            .collect()
    };
    // Most groups end with their first members, and that pays: nothing to change.
    let mut unlike = Tally::default();
    for p in [0.0, 0.0, 0.0, 1.0, 1.0, 0.4] {
        add_screened(&mut unlike, 1000.0, 8, p);
    }
    assert!(unlike.screened > 4 * unlike.kept);
    assert_eq!(of_screening(&limit_reached(&screening(Some(2)), 16, unlike)), Vec::<String>::new());
    // The same number of groups is kept, but all prompts are alike.
    let mut alike = Tally::default();
    add_screened(&mut alike, 6000.0, 8, 0.05);
    insta::assert_snapshot!(of_screening(&limit_reached(&screening(Some(2)), 16, alike)).join("\n"), @"2 -> null (pass rates are so alike that a kept group costs about 3.38 generated ones, and whole ones 2.97)");
    // The same for whole groups, in a stream that can begin them with fewer members.
    let whole = |pass_rates: &[u32]| {
        let groups: Vec<_> = pass_rates.iter().map(|&correct| (100, correct)).collect();
        let settings = screening(None);
        let mut diagnosis = limit_reached(&settings, 16, tally(&groups));
        let of_rounds = of_screening(&diagnosis);
        assert_eq!(of_rounds, Vec::<String>::new(), "rounds are begun whole");
        diagnosis.recommend_first_members(&settings);
        of_screening(&diagnosis).join("\n")
    };
    insta::assert_snapshot!(whole(&[0, 0, 0, 0, 8, 8, 8, 3]), @"null -> 3 (pass rates differ so much that a kept group then costs about 4.36 generated ones instead of 5.83; 1.7 times as many groups are started, and schedule.max_num_gen_batches counts these: 16 -> 28)");
    assert_eq!(whole(&[0, 0, 0, 1, 0, 1, 0, 0]), "");
    // Too few groups for a statement.
    let few = tally(&[(20, 0), (15, 8), (5, 4)]);
    let mut diagnosis = limit_reached(&screening(None), 16, few);
    diagnosis.recommend_first_members(&screening(None));
    assert_eq!(of_screening(&diagnosis), Vec::<String>::new());
}

#[test]
fn the_pass_rate_of_a_screened_run() {
    let mut tally = Tally::default();
    add_screened(&mut tally, 1000.0, 8, 0.04);
    assert!(tally.pass_rate().unwrap() > 0.1 && (tally.mean_pass_rate().unwrap() - 0.04).abs() < 1e-3);
    let diagnosis = limit_reached(&screening(Some(2)), 16, tally);
    let text = diagnosis.to_string();
    assert!(text.contains("; of those that groups begin with 4.0%"), "{text}");
    // Larger groups would not be kept more often.
    assert!(!keys(&diagnosis).iter().any(|advice| advice.starts_with("rollout.n")), "{text}");
    assert!(keys(&diagnosis)[0].starts_with("schedule.screen_first 2 -> null"), "{text}");
    assert!(keys(&diagnosis)[1].starts_with("data take easier prompts"), "{text}");
}

/// Groups that begin with two members: those whose first members are all right, those whose first are all
/// wrong, and those whose first differ.
fn screened(correct: u64, wrong: u64, kept: u64) -> Tally {
    let mut tally = Tally::default();
    for (count, p) in [(correct, 1.0), (wrong, 0.0)] {
        add_screened(&mut tally, count as f64, 8, p);
    }
    // With a pass rate of one half, as many differ, and as many are right as wrong.
    if kept > 0 {
        let mut mixed = Tally::default();
        add_screened(&mut mixed, 2.0 * kept as f64, 8, 0.5);
        tally.append(&mixed);
    }
    tally
}

/// A group that ended with its first members may still have a signal.
#[test]
fn whole_groups_are_advised_where_no_first_members_differ() {
    let of = |tally| limit_reached(&screening(Some(2)), 16, tally);
    insta::assert_snapshot!(of(screened(6, 58, 0)), @"
    stopped in step 7: 0 of 256 groups kept after 16 rounds (max_num_gen_batches = 16)
      by `acc`, of 64 groups (128 trajectories) generated:
              0    0.0%  kept
              0    0.0%  all correct
              0    0.0%  all wrong
              0    0.0%  other uniform
              0    0.0%  unscored
             64  100.0%  screened
              0    0.0%  identical in text
      12 of 128 trajectories correct (9.4%); of those that groups begin with 9.4%
      what to change, the most likely remedy first:
      - schedule.screen_first: 2 -> null (the first 2 members of 64 of 64 groups were alike; of all 8 some may differ)
      - data: take prompts of middling difficulty in `data.train` or `data.arithmetic.levels` (the first 2 members are all right in 6 groups and all wrong in 58, and differ in none)
    ");
    // The scale is unknown, or it is hardly known how seldom a member is right.
    let advises_whole = |tally| keys(&of(tally)).contains(&"schedule.screen_first 2 -> null".to_owned());
    assert!(advises_whole(screened(0, 64, 0)) && advises_whole(screened(64, 0, 0)));
    // None of 4000 is right, so almost never one of eight.
    assert!(!advises_whole(screened(0, 2000, 0)) && !advises_whole(screened(2000, 0, 0)));
    // Most groups failed.
    let mut failed = screened(3, 3, 0);
    (0..30).for_each(|_| failed.add_failed(2, Spent::default()));
    assert!(!advises_whole(failed));
}

#[test]
fn sides_of_groups_that_end_with_their_first_members() {
    let tally = screened(1, 150, 2);
    assert_eq!((tally.screened_correct, tally.screened_wrong, tally.screened, tally.kept), (2, 151, 153, 2));
    let reasons = |tally: Tally| {
        let diagnosis = limit_reached(&screening(Some(2)), 16, tally);
        let of_data = diagnosis.recommendations.iter().filter(|advice| advice.setting == "data");
        of_data.map(|advice| advice.why.clone()).collect::<Vec<_>>().join("\n")
    };
    // 2 * 2 + 2 of 310 first members are right.
    insta::assert_snapshot!(reasons(tally), @"1.9% of the first 2 members of groups are correct, 151 of 155 groups are all wrong as far as they were sampled");
    insta::assert_snapshot!(reasons(screened(150, 1, 2)), @"98.1% of the first 2 members of groups are correct, 151 of 155 groups are all correct as far as they were sampled");
    insta::assert_snapshot!(reasons(screened(20, 40, 0)), @"the first 2 members are all right in 20 groups and all wrong in 40, and differ in none");
    // The same text in all members of a group.
    let mut same = screened(6, 58, 0);
    same.identical_in_text = 60;
    let text = limit_reached(&screening(Some(2)), 16, same).to_string();
    assert!(text.contains("60 of 64 groups hold the same text 2 or more times"), "{text}");
}

#[test]
fn what_a_selector_passed_over_is_named() {
    let tally = tally(&[(80, 0)]);
    let cause = StopCause::EpochWithoutKept { epoch: 9, epochs: 4 };
    let of = |skipped| {
        let mut diagnosis = Diagnosis::new(cause, 4, 0, 5, None, tally, &ScheduleSettings::verl(8, 24, 8, 0));
        let selector = "posterior".to_owned();
        diagnosis.note_passed_over(PassedOver { selector, considered: 320, skipped });
        diagnosis.to_string()
    };
    let text = of(240);
    assert!(
        text.starts_with("stopped in step 4: no group was kept in all of epochs 7 to 10 (5 rounds)"),
        "{text}"
    );
    assert!(
        text.contains("\n  the selector `posterior` skipped 240 of 320 prompts since a step was trained"),
        "{text}"
    );
    assert!(text.contains("- schedule.selector.kind: posterior -> shuffle (240 of 320 prompts"), "{text}");
    assert!(of(100).contains("skipped 100 of 320") && !of(100).contains("shuffle"));
    assert!(!of(0).contains("posterior"));
}
