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

/// Names of the runs in a part of a sweep.
fn names_of_part(text: &str, part: &str) -> Vec<String> {
    let options = PlanOptions { only: Some(part.to_owned()), ..on("0120") };
    let plan = plan_of(text, &options).unwrap_or_else(|error| panic!("{error}"));
    plan.runs.into_iter().map(|run| run.name).collect()
}

/// The plan of a sweep's text beside `tiny.yaml`, or its errors without the folder's name.
fn plan_of(text: &str, options: &PlanOptions) -> Result<SweepPlan, String> {
    checked_plan_of(text, options, &|_| Vec::new())
}

fn checked_plan_of(
    text: &str,
    options: &PlanOptions,
    check: &dyn Fn(&Loaded) -> Vec<Diagnostic>,
) -> Result<SweepPlan, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tiny.yaml"), BASE).unwrap();
    let path = folder.path().join("sweep.yaml");
    std::fs::write(&path, text).unwrap();
    let shown = |text: String| text.replace(&folder.path().display().to_string(), "DIR");
    let sweep = SweepFile::read(&path).map_err(|errors| shown(errors.to_string()))?;
    SweepPlan::of(&sweep, options, tamis_config::load, check).map_err(|error| {
        let SweepError::Fault(fault) = &error else { return shown(error.to_string()) };
        let hint = fault.hint().map_or_else(String::new, |hint| format!("\n  hint: {hint}"));
        shown(format!("{error}{hint}"))
    })
}

fn on(date: &str) -> PlanOptions {
    PlanOptions { date: date.to_owned(), ..PlanOptions::default() }
}

/// A missing file is reported once, before any run starts. A plan by itself needs no files.
#[test]
fn runs_that_begin_need_their_files() {
    let text = "base: tiny.yaml\nname: n{rollout.n}\nset: [data.task=null, data.train=none.jsonl]\naxes: {rollout.n: [2, 4]}\n";
    assert_eq!(plan_of(text, &on("0120")).unwrap().runs.len(), 2);
    let check = |loaded: &Loaded| {
        vec![loaded.refuse(&["data.train".to_owned()], "there is no file `none.jsonl`", None)]
    };
    let refused = checked_plan_of(text, &on("0120"), &check).unwrap_err();
    assert_eq!(refused.matches("there is no file").count(), 1, "{refused}");
    assert!(refused.contains("sweep.yaml:3"), "{refused}");
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
    let of_each = ["none_1.0_incTRUE", "top_p_0.7_incFALSE", "top_p_0.85_incFALSE", "min_p_0.50_incFALSE"];
    let expected = ["grpo", "rloo"].map(|algo| of_each.map(|rest| format!("0120_{algo}_{rest}"))).concat();
    assert_eq!(names(CONDITIONAL), expected);
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
    let part = names_of_part(CONDITIONAL, "rloo");
    assert!(part.len() == 4 && part.iter().all(|name| name.contains("rloo")));
    assert_eq!(names_of_part(CONDITIONAL, "all").len(), 8);
    let unknown = PlanOptions { only: Some("ppo".to_owned()), ..on("0120") };
    let error = plan_of(CONDITIONAL, &unknown).unwrap_err();
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
    let expected = [4, 2, 8, 16].map(|n| [1, 2].map(|seed| format!("0120_sweep_{n}_seed{seed}"))).concat();
    assert_eq!(names(text), expected);
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
    let text = "base: tiny.yaml\naxes: {rollout.n: 4, algo: {sets: {a: [x]}}}\n";
    let refused = plan_of(text, &on("0120")).unwrap_err();
    assert!(
        refused.contains("error: `axes.rollout.n`: must be a list of values, or a mapping\n"),
        "{refused}"
    );
    assert!(refused.contains("\n  hint: write [4]\n"), "{refused}");
    assert!(refused.contains("error: `axes.algo.sets.a`: `x` is not an override\n"), "{refused}");
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

/// An axis whose values depend on a label that only the baseline has.
#[test]
fn a_condition_may_name_a_label_of_the_baseline() {
    let text = "\
base: tiny.yaml
name: '{filter}_{temperature}_{p}'
axes:
  filter: {key: filter.kind, values: [top_p]}
  temperature: {key: rollout.temperature, when: {filter: none}, values: [0.5, 0.8]}
  p: {key: filter.p, when: {filter: top_p}, values: [0.7, 0.9]}
baseline: {labels: {filter: none}, set: [filter=null]}
";
    let plan = plan_of(text, &on("0120")).unwrap_or_else(|error| panic!("{error}"));
    let found: Vec<_> = plan
        .runs
        .iter()
        .map(|run| (run.name.as_str(), run.baseline.as_str(), run.loaded.config.rollout.temperature))
        .collect();
    assert_eq!(
        found,
        [
            ("none_0.5_none", "none_0.5_none", 0.5),
            ("none_0.8_none", "none_0.5_none", 0.8),
            ("top_p_none_0.7", "none_0.5_none", 1.0),
            ("top_p_none_0.9", "none_0.5_none", 1.0),
        ]
    );
    // The same axis in the baseline's `set` would be overridden silently.
    let twice = text.replace("set: [filter=null]", "set: [filter=null, rollout.temperature=0.7]");
    let error = plan_of(&twice, &on("0120")).unwrap_err();
    let told = "`baseline.set`: the axis `temperature`, which has values at the baseline, sets `rollout.temperature`, too";
    assert!(error.contains(told) && error.contains("DIR/sweep.yaml:7:"), "{error}");
    // A label for that axis at the baseline means that the axis sets nothing there.
    let named = twice.replace("labels: {filter: none}", "labels: {filter: none, temperature: 0.7}");
    assert_eq!(names(&named), ["none_0.7_none", "top_p_none_0.7", "top_p_none_0.9"]);
}

/// If a baseline is a point of the grid, axes that depend on it have their values from the grid.
#[test]
fn a_baseline_in_the_grid_has_what_depends_on_it() {
    let text = "\
base: tiny.yaml
name: '{filter}_{p}'
axes:
  filter: {key: filter.kind, values: [variance, top_p]}
  p: {key: filter.p, when: {filter: top_p}, values: [0.7, 0.9]}
baseline: {at: {filter: top_p}}
";
    let plan = plan_of(text, &on("0120")).unwrap_or_else(|error| panic!("{error}"));
    let found: Vec<_> = plan.runs.iter().map(|run| (run.name.as_str(), run.baseline.as_str())).collect();
    assert_eq!(
        found,
        [("top_p_0.7", "top_p_0.7"), ("top_p_0.9", "top_p_0.7"), ("variance_none", "top_p_0.7")]
    );
}

/// An axis of the baseline has no value if the outer axes leave it without one.
#[test]
fn a_baseline_has_no_value_of_an_axis_that_has_none_there() {
    let text = "\
base: tiny.yaml
name: '{filter}_{p}'
axes:
  filter: {sets: {all: [filter=null], top_p: [filter.kind=top_p]}}
  p: {key: filter.p, when: {filter: top_p}, values: [0.7, 0.9]}
baseline: {at: {p: 0.9}}
";
    let plan = plan_of(text, &on("0120")).unwrap_or_else(|error| panic!("{error}"));
    let found: Vec<_> = plan.runs.iter().map(|run| (run.name.as_str(), run.baseline.as_str())).collect();
    assert_eq!(found, [("all_none", "all_none"), ("top_p_0.9", "top_p_0.9"), ("top_p_0.7", "top_p_0.9")]);
}

#[test]
fn a_part_may_name_labels_of_the_baseline_and_of_the_list() {
    let text = "\
base: tiny.yaml
name: '{filter}_{n}'
axes:
  filter: {sets: {variance: [], top_p: [filter.kind=top_p, filter.p=0.9, schedule.refill=false]}}
  n: {key: rollout.n, values: [2, 4]}
baseline: {labels: {filter: none}, set: [filter=null]}
list: [{at: {n: 16}, labels: {filter: many}}]
only: {base: {filter: none}, some: {filter: [none, top_p], n: 4}, list: {filter: many}, large: {n: 16}}
";
    assert_eq!(names_of_part(text, "base"), ["none_2", "none_4"]);
    assert_eq!(names_of_part(text, "some"), ["none_4", "top_p_4"]);
    assert_eq!(names_of_part(text, "list"), ["many_16"]);
    assert_eq!(names_of_part(text, "large"), ["many_16"]);
    let wrong = text.replace("base: {filter: none}", "base: {filter: non}, a/b: {n: 2}");
    let error = plan_of(&wrong, &on("0120")).unwrap_err();
    assert!(error.contains("`only.base`: the axis `filter` has no value `non`"), "{error}");
    assert!(error.contains("it has variance, top_p, none, many"), "{error}");
    assert!(error.contains("`only.a/b`: is not a valid name of a part"), "{error}");
}

/// Paths work as in every configuration file. Paths on the command line are relative to the working
/// directory.
#[test]
fn paths_in_a_sweep_are_taken_from_its_folder() {
    let text = "\
base: [tiny.yaml, data.val=val.jsonl]
name: '{train}_{model}'
set: {data.task: null, reward: [{kind: command, argv: [./score]}]}
axes:
  train: {key: data.train, values: [small.jsonl]}
  model: {sets: {new: [], old: {model.init: null, model.path: ../runs/step_0}}}
baseline: {at: {train: large.jsonl}}
";
    let options = PlanOptions { overrides: vec!["data.image_folder=images".to_owned()], ..on("0120") };
    let plan = plan_of(text, &options).unwrap_or_else(|error| panic!("{error}"));
    let [large, _, _, old] = plan.runs.as_slice() else { panic!("four runs: {:?}", plan.runs.len()) };
    let folder = large.arguments[0].strip_suffix("/tiny.yaml").expect("the base comes first").to_owned();
    let has = |run: &PlannedRun, argument: &str| {
        let argument = argument.replace("DIR", &folder);
        assert!(run.arguments.contains(&argument), "{argument} is not in {:?}", run.arguments);
    };
    for argument in ["data.val=DIR/val.jsonl", "data.train=DIR/large.jsonl", "data.image_folder=images"] {
        has(large, argument);
    }
    has(large, "reward=[{kind: command, argv: [./score], working_dir: DIR}]");
    has(old, "model.path=DIR/../runs/step_0");
    let data = &old.loaded.config.data;
    assert!(format!("{:?}", data.train).contains(&format!("{folder}/small.jsonl")), "{:?}", data.train);
}
