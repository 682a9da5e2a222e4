//! RAGEN's environments: tags, their settings, turns and actions.

use std::fmt::Write as _;
use std::path::Path;

use insta::assert_snapshot;
use tamis_config::EnvironmentConfig;
use tamis_config::source::{Source, SourceKind};
use tamis_config::{Import, import, load_sources};
use tamis_env::environment::kind::EnvironmentKind;

mod tags;

use crate::{converted, import_errors, loaded, notes};

/// The section `environment` of a converted configuration, on one line and without its comments.
fn environment(import: &Import) -> String {
    let lines = import.yaml.lines().skip_while(|line| !line.starts_with("environment:"));
    let lines = lines.skip(1).take_while(|line| line.starts_with(' '));
    let text: Vec<&str> = lines
        .map(|line| line.split("  # ").next().unwrap_or(line).trim())
        .filter(|line| !line.is_empty())
        .collect();
    text.join(", ")
}

/// What became of some keys: their notes; or each error, with its hint where that says more than where to look.
fn said(arguments: &[&str], of: &str) -> String {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    match import(&arguments, Path::new("")) {
        Ok(import) => {
            let notes = import.notes.iter().filter(|note| note.key.contains(of));
            notes.map(ToString::to_string).collect::<Vec<_>>().join("\n")
        }
        Err(errors) => {
            let text = errors.to_string();
            let is_told = |line: &&str| {
                line.starts_with("error: ") || line.contains("hint: ") && !line.contains("config explain")
            };
            text.lines().filter(is_told).map(str::trim_start).collect::<Vec<_>>().join("\n")
        }
    }
}

const TRAIN: &str = "es_manager.train.env_configs.tags";
const VAL: &str = "es_manager.val.env_configs.tags";

/// A command as RAGEN's scripts write it.
#[test]
fn a_command_of_ragen() {
    let import = converted(&[
        "python",
        "train.py",
        "--config-name",
        "base",
        "trainer.experiment_name=soko_3b_grpo",
        "trainer.total_training_steps=2000",
        "model_path=m",
        "algorithm.adv_estimator=grpo",
        "agent_proxy.enable_think=False",
        "agent_proxy.max_turn=3",
        "agent_proxy.max_actions_per_turn=4",
        "agent_proxy.action_sep=;",
        "es_manager.format_penalty=-0.2",
        "es_manager.train.env_groups=16",
        "es_manager.train.group_size=8",
        "es_manager.train.env_configs.tags=['SimpleSokoban']",
        "es_manager.train.env_configs.n_groups=[16]",
        "es_manager.val.env_groups=64",
        "es_manager.val.group_size=2",
        "es_manager.val.env_configs.tags=['SimpleSokoban']",
        "es_manager.val.env_configs.n_groups=[64]",
        "+custom_envs.SimpleSokoban.env_config.search_depth=20",
        "custom_envs.SimpleSokoban.max_actions_per_traj=6",
        "actor_rollout_ref.rollout.max_model_len=5000",
        "actor_rollout_ref.rollout.rollout_filter_strategy=top_k",
        "actor_rollout_ref.rollout.rollout_filter_value=4",
    ]);
    assert_snapshot!(import.yaml, @r#"
run:
  name: soko_3b_grpo  # verl: trainer.experiment_name=soko_3b_grpo
  seed: 10000  # RAGEN: seed.train (default)
model:
  path: m  # RAGEN: model_path=m
data:
  task: environment  # RAGEN: es_manager.train.env_configs.tags=['SimpleSokoban']
  train_batch_size: 16  # RAGEN: es_manager.train.env_groups=16
  max_prompt_length: 600  # verl: actor_rollout_ref.rollout.max_model_len=5000
environment:
  kind: sokoban  # RAGEN: es_manager.train.env_configs.tags=['SimpleSokoban']
  name: SimpleSokoban  # RAGEN: es_manager.train.env_configs.tags=['SimpleSokoban']
  prompting:
    think: false  # RAGEN: agent_proxy.enable_think=False
    action_separator: ";"  # RAGEN: agent_proxy.action_sep=;
    max_actions_per_turn: 4  # RAGEN: agent_proxy.max_actions_per_turn=4
    max_actions: 6  # RAGEN: custom_envs.SimpleSokoban.max_actions_per_traj=6
    max_turns: 3  # RAGEN: agent_proxy.max_turn=3
    format_penalty: -0.2  # RAGEN: es_manager.format_penalty=-0.2
    max_tokens: 100  # RAGEN: es_manager.train.env_configs.tags=['SimpleSokoban']
  train_size: 32000  # RAGEN: a level for each group (default)
  val_size: 64  # RAGEN: es_manager.val.env_groups=64
  max_length: 4400  # verl: actor_rollout_ref.rollout.max_model_len=5000
  rows: 6  # RAGEN: es_manager.train.env_configs.tags=['SimpleSokoban']
  columns: 6  # RAGEN: es_manager.train.env_configs.tags=['SimpleSokoban']
  boxes: 1  # RAGEN: es_manager.train.env_configs.tags=['SimpleSokoban']
  max_steps: 100  # RAGEN: es_manager.train.env_configs.tags=['SimpleSokoban']
  search_depth: 20  # RAGEN: +custom_envs.SimpleSokoban.env_config.search_depth=20
rollout:
  n: 8  # RAGEN: es_manager.train.group_size=8
  max_response_length: 400  # RAGEN: actor_rollout_ref.rollout.response_length (default)
filter:
  kind: top_k  # RAGEN: actor_rollout_ref.rollout.rollout_filter_strategy=top_k
  metric: seq_reward  # RAGEN: actor_rollout_ref.rollout.rollout_filter_strategy=top_k
  k: 4  # RAGEN: actor_rollout_ref.rollout.rollout_filter_value=4
  score: deviation  # RAGEN: actor_rollout_ref.rollout.rollout_filter_strategy=top_k
  ddof: 1  # RAGEN: actor_rollout_ref.rollout.rollout_filter_strategy=top_k
  prefer: largest  # RAGEN: actor_rollout_ref.rollout.rollout_filter_strategy=top_k
  include_zero: true  # RAGEN: actor_rollout_ref.rollout.rollout_filter_strategy=top_k
schedule:
  refill: false  # RAGEN: actor_rollout_ref.rollout.rollout_filter_strategy=top_k
  on_empty_round: "retry:9"  # RAGEN: actor_rollout_ref.rollout.rollout_filter_strategy=top_k
objective:
  advantage:
    kind: grpo  # verl: algorithm.adv_estimator=grpo
    singleton: raw  # verl: algorithm.adv_estimator=grpo
  loss:
    clip_high: 0.28  # RAGEN: actor_rollout_ref.actor.clip_ratio_high (default)
  entropy:
    coefficient: 0.001  # RAGEN: actor_rollout_ref.actor.entropy_coeff (default)
train:
  ppo_mini_batch_size: 4  # RAGEN: ppo_mini_batch_size (default)
  total_steps: 2000  # verl: trainer.total_training_steps=2000
  early_stop:
    reward_collapse:
      form: steps  # RAGEN: a stop where rewards no longer vary (default)
      baseline_steps: 10  # RAGEN: a stop where rewards no longer vary (default)
      window: 10  # RAGEN: a stop where rewards no longer vary (default)
      share: 0.1  # RAGEN: a stop where rewards no longer vary (default)
    low_success:
      floor: 0.01  # RAGEN: a stop where validation fails (default)
      patience: 5  # RAGEN: a stop where validation fails (default)
validate:
  test_freq: 10  # RAGEN: trainer.test_freq (default)
  n: 2  # RAGEN: es_manager.val.group_size=2
  temperature: 0.5  # RAGEN: actor_rollout_ref.rollout.val_kwargs.temperature (default)
checkpoint:
  save_freq: 100  # RAGEN: trainer.save_freq (default)
"#);
    let config = loaded(&import);
    let played = config.environment.expect("an environment");
    let EnvironmentKind::Sokoban(room) = &played.kind else { panic!("{:?}", played.kind) };
    assert_eq!((room.rows, room.columns, room.boxes, room.search_depth), (6, 6, 1, 20));
    let prompting = &played.prompting;
    assert_eq!((prompting.max_turns, prompting.max_actions, prompting.max_actions_per_turn), (3, 6, 4));
    assert_eq!((prompting.think, prompting.action_separator.as_str()), (false, ";"));
    assert_eq!((prompting.format_penalty, prompting.max_tokens), (-0.2, Some(100)));
    // A level for each of 2000 x 16 groups, none of them twice.
    assert_eq!((played.train_size, played.val_size, config.validate.n), (32_000, 64, 2));
    assert_eq!((config.data.max_prompt_length, played.max_length), (600, Some(4400)));
    assert_eq!((config.reward[0].kind.as_str(), config.validate.max_prompts), ("environment", None));
    assert!(config.train.early_stop.low_success.is_some());
}

/// As a script of RAGEN's asks for a bandit without luck.
#[test]
fn added_settings_of_a_script() {
    let import = converted(&[
        "model_path=m",
        "agent_proxy.max_turn=1",
        "agent_proxy.max_actions_per_turn=1",
        "es_manager.train.env_configs.tags=[Bandit]",
        "es_manager.val.env_configs.tags=[Bandit]",
        "es_manager.val.env_configs.n_groups=[64]",
        "es_manager.val.env_groups=64",
        "custom_envs.Bandit.max_actions_per_traj=1",
        "+custom_envs.Bandit.env_config.hi_arm_loscore=0.25",
        "+custom_envs.Bandit.env_config.hi_arm_hiscore=0.25",
    ]);
    let played = loaded(&import).environment.expect("an environment");
    let EnvironmentKind::Bandit(arms) = &played.kind else { panic!("{:?}", played.kind) };
    assert_eq!(
        (arms.miss_reward, arms.hit_reward, arms.hit_prob, arms.safe_reward),
        (0.25, 0.25, 0.25, None)
    );
    let prompting = &played.prompting;
    assert_eq!((prompting.max_turns, prompting.max_actions, prompting.max_actions_per_turn), (1, 1, 1));
}

/// RAGEN without a word on its environment plays its default.
#[test]
fn the_default_is_said() {
    let import = converted(&["model_path=m"]);
    assert_snapshot!(notes(&import), @r#"
model_path=m -> model.path: m
ppo_mini_batch_size is not given -> train.ppo_mini_batch_size: 2 (RAGEN's default of 32 trajectories, in groups of 16)
algorithm.adv_estimator is not given -> objective.advantage.kind: gae (RAGEN's default)
es_manager.train.env_groups is not given -> data.train_batch_size: 8 (RAGEN's default)
es_manager.train.group_size is not given -> rollout.n: 16 (RAGEN's default)
actor_rollout_ref.rollout.response_length is not given -> rollout.max_response_length: 400 (RAGEN's default)
actor_rollout_ref.actor.clip_ratio_high is not given -> objective.loss.clip_high: 0.28 (RAGEN's default)
actor_rollout_ref.actor.entropy_coeff is not given -> objective.entropy.coefficient: 0.001 (RAGEN's default)
seed.train is not given -> run.seed: 10000 (RAGEN's default)
trainer.total_training_steps is not given -> train.total_steps: 200 (RAGEN's default)
trainer.save_freq is not given -> checkpoint.save_freq: 100 (RAGEN's default)
es_manager.train.env_configs.tags is not given -> data.task: environment, environment.kind: sokoban, environment.name: CoordSokoban, environment.rows: 6, environment.columns: 6, environment.boxes: 1, environment.max_steps: 100, environment.observation: grid_coord, environment.prompting.max_actions: 10, environment.prompting.max_tokens: 120 (RAGEN's default)
agent_proxy.max_turn is not given -> environment.prompting.max_turns: 5 (RAGEN's default)
agent_proxy.max_actions_per_turn is not given -> environment.prompting.max_actions_per_turn: 2 (RAGEN's default)
es_manager.val.env_groups is not given -> environment.val_size: 512 (RAGEN's default)
agent_proxy.use_turn_scores is not given: each turn's reward stands where it was earned, with what its form costs: gae and bi_level_gae see where, advantages of whole episodes see the sum; RAGEN puts the sum at the end unless the key is on
actor_rollout_ref.rollout.max_model_len is not given -> data.max_prompt_length: 600, environment.max_length: 3000 (prompt and episode have a length each; an episode that outgrows its own ends, where RAGEN drops its oldest turns)
trainer.test_freq is not given -> validate.test_freq: 10 (RAGEN's default)
actor_rollout_ref.rollout.val_kwargs.temperature is not given -> validate.temperature: 0.5 (RAGEN's default)
a stop where rewards no longer vary is not given -> train.early_stop.reward_collapse: {form: steps, baseline_steps: 10, window: 10, share: 0.1} (always on in RAGEN; `form: attempts` is what its filtering document says)
a stop where validation fails is not given -> train.early_stop.low_success: {floor: 0.01, patience: 5} (always on in RAGEN)
"#);
    assert_eq!(loaded(&import).environment.expect("an environment").kind.as_str(), "sokoban");
    // A file of prompts, or a task, is played instead.
    for data in ["data.train_files=t", "data.train=t", "data.task=arithmetic"] {
        let import = converted(&["model_path=m", "algorithm.adv_estimator=grpo", data]);
        assert!(!import.yaml.contains("environment:"), "{data}");
        assert!(notes(&import).contains("agent_proxy.max_turn is not given"), "{data}");
    }
    // But where a tag is named a file of prompts is not read, as in RAGEN.
    let tag = format!("{TRAIN}=[Bandit]");
    let import = converted(&["model_path=m", "data.train_files=t", "data.val_files=v", &tag]);
    assert_snapshot!(said(&["model_path=m", "data.train_files=t", "data.val_files=v", &tag], "_files"), @r#"
data.train_files=t has no effect: the prompts are those of the environment, as in RAGEN
data.val_files=v has no effect: the prompts are those of the environment, as in RAGEN
"#);
    assert!(loaded(&import).data.train.files().is_empty());
}

/// What a policy sees in a turn.
#[test]
fn contexts() {
    let of = |keys: &[&str]| {
        let keys = [&["model_path=m", "algorithm.adv_estimator=grpo"], keys].concat();
        let text = said(&keys, "agent_proxy");
        text.lines().filter(|line| !line.contains("is not given")).collect::<Vec<_>>().join("\n")
    };
    let mode = |mode: &str| format!("agent_proxy.context_window_mode={mode}");
    let window = |turns: &str| format!("agent_proxy.max_context_window={turns}");
    let (limited, single) = (mode("limited_multi_turn"), mode("single_turn"));
    let without = "agent_proxy.without_history=True";
    let summary = "agent_proxy.enable_summary_memory=True";
    assert_snapshot!(of(&[&mode("full"), &window("5")]), @r#"
agent_proxy.context_window_mode=full -> environment.context: full
agent_proxy.max_context_window=5 has no effect: RAGEN's mode full does not read it
"#);
    assert_snapshot!(of(&[&window("5")]), @"agent_proxy.max_context_window=5 has no effect: RAGEN's mode full does not read it");
    assert_snapshot!(of(&[&limited, &window("3")]), @r#"
agent_proxy.context_window_mode=limited_multi_turn -> environment.context: limited_multi_turn (an episode is one member of its group and one sequence of the loss, where RAGEN makes a row of the batch of each turn; `objective.advantage.statistics: turn` counts turns in the mean and deviation of grpo)
agent_proxy.max_context_window=3 -> environment.max_context_window: 3
"#);
    assert_snapshot!(of(&[&limited, &window("-1"), summary]), @r#"
agent_proxy.context_window_mode=limited_multi_turn -> environment.context: limited_multi_turn (an episode is one member of its group and one sequence of the loss, where RAGEN makes a row of the batch of each turn; `objective.advantage.statistics: turn` counts turns in the mean and deviation of grpo)
agent_proxy.max_context_window=-1 -> environment.max_context_window: null
agent_proxy.enable_summary_memory=True has no effect: no turn is out of sight
"#);
    assert_snapshot!(of(&[&single, &window("1")]), @r#"
agent_proxy.context_window_mode=single_turn -> environment.context: single_turn (an episode is one member of its group and one sequence of the loss, where RAGEN makes a row of the batch of each turn; `objective.advantage.statistics: turn` counts turns in the mean and deviation of grpo; earlier turns are told by what was answered, where RAGEN tells states and rewards too)
agent_proxy.max_context_window=1 -> environment.max_context_window: 1
"#);
    assert_snapshot!(of(&[&single]), @"agent_proxy.context_window_mode=single_turn -> environment.context: single_turn (an episode is one member of its group and one sequence of the loss, where RAGEN makes a row of the batch of each turn; `objective.advantage.statistics: turn` counts turns in the mean and deviation of grpo; earlier turns are told by what was answered, where RAGEN tells states and rewards too)");
    assert_snapshot!(of(&[without]), @"agent_proxy.without_history=True -> environment.context: limited_multi_turn, environment.max_context_window: 1 (an episode is one member of its group and one sequence of the loss, where RAGEN makes a row of the batch of each turn; `objective.advantage.statistics: turn` counts turns in the mean and deviation of grpo)");
    assert_snapshot!(of(&[without, &single, &window("4")]), @r#"
agent_proxy.without_history=True -> environment.max_context_window: 1
agent_proxy.context_window_mode=single_turn -> environment.context: single_turn (an episode is one member of its group and one sequence of the loss, where RAGEN makes a row of the batch of each turn; `objective.advantage.statistics: turn` counts turns in the mean and deviation of grpo; earlier turns are told by what was answered, where RAGEN tells states and rewards too)
agent_proxy.max_context_window=4 has no effect: agent_proxy.without_history says that it is one turn
"#);
    assert_snapshot!(of(&[without, &mode("full")]), @"error: `agent_proxy.without_history=True` of RAGEN cannot be followed: agent_proxy.context_window_mode is full, which shows the whole episode: give one of the two");
    assert_snapshot!(of(&["agent_proxy.without_history=False", summary]), @r#"
agent_proxy.without_history=False has no effect: this is how tamis works without the key
agent_proxy.enable_summary_memory=True has no effect: RAGEN's mode full does not read it
"#);
    assert_snapshot!(of(&[&single, &window("2"), summary]), @"error: `agent_proxy.enable_summary_memory=True` of RAGEN cannot be followed: turns before `environment.max_context_window` are out of sight, and nothing tells of them");
    assert_snapshot!(of(&[&single, &window("0")]), @"error: `agent_proxy.max_context_window` of RAGEN must be a whole number of turns from 1, or -1 for all of them, not `0`");
    assert_snapshot!(of(&[&mode("half")]), @"error: `agent_proxy.context_window_mode` of RAGEN must be full, limited_multi_turn or single_turn, not `half`");
    let one = |keys: &[&str]| {
        let import = converted(&[&["model_path=m"], keys].concat());
        let played = loaded(&import).environment.expect("an environment");
        (played.context.as_str(), played.max_context_window)
    };
    assert_eq!(one(&[]), ("full", None));
    assert_eq!(one(&[without]), ("limited_multi_turn", Some(1)));
    assert_eq!(one(&[&limited, &window("-1")]), ("limited_multi_turn", None));
    assert_eq!(one(&[&single, &window("3")]), ("single_turn", Some(3)));
}

/// Rewards of turns, and penalties.
#[test]
fn rewards_of_turns() {
    let of = |keys: &[&str]| {
        let text = said(&[&["model_path=m"], keys].concat(), "");
        let is_of = |line: &&str| line.contains("turn_scores") || line.contains("penalty");
        text.lines().filter(is_of).collect::<Vec<_>>().join("\n")
    };
    assert_snapshot!(of(&[]), @"agent_proxy.use_turn_scores is not given: each turn's reward stands where it was earned, with what its form costs: gae and bi_level_gae see where, advantages of whole episodes see the sum; RAGEN puts the sum at the end unless the key is on");
    assert_snapshot!(of(&["es_manager.step_penalty=0.1", "es_manager.think_quality_penalty=0.5"]), @r#"
error: `es_manager.step_penalty=0.1` of RAGEN cannot be followed: a penalty of this kind is not there: `environment.prompting.format_penalty` is
error: `es_manager.think_quality_penalty=0.5` of RAGEN cannot be followed: a penalty of this kind is not there: `environment.prompting.format_penalty` is
"#);
    // GRPO looks at the sum of an episode, however its turns earned it.
    assert_snapshot!(of(&["algorithm.adv_estimator=grpo", "agent_proxy.use_turn_scores=False"]), @"agent_proxy.use_turn_scores=False has no effect: each turn's reward stands where it was earned, with what its form costs: gae and bi_level_gae see where, advantages of whole episodes see the sum; RAGEN puts the sum at the end unless the key is on");
    // Where the switch is on RAGEN's rewards are without what an answer's form costs.
    let on = "agent_proxy.use_turn_scores=True";
    assert_snapshot!(of(&[on, "es_manager.format_penalty=-0.5"]), @r#"
agent_proxy.use_turn_scores=True -> environment.prompting.format_penalty: 0 (RAGEN charges nothing for an answer's form where it is on; each turn's reward stands where it was earned with and without it)
es_manager.format_penalty=-0.5 has no effect: RAGEN charges it where agent_proxy.use_turn_scores is off
"#);
    assert_snapshot!(of(&[on, "agent_proxy.context_window_mode=single_turn", "es_manager.format_penalty=-0.5"]), @r#"
agent_proxy.use_turn_scores=True has no effect: RAGEN reads it where the whole episode is in sight; each turn's reward stands where it was earned
es_manager.format_penalty=-0.5 -> environment.prompting.format_penalty: -0.5
"#);
    let penalty = |keys: &[&str]| {
        let import = converted(&[&["model_path=m"], keys].concat());
        loaded(&import).environment.expect("an environment").prompting.format_penalty
    };
    assert_eq!((penalty(&[]), penalty(&[on])), (-0.1, 0.0));
}

/// Prompts of a file are answered in one turn.
#[test]
fn rows_have_no_episodes() {
    let of = |keys: &[&str]| {
        said(&[&["model_path=m", "data.train_files=t", "data.val_files=v"], keys].concat(), "")
    };
    assert_snapshot!(of(&["agent_proxy.max_turn=5"]), @"error: `agent_proxy.max_turn=5` of RAGEN cannot be followed: the prompts are rows, each answered in one turn: name an environment by es_manager.train.env_configs.tags");
    let import = converted(&[
        "model_path=m",
        "data.train_files=t",
        "data.val_files=v",
        "agent_proxy.max_turn=1",
        "agent_proxy.context_window_mode=single_turn",
        "agent_proxy.max_actions_per_turn=1",
        "es_manager.format_penalty=-0.5",
        "es_manager.val.env_groups=64",
    ]);
    let text = notes(&import);
    let lines = text.lines().filter(|line| line.starts_with("agent_proxy") || line.starts_with("es_manager"));
    assert_snapshot!(lines.collect::<Vec<_>>().join("\n"), @r#"
agent_proxy.max_turn=1 has no effect: this is how tamis works without the key
agent_proxy.context_window_mode=single_turn has no effect: no environment is played: a trajectory is one turn
agent_proxy.max_actions_per_turn=1 has no effect: no environment is played: a trajectory is one turn
es_manager.format_penalty=-0.5 has no effect: an answer's form is scored by a reward of its own, such as `kind: format`
es_manager.val.env_groups=64 -> validate.max_prompts: 64
es_manager.train.env_groups is not given -> data.train_batch_size: 8 (RAGEN's default)
es_manager.train.group_size is not given -> rollout.n: 16 (RAGEN's default)
"#);
    assert_eq!(loaded(&import).validate.max_prompts, Some(64));
}

/// RAGEN's keys over a configuration of one's own.
#[test]
fn over_a_configuration_of_tamis() {
    let text = "
model: {path: m}
data: {task: environment}
environment: {kind: frozen_lake, size: 6, prompting: {max_turns: 9}}
train: {total_steps: 1}
";
    let load = |keys: &[&str]| {
        let source = Source::new(SourceKind::File("own.yaml".into()), text.to_owned());
        let keys: Vec<String> = keys.iter().map(|&key| key.to_owned()).collect();
        load_sources(&[source], &keys)
    };
    let turns = load(&["agent_proxy.max_turn=3", "es_manager.val.env_groups=32"]).unwrap();
    let played = turns.config.environment.as_ref().expect("an environment");
    assert_eq!((played.kind.as_str(), played.prompting.max_turns, played.val_size), ("frozen_lake", 3, 32));
    // Its tags are another environment than the configuration's.
    let tags =
        load(&[&format!("{TRAIN}=[LargerSokoban]"), "custom_envs.LargerSokoban.env_config.num_boxes=3"])
            .unwrap();
    let played = tags.config.environment.as_ref().expect("an environment");
    let EnvironmentKind::Sokoban(room) = &played.kind else { panic!("{:?}", played.kind) };
    assert_eq!((room.rows, room.boxes, played.prompting.max_turns), (8, 3, 9));
    assert_snapshot!(load(&["custom_envs.FrozenLake.env_config.size=5"]).unwrap_err(), @r#"
error: `custom_envs.FrozenLake.env_config.size=5` of RAGEN cannot be followed: the configuration has an environment of its own: set its keys under `environment`, or give es_manager.train.env_configs.tags too
 --> command line, RAGEN key
  |
1 | custom_envs.FrozenLake.env_config.size=5
  |                                        ^
  hint: `tamis config explain custom_envs.FrozenLake.env_config.size` says what becomes of it

1 error in the configuration
"#);
    assert_snapshot!(load(&["es_manager.val.env_configs.tags=[FrozenLake]"]).unwrap_err(), @r#"
error: `es_manager.val.env_configs.tags=["FrozenLake"]` of RAGEN cannot be followed: the configuration has an environment of its own: set its keys under `environment`, or give es_manager.train.env_configs.tags too
 --> command line, RAGEN key
  |
1 | es_manager.val.env_configs.tags=[FrozenLake]
  |                                 ^^^^^^^^^^^^
  hint: `tamis config explain es_manager.val.env_configs.tags` says what becomes of it

1 error in the configuration
"#);
    // What RAGEN says of all environments is said of those of the configuration; their sizes are not divided.
    let more = "
model: {path: m}
data: {task: environment}
environment: {kind: frozen_lake}
more_environments: [{kind: bandit}, {kind: sudoku, context: full}]
train: {total_steps: 1}
";
    let load_more = |keys: &[&str]| {
        let source = Source::new(SourceKind::File("own.yaml".into()), more.to_owned());
        load_sources(&[source], &keys.iter().map(|&key| key.to_owned()).collect::<Vec<_>>())
    };
    let turns = load_more(&["agent_proxy.max_turn=3", "agent_proxy.without_history=True"]).unwrap();
    for one in turns.config.environments() {
        let seen = (one.context.as_str(), one.max_context_window, one.prompting.max_turns);
        assert_eq!(seen, ("limited_multi_turn", Some(1), 3));
    }
    assert_eq!(turns.config.environments().count(), 3);
    assert_snapshot!(load_more(&["es_manager.val.env_groups=32"]).unwrap_err(), @r#"
error: `es_manager.val.env_groups=32` of RAGEN cannot be followed: the configuration has several environments: set `val_size` of each, under `environment` and `more_environments`
 --> command line, RAGEN key
  |
1 | es_manager.val.env_groups=32
  |                           ^^
  hint: `tamis config explain es_manager.val.env_groups` says what becomes of it

1 error in the configuration
"#);
    let one = load_more(&[&format!("{TRAIN}=[Bandit]")]).unwrap();
    assert_eq!(one.config.environments().count(), 1);
    // In a whole command it is typed beside them.
    let typed = converted(&[
        "model_path=m",
        "data.task=environment",
        "environment.kind=bandit",
        "agent_proxy.max_turn=1",
        "+trainer.test_freq=5",
    ]);
    assert_snapshot!(environment(&typed), @"kind: bandit, prompting:, max_actions_per_turn: 2, max_turns: 1, val_size: 512, max_length: 3000");
    // Without an environment there are no turns to count.
    let rows = ["model.path=m", "data.task=arithmetic", "train.total_steps=1", "agent_proxy.max_turn=3"];
    let errors = load_sources(&[], &rows.map(str::to_owned)).unwrap_err();
    assert_snapshot!(errors, @r#"
error: `agent_proxy.max_turn=3` of RAGEN cannot be followed: the prompts are rows, each answered in one turn: name an environment by es_manager.train.env_configs.tags
 --> command line, RAGEN key
  |
1 | agent_proxy.max_turn=3
  |                      ^
  hint: `tamis config explain agent_proxy.max_turn` says what becomes of it

1 error in the configuration
"#);
}
