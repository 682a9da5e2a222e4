//! The view on terminals of several sizes.

use crate::monitor::{Watch, WatchedRun};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::*;

fn summary(error: &str) -> WatchedRun {
    let folder = tempfile::tempdir().expect("folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("write");
    write("config.yaml", "train:\n  total_steps: 40\n");
    let row = |step: u32| {
        let (reward, batches) = (0.1 + 0.05 * f64::from(step), 1 + step % 2);
        let (kept, dropped) = (4 + step, 8 * batches - 4 - step);
        format!(
            "{{\"step\":{step},\"all/critic/score/mean\":{reward},\"critic/score/mean\":0.5,\"all/pass_rate\":{reward},\
             \"train/num_gen_batches\":{batches},\"train/num_kept_prompts\":{kept},\"train/filter_rate\":{},\
             \"groups/generated\":{},\"groups/dropped\":{dropped},\"groups/trained\":4,\"groups/surplus\":{step},\
             \"train/num_dropped/all_wrong\":{dropped},\"schedule/max_lag\":1,\"timing_s/step\":2.5,\
             \"actor/entropy\":1.25,\"val-core/arithmetic/acc/mean@1\":{reward}}}\n",
            f64::from(dropped) / f64::from(8 * batches),
            8 * batches,
        )
    };
    write("metrics.jsonl", &(1..=3).map(row).collect::<String>());
    let line = |text: &str| format!("2026-11-26T12:00:00.000Z {text}\n");
    let log = [
        "info Generated batch 1, 8 prompts, 32 trajectories",
        "info Filtered (std=0): 6 (75.00%)",
        "info Kept (std>0): 2 prompts",
        "info step 4 round 1: 8 prompts, 32 trajectories; dropped 6 (75.0%): 6 all wrong; kept 2 (25.0%); mean std 0.1; accumulated 2/4",
        "warning 12 of 32 completions were cut at `rollout.max_response_length`",
        error,
    ];
    write("run.log", &log.iter().filter(|text| !text.is_empty()).map(|text| line(text)).collect::<String>());
    let mut summary = Watch::open(folder.path()).expect("a run").summary();
    (summary.path, summary.written_ago) = ("runs/my".to_owned(), Some(3.0));
    summary
}

fn drawn(summary: &WatchedRun, columns: u16, lines: u16, look: Look) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).expect("a terminal");
    terminal.draw(|frame| draw(frame, summary, None, look)).expect("drawn");
    terminal
}

#[test]
fn a_small_terminal_has_the_most_important() {
    let terminal = drawn(&summary(""), 40, 10, Look::Plain);
    insta::assert_snapshot!(terminal.backend());
}

#[test]
fn a_large_terminal_has_charts_and_steps() {
    let terminal = drawn(&summary(""), 110, 34, Look::Plain);
    insta::assert_snapshot!(terminal.backend());
}

/// The text of a model cannot move the cursor or colour the screen, and no text is too long.
#[test]
fn a_sampled_completion_with_its_reward() {
    let folder = tempfile::tempdir().expect("folder");
    std::fs::write(folder.path().join("config.yaml"), "train:\n  total_steps: 4\n").expect("write");
    let watch = Watch::open(folder.path()).expect("a run");
    assert_eq!(
        watch.sample(0).expect_err("nothing"),
        "there is no rollout file yet (`rollout.save` decides what is saved)"
    );
    crate::monitor::sample::tests::write(folder.path(), 3, &["first", "\u{1b}[31mred\nsecond"]);
    let shown = |number| {
        let sample = watch.sample(number);
        let mut terminal = Terminal::new(TestBackend::new(60, 12)).expect("a terminal");
        terminal.draw(|frame| draw(frame, &summary(""), Some(&sample), Look::Plain)).expect("drawn");
        terminal.backend().to_string()
    };
    let second = shown(1);
    assert!(second.contains("reward 0.500, all wrong; step 3, 2 of 2"), "{second}");
    assert!(second.contains("\\u{1b}[31mred ") && second.contains("second ") && !second.contains('\u{1b}'));
    assert!(shown(2).contains("first ") && shown(2).contains("1 of 2"), "the next begins anew");
}

#[test]
fn an_error_stands_first_where_there_is_little_room() {
    let failed = summary("error the run ends with an error: the disk is full");
    let text = drawn(&failed, 60, 10, Look::Plain).backend().to_string();
    assert!(text.contains("error      the run ends with an error: the disk is full"), "{text}");
    assert!(text.contains("ended with an error, step 3 of 40"), "{text}");
}

#[test]
fn no_size_is_too_small_and_no_text_too_strange() {
    let mut strange = summary("error \u{1b}[31mred\u{1b}[0m 寿司 e\u{301} \u{202e}");
    strange.path = "a\u{1b}]0;title\u{7}b\nc".to_owned();
    for (columns, lines) in [(1, 1), (2, 3), (7, 2), (40, 10), (80, 24), (81, 25), (300, 100)] {
        let text = drawn(&strange, columns, lines, Look::Coloured).backend().to_string();
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "{text}");
    }
}

#[test]
fn colours_are_left_out_where_they_are_not_wanted() {
    let failed = summary("error x");
    for (columns, lines) in [(40, 12), (110, 34)] {
        let colours = |look| {
            let terminal = drawn(&failed, columns, lines, look);
            terminal.backend().buffer().content().iter().filter(|cell| cell.fg != Color::Reset).count()
        };
        assert_eq!(colours(Look::Plain), 0);
        assert!(colours(Look::Coloured) > 10);
    }
}
