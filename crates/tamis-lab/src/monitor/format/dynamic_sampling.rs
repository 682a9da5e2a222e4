//! `[Dynamic Sampling] Step 42, Gen batch 1: Kept 45/128 prompts (filtered 1328 trajectories), Accumulated:
//! 45/128`.

use crate::monitor::fact::{Batch, Fact};
use crate::monitor::line::{Line, number_after};

pub(super) fn read(line: &Line<'_>) -> Vec<Fact> {
    let Some((_, text)) = line.text.split_once("[Dynamic Sampling]") else { return Vec::new() };
    if let (Some(step), Some(number)) = (number_after(text, "Step "), number_after(text, "Gen batch ")) {
        let kept = number_after(text, "Kept ");
        let groups = text.split_once("Kept ").and_then(|(_, rest)| number_after(rest, "/"));
        let dropped = groups.zip(kept).and_then(|(groups, kept)| groups.checked_sub(kept));
        let batch = Batch { groups, dropped, kept, ..Batch::default() };
        let mut facts = vec![Fact::Batch { step: Some(step), number, of: batch }];
        if let Some((_, rest)) = text.split_once("Accumulated:")
            && let Some(ready) = number_after(rest, "")
        {
            let target = number_after(rest, "/");
            facts.push(Fact::Accumulated { ready, target, is_enough: false });
        }
        return facts;
    }
    if text.contains("Accumulated enough") { vec![Fact::Generated { step: None }] } else { Vec::new() }
}
