//! `tamis monitor` as a person types it, and the filter-group lines of `run.log`.

use crate::tamis::{Folder, Replaced as _, TINY};

const ROWS: &str = "\
{\"step\":1,\"all/critic/score/mean\":0.25,\"train/num_gen_batches\":2,\"train/filter_rate\":0.75,\"train/num_kept_prompts\":4,\"groups/generated\":16,\"groups/dropped\":12,\"train/num_dropped/all_wrong\":12,\"timing_s/step\":2.0}
{\"step\":2,\"all/critic/score/mean\":0.5,\"train/num_gen_batches\":1,\"train/filter_rate\":0.5,\"train/num_kept_prompts\":4,\"groups/generated\":8,\"groups/dropped\":4,\"train/num_dropped/all_wrong\":4,\"timing_s/step\":4.0}
";

fn run() -> Folder {
    let folder = Folder::new();
    folder.write("runs/a/metrics.jsonl", ROWS);
    folder.write("runs/a/config.yaml", "train:\n  total_steps: 4  # my.yaml:2\n");
    folder
}

#[test]
fn a_run_as_text_and_as_json() {
    let folder = run();
    let shown = folder.tamis(&["monitor", "runs/a", "--once"]).shown();
    let shown: String = shown.split_inclusive('\n').map(without_age).collect();
    insta::assert_snapshot!(shown);
    // Without a terminal it is the same.
    let piped = folder.tamis(&["monitor", "runs/a"]).shown();
    assert_eq!(piped.split_inclusive('\n').map(without_age).collect::<String>(), shown);
    let json = folder.tamis(&["monitor", "runs/a", "--json"]).succeeds().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("one object");
    assert_eq!(json["guide"]["total_batches"], 3);
    assert_eq!(json["guide"]["total_kept"], 8);
    assert_eq!(json["dropped_by"]["all_wrong"], 16);
    assert_eq!((json["step"].as_u64(), json["total_steps"].as_u64()), (Some(2), Some(4)));
    assert_eq!(json["seconds"]["left"], 6.0);
    assert_eq!(json["history"].as_array().map(Vec::len), Some(2));
}

fn without_age(line: &str) -> String {
    line.split_once(", last line ").map_or_else(|| line.to_owned(), |(before, _)| format!("{before}\n"))
}

#[test]
fn what_cannot_be_followed() {
    let folder = run();
    insta::assert_snapshot!("a_folder_of_runs", folder.tamis(&["monitor", "runs"]).shown());
    insta::assert_snapshot!("nothing_there", folder.tamis(&["monitor", "runs/b"]).shown());
    folder.write("prose.txt", "One line.\nAnother.\n");
    insta::assert_snapshot!("no_log", folder.tamis(&["monitor", "prose.txt", "--json"]).shown());
    std::fs::write(folder.join("core"), [0, 159, 146, 150, b'\n', 7]).expect("write");
    insta::assert_snapshot!("no_text", folder.tamis(&["monitor", "core", "--once"]).shown());
    folder.write("empty.log", "");
    folder.tamis(&["monitor", "empty.log"]).succeeds().prints("no step yet");
    let interval = folder.tamis(&["monitor", "runs/a", "--interval", "0"]).shown();
    assert!(interval.starts_with("exit code 2") && interval.contains("between 0.1 and 3600"), "{interval}");
}

/// Figures of `metrics.jsonl`, summed.
fn sum(folder: &Folder, name: &str) -> f64 {
    folder.rows("tiny").iter().filter_map(|row| row[name].as_f64()).sum()
}

/// In every mode `run.log` has verl's filter-group log lines, equal to the accounting. `tamis monitor` prints
/// the same for the metrics and for the log.
#[test]
fn filter_group_lines_have_the_true_numbers() {
    for schedule in [
        "mode: rounds",
        "mode: streaming",
        "mode: streaming, surplus: carry, max_lag: 2, rounds_in_flight: 2, order: completion",
    ] {
        let config = match schedule {
            "mode: rounds" => TINY.to_owned(),
            other => TINY.replaced("max_num_gen_batches: 50", &format!("max_num_gen_batches: 50, {other}")),
        };
        let folder = Folder::new().with("tiny.yaml", &config);
        folder.tamis(&["train", "tiny.yaml"]).succeeds();
        let log = folder.read("runs/tiny/run.log");
        let lines: Vec<&str> =
            log.lines().filter_map(|line| line.split_once(" info ")).map(|line| line.1).collect();
        let number = |line: &str, before: &str| -> Option<u64> {
            line.strip_prefix(before)?.split(' ').next()?.trim_end_matches(',').parse().ok()
        };
        let of = |before: &str| lines.iter().filter_map(|line| number(line, before)).collect::<Vec<_>>();
        let total = |before: &str| of(before).iter().sum::<u64>() as f64;
        let account = lines.iter().find(|line| line.starts_with("groups of the run: ")).expect("the account");
        let went = |place: &str| -> f64 {
            let before = account.split_once(place).map_or("0", |(before, _)| before.trim_end());
            before.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a count")
        };
        let generated: f64 = lines
            .iter()
            .filter(|line| line.starts_with("Generated batch "))
            .filter_map(|line| line.split(' ').nth(3)?.parse::<f64>().ok())
            .sum();
        // With groups in flight across the end of a step, some settle after the last row of metrics.
        let in_flight = schedule.contains("carry");
        for (logged, counted) in [
            (of("Generated batch ").len() as f64, sum(&folder, "train/num_gen_batches")),
            (total("Kept (std>0): "), sum(&folder, "train/num_kept_prompts")),
            (total("Filtered (std=0): "), sum(&folder, "groups/dropped")),
        ] {
            let agree = logged >= counted && (in_flight || logged <= counted);
            assert!(agree, "{schedule}: {logged} {counted}\n{log}");
        }
        assert!((total("Filtered (std=0): ") - went(" dropped")).abs() < 0.5, "{schedule}\n{log}");
        assert!(in_flight || (generated - went(" generated")).abs() < 0.5, "{schedule}: {generated}\n{log}");
        let of_run = folder.tamis(&["monitor", "runs/tiny", "--once"]).succeeds().stdout;
        let of_log = folder.tamis(&["monitor", "runs/tiny/run.log", "--once"]).succeeds().stdout;
        let totals = |text: &str| -> Vec<String> {
            let lines =
                text.lines().filter(|line| line.starts_with("Total ") || line.starts_with("Average "));
            lines.step_by(2).map(str::to_owned).collect()
        };
        assert_eq!(totals(&of_run)[..2], totals(&of_log)[..2]);
        assert!(of_run.contains("finished, step 6 of 6"), "{of_run}");
        // The console's line of a step is read, too.
        for said in ["finished, step 6 of 6", "\nreward ", "\npass rate ", "\ntime ", "\ndropped "] {
            let is_due = said != "\ndropped " || schedule == "mode: rounds";
            assert!(!is_due || of_log.contains(said), "{said}: {of_log}");
        }
    }
}
