//! Describes the world of a simulation on a page.

use std::fmt::Write as _;

use tamis_config::{Config, SimulatedPassRates};
use tamis_core::figure::{counted, shortest};
use tamis_core::schedule::InFlight;

use crate::simulate::policy::filter_of;
use crate::simulate::simulation::keys_of;
use crate::simulate::world::SimulatedWorld;

/// A setting and its value.
pub type Fact = (&'static str, String);

/// Keys of the world by section, without pass rates.
const SECTIONS: [(&str, &[&str]); 6] = [
    ("length", &["median", "sigma", "prompt_share", "wrong_factor", "prompt"]),
    ("servers", &["count", "slots", "iteration", "load", "context", "kv_tokens", "prefill_rate"]),
    ("reward_latency", &[]),
    ("train_time", &["step", "token"]),
    ("publication", &["time"]),
    ("drift", &["logit", "noise"]),
];
const OF_SERVERS: [&str; 4] = ["servers", "reward_latency", "train_time", "publication"];

/// Keys of the world that the user did not set. A section's name stands for all of its keys.
pub(crate) fn left_at_default(config: &Config, is_given: impl Fn(&str) -> bool) -> Vec<String> {
    let keys = keys_of(config);
    let of_pass_rates: &[&str] = match &keys.pass_rate {
        SimulatedPassRates::Beta(_) => &["a", "b", "prompts"],
        SimulatedPassRates::Histogram(_) => &["rates", "counts", "prompts"],
        SimulatedPassRates::Rollouts(_) => &["path"],
    };
    let has_clock = |name: &str| keys.servers.is_some() || !OF_SERVERS.contains(&name);
    let sections = SECTIONS.iter().copied().filter(|(name, _)| has_clock(name));
    let mut left = Vec::new();
    for (section, names) in std::iter::once(("pass_rate", of_pass_rates)).chain(sections) {
        let path = format!("simulate.{section}");
        // The run's own number of slots is not an assumption of the simulation.
        let is_set = |name: &&str| {
            is_given(&format!("{path}.{name}")) || *name == "slots" && is_given("rollout.max_num_seqs")
        };
        let others: Vec<&str> = names.iter().copied().filter(|name| !is_set(name)).collect();
        match others.as_slice() {
            [] if !names.is_empty() || is_given(&path) => {}
            all if all.len() == names.len() => left.push(path),
            [one] => left.push(format!("{path}.{one}")),
            several => left.push(format!("{path}.{{{}}}", several.join(", "))),
        }
    }
    left
}

/// Settings of the world and their values.
pub(crate) fn facts(config: &Config, world: &SimulatedWorld) -> Vec<Fact> {
    let keys = keys_of(config);
    let num_prompts = world.population.len();
    let rates = match &keys.pass_rate {
        SimulatedPassRates::Beta(beta) => format!("Beta({}, {})", shortest(beta.a), shortest(beta.b)),
        SimulatedPassRates::Histogram(histogram) => format!("a histogram of {} rates", histogram.rates.len()),
        SimulatedPassRates::Rollouts(rollouts) => format!("of rollouts in {}", rollouts.path.display()),
    };
    let filter = filter_of(config);
    let limit = config.rollout.max_response_length;
    let length = &keys.length;
    let median = length.median.map_or_else(|| "a twentieth of that".to_owned(), shortest);
    let seconds = |seconds: f64| format!("{} s", shortest(seconds));
    let mut facts = vec![
        ("Pass rates", format!("{rates}, {}", counted(num_prompts, "prompt"))),
        ("Filter", format!("{filter}: {}", filter.rule())),
        (
            "Batch",
            format!(
                "{} of {}, rounds of {}",
                counted(world.train_batch_size, "group"),
                config.rollout.n,
                config.data.gen_batch_size.unwrap_or(world.train_batch_size)
            ),
        ),
        (
            "Steps",
            format!(
                "{}, the last {} measured, seed {}",
                world.steps,
                world.steps - world.warm_up,
                world.seed
            ),
        ),
        (
            "Lengths",
            format!(
                "lognormal, cut at {limit} tokens, median {median}, σ {}, {} of the variance the prompt's, wrong ones × \
                 {}; prompts of {} tokens",
                shortest(length.sigma),
                shortest(length.prompt_share),
                shortest(length.wrong_factor),
                length.prompt
            ),
        ),
        (
            "Servers",
            world.servers.map_or_else(
                || "none: groups are counted without a clock".to_owned(),
                |fleet| {
                    let mut text = format!(
                        "{} of {} slots, {} an iteration, {} of it more when all slots run",
                        fleet.count,
                        fleet.slots,
                        seconds(fleet.iteration),
                        shortest(fleet.load)
                    );
                    if let Some(tokens) = fleet.kv_tokens {
                        let _ = write!(
                            text,
                            ", {} of it more when the cache of {} tokens is full",
                            shortest(fleet.context),
                            shortest(tokens)
                        );
                    }
                    if let Some(rate) = fleet.prefill_rate {
                        let _ = write!(text, ", prompts at {} tokens a second", shortest(rate));
                    }
                    text
                },
            ),
        ),
    ];
    if world.servers.is_some() {
        let treatment = match world.in_flight {
            InFlight::Wait => "finished first",
            InFlight::Keep => "continue",
            InFlight::Abort => "begun anew",
        };
        facts.extend([
            ("Scores", format!("{} after a completion", seconds(world.reward_latency))),
            (
                "Training",
                format!(
                    "{} a step and {} a token",
                    seconds(world.train_time.step),
                    seconds(world.train_time.token)
                ),
            ),
            ("New weights", format!("{}, samples in flight {treatment}", seconds(world.publication.time))),
        ]);
    }
    facts.push((
        "Drift of the logits",
        format!("{} a step, noise {}", shortest(world.drift.logit), shortest(world.drift.noise)),
    ));
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_set_is_named_by_section_or_by_key() {
        let mut config = Config::default();
        let left =
            |config: &Config, given: &[&str]| left_at_default(config, |key| given.contains(&key)).join(" ");
        let all = "simulate.pass_rate simulate.length simulate.servers simulate.reward_latency simulate.train_time \
                   simulate.publication simulate.drift";
        assert_eq!(left(&config, &[]), all);
        let given = [
            "simulate.pass_rate.a",
            "simulate.pass_rate.b",
            "simulate.length.median",
            "rollout.max_num_seqs",
            "simulate.reward_latency",
            "simulate.drift.logit",
            "simulate.drift.noise",
        ];
        assert_eq!(
            left(&config, &given),
            "simulate.pass_rate.prompts simulate.length.{sigma, prompt_share, wrong_factor, prompt} \
             simulate.servers.{count, iteration, load, context, kv_tokens, prefill_rate} simulate.train_time \
             simulate.publication"
        );
        // Without a clock, the world has nothing that takes time.
        config.simulate = Some(tamis_config::SimulateConfig { servers: None, ..Default::default() });
        assert_eq!(left(&config, &["simulate.servers"]), "simulate.pass_rate simulate.length simulate.drift");
    }
}
