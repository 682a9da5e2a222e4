//! The contents of a page about an ordinary run, and about several.

use std::collections::BTreeSet;

use crate::fixture::{Made, edit, has, made, member, played, run, write_rollouts};

/// The part of a page with an id, up to the next.
pub(crate) fn part<'a>(html: &'a str, id: &str) -> &'a str {
    let begin = html.find(&format!("<section id=\"{id}\">")).unwrap_or_else(|| panic!("no part {id}"));
    let rest = &html[begin..];
    &rest[..rest[1..].find("<section id=").map_or(rest.len(), |end| end + 1)]
}

#[test]
fn a_run_in_its_parts() {
    let folder = tempfile::tempdir().unwrap();
    let page = made(&[run(folder.path(), "sums", 6)]);
    assert_eq!((page.num_steps, page.num_trajectories, page.notes.len()), (6, 24, 0), "{:?}", page.notes);
    let html = &page.html;
    for id in ["overview", "learning", "sieve", "update", "time", "samples", "account", "settings", "metrics"]
    {
        assert!(html.contains(&format!("<a href=\"#{id}\">")), "{id} is not in the list of parts");
        part(html, id);
    }
    for (id, expected) in [
        ("overview", "finished, 6 of 6 steps"),
        ("overview", "0.1667 → <strong>1</strong>"),
        ("overview", "50.0% of them"),
        // Both means are side by side, in the chart and in its numbers.
        (
            "learning",
            "<th scope=\"col\" data-run=\"0\">all generated<th scope=\"col\" data-run=\"0\">trained",
        ),
        ("learning", "<tr><th scope=\"row\">3<td>0.5<td>0.5"),
        ("sieve", "Groups by their mean acc"),
        ("sieve", "&quot;values&quot;:[&quot;A"),
        // Every step has the same groups: a sentence, not a chart.
        ("sieve", "<li>Groups kept and dropped: trained <strong>1</strong>, all wrong <strong>1</strong>"),
        (
            "update",
            "<li>Gradient norm: policy <strong>1.5</strong> <small><code>actor/grad_norm</code></small>",
        ),
        ("update", "<h3>Entropy</h3>"),
        ("account", "✓ groups add up: 12 came in"),
        ("account", "✓ trajectories add up: 24"),
        ("account", "The rollout files hold 24 trajectories: 12 all wrong, 12 trained."),
        ("time", "generation"),
        ("time", "between stages"),
        ("settings", "my.yaml:3"),
        ("metrics", "<code>actor/grad_norm</code>"),
        ("metrics", "Norm of the gradient before clipping."),
    ] {
        has(part(html, id), &[expected]);
    }
    assert!(!part(html, "update").contains("<h3>Gradient norm</h3>"));
    assert!(!part(html, "time").contains("Time of a step by stage"), "the table of sums says it");
    assert!(!part(html, "settings").contains("run.<wbr>seed"), "defaults are not listed");
    let order: Vec<usize> = ["overview", "samples", "learning", "sieve", "account"]
        .map(|id| html.find(&format!("<section id=\"{id}\">")).unwrap())
        .to_vec();
    assert!(order.is_sorted(), "{order:?}");
}

/// Weights of a selector and of importance sampling are drawn, each figure with its lines and their numbers.
#[test]
fn weights_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let row = |step: u64| {
        let row = format!(
            "{{\"step\":{step},\"schedule/max_lag\":1,\"selector/skipped_share\":0.3,\"selector/inclusion/mean\":0.625,\
             \"selector/effective_share\":0.75,\"selector/hard_share\":0.25,\"selector/hard_share_weighted\":0.375,\
             \"selector/hard_share_blind\":0.4375,\"selector/easy_share\":0.125,\"selector/easy_share_weighted\":0.1875,\
             \"selector/easy_share_blind\":0.21875,\"rollout_corr/rollout_is_mean\":1.5,\"rollout_corr/rollout_is_min\":0.5,\
             \"rollout_corr/rollout_is_max\":2,\"rollout_corr/rollout_is_eff_sample_size\":0.9}}\n"
        );
        // What never changes is not drawn.
        if step == 1 { row.replace("0.", "0.1") } else { row }
    };
    std::fs::write(&path, row(1) + &row(2)).unwrap();
    let html = made(&[path]).html;
    let freshness = part(&html, "freshness");
    for (title, numbers) in [
        ("Hard prompts", "<td>0.25<td>0.375<td>0.4375"),
        ("Easy prompts", "<td>0.125<td>0.1875<td>0.2188"),
        ("Choice of prompts", "<td>0.625<td>0.3"),
        ("Effective share of weights", "<td>0.75<td>0.9"),
        ("Importance weights", "<td>1.5"),
    ] {
        let figure = freshness.find(&format!("<h3>{title}</h3>")).unwrap_or_else(|| panic!("no {title}"));
        let figure = freshness[figure..].split("</figure>").next().unwrap();
        assert!(figure.contains(&format!("<tr><th scope=\"row\">2{numbers}")), "{title}: {figure}");
    }
    let band = freshness.split("<h3>Importance weights</h3>").nth(1).unwrap();
    assert!(band.split("</figure>").next().unwrap().contains("&quot;least&quot;:[0.15,0.5]"), "{band}");
}

#[test]
fn completions_stand_side_by_side_with_scores_and_verdicts() {
    let folder = tempfile::tempdir().unwrap();
    let page = made(&[run(folder.path(), "sums", 2)]);
    let samples = part(&page.html, "samples");
    assert_eq!(samples.matches("<section class=\"step\"").count(), 2);
    assert_eq!(samples.matches("<article class=\"group\"").count(), 4);
    assert_eq!(samples.matches("<article class=\"member\">").count(), 8);
    has(samples, &["It is <mark class=\"right\" title=\"the right answer\">42</mark>.", "I do not know."]);
    has(samples, &["What is 1 times 2?", "✓ trained", "✗ all wrong", "unscored", "Right answer"]);
    // A group and its row in the table of scores.
    has(samples, &["<a href=\"#g0-2\">2</a>", "id=\"g0-2\""]);
}

#[test]
fn turns_have_roles_and_observations_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "game", 1);
    let turns = [("I go up.", "S.F", ""), ("I call it.", "result 7", "tool"), ("Done.", "", "")];
    let group = Made {
        id: 5,
        prompt: "Cross the lake.".to_owned(),
        verdict: "trained",
        members: vec![played(0, &turns, true), played(1, &turns, false)],
    };
    write_rollouts(&path, 1, &[group]);
    let page = made(&[path]);
    let samples = part(&page.html, "samples");
    for (item, count) in [
        ("<li class=\"answer\"><h6>assistant", 6),
        ("<li class=\"observation\"><h6>user</h6><pre dir=\"auto\">S.F</pre>", 2),
        ("<li class=\"observation\"><h6>tool</h6>", 2),
    ] {
        assert_eq!(samples.matches(item).count(), count, "{item}");
    }
    assert!(samples.contains("<span class=\"turn-reward\">-0.1</span>"), "{samples}");
}

#[test]
fn several_runs_beside_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let (long, short) = (run(folder.path(), "long", 9), run(folder.path(), "short", 3));
    edit(&short, "config.yaml", |text| {
        text.replace("seed: 1  # default", "seed: 2  # command line: run.seed=2")
    });
    let page = made(&[long, short]);
    let html = &page.html;
    assert!(html.contains("id=\"show-r0\" checked") && html.contains("id=\"show-r1\" checked"));
    assert!(html.contains("body:has(#show-r1:not(:checked)) .r1{display:none}"));
    let learning = part(html, "learning");
    assert!(learning.contains("long: all generated") && learning.contains("short: trained"));
    // Beyond its end the short one has no value.
    assert!(learning.contains("<tr><th scope=\"row\">9<td>1<td>–<td>0.5<td>–"), "{learning}");
    let settings = part(html, "settings");
    assert!(settings.contains("Where the runs differ") && settings.contains("run.<wbr>seed"), "{settings}");
    assert!(settings.contains("train.<wbr>total_steps") && !settings.contains("run.<wbr>name</code><td><code title=\"command line: run.name=long\">long</code><td><code title=\"command line: run.name=short"));
    assert_eq!(part(html, "account").matches("<section class=\"account").count(), 2);
}

/// Scores of unlike rewards are not drawn in one chart without a word.
#[test]
fn runs_of_unlike_rewards_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let runs = [run(folder.path(), "one", 3), run(folder.path(), "other", 3)];
    let word = "The runs have different rewards";
    assert!(!made(&runs).html.contains(word));
    for (run, weight) in runs.iter().zip([1, 2]) {
        let reward = format!("reward:\n  - {{kind: number, weight: {weight}}}  # my.yaml:9\n");
        edit(run, "config.yaml", |text| text.to_owned() + &reward);
    }
    let html = made(&runs).html;
    assert!(part(&html, "learning").contains(word) && !part(&html, "update").contains(word));
    has(part(&html, "overview"), &["The runs have different rewards (<code>reward.0.weight</code>)"]);
}

/// Validations of other prompts are not drawn in one chart without a word.
#[test]
fn runs_of_unlike_validations_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let runs = [run(folder.path(), "one", 3), run(folder.path(), "other", 3)];
    assert!(!made(&runs).html.contains("validate on different prompts"));
    for (run, (file, n)) in runs.iter().zip([("a.jsonl", 1), ("b.jsonl", 4)]) {
        edit(run, "config.yaml", |text| format!("{text}data: {{val: [{file}]}}\nvalidate: {{n: {n}}}\n"));
        let validated = |(step, line): (usize, &str)| {
            line.replacen('{', &format!("{{\"val-core/a/acc/mean@1\":0.{step},"), 1) + "\n"
        };
        edit(run, "metrics.jsonl", |text| text.lines().enumerate().map(validated).collect());
    }
    let html = made(&runs).html;
    let different = "The runs validate on different prompts (<code>data.val</code>)";
    let sampled = "The runs sample their validations differently (<code>validate.n</code>)";
    has(part(&html, "overview"), &[different, sampled]);
    has(part(&html, "learning"), &["The runs validate on different prompts or sample them"]);
}

/// Validation samples of two steps are side by side, with the answer marked.
#[test]
fn held_out_prompts_before_and_after() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "sums", 4);
    std::fs::create_dir(path.join("validation")).unwrap();
    let write = |step: u64, texts: [(&str, f64); 2]| {
        let row = |(prompt, (text, reward)): (usize, (&str, f64))| {
            format!(
                "{{\"step\":{step},\"prompt_id\":{prompt},\"sample_index\":0,\"prompt\":\"Prompt no. {prompt}\",\"completion\":\"{text}\",\"ground_truth\":\"42\",\"reward\":{reward}}}\n"
            )
        };
        let rows: String = texts.into_iter().enumerate().map(row).collect();
        std::fs::write(path.join(format!("validation/step_{step}.jsonl")), rows).unwrap();
    };
    write(0, [("It is <41>.", 0.0), ("So 42.", 1.0)]);
    write(2, [("Neither.", 0.0), ("Neither.", 0.0)]);
    write(4, [("First 42, then 42.", 1.0), ("So 42.", 1.0)]);
    let html = made(std::slice::from_ref(&path)).html;
    let samples = part(&html, "samples");
    assert!(samples.contains("before and after steps 1 to 4"), "{samples}");
    assert!(samples.contains("Of 2 prompts, 1 scores higher after and 0 lower."), "{samples}");
    assert!(samples.find("Before and after") < samples.find("Step by step") && !samples.contains("Neither"));
    let pair = samples.split("<article class=\"group pair\">").nth(1).unwrap();
    has(pair, &["It is &lt;41&gt;.", "step 0 <small>reward 0", "step 4 <small>reward 1"]);
    assert!(pair.find("It is &lt;41&gt;.") < pair.find("First 42, then <mark class=\"right\""), "{pair}");
    // A damaged file is named, and the rest of the page is complete.
    std::fs::write(path.join("validation/step_4.jsonl"), "broken\n").unwrap();
    let page = made(&[path]);
    assert!(page.notes[0].1.starts_with("completions before and after are left out"), "{:?}", page.notes);
    assert!(page.html.contains("Step by step"));
}

/// Without saved validations, prompts that were trained on twice.
#[test]
fn prompts_that_were_sampled_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "sums", 3);
    let group = |text: &str, reward| Made {
        id: 77,
        prompt: "Once more?".to_owned(),
        verdict: "trained",
        members: vec![member(1, "the second", 0.0), member(0, text, reward)],
    };
    write_rollouts(&path, 1, &[group("early 41", 0.0)]);
    write_rollouts(&path, 2, &[group("between", 0.0)]);
    write_rollouts(&path, 3, &[group("late 42", 1.0)]);
    let html = made(&[path]).html;
    let pairs = part(&html, "samples").split("Step by step").next().unwrap();
    assert!(pairs.contains("early 41</pre>") && pairs.contains("late <mark"), "{pairs}");
    assert!(!pairs.contains("between") && !pairs.contains("the second") && pairs.contains("1 such prompt"));
}

#[test]
fn names_are_unique_and_links_lead_somewhere() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (run(&folder.path().join("a"), "same", 3), run(&folder.path().join("b"), "same", 3));
    let page = made(&[one, other]);
    let values = |attribute: &str| -> Vec<String> {
        let parts = page.html.split(attribute).skip(1);
        parts.map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
    };
    let ids = values(" id=\"");
    let unique: BTreeSet<&String> = ids.iter().collect();
    assert_eq!(ids.len(), unique.len(), "{ids:?}");
    for target in values("href=\"#") {
        assert!(unique.contains(&target), "{target}");
    }
    assert!(page.html.contains("a/same") && page.html.contains("b/same"), "runs of one name are told apart");
}

#[test]
fn the_same_files_give_the_same_page() {
    let folder = tempfile::tempdir().unwrap();
    let runs = [run(folder.path(), "a", 5), run(folder.path(), "b", 4)];
    assert!(made(&runs).html == made(&runs).html);
}
