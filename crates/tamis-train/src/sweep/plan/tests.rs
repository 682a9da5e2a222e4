use super::*;

const BASE: &str = "\
run: {name: tiny}
model:
  init: {architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 32}
data: {task: arithmetic, train_batch_size: 4, max_prompt_length: 12}
rollout: {n: 4, max_response_length: 4}
reward: [{kind: number}]
train: {total_steps: 6}
";

/// The plan of a sweep's text beside `tiny.yaml`, or what is wrong, without the folder's name.
fn plan_of(text: &str, options: &PlanOptions) -> Result<SweepPlan, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tiny.yaml"), BASE).unwrap();
    let path = folder.path().join("sweep.yaml");
    std::fs::write(&path, text).unwrap();
    let shown = |text: String| text.replace(&folder.path().display().to_string(), "DIR");
    let sweep = SweepFile::read(&path).map_err(|errors| shown(errors.to_string()))?;
    SweepPlan::of(&sweep, options).map_err(|error| {
        let hint = error.hint().map_or_else(String::new, |hint| format!("\n  hint: {hint}"));
        shown(format!("{error}{hint}"))
    })
}

fn on(date: &str) -> PlanOptions {
    PlanOptions { date: date.to_owned(), ..PlanOptions::default() }
}

fn names(text: &str) -> Vec<String> {
    let plan = plan_of(text, &on("0120")).unwrap_or_else(|error| panic!("{error}"));
    plan.runs.into_iter().map(|run| run.name).collect()
}

const CONDITIONAL: &str = "\
base: tiny.yaml
name: '{date}_{algo}_{strategy}_{value}_inc{zero:upper}'
axes:
  algo: {sets: {grpo: [objective.advantage.kind=grpo], rloo: {objective.advantage.kind: rloo}}}
  strategy: {key: filter.kind, values: [top_p, min_p]}
  value:
    key: filter.p
    cases:
    - {when: {strategy: top_p}, values: [0.7, 0.85]}
    - {when: {strategy: min_p}, values: [0.50]}
  zero: {key: filter.include_zero, values: [False]}
baseline: {labels: {strategy: none, value: 1.0, zero: True}, set: [filter=null]}
only: {grpo: {algo: grpo}, rloo: {algo: rloo}}
";

#[test]
fn a_baseline_comes_before_each_combination_of_the_other_axes() {
    assert_eq!(
        names(CONDITIONAL),
        [
            "0120_grpo_none_1.0_incTRUE",
            "0120_grpo_top_p_0.7_incFALSE",
            "0120_grpo_top_p_0.85_incFALSE",
            "0120_grpo_min_p_0.50_incFALSE",
            "0120_rloo_none_1.0_incTRUE",
            "0120_rloo_top_p_0.7_incFALSE",
            "0120_rloo_top_p_0.85_incFALSE",
            "0120_rloo_min_p_0.50_incFALSE",
        ]
    );
    let plan = plan_of(CONDITIONAL, &on("0120")).unwrap();
    assert_eq!(plan.runs[6].baseline, "0120_rloo_none_1.0_incTRUE");
    assert_eq!(plan.runs[4].baseline, plan.runs[4].variant);
    assert!(plan.runs[0].loaded.config.filter.is_none() && plan.runs[1].loaded.config.filter.is_some());
    assert_eq!(
        plan.runs[5].arguments[1..],
        [
            "objective.advantage.kind=rloo",
            "filter.kind=top_p",
            "filter.p=0.7",
            "filter.include_zero=False",
            "run.dir=results",
            "run.name=0120_rloo_top_p_0.7_incFALSE"
        ]
    );
}

#[test]
fn a_part_of_a_sweep() {
    let plan = plan_of(CONDITIONAL, &PlanOptions { only: Some("rloo".to_owned()), ..on("0120") }).unwrap();
    assert!(plan.runs.len() == 4 && plan.runs.iter().all(|run| run.name.contains("rloo")));
    let all = plan_of(CONDITIONAL, &PlanOptions { only: Some("all".to_owned()), ..on("0120") }).unwrap();
    assert_eq!(all.runs.len(), 8);
    let error =
        plan_of(CONDITIONAL, &PlanOptions { only: Some("ppo".to_owned()), ..on("0120") }).unwrap_err();
    assert_eq!(error, "the sweep has no part `ppo`\n  hint: `--only` takes all, grpo, rloo");
}

#[test]
fn seeds_a_list_and_a_baseline_that_is_a_point_of_the_grid() {
    let text = "\
base: tiny.yaml
axes: {rollout.n: [2, 4, 8]}
baseline: {at: {rollout.n: 4}}
list: [{at: {rollout.n: 16}, set: [rollout.temperature=0.5]}]
seeds: [1, 2]
";
    assert_eq!(
        names(text),
        [
            "0120_sweep_4_seed1",
            "0120_sweep_4_seed2",
            "0120_sweep_2_seed1",
            "0120_sweep_2_seed2",
            "0120_sweep_8_seed1",
            "0120_sweep_8_seed2",
            "0120_sweep_16_seed1",
            "0120_sweep_16_seed2",
        ]
    );
    let plan = plan_of(text, &on("0120")).unwrap();
    assert_eq!(
        (plan.runs[7].variant.as_str(), plan.runs[7].baseline.as_str()),
        ("0120_sweep_16", "0120_sweep_4")
    );
    assert_eq!(plan.runs[7].loaded.config.run.seed, 2);
    assert!((plan.runs[7].loaded.config.rollout.temperature - 0.5).abs() < 1e-12);
    assert_eq!(
        plan.runs[2].line(),
        "results/0120_sweep_2_seed1/  6 steps x 4 prompts x 2: 48 trajectories of up to 4 tokens, 192 tokens"
    );
}

#[test]
fn another_base_and_overrides() {
    let options = PlanOptions {
        base: vec!["reward=[{kind: number}]".to_owned(), "data.task=arithmetic".to_owned()],
        overrides: vec!["rollout.n=2".to_owned()],
        ..on("0120")
    };
    let error = plan_of("axes: {rollout.n: [2, 4]}", &options).unwrap_err();
    assert_eq!(
        error,
        "`rollout.n=2` has no effect: the sweep sets `rollout.n` itself\n  hint: change it in the sweep's file"
    );
    let error = plan_of("base: tiny.yaml", &on("20 Jan")).unwrap_err();
    assert!(error.starts_with("the date `20 Jan` is not a month and a day"), "{error}");
}

#[test]
fn everything_that_is_wrong_with_a_file_at_once() {
    let text = "\
bass: tiny.yaml
name: '{date}_{algoo}'
axes:
  algo: {sets: [x]}
  value: {values: [1], when: {strategy: top_p}}
  empty: {key: rollout.n}
baseline: {labls: {algo: x}}
seeds: 3
parallel: 0
set: [rollout]
only: {a: {value: 7}}
";
    insta::assert_snapshot!(plan_of(text, &on("0120")).unwrap_err());
}

#[test]
fn what_is_wrong_with_a_configuration_is_shown_where_the_sweep_sets_it() {
    let text = "\
base: tiny.yaml
axes:
  rollout.nn: [4, 8]
  rollout.temperature: [hot]
";
    insta::assert_snapshot!(plan_of(text, &on("0120")).unwrap_err());
}

#[test]
fn names_that_are_taken_or_none() {
    let text = "\
base: tiny.yaml
name: '{date}_{a}'
axes: {a: {key: run.seed, values: [1, a/b]}, rollout.n: [2, 4]}
";
    insta::assert_snapshot!(plan_of(text, &on("0120")).unwrap_err());
}
