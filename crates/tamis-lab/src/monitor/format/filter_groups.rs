//! verl's filter-group log lines: `Generated batch 1, 1024 prompts, 8192 trajectories`, then
//! `Filtered: 600 prompts with std=0 (58.6%)` or `Filtered (std=0): 620 (60.5%)`, then
//! `Kept: 424 prompts with std>0`, `Kept (std>0): 404 (39.5%)` or `Kept (std>0): 404 prompts`.

use crate::monitor::fact::{Batch, Fact};
use crate::monitor::line::{Line, number, number_after, python_number, share};

pub(super) fn read(line: &Line<'_>) -> Vec<Fact> {
    let text = line.text.trim().trim_start_matches("- ");
    if let Some(batch) = number_after(text, "Generated batch ") {
        let told = |of: &str| text.split(", ").skip(1).find_map(|part| part.strip_suffix(of));
        let counted = |of: &str| number(told(of)?).map(|(count, _)| count);
        let (groups, trajectories) = (counted("prompts"), counted("trajectories"));
        // Not a number, or too large for one.
        let is_impossible = groups.is_none() && told("prompts").is_some();
        let of = Batch { groups, trajectories, is_impossible, ..Batch::default() };
        return vec![Fact::Batch { step: None, number: batch, of }];
    }
    let count = |word: &str, mark: &str| {
        let rest = text.strip_prefix(word).filter(|_| text.contains(mark))?;
        // The mark `(std=0): 620` contains a number.
        let rest = rest.split_once("):").map_or(rest, |(_, rest)| rest);
        number_after(rest.trim_start_matches(':'), "")
    };
    if let Some(dropped) = count("Filtered", "std=0") {
        let of = Batch { dropped: Some(dropped), share: share(text), ..Batch::default() };
        return vec![Fact::Verdicts(of)];
    }
    if let Some(kept) = count("Kept", "std>0") {
        return vec![Fact::Verdicts(Batch { kept: Some(kept), ..Batch::default() })];
    }
    if let Some(total) = number_after(text, "Total prompts: ") {
        return vec![Fact::Verdicts(Batch { groups: Some(total), ..Batch::default() })];
    }
    if let Some(ready) = text
        .strip_prefix("Accumulated prompts: ")
        .or_else(|| text.strip_prefix("Accumulated: "))
        .and_then(|rest| number_after(rest, ""))
    {
        let target = number_after(text, "/ ");
        return vec![Fact::Accumulated { ready, target, is_enough: false }];
    }
    if text.starts_with("Starting training iteration") || text.starts_with("Enough data collected") {
        return vec![Fact::Generated { step: None }];
    }
    match text.split_once(": ") {
        Some((name, value)) if name.starts_with("train/") && !name.contains(' ') => {
            python_number(value).map(|value| vec![Fact::Figure(name.to_owned(), value)]).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}
