//! Sokoban plays like `gym-sokoban` 0.0.6: rooms, actions, rewards and boards come from the package itself,
//! through `sokoban/make_vectors.py`.

use serde::Deserialize;
use tamis_env::environment::game::Game;
use tamis_env::environment::sokoban::{Room, Sokoban, SokobanSettings};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vectors {
    source: String,
    episodes: Vec<Episode>,
}

/// One episode; boards are rows of symbols with `/` between them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Episode {
    rows: usize,
    columns: usize,
    boxes: usize,
    max_steps: u32,
    room: String,
    actions: String,
    rewards: Vec<f64>,
    moved: Vec<u8>,
    boards: Vec<String>,
    solved: bool,
}

#[test]
fn plays_as_the_python_package() {
    let vectors: Vectors = serde_json::from_str(include_str!("sokoban/gym_sokoban.json")).unwrap();
    assert!(vectors.source.starts_with("gym-sokoban 0.0.6"), "{}", vectors.source);
    let mut num_steps = 0;
    for (number, episode) in vectors.episodes.iter().enumerate() {
        let room: Room = episode.room.replace('/', "\n").parse().unwrap();
        assert_eq!((room.rows(), room.columns()), (episode.rows, episode.columns));
        assert_eq!(room.num_boxes(), episode.boxes);
        let settings = SokobanSettings { max_steps: episode.max_steps, ..SokobanSettings::default() };
        let mut game = Sokoban::of_room(room, &settings);
        let last = episode.actions.len() - 1;
        for (step, letter) in episode.actions.chars().enumerate() {
            let name = match letter {
                'U' => "Up",
                'D' => "Down",
                'L' => "Left",
                _ => "Right",
            };
            let played = game.play(name).unwrap();
            let place = format!("episode {number}, step {step}");
            assert_eq!(game.observe().replace('\n', "/"), episode.boards[step], "{place}");
            assert_eq!(
                played.reward.to_bits(),
                episode.rewards[step].to_bits(),
                "{place}: {}",
                played.reward
            );
            assert_eq!(played.is_effective, episode.moved[step] == 1, "{place}");
            assert_eq!(played.is_over, step == last, "{place}");
            num_steps += 1;
        }
        assert_eq!(game.is_success(), episode.solved, "episode {number}");
    }
    assert!(num_steps > 500, "{num_steps}");
}
