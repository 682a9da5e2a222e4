//! What `tamis --help` shows: the commands in groups, and an example of each.

use std::fmt::Write as _;

use clap::{Command, CommandFactory as _};

use crate::arguments::Arguments;

/// The commands by purpose, each with an example.
const GROUPS: [(&str, &[(&str, &str)]); 4] = [
    (
        "Before a run",
        &[
            ("init", "tamis init"),
            ("docs", "tamis docs rewards"),
            ("config", "tamis config check my.yaml --plan"),
            ("explain", "tamis explain rloo"),
            ("doctor", "tamis doctor my.yaml"),
            ("simulate", "tamis simulate my.yaml simulate.policies=[verl,streaming_carry]"),
        ],
    ),
    (
        "Train and measure",
        &[
            ("train", "tamis train quickstart run.name=first"),
            ("sweep", "tamis sweep sweep.yaml --dry-run"),
            ("eval", "tamis eval runs/first validate.n=8"),
            ("chat", "tamis chat runs/first --temperature 0.7"),
            ("export", "tamis export runs/first model"),
        ],
    ),
    (
        "Look at a run",
        &[
            ("monitor", "tamis monitor"),
            ("report", "tamis report runs/first"),
            ("rollouts", "tamis rollouts runs/first --verdict all_wrong"),
            ("advise", "tamis advise runs/first"),
        ],
    ),
    (
        "Beside other programs",
        &[
            ("serve", "tamis serve runs/first --port 8000"),
            ("learner", "tamis learner --listen 127.0.0.1:8700"),
            ("filter", "tamis filter rollouts.jsonl --metric acc"),
            ("completions", "tamis completions bash > ~/.local/share/bash-completion/completions/tamis"),
        ],
    ),
];

/// The command line with its help.
pub(crate) fn command() -> Command {
    let mut command = Arguments::command();
    let commands = list(&command);
    for (name, example) in GROUPS.iter().flat_map(|(_, commands)| *commands) {
        command = command.mut_subcommand(name, |command| command.after_help(format!("Example: {example}")));
    }
    command.help_template(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n{commands}\nOptions:\n{{options}}{{after-help}}"
    ))
}

/// A line for each command, group by group: the first clause of its description.
fn list(command: &Command) -> String {
    let mut text = String::new();
    for (title, commands) in GROUPS {
        let _ = writeln!(text, "\n{title}:");
        for (name, _) in commands {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let first = about.split([':', '(']).next().unwrap_or_default().trim_end();
            let _ = writeln!(text, "  {name:<12} {first}");
        }
        if let Some((_, example)) = commands.first() {
            let _ = writeln!(text, "  {:<12} $ {example}", "");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_a_group_and_every_example_is_one() {
        let command = command();
        let mut named: Vec<&str> = GROUPS.iter().flat_map(|(_, all)| *all).map(|(name, _)| *name).collect();
        let mut there: Vec<&str> =
            command.get_subcommands().filter(|one| !one.is_hide_set()).map(Command::get_name).collect();
        named.sort_unstable();
        there.sort_unstable();
        assert_eq!(named, there);
        for (name, example) in GROUPS.iter().flat_map(|(_, all)| *all) {
            let words = example.split(" > ").next().unwrap_or_default().split(' ');
            let read = command.clone().try_get_matches_from(words).expect(example);
            assert_eq!(read.subcommand_name(), Some(*name));
        }
    }
}
