//! The figures that a page promises, each by its title: one that vanishes, or loses its marks, fails here.

use crate::fixture::{Made, made, member, run, write_rollouts};
use crate::structure::part;

/// Part of the page, title of the figure, metrics that it draws, and its kind. Rollout files give those
/// without metrics.
const PROMISED: &[(&str, &str, &[&str], &str)] = &[
    ("learning", "Validation", &["val-core/sums/acc/mean@4"], LINE),
    ("learning", "Reward", &["all/critic/score/mean", "critic/score/mean"], LINE),
    ("learning", "Pass rate", &["all/pass_rate", "train/pass_rate"], LINE),
    ("sieve", "Groups kept and dropped", &["groups/trained", "train/num_dropped/all_wrong"], STACK),
    ("sieve", "Pass rates of groups", &[], STACK),
    ("sieve", "Groups by their mean acc", &[], "cells"),
    ("update", "Entropy", &["actor/entropy"], LINE),
    ("update", "Divergence from the reference", &["actor/kl_loss"], LINE),
    ("update", "Divergence within a step", &["actor/ppo_kl"], LINE),
    ("update", "Clip fractions", &["actor/pg_clipfrac"], LINE),
    ("update", "Gradient norm", &["actor/grad_norm"], LINE),
    ("length", "Completion length", &["all/response_length/mean", "response_length/mean"], LINE),
    ("length", "Truncated completions", &["all/response_length/clip_ratio"], LINE),
    ("freshness", "Lag", &["schedule/max_lag"], LINE),
    ("freshness", "Weights of groups", &["train/soft_reweight_mean"], LINE),
    ("freshness", "Importance weights", &["rollout_corr/rollout_is_mean"], LINE),
    ("time", "Time of a step by stage", &["timing_s/gen", "timing_s/update_actor"], STACK),
    ("time", "Throughput", &["perf/throughput", "perf/update_throughput"], LINE),
    ("time", "MFU", &["perf/mfu"], LINE),
    ("time", "Time of a step", &["timing_s/step"], LINE),
];
const LINE: &str = "lines";
const STACK: &str = "stack";

/// A figure of a part by its title.
fn figure<'a>(html: &'a str, id: &str, title: &str) -> &'a str {
    let within = part(html, id);
    let begin = within
        .find(&format!("<h3>{title}</h3>"))
        .unwrap_or_else(|| panic!("the part {id} has no figure `{title}`"));
    within[begin..].split("</figure>").next().unwrap()
}

#[test]
fn every_promised_figure_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "sums", 4);
    // The run gets what it lacks of the promised metrics, and none of them is constant.
    let metrics = std::fs::read_to_string(path.join("metrics.jsonl")).unwrap();
    let mut whole = String::new();
    for (place, line) in metrics.lines().enumerate() {
        let mut row: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
        for name in PROMISED.iter().flat_map(|(_, _, names, _)| *names) {
            row.insert((*name).to_owned(), (0.25 + place as f64 / 8.0).into());
        }
        whole += &(serde_json::Value::from(row).to_string() + "\n");
    }
    std::fs::write(path.join("metrics.jsonl"), whole).unwrap();
    // Pass rates of groups are constant unless a step differs.
    let group =
        Made { id: 9, prompt: String::new(), verdict: "all_wrong", members: vec![member(0, "x", 0.0)] };
    write_rollouts(&path, 2, &[group]);
    let html = made(&[path]).html;
    for (id, title, metrics, kind) in PROMISED {
        let figure = figure(&html, id, title);
        let data = figure.split("data-chart=\"").nth(1).unwrap().split('"').next().unwrap();
        let data: serde_json::Value = serde_json::from_str(&data.replace("&quot;", "\"")).unwrap();
        assert_eq!(data["kind"], *kind, "{title}");
        let values =
            data["series"].as_array().unwrap().iter().map(|series| series["values"].as_array().unwrap());
        let num_places = data["at"].as_array().unwrap().len();
        assert!(num_places > 1 && values.clone().all(|values| values.len() == num_places), "{title}: {data}");
        assert!(
            values.flatten().any(|value| value.as_f64() > Some(0.0) || value.is_string()),
            "{title}: {data}"
        );
        for metric in *metrics {
            // A stack names the family of its metrics, which end in its layers.
            let named = if *kind == LINE { *metric } else { &metric[..metric.rfind('/').unwrap()] };
            let is_named = figure.contains(&format!("<code>{named}"));
            assert!(is_named, "{title} does not draw {metric}: {figure}");
        }
        assert!(
            figure.contains("<tr><th scope=\"row\">4<td>"),
            "{title} lacks the numbers of the last step: {figure}"
        );
    }
}
