use super::*;

fn write(folder: &Path, name: &str, rewards: &[f64], tokens: f64) -> PathBuf {
    let run = folder.join(name);
    std::fs::create_dir_all(&run).unwrap();
    let line = |(at, reward): (usize, &f64)| {
        let step = at + 1;
        format!(
            "{{\"step\":{step},\"critic/score/mean\":{reward},\"num_tokens\":{},\"timing_s/step\":2}}\n",
            tokens * step as f64
        )
    };
    let text: String = rewards.iter().enumerate().map(line).collect();
    std::fs::write(run.join("metrics.jsonl"), text).unwrap();
    run
}

/// Worked by hand: at equal steps (2) the filter's runs have 0.4 and 0.6, at equal tokens (20, its first
/// step) 0.2 and 0.4.
#[test]
fn a_comparison() {
    let folder = tempfile::tempdir().unwrap();
    let runs = [
        write(folder.path(), "base_seed1", &[0.1, 0.2], 10.0),
        write(folder.path(), "base_seed2", &[0.1, 0.4], 10.0),
        write(folder.path(), "filter_seed1", &[0.2, 0.4, 0.8], 20.0),
        write(folder.path(), "filter_seed2", &[0.4, 0.6, 0.6], 20.0),
        folder.path().join("later_seed1"),
    ];
    let variants = variants_of(&runs);
    assert_eq!(variants.iter().map(|variant| variant.runs.len()).collect::<Vec<_>>(), [2, 2, 1]);
    let found = compare(&variants, &[]).unwrap();
    assert_eq!(found.limits, [Some(2.0), Some(20.0), Some(4.0)]);
    let shown = |text: String| text.replace(&folder.path().display().to_string(), "DIR");
    insta::assert_snapshot!(shown(found.text()), @r"
reward (critic/score/mean)  runs                      last                      best                      area                at 2 steps              at 20 tokens                at 4.000 s
base (baseline)                2            0.3000 ±0.1414            0.3000 ±0.1414            0.2000 ±0.0707            0.3000 ±0.1414            0.3000 ±0.1414            0.3000 ±0.1414
filter                         2  0.7000 ±0.1414 (+0.4000)  0.7000 ±0.1414 (+0.4000)  0.4000 ±0.1414 (+0.2000)  0.5000 ±0.1414 (+0.2000)  0.3000 ±0.1414 (+0.0000)  0.5000 ±0.1414 (+0.2000)

mean ± sample standard deviation over the runs of a variant (difference to the baseline)
note: DIR/later_seed1 has no metrics yet
note: DIR/base_seed1 has only 2 steps of 3: comparisons at equal cost end there
");
    insta::assert_snapshot!(shown(found.markdown()), @r"
# Comparison

Mean, ± sample standard deviation over seeds, (difference to the baseline).

| reward (critic/score/mean) | runs | last | best | area | at 2 steps | at 20 tokens | at 4.000 s |
|---|---:|---:|---:|---:|---:|---:|---:|
| base (baseline) | 2 | 0.3000 ±0.1414 | 0.3000 ±0.1414 | 0.2000 ±0.0707 | 0.3000 ±0.1414 | 0.3000 ±0.1414 | 0.3000 ±0.1414 |
| filter | 2 | 0.7000 ±0.1414 (+0.4000) | 0.7000 ±0.1414 (+0.4000) | 0.4000 ±0.1414 (+0.2000) | 0.5000 ±0.1414 (+0.2000) | 0.3000 ±0.1414 (+0.0000) | 0.5000 ±0.1414 (+0.2000) |

- DIR/later_seed1 has no metrics yet
- DIR/base_seed1 has only 2 steps of 3: comparisons at equal cost end there
");
    let csv = found.csv();
    assert_eq!(csv.lines().count(), 1 + 2 * 6);
    assert!(csv.contains("filter,base,critic/score/mean,equal_tokens,20,2,"), "{csv}");
    let page = found.html().unwrap();
    assert_eq!(page.matches("<figure ").count(), 3);
    assert!(!page.contains("NaN"), "{page}");
}

/// Prompts of outcomes 0, 0, 1, 1 become 1, 0, 1, 1: a gain of 1/4 with an error of 1/4, though each of the
/// two means has one of about 0.29.
#[test]
fn last_validations_of_the_same_prompts_are_compared_prompt_by_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, outcomes: &[f64], first: &str, seed: u64| {
        let run = write(folder.path(), name, &[0.1, 0.2], 10.0);
        let mean = outcomes.iter().sum::<f64>() / outcomes.len() as f64;
        let metrics = format!("{{\"step\":1,\"val-core/a/acc/mean@1\":{mean},\"num_tokens\":1}}\n");
        std::fs::write(run.join("metrics.jsonl"), metrics).unwrap();
        std::fs::write(run.join("config.yaml"), format!("run: {{seed: {seed}}}\ndata:\n  val: []\n"))
            .unwrap();
        let checkpoint = run.join("checkpoints/step_1");
        std::fs::create_dir_all(&checkpoint).unwrap();
        let shown = serde_json::json!([{"prompt": first, "ground_truth": "2"}]);
        let state =
            serde_json::json!({"validation": {"latest": [1, {"outcomes": outcomes, "shown": shown}]}});
        std::fs::write(checkpoint.join("state.json"), state.to_string()).unwrap();
        run
    };
    let base = run("base", &[0.0, 0.0, 1.0, 1.0], "1+1=", 1);
    let compared = |other: PathBuf| {
        let found = compare(&variants_of(&[base.clone(), other]), &[]).unwrap();
        (found.tables[0].rows[1][0], found.text())
    };
    let (cell, text) = compared(run("other", &[1.0, 0.0, 1.0, 1.0], "1+1=", 1));
    assert_eq!((cell.difference, cell.difference_error), (Some(0.25), Some(0.25)));
    assert!(text.contains("0.7500 (+0.2500 ±0.2500)") && text.contains("prompt by prompt"), "{text}");
    for (first, seed) in [("1+2=", 1), ("1+1=", 2)] {
        let (cell, text) = compared(run("unlike", &[1.0, 0.0, 1.0, 1.0], first, seed));
        assert_eq!((cell.difference, cell.difference_error), (Some(0.25), None), "other prompts");
        assert!(!text.contains("prompt by prompt"), "{text}");
    }
}

/// The means of two seeds are 0.5 and 0.75, 0.75 and 1: variances of 1/32 each, so the seeds add 1/64 + 1/64.
/// The four prompts gain 1/2, 1/2, 0, 0, with a variance of 1/12: the error over them is sqrt(1/12 / 4).
#[test]
fn the_error_of_a_difference_includes_the_seeds() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, outcomes: [f64; 4]| {
        validated_run(folder.path(), name, &outcomes, "data: {val: []}", None)
    };
    let runs = [
        run("base_seed1", [0.0, 0.0, 1.0, 1.0]),
        run("base_seed2", [1.0, 0.0, 1.0, 1.0]),
        run("other_seed1", [1.0, 0.0, 1.0, 1.0]),
        run("other_seed2", [1.0, 1.0, 1.0, 1.0]),
    ];
    let found = compare(&variants_of(&runs), &[]).unwrap();
    let cell = found.tables[0].rows[1][0];
    assert_eq!(cell.difference, Some(0.25));
    let expected = (1.0_f64 / 12.0 / 4.0 + 2.0 / 64.0).sqrt();
    assert!((cell.difference_error.unwrap() - expected).abs() < 1e-12, "{cell:?}");
    let text = found.text();
    assert!(text.contains("prompt by prompt over the same prompts, and over the seeds"), "{text}");
    assert!(text.contains("\nmean ± sample standard deviation over the runs"), "{text}");
}

/// A run with one step, its validation and its settings.
fn validated_run(folder: &Path, name: &str, outcomes: &[f64], settings: &str, sum: Option<u64>) -> PathBuf {
    let run = write(folder, name, &[0.1], 10.0);
    let mean = outcomes.iter().sum::<f64>() / outcomes.len() as f64;
    let metrics = format!("{{\"step\":1,\"val-core/a/acc/mean@1\":{mean},\"num_tokens\":1}}\n");
    std::fs::write(run.join("metrics.jsonl"), metrics).unwrap();
    std::fs::write(run.join("config.yaml"), format!("run: {{name: {name}}}\n{settings}\n")).unwrap();
    let checkpoint = run.join("checkpoints/step_1");
    std::fs::create_dir_all(&checkpoint).unwrap();
    let state = serde_json::json!({
        "inputs": {"validation_crc32": sum},
        "validation": {"latest": [1, {"outcomes": outcomes, "shown": []}]},
    });
    std::fs::write(checkpoint.join("state.json"), state.to_string()).unwrap();
    run
}

#[test]
fn validations_of_other_prompts_have_no_difference() {
    let folder = tempfile::tempdir().unwrap();
    let compared = |one: (&str, Option<u64>), other: (&str, Option<u64>)| {
        let runs = [("one", one), ("other", other)];
        let runs = runs
            .map(|(name, (settings, sum))| validated_run(folder.path(), name, &[0.0, 1.0], settings, sum));
        let found = compare(&variants_of(&runs), &[]).unwrap();
        (found.tables[0].rows[1][0].difference, found.notes.join("\n"))
    };
    let (here, there) = ("data: {val: [a.jsonl]}", "data: {val: [b.jsonl]}");
    let (difference, notes) = compared((here, None), (there, None));
    assert_eq!(difference, None);
    assert!(notes.contains("the runs validate on different prompts (`data.val`): "), "{notes}");
    // The checksum decides: a file may have been moved, or have changed.
    assert_eq!(compared((here, Some(7)), (there, Some(7))).0, Some(0.0));
    assert_eq!(compared((here, Some(7)), (here, Some(8))).0, None);
    let (difference, notes) =
        compared(("validate: {n: 1, temperature: 0}", None), ("validate: {n: 1, temperature: 1}", None));
    assert_eq!(difference, Some(0.0));
    assert!(
        notes.contains("the runs sample their validations differently (`validate.temperature`)"),
        "{notes}"
    );
}

#[test]
fn names_of_variants() {
    let name = |path: &str| variants_of(&[PathBuf::from(path)])[0].name.clone();
    assert_eq!(name("results/a_seed12"), "a");
    assert_eq!(name("results/a/metrics.jsonl"), "a");
    assert_eq!(name("verl.jsonl"), "verl");
    assert_eq!(name("seed1"), "seed1");
    assert_eq!(name("metrics.jsonl"), "metrics");
}

/// Runs are of one variant only if they are in one folder and their names differ in the seed.
#[test]
fn runs_of_one_name_are_not_seeds_of_one() {
    let of = |paths: &[&str]| {
        let found = variants_of(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        found.into_iter().map(|variant| (variant.name, variant.runs.len())).collect::<Vec<_>>()
    };
    let named = |name: &str, runs| (name.to_owned(), runs);
    assert_eq!(of(&["/d1/run", "/d2/run"]), [named("d1/run", 1), named("d2/run", 1)]);
    assert_eq!(
        of(&["/d1/run/metrics.jsonl", "/d2/run/metrics.jsonl"]),
        [named("d1/run", 1), named("d2/run", 1)]
    );
    assert_eq!(
        of(&["/d1/a_seed1", "/d1/a_seed2", "/d1/b-seed1", "/d2/a_seed1", "/d1/a_seed3"]),
        [named("d1/a", 3), named("b", 1), named("d2/a", 1)]
    );
}

#[test]
fn a_metric_that_no_run_has_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let run = write(folder.path(), "a", &[0.1], 1.0);
    let found = compare(&variants_of(&[run]), &["loss".to_owned(), "num_tokens".to_owned()]).unwrap();
    assert_eq!(found.notes, ["no run has the metric `loss`"]);
    assert_eq!(found.tables.len(), 1);
}

#[test]
fn what_never_changes_is_in_the_table_only() {
    let folder = tempfile::tempdir().unwrap();
    let runs = ["a", "b"].map(|name| write(folder.path(), name, &[0.25, 0.25], 10.0));
    let page = compare(&variants_of(&runs), &[]).unwrap().html().unwrap();
    assert!(
        !page.contains("<figure ") && page.contains("Not drawn: no variant has more than one value."),
        "{page}"
    );
    assert!(page.contains("<td>0.2500"), "{page}");
}

/// Each algorithm of a sweep has its own baseline.
#[test]
fn baselines_are_told_apart_in_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let variant = |name: &str, baseline: &str, reward: f64| ComparedVariant {
        name: name.to_owned(),
        baseline: baseline.to_owned(),
        runs: vec![write(folder.path(), name, &[reward, reward + 0.1], 10.0)],
    };
    let variants = [
        variant("grpo_none", "grpo_none", 0.1),
        variant("grpo_top_p", "grpo_none", 0.2),
        variant("ppo_none", "ppo_none", 0.3),
        variant("ppo_top_p", "ppo_none", 0.4),
    ];
    let page = compare(&variants, &[]).unwrap().html().unwrap();
    let look = |name: &str| {
        let key = page.split("<g class=\"").find(|rest| rest.contains(&format!("</svg>{name} <strong>")));
        let key = key.unwrap_or_else(|| panic!("no key of {name}: {page}"));
        key.split('"').next().unwrap().to_owned()
    };
    let all: Vec<String> = variants.iter().map(|variant| look(&variant.name)).collect();
    for (place, look) in all.iter().enumerate() {
        assert!(!all[..place].contains(look), "{all:?}");
        // In the legend of the page and in that of each of the three charts.
        assert_eq!(page.matches(&format!("<g class=\"{look}\">")).count(), 4, "{look} in {page}");
    }
    let are_dashed: Vec<bool> = all.iter().map(|look| look.ends_with("d1")).collect();
    assert_eq!(are_dashed, [true, false, true, false], "{all:?}");
}
