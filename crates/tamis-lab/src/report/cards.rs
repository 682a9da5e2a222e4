//! Groups with their texts: the scores of a step as a table, and members side by side.

use std::fmt::Write as _;

use tamis_core::printable::cut_middle;

use super::answer::{Answer, shorten};
use super::run::Run;
use super::samples::{Listed, MOST_MEMBERS, MOST_SCORES, Member, SampledGroup, SampledStep};
use super::sieve::{shade, words};
use crate::chart::number::figure as number;
use crate::html::{escape, text};

/// Bytes of sampled texts in a page, about.
const BUDGET: usize = 4 << 20;
/// Characters of one text, at least and at most.
const SHORTEST: usize = 240;
const LONGEST: usize = 4000;

/// How samples are shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) range: (f64, f64),
    /// Characters of a text that are shown, at most.
    pub(crate) longest: usize,
}

/// Characters of each text that a page has room for.
pub(crate) fn longest(samples: &[Vec<SampledStep>]) -> usize {
    let groups = samples.iter().flatten().flat_map(|step| &step.groups);
    let num_texts: usize = groups
        .map(|group| {
            let of_member = |member: &Member| member.turns.len().max(1) * 2;
            1 + group.members.iter().map(of_member).sum::<usize>()
        })
        .sum();
    (BUDGET / num_texts.max(1)).clamp(SHORTEST, LONGEST)
}

fn badge(verdict: &str) -> String {
    let kind = match verdict {
        "trained" => "kept",
        "kept_when_insufficient" | "surplus" | "stale" | "aborted" | "finished" => "idle",
        _ => "dropped",
    };
    let mark = match kind {
        "kept" => "✓",
        "idle" => "○",
        _ => "✗",
    };
    format!("<span class=\"badge {kind}\">{mark} {}</span>", escape(&words(verdict)))
}

pub(crate) fn of_step(run: &Run, place: usize, step: &SampledStep, look: Look, is_one: bool) -> String {
    let name = if is_one { String::new() } else { format!("<h4>{}</h4>", escape(&run.name)) };
    let mut html = format!("<section class=\"of-run r{place}\">{name}");
    for group in &step.groups {
        html += &card(place, group, look);
    }
    html += &sheet(place, step, look, run.groups.score_name());
    html + "</section>\n"
}

fn anchor(place: usize, group: u64) -> String {
    format!("g{place}-{group}")
}

/// The scores of groups, a row each.
fn sheet(place: usize, step: &SampledStep, look: Look, name: &str) -> String {
    let mut html = format!(
        "<figure class=\"sheet\"><figcaption>Each row is a group, each cell a member's <code>{}</code>.",
        escape(name)
    );
    if step.listed.len() < step.num_groups {
        let _ = write!(
            html,
            " {} of the step's {} groups, by verdict in turn.",
            step.listed.len(),
            step.num_groups
        );
    }
    let most = step.listed.iter().map(|listed| listed.scores.len()).max().unwrap_or(0);
    if most > MOST_SCORES {
        let _ = write!(html, " The first {MOST_SCORES} of up to {most} members.");
    }
    html.push_str("</figcaption><div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Scores of groups\"><table><thead><tr><th scope=\"col\">group<th scope=\"col\">ended as<th scope=\"col\">mean");
    let _ = write!(html, "<th scope=\"colgroup\" colspan=\"{}\">members<tbody>", most.clamp(1, MOST_SCORES));
    for listed in &step.listed {
        let Listed { id, verdict, scores, .. } = listed;
        let known: Vec<f64> = scores.iter().copied().filter(|score| !score.is_nan()).collect();
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        let is_shown = step.groups.iter().any(|group| group.id == *id);
        let group =
            if is_shown { format!("<a href=\"#{}\">{id}</a>", anchor(place, *id)) } else { id.to_string() };
        let _ = write!(html, "<tr><th scope=\"row\">{group}<td>{}<td>{}", badge(verdict), number(mean));
        for score in scores.iter().take(MOST_SCORES) {
            let _ = write!(html, "<td class=\"cell {}\">{}", shade(*score, look.range), number(*score));
        }
    }
    html + "</table></div></figure>\n"
}

/// A group: its prompt, and its members side by side.
fn card(place: usize, group: &SampledGroup, look: Look) -> String {
    let SampledGroup { id, prompt_id, verdict, prompt, truth, source, num_members, members } = group;
    let kind = if verdict == "trained" { "trained" } else { "other" };
    let mut html = format!(
        "<article class=\"group\" data-verdict=\"{kind}\" id=\"{}\"><header><h5>Group {id}</h5>{}<span>prompt {prompt_id}</span>",
        anchor(place, *id),
        badge(verdict)
    );
    if !source.is_empty() {
        let _ = write!(html, "<span>{}</span>", text(source));
    }
    if members.len() < *num_members {
        let _ = write!(
            html,
            "<span>{} of {num_members} members, evenly by reward (at most {MOST_MEMBERS})</span>",
            members.len()
        );
    }
    let _ = write!(
        html,
        "</header><div class=\"prompt\"><h6>Prompt</h6><pre dir=\"auto\">{}</pre>",
        shorten(prompt, look.longest, None)
    );
    if let Some(truth) = truth {
        let _ = write!(
            html,
            "<h6>Right answer</h6><pre dir=\"auto\">{}</pre>",
            shorten(truth, look.longest, None)
        );
    }
    html.push_str("</div><div class=\"members\" tabindex=\"0\" role=\"group\" aria-label=\"Members\">");
    for member in members {
        html += &of_member(member, truth.as_deref(), look);
    }
    html + "</div></article>\n"
}

fn of_member(member: &Member, truth: Option<&str>, look: Look) -> String {
    let pred = member.logged.iter().find(|(name, _)| name == "pred").map(|(_, value)| value.as_str());
    let answer = Answer::new(pred, truth, member.reward);
    let mut html = format!(
        "<article class=\"member\"><header><span class=\"score {}\">{}</span>{}<span>sample {}</span></header>",
        shade(member.score, look.range),
        if member.score.is_nan() { "unscored".to_owned() } else { number(member.score) },
        badge(&member.verdict),
        member.index
    );
    if member.turns.is_empty() {
        let shown = if member.text.is_empty() {
            "<span class=\"cut\">(empty)</span>".to_owned()
        } else {
            shorten(&member.text, look.longest, answer)
        };
        let _ = write!(html, "<pre class=\"completion\" dir=\"auto\">{shown}</pre>");
    } else {
        html.push_str("<ol class=\"turns\">");
        for turn in &member.turns {
            let reward = if turn.reward.is_nan() {
                String::new()
            } else {
                format!(" <span class=\"turn-reward\">{}</span>", number(turn.reward))
            };
            let _ = write!(
                html,
                "<li class=\"answer\"><h6>assistant{reward}</h6><pre dir=\"auto\">{}</pre>",
                shorten(&turn.text, look.longest, answer)
            );
            if !turn.observation.is_empty() {
                let role = if turn.role.is_empty() { "user" } else { &turn.role };
                let _ = write!(
                    html,
                    "<li class=\"observation\"><h6>{}</h6><pre dir=\"auto\">{}</pre>",
                    text(role),
                    shorten(&turn.observation, look.longest, None)
                );
            }
        }
        html.push_str("</ol>");
    }
    html.push_str("<dl>");
    let mut fact = |name: &str, value: String| {
        let _ = write!(html, "<div><dt>{}</dt><dd>{value}</dd></div>", escape(name));
    };
    fact("reward", number(member.reward));
    if !member.advantage.is_nan() {
        fact("advantage", number(member.advantage));
    }
    for (name, value) in &member.scores {
        if name != "reward" {
            fact(name, number(*value));
        }
    }
    let (all, written) = member.num_tokens;
    let tokens = if all == written { all.to_string() } else { format!("{all}, {written} of the policy") };
    // Another trainer's files do not say it.
    if all > 0 {
        fact("tokens", tokens);
    }
    if member.finish_reason == "length" {
        fact("ended", "cut at the limit".to_owned());
    }
    for (name, value) in &member.logged {
        fact(name, escape(&cut_middle(value, 200)));
    }
    html + "</dl></article>"
}
