//! The figures that a page promises, each by its title: one that vanishes, or loses its marks, fails here.

use std::fmt::Write as _;

use crate::fixture::{made, run};
use crate::structure::part;

/// Part of the page, title of the figure, metrics that it draws, and how its marks begin. Rollout files give
/// those without metrics.
const PROMISED: &[(&str, &str, &[&str], &str)] = &[
    ("learning", "Validation", &["val-core/sums/acc/mean@4"], LINE),
    ("learning", "Reward", &["all/critic/score/mean", "critic/score/mean"], LINE),
    ("learning", "Pass rate", &["all/pass_rate", "train/pass_rate"], LINE),
    (
        "sieve",
        "Groups kept and dropped",
        &["groups/trained", "train/num_dropped/all_wrong"],
        "<path class=\"s3\" d=\"",
    ),
    ("sieve", "Pass rates of groups", &[], "<path class=\"h0\" d=\""),
    ("sieve", "Groups by their mean acc", &[], "<path class=\"h5\" d=\""),
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
    (
        "time",
        "Time of a step by stage",
        &["timing_s/gen", "timing_s/update_actor"],
        "<path class=\"s0\" d=\"",
    ),
    ("time", "Throughput", &["perf/throughput"], LINE),
    ("time", "Time of a step", &["timing_s/step"], LINE),
];
/// A line of a chart.
const LINE: &str = "class=\"line\" d=\"";

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
    // What the run lacks of the promised metrics is added to each of its lines.
    let metrics = std::fs::read_to_string(path.join("metrics.jsonl")).unwrap();
    let mut whole = String::new();
    for (place, line) in metrics.lines().enumerate() {
        whole += line.strip_suffix('}').unwrap();
        for name in PROMISED.iter().flat_map(|(_, _, names, _)| *names) {
            if !line.contains(&format!("\"{name}\"")) {
                let _ = write!(whole, ",\"{name}\":{}", 0.25 + place as f64 / 8.0);
            }
        }
        whole += "}\n";
    }
    std::fs::write(path.join("metrics.jsonl"), whole).unwrap();
    let html = made(&[path]).html;
    for (id, title, metrics, mark) in PROMISED {
        let figure = figure(&html, id, title);
        let drawing = figure.split("<div class=\"plot\">").nth(1).unwrap().split("</svg>").next().unwrap();
        assert!(drawing.contains("<svg") && drawing.contains(mark), "{title} has no marks: {figure}");
        for metric in *metrics {
            // A stack names the family of its metrics, which end in its layers.
            let named = if *mark == LINE { *metric } else { &metric[..metric.rfind('/').unwrap()] };
            let is_named = figure.contains(&format!("<code>{named}"));
            assert!(is_named, "{title} does not draw {metric}: {figure}");
        }
        assert!(
            figure.contains("<tr data-at=\"4\">"),
            "{title} lacks the numbers of the last step: {figure}"
        );
    }
}
