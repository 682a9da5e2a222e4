//! Plays Sokoban with a random policy and prints its speed; `bench/sokoban.py` compares it with the Python
//! environment.
//!
//! ```text
//! cargo run --release -p tamis-bench --example sokoban -- EPISODES [KEY=VALUE ...]
//! ```
//! `KEY=VALUE` sets a number of `SokobanSettings`, such as `boxes=2`. All rooms are drawn first, each from
//! its own key; an episode acts by name and reads the observation after every action, until the game is over.
//! One JSON line: `{"episodes": ..., "steps": ..., "solved": ..., "rooms_seconds": time of the processor to
//! draw the rooms, "play_seconds": and to play}`, on Linux; by the clock elsewhere.

#![expect(clippy::print_stdout, reason = "a program that prints its measurement")]

use std::error::Error;
use std::hint::black_box;
use std::sync::LazyLock;
use std::time::Instant;

use serde_json::{Map, Number, Value};
use tamis_core::random::{Key, Purpose};
use tamis_env::environment::game::Game;
use tamis_env::environment::sokoban::{Sokoban, SokobanSettings};

/// Seconds that the processor has worked for this program, or by the clock if the system does not report
/// them.
fn seconds() -> f64 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let nanoseconds = std::fs::read_to_string("/proc/self/schedstat")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    nanoseconds.map_or_else(|| BEGIN.elapsed().as_secs_f64(), |nanoseconds| nanoseconds / 1e9)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let num_episodes: u64 = arguments.next().ok_or("expected a number of episodes")?.parse()?;
    let mut keys = Map::new();
    for argument in arguments {
        let (key, value) = argument.split_once('=').ok_or("expected KEY=VALUE")?;
        keys.insert(key.to_owned(), Value::Number(value.parse::<Number>()?));
    }
    let settings: SokobanSettings = serde_json::from_value(Value::Object(keys))?;

    let policy = Key::new(1, Purpose::Rollout);
    let (mut num_steps, mut num_solved) = (0_u64, 0);
    let begin = seconds();
    let draw = |episode| Sokoban::new(&settings, Key::new(0, Purpose::Task).with(episode));
    let games: Vec<Sokoban> = (0..num_episodes).map(draw).collect::<Result<_, _>>()?;
    let drawn = seconds();
    for mut game in games {
        let actions = game.actions();
        black_box(game.observe());
        loop {
            let action = &actions[policy.below(num_steps, actions.len() as u64) as usize];
            let played = game.play(action).ok_or("an action of the game itself")?;
            black_box(game.observe());
            num_steps += 1;
            if black_box(played).is_over {
                break;
            }
        }
        num_solved += u64::from(game.is_success());
    }
    let played = seconds();
    println!(
        "{}",
        serde_json::json!({
            "episodes": num_episodes,
            "steps": num_steps,
            "solved": num_solved,
            "rooms_seconds": drawn - begin,
            "play_seconds": played - drawn,
        })
    );
    Ok(())
}
