//! The commands that read runs, over folders that other trainers wrote (crates/tamis-lab/tests/other_runs).

use std::path::PathBuf;

use crate::tamis::Folder;

fn made(name: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tamis-lab/tests/other_runs").join(name);
    folder.canonicalize().expect("a folder of another trainer").display().to_string()
}

#[test]
fn every_command_reads_the_folders_of_other_trainers() {
    let folder = Folder::new();
    for name in ["trl", "trl-chat", "verl", "verifiers", "verifiers-results", "prime-rl"] {
        let format = if name == "prime-rl" { "prime_rl" } else { name.split('-').next().unwrap_or(name) };
        let metric = if name == "verl" { "score" } else { "exact" };
        let out = made(name);
        let watched = folder.tamis(&["monitor", &out, "--json"]).succeeds().json();
        assert_eq!(watched["formats"][0], format, "{watched}");
        assert!(watched["reward"]["last"].is_f64(), "{watched}");
        let advice = folder.tamis(&["advise", &out, "--metric", metric]).succeeds().stdout;
        // Too little is known of prime-rl's four groups for settings.
        let has_lines = name == "prime-rl" || advice.contains("\nTRL on one device");
        assert!(has_lines && advice.contains(" groups of "), "{advice}");
        let rows = folder.tamis(&["rollouts", &out, "--group", "0", "--json"]).succeeds().json();
        assert!(rows["file"].as_str().is_some_and(|file| file.starts_with(&out)), "{rows}");
        assert!(rows["num_matching"].as_u64() >= Some(1), "{rows}");
        let page = format!("{name}.html");
        folder.tamis(&["report", &out, "--out", &page]).succeeds();
        let page = folder.read(&page);
        assert!(page.contains("Trainer"), "{name}");
        assert!(!page.contains("/.tmp"), "{name}: a folder for temporary files shows in the page");
        let kept = format!("kept.{}", if format == "trl" { "parquet" } else { "jsonl" });
        let filter = ["filter", &out, "--metric", metric, "--kept", &kept, "--overwrite"];
        folder.tamis(&filter).succeeds().prints("Total prompts: ");
    }
}

#[test]
fn a_state_has_no_rollouts_and_a_log_of_trl_is_understood() {
    let folder = Folder::new();
    let state = made("trl/checkpoint-6/trainer_state.json");
    let none = folder.tamis(&["rollouts", &state]).exits(2);
    none.says("hint: its completions are in the folder around it: name ");
    let none = folder.tamis(&["filter", &made("trl/checkpoint-6"), "--metric", "exact"]).exits(2);
    none.says("no rollouts are in");
    folder.write(
        "train.log",
        "  0%|          | 0/20 [00:00<?, ?it/s]\r 50%|█████     | 10/20 [00:10<00:10,  1.00s/it]\r\
         {'loss': '0.5', 'learning_rate': '1e-06', 'reward': '0.25', 'frac_reward_zero_std': '0.75', 'epoch': '0.1'}\n\
         {'eval_loss': '0.5', 'eval_reward': '0.5', 'epoch': '0.1'}\n",
    );
    let shown = folder.tamis(&["monitor", "train.log", "--once"]).succeeds();
    shown.prints("train.log (TRL): a log, step 10 of 20").prints("eval_reward");
    folder.tamis(&["advise", "train.log"]).succeeds().prints("25.0% of groups");
}
