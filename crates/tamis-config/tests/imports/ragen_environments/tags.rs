//! Tags of environments: those of RAGEN and those of one's own.

use super::*;

/// The tags that RAGEN's files name.
#[test]
fn every_tag() {
    let tags = [
        "SimpleSokoban",
        "LargerSokoban",
        "SokobanDifferentGridVocab",
        "CoordSokoban",
        "VisualSimpleSokoban",
        "Countdown",
        "Bandit",
        "BanditTest",
        "FrozenLake",
        "CoordFrozenLake",
        "SimpleSudoku",
        "MediumSudoku",
        "game_2048",
        "rubikscube",
        "MetamathQA",
        "WebShop",
        "Alfworld",
        "ALFWorld",
        "Lean",
        "SearchQA",
        "SearchQAMock",
        "DeepCoder",
        "Spatial",
        // What none of them is.
        "SimpleSokobam",
        "Chess",
    ];
    let mut text = String::new();
    for tag in tags {
        let arguments = ["model_path=m".to_owned(), format!("{TRAIN}=[{tag}]"), format!("{VAL}=[{tag}]")];
        let line = match import(&arguments, Path::new("")) {
            Ok(import) => {
                loaded(&import);
                environment(&import)
            }
            Err(errors) => {
                assert_eq!(errors.diagnostics.len(), 1, "{errors}");
                errors.diagnostics[0].problem.to_string()
            }
        };
        let _ = writeln!(text, "{tag}: {line}");
    }
    assert_snapshot!("ragen_tags", text);
}

/// Each setting of `env_config`: the value that is followed, and one that is not.
#[test]
fn every_setting_of_an_environment() {
    let settings = [
        (
            "SimpleSokoban",
            &[
                "dim_x=7",
                "dim_y=8",
                "dim_room=[7,8]",
                "num_boxes=2",
                "max_steps=50",
                "search_depth=10",
                "observation_format=coord",
                "observation_format=picture",
                "render_mode=text",
                "render_mode=rgb_array",
                "grid_lookup={0: W, 1: '.', 2: G, 3: C, 4: B, 5: A, 6: '@'}",
                "grid_lookup={0: ' # ', 1: ' _ '}",
                "grid_lookup.0=x",
                "grid_vocab={'#': wall}",
                "grid_vocab={'#': hedge}",
                "action_lookup={1: Up, 2: Down, 3: Left, 4: Right}",
                "action_lookup.1=North",
                "min_solution_steps=[2, 10]",
                "max_reset_tries=7",
                "ignore_gym_reward=False",
                "ignore_gym_reward=True",
                "success_reward=2",
                "dim_z=3",
                "rows=7",
                "colour=red",
            ][..],
        ),
        (
            "FrozenLake",
            &[
                "size=5",
                "p=0.8",
                "is_slippery=False",
                "success_rate=1.0",
                "observation_format=grid_coord",
                "map_seed=3",
                "render_mode=rgb_array",
                "grid_lookup.0=P",
                "grid_lookup.0=A",
                "grid_vocab.G=goal",
                "action_lookup.1=Left",
                "action_lookup.1=Up",
                "action_map.1=0",
                "frozen_prop=0.8",
            ],
        ),
        (
            "Bandit",
            &[
                "split=test",
                "split=val",
                "lo_arm_score=0.2",
                "hi_arm_loscore=0.25",
                "hi_arm_hiscore=2",
                "hi_arm_hiscore_prob=0.5",
                "{lo_arm_name: Phoenix, hi_arm_name: Dragon}",
                "{lo_arm_name: Dragon, hi_arm_name: Phoenix}",
                "lo_arm_name=Trader",
                "action_space_start=0",
                "lo_arm_scores=1",
            ],
        ),
        (
            "Countdown",
            &["train_path=my.parquet", "max_instances=500", "score=1.0", "score=2", "format_score=0.0"],
        ),
        (
            "SimpleSudoku",
            &[
                "grid_size=4",
                "board_size=4",
                "grid_size=16",
                "difficulty=hard",
                "difficulty=evil",
                "max_steps=81",
                "max_steps=12",
                "render_format=simple",
                "show_conflicts=False",
                "completion_bonus=5",
            ],
        ),
        (
            "game_2048",
            &["size=5", "two_prob=0.8", "two_prob=x", "use_log_reward=False", "action_lookup.1=Right"],
        ),
        ("rubikscube", &["scramble_depth=3", "max_steps=5", "max_steps=25", "scramble=3"]),
    ];
    let mut text = String::new();
    for (tag, settings) in settings {
        for setting in settings {
            let key = format!("custom_envs.{tag}.env_config");
            let argument = match setting.strip_prefix('{') {
                Some(_) => format!("{key}={setting}"),
                None => format!("{key}.{setting}"),
            };
            let tag = format!("{TRAIN}=[{tag}]");
            let said = said(&["model_path=m", &tag, &argument], "custom_envs").replace(&key, "…");
            let _ = writeln!(text, "{setting}\n    {}", said.replace('\n', "\n    "));
        }
    }
    assert_snapshot!("ragen_env_config", text);
}

/// Several tags of training: the first is `environment`, levels are in proportion to their groups, and what all
/// share is said of each.
#[test]
fn several_tags_are_trained_on() {
    let keys = [
        "model_path=m",
        "es_manager.train.env_groups=8",
        "es_manager.train.env_configs.tags=[SimpleSokoban,FrozenLake,Bandit]",
        "es_manager.train.env_configs.n_groups=[4,3,1]",
        "es_manager.val.env_groups=96",
        "es_manager.val.env_configs.tags=[FrozenLake,SimpleSokoban,BanditTest]",
        "es_manager.val.env_configs.n_groups=[32,48,16]",
        "trainer.total_training_steps=2000",
        "agent_proxy.max_turn=3",
        "agent_proxy.enable_think=False",
        "agent_proxy.action_sep=;",
        "agent_proxy.context_window_mode=single_turn",
        "agent_proxy.max_context_window=2",
        "custom_envs.FrozenLake.env_config.size=5",
        "custom_envs.FrozenLake.max_actions_per_traj=12",
        "custom_envs.BanditTest.env_instruction=Choose.",
        "custom_envs.WebShop.max_tokens=3",
    ];
    let import = converted(&keys);
    assert_snapshot!(said(&keys, "env_configs"), @r#"
es_manager.train.env_configs.tags=["SimpleSokoban","FrozenLake","Bandit"] -> data.task: environment, environment.kind: sokoban, environment.name: SimpleSokoban, environment.rows: 6, environment.columns: 6, environment.boxes: 1, environment.max_steps: 100, environment.prompting.max_actions: 10, environment.prompting.max_tokens: 100, more_environments: [{kind: frozen_lake, name: FrozenLake}, {kind: bandit, name: Bandit}, {kind: bandit, name: BanditTest}], more_environments.0.prompting.max_tokens: 100, more_environments.1.names: train, more_environments.1.prompting.max_actions: 1, more_environments.1.prompting.max_tokens: 100
es_manager.train.env_configs.n_groups=[4,3,1] -> environment.train_size: 8000, more_environments.0.train_size: 6000, more_environments.1.train_size: 2000 (levels of all environments are drawn from one pool, in which each has its share: it has that share of a step on average, where RAGEN has it in every step)
es_manager.val.env_configs.tags=["FrozenLake","SimpleSokoban","BanditTest"] -> more_environments.2.names: test, more_environments.2.prompting.max_actions: 1, more_environments.2.prompting.max_tokens: 100, more_environments.2.train_size: 0, more_environments.1.val_size: 0
es_manager.val.env_configs.n_groups=[32,48,16] -> environment.val_size: 48, more_environments.0.val_size: 32, more_environments.2.val_size: 16
"#);
    assert_snapshot!(said(&keys, "custom_envs"), @r#"
custom_envs.FrozenLake.env_config.size=5 -> more_environments.0.size: 5
custom_envs.FrozenLake.max_actions_per_traj=12 -> more_environments.0.prompting.max_actions: 12
custom_envs.BanditTest.env_instruction=Choose. -> more_environments.2.prompting.instruction: Choose.
custom_envs.WebShop.max_tokens=3 has no effect: the environments of this run are SimpleSokoban, FrozenLake, Bandit and BanditTest
"#);
    assert_snapshot!(said(&keys, "agent_proxy"), @r#"
agent_proxy.max_turn=3 -> environment.prompting.max_turns: 3, more_environments.0.prompting.max_turns: 3, more_environments.1.prompting.max_turns: 3, more_environments.2.prompting.max_turns: 3
agent_proxy.enable_think=False -> environment.prompting.think: false, more_environments.0.prompting.think: false, more_environments.1.prompting.think: false, more_environments.2.prompting.think: false
agent_proxy.action_sep=; -> environment.prompting.action_separator: ";", more_environments.0.prompting.action_separator: ";", more_environments.1.prompting.action_separator: ";", more_environments.2.prompting.action_separator: ";"
agent_proxy.context_window_mode=single_turn -> environment.context: single_turn, more_environments.0.context: single_turn, more_environments.1.context: single_turn, more_environments.2.context: single_turn (an episode is one member of its group and one sequence of the loss, where RAGEN makes a row of the batch of each turn; `objective.advantage.statistics: turn` counts turns in the mean and deviation of grpo; earlier turns are told by what was answered, where RAGEN tells states and rewards too)
agent_proxy.max_context_window=2 -> environment.max_context_window: 2, more_environments.0.max_context_window: 2, more_environments.1.max_context_window: 2, more_environments.2.max_context_window: 2
agent_proxy.max_actions_per_turn is not given -> environment.prompting.max_actions_per_turn: 2, more_environments.0.prompting.max_actions_per_turn: 2, more_environments.1.prompting.max_actions_per_turn: 2, more_environments.2.prompting.max_actions_per_turn: 2 (RAGEN's default)
agent_proxy.use_turn_scores is not given: each turn's reward stands where it was earned, with what its form costs: gae and bi_level_gae see where, advantages of whole episodes see the sum; RAGEN puts the sum at the end unless the key is on
"#);
    let config = loaded(&import);
    let played: Vec<_> = config.environments().collect();
    let of =
        |of: fn(&EnvironmentConfig) -> String| played.iter().map(|one| of(one)).collect::<Vec<_>>().join(" ");
    assert_eq!(of(|one| one.kind.as_str().to_owned()), "sokoban frozen_lake bandit bandit");
    // Metrics are `train/FrozenLake/success`, as RAGEN's.
    assert_eq!(of(|one| one.name.clone().unwrap_or_default()), "SimpleSokoban FrozenLake Bandit BanditTest");
    // A level for each of 2000 steps' groups, none of a tag that is only validated in.
    assert_eq!(of(|one| format!("{}/{}", one.train_size, one.val_size)), "8000/48 6000/32 2000/0 0/16");
    assert_eq!(of(|one| one.prompting.max_actions.to_string()), "10 12 1 1");
    for one in played {
        let prompting = &one.prompting;
        assert_eq!((prompting.max_turns, prompting.think, prompting.max_actions_per_turn), (3, false, 2));
        assert_eq!((prompting.action_separator.as_str(), one.max_length), (";", Some(3000)));
        assert_eq!((one.context.as_str(), one.max_context_window), ("single_turn", Some(2)));
    }
}

/// Tags without numbers of groups have equal parts, those of training alone no validation.
#[test]
fn tags_without_numbers() {
    let sizes = |keys: &[&str]| {
        let import = converted(&[&["model_path=m"], keys].concat());
        let config = loaded(&import);
        let size = |one: &EnvironmentConfig| {
            format!("{} {}/{}", one.name.as_deref().unwrap_or("?"), one.train_size, one.val_size)
        };
        config.environments().map(size).collect::<Vec<_>>().join(", ")
    };
    let three = format!("{TRAIN}=[Bandit,FrozenLake,SimpleSokoban]");
    let three = three.as_str();
    assert_snapshot!(sizes(&[three]), @"Bandit 2731/171, FrozenLake 2731/171, SimpleSokoban 2731/170");
    assert_snapshot!(sizes(&[three, "es_manager.val.env_groups=10"]), @"Bandit 2731/4, FrozenLake 2731/3, SimpleSokoban 2731/3");
    assert_snapshot!(sizes(&[three, &format!("{VAL}=[FrozenLake]")]), @"Bandit 2731/0, FrozenLake 2731/512, SimpleSokoban 2731/0");
    // A tag that is listed twice is one environment with the groups of both.
    let tags = format!("{TRAIN}=[Bandit,FrozenLake,Bandit]");
    let twice = [tags.as_str(), "es_manager.train.env_configs.n_groups=[2,4,2]"];
    assert_snapshot!(sizes(&twice), @"Bandit 4096/256, FrozenLake 4096/256");
    let tags = format!("{TRAIN}=[Bandit,Bandit]");
    let both = [tags.as_str(), "es_manager.train.env_configs.n_groups=[4,4]"];
    assert_snapshot!(sizes(&both), @"Bandit 8192/512");
    // Validation elsewhere than in training, which may be RAGEN's default.
    assert_snapshot!(sizes(&[&format!("{TRAIN}=[Bandit]"), &format!("{VAL}=[BanditTest]")]), @"Bandit 8192/0, BanditTest 0/512");
    assert_snapshot!(sizes(&[&format!("{VAL}=[FrozenLake,CoordSokoban]")]), @"CoordSokoban 8192/256, FrozenLake 0/256");
    // A number of its own goes before nothing.
    let tags = format!("{TRAIN}=[Countdown,Bandit]");
    let own = [
        tags.as_str(),
        "es_manager.train.env_configs.n_groups=[6,2]",
        "custom_envs.Countdown.env_config.max_instances=500",
    ];
    assert_snapshot!(sizes(&own), @"Countdown 6144/256, Bandit 2048/256");
    assert_snapshot!(said(&[&["model_path=m"], &own[..]].concat(), "max_instances"), @"custom_envs.Countdown.env_config.max_instances=500 has no effect: with several environments the number of levels is the share of its groups");
    // Steps that would make more levels than there may be keep the shares.
    let long =
        [three, "es_manager.train.env_configs.n_groups=[1,2,5]", "trainer.total_training_steps=5000000"];
    assert_snapshot!(sizes(&long), @"Bandit 1250000/171, FrozenLake 2500000/171, SimpleSokoban 6250000/170");
}

/// A file of Countdown's tasks is read.
#[test]
fn tasks_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasks.jsonl");
    std::fs::write(&path, "{\"target\": 9, \"nums\": [4, 5]}\n").unwrap();
    let (tag, file) = (format!("{TRAIN}=[Countdown]"), path.to_str().unwrap());
    let key = format!("custom_envs.Countdown.env_config.train_path={file}");
    let import = converted(&["model_path=m", &tag, &key]);
    let EnvironmentKind::Countdown(game) = loaded(&import).environment.expect("an environment").kind else {
        panic!("{}", import.yaml)
    };
    assert_eq!(game.file.as_deref(), Some(path.as_path()));
    let remark = |keys: &[&str]| said(keys, "train.env_configs.tags").contains("tasks are drawn like those");
    assert_eq!((remark(&["model_path=m", &tag]), remark(&["model_path=m", &tag, &key])), (true, false));
}

/// What tags and their numbers say that cannot be.
#[test]
fn tags_that_cannot_be_followed() {
    let of = |keys: &[&str]| import_errors(&[&["model_path=m"], keys].concat());
    assert_snapshot!(of(&[&format!("{TRAIN}=[]")]), @r#"
error: `es_manager.train.env_configs.tags=[]` of RAGEN cannot be followed: it names no environment
 --> command line, RAGEN key
  |
1 | es_manager.train.env_configs.tags=[]
  |                                   ^^
  hint: `tamis config explain es_manager.train.env_configs.tags` says what becomes of it

1 error in the configuration
"#);
    let said = |keys: &[&str]| said(&[&["model_path=m"], keys].concat(), "");
    let bandit = format!("{TRAIN}=[Bandit]");
    let two = format!("{TRAIN}=[Bandit,FrozenLake]");
    assert_snapshot!(said(&[&bandit, "es_manager.train.env_configs.n_groups=[4]"]), @"error: `es_manager.train.env_configs.n_groups=[4]` of RAGEN cannot be followed: it adds up to 4, and RAGEN asks for es_manager.train.env_groups, which is 8");
    assert_snapshot!(said(&[&two, "es_manager.train.env_configs.n_groups=[8]"]), @"error: `es_manager.train.env_configs.n_groups=[8]` of RAGEN cannot be followed: RAGEN asks for a number for each tag, and es_manager.train.env_configs.tags has 2, this 1");
    assert_snapshot!(said(&[&two, "es_manager.train.env_configs.n_groups=[4.5,3.5]"]), @"error: `es_manager.train.env_configs.n_groups` of RAGEN must be a list of whole numbers, not `[4.5,3.5]`");
    assert_snapshot!(said(&[&two, "es_manager.val.env_configs.n_groups=[256,128]"]), @"error: `es_manager.val.env_configs.n_groups=[256,128]` of RAGEN cannot be followed: it adds up to 384, and RAGEN asks for es_manager.val.env_groups, which is 512");
    assert_snapshot!(said(&[&two, &format!("{VAL}=[Bandit,WebShop]")]), @r#"error: `es_manager.val.env_configs.tags=["Bandit","WebShop"]` of RAGEN cannot be followed: the shop is a program of its own: play it by a class around it, `environment: {kind: python, path: FILE.py:CLASS}`, or as a server, `environment: {kind: http, url: URL}`"#);
    assert_snapshot!(said(&[&format!("{TRAIN}=[Bandit,SimpleSokobam]"), "custom_envs.SimpleSokobam.max_tokens=5"]), @r#"error: `es_manager.train.env_configs.tags=["Bandit","SimpleSokobam"]` of RAGEN cannot be followed: nothing says what SimpleSokobam is: did you mean `SimpleSokoban`?"#);
    assert_snapshot!(said(&[&two, "custom_envs.FrozenLake.env_config.sise=5"]), @r#"
error: `custom_envs.FrozenLake.env_config.sise` is no setting of RAGEN's `frozen_lake` that tamis knows
hint: did you mean `size`?
"#);
}

/// Null names nothing: RAGEN's default is played, or what is there anyway.
#[test]
fn null_is_no_tag() {
    let none = format!("{TRAIN}=null");
    assert_snapshot!(said(&["model_path=m", &none, &format!("{VAL}=null")], "tags"), @r#"
es_manager.train.env_configs.tags=null -> data.task: environment, environment.kind: sokoban, environment.name: CoordSokoban, environment.rows: 6, environment.columns: 6, environment.boxes: 1, environment.max_steps: 100, environment.observation: grid_coord, environment.prompting.max_actions: 10, environment.prompting.max_tokens: 120 (RAGEN's default)
es_manager.val.env_configs.tags=null has no effect: null names no environment
"#);
    let rows = ["model_path=m", "data.train_files=t", "agent_proxy.max_turn=1", &none];
    assert_snapshot!(said(&rows, "tags"), @"es_manager.train.env_configs.tags=null has no effect: null names no environment");
}

/// Environments of a user's own, by RAGEN's types.
#[test]
fn environments_of_one_s_own() {
    let own = [
        "model_path=m",
        "es_manager.train.env_configs.tags=[Mine]",
        "custom_envs.Mine.env_type=sokoban",
        "custom_envs.Mine.max_actions_per_traj=12",
        "custom_envs.Mine.env_instruction=Push the boxes.",
        "custom_envs.Mine.parallel_friendly=True",
        "custom_envs.Mine.max_workers=8",
        "custom_envs.Mine.env_config.dim_room=[8,9]",
    ];
    let import = converted(&own);
    // Three boxes are RAGEN's default of its environment, 400 its length of an answer.
    assert_snapshot!(environment(&import), @"kind: sokoban, name: Mine, prompting:, instruction: Push the boxes., max_actions_per_turn: 2, max_actions: 12, max_turns: 5, max_tokens: 400, val_size: 512, max_length: 3000, rows: 8, columns: 9, boxes: 3");
    assert_snapshot!(said(&own, "custom_envs"), @r#"
custom_envs.Mine.env_type=sokoban goes into what es_manager.train.env_configs.tags becomes
custom_envs.Mine.max_actions_per_traj=12 -> environment.prompting.max_actions: 12
custom_envs.Mine.env_instruction=Push the boxes. -> environment.prompting.instruction: Push the boxes.
custom_envs.Mine.parallel_friendly=True has no effect: environments are stepped beside generation, all of them
custom_envs.Mine.max_workers=8 has no effect: environments are stepped beside generation, all of them
custom_envs.Mine.env_config.dim_room=[8,9] -> environment.rows: 8, environment.columns: 9
"#);
    // What a tag has of its own goes where `env_config` is taken away.
    let reset = converted(&["model_path=m", "custom_envs.CoordSokoban.env_config=null"]);
    assert_snapshot!(environment(&reset), @"kind: sokoban, name: CoordSokoban, prompting:, max_actions_per_turn: 2, max_actions: 10, max_turns: 5, max_tokens: 120, val_size: 512, max_length: 3000, boxes: 3");
    let lake = converted(&[
        "model_path=m",
        "es_manager.train.env_configs.tags=[FrozenLake]",
        "custom_envs.FrozenLake.max_actions_per_traj=150",
    ]);
    assert_snapshot!(environment(&lake), @"kind: frozen_lake, name: FrozenLake, prompting:, max_actions_per_turn: 2, max_actions: 150, max_turns: 5, max_tokens: 100, val_size: 512, max_length: 3000, max_steps: 150");
    let errors = |key: &str, more: &str| {
        said(&["model_path=m", "es_manager.train.env_configs.tags=[Mine]", key, more], "")
    };
    assert_snapshot!(errors("custom_envs.Mine.max_actions_per_traj=3", "seed.val=1"), @r#"error: `es_manager.train.env_configs.tags=["Mine"]` of RAGEN cannot be followed: nothing says what Mine is: define it by custom_envs.Mine.env_type and the keys beside that"#);
    assert_snapshot!(errors("custom_envs.Mine.env_type=sokoban", "seed.val=1"), @"error: `custom_envs.Mine.env_type=sokoban` of RAGEN cannot be followed: RAGEN asks how many actions an episode of Mine may have: give custom_envs.Mine.max_actions_per_traj");
    assert_snapshot!(errors("custom_envs.Mine.env_type=webshop", "seed.val=1"), @"error: `custom_envs.Mine.env_type=webshop` of RAGEN cannot be followed: the shop is a program of its own: play it by a class around it, `environment: {kind: python, path: FILE.py:CLASS}`, or as a server, `environment: {kind: http, url: URL}`");
    assert_snapshot!(errors("custom_envs.Mine.env_type=chess", "seed.val=1"), @"error: `custom_envs.Mine.env_type=chess` of RAGEN cannot be followed: there is no environment `chess` here, but sokoban, frozen_lake, bandit, countdown, sudoku, game_2048, rubikscube: one that lives elsewhere is played by `environment.kind` python, gymnasium, verifiers, command or http");
    assert_snapshot!(errors("custom_envs.Mine.env_type=frozenlake", "seed.val=1"), @"error: `custom_envs.Mine.env_type=frozenlake` of RAGEN cannot be followed: there is no environment `frozenlake` here, but sokoban, frozen_lake, bandit, countdown, sudoku, game_2048, rubikscube: did you mean `frozen_lake`?");
    assert_snapshot!(
        said(&["model_path=m", "custom_envs.CoordSokoban.max_action_per_traj=3"], "max_action_per_traj"),
        @r#"
error: `custom_envs.CoordSokoban.max_action_per_traj` is no key of RAGEN's environments that tamis knows
hint: did you mean `custom_envs.CoordSokoban.max_actions_per_traj`?
"#
    );
    assert_snapshot!(said(&["model_path=m", "custom_envs.CoordSokoban.retry.times=3"], "retry"), @r#"
error: `custom_envs.CoordSokoban.retry.times` is no key of RAGEN's environments that tamis knows
hint: an environment has env_type, max_actions_per_traj, env_instruction, max_tokens, parallel_friendly, max_workers, env_config
"#);
    assert_snapshot!(said(&["model_path=m", "custom_envs.CoordSokoban.env_config.dim_x=7.5"], "dim_x"), @"error: `environment.rows` must be a whole number, not the number 7.5");
    assert_snapshot!(said(&["model_path=m", "custom_envs.Mine.env_type=sokoban", "custom_envs.Mine.env_config.dim_x=7", "es_manager.train.env_configs.tags=[Mine]", "custom_envs.Mine.max_actions_per_traj=3"], "dim_x"), @"error: `custom_envs.Mine.env_config.dim_x=7` of RAGEN cannot be followed: RAGEN reads both sides or none: give dim_y beside it");
}

/// RAGEN's file of environments beside its base: those that are not played do nothing, also where there are none
/// such here.
#[test]
fn a_file_of_environments() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("envs.yaml");
    let text = "
defaults: [base, envs]
custom_envs:
  FrozenLake:
    env_type: frozen_lake
    max_actions_per_traj: 10
    env_instruction: Cross the lake.
    max_tokens: 100
    parallel_friendly: false
    max_workers: 32
    env_config: null
  Letters:
    env_type: sokoban
    max_actions_per_traj: 10
    max_tokens: 100
    env_config:
      search_depth: 30
      dim_x: 6
      dim_y: 6
      num_boxes: 1
      grid_lookup: {0: \"W\", 1: \".\", 2: \"G\", 3: \"C\", 4: \"B\", 5: \"A\", 6: \"@\"}
      grid_vocab: {\"W\": \"wall\", \".\": \"empty\", \"G\": \"target\", \"@\": \"player on target\"}
  WebShop:
    env_type: webshop
    max_actions_per_traj: 9
    max_tokens: 200
    env_config: {dataset: small}
";
    std::fs::write(&path, text).unwrap();
    let file = path.to_str().unwrap();
    let lake = [file, "model_path=m", "es_manager.train.env_configs.tags=[FrozenLake]"];
    assert_snapshot!(environment(&converted(&lake)), @"kind: frozen_lake, name: FrozenLake, prompting:, instruction: Cross the lake., max_actions_per_turn: 2, max_actions: 10, max_turns: 5, max_tokens: 100, val_size: 512, max_length: 3000");
    assert_snapshot!(said(&lake, "WebShop"), @r#"
custom_envs.WebShop.env_type=webshop has no effect: the environment of this run is FrozenLake
custom_envs.WebShop.max_actions_per_traj=9 has no effect: the environment of this run is FrozenLake
custom_envs.WebShop.max_tokens=200 has no effect: the environment of this run is FrozenLake
custom_envs.WebShop.env_config.dataset=small has no effect: the environment of this run is FrozenLake
"#);
    // Its list of defaults names RAGEN's own files, of which nothing is missed.
    assert!(!notes(&converted(&lake)).contains("was not read"));
    let letters = [file, "model_path=m", "es_manager.train.env_configs.tags=[Letters]"];
    assert_snapshot!(environment(&converted(&letters)), @"kind: sokoban, name: Letters, prompting:, max_actions_per_turn: 2, max_actions: 10, max_turns: 5, max_tokens: 100, val_size: 512, max_length: 3000, rows: 6, columns: 6, boxes: 1, search_depth: 30, symbols: letters");
    assert_snapshot!(said(&letters, "grid"), @r#"
custom_envs.Letters.env_config.grid_lookup.0=W -> environment.symbols: letters
custom_envs.Letters.env_config.grid_lookup.1=. goes into what custom_envs.Letters.env_config.grid_lookup.0 becomes
custom_envs.Letters.env_config.grid_lookup.2=G goes into what custom_envs.Letters.env_config.grid_lookup.0 becomes
custom_envs.Letters.env_config.grid_lookup.3=C goes into what custom_envs.Letters.env_config.grid_lookup.0 becomes
custom_envs.Letters.env_config.grid_lookup.4=B goes into what custom_envs.Letters.env_config.grid_lookup.0 becomes
custom_envs.Letters.env_config.grid_lookup.5=A goes into what custom_envs.Letters.env_config.grid_lookup.0 becomes
custom_envs.Letters.env_config.grid_lookup.6=@ goes into what custom_envs.Letters.env_config.grid_lookup.0 becomes
custom_envs.Letters.env_config.grid_vocab.W=wall has no effect: the legend says so
custom_envs.Letters.env_config.grid_vocab..=empty has no effect: the legend says so
custom_envs.Letters.env_config.grid_vocab.G=target has no effect: the legend says so
custom_envs.Letters.env_config.grid_vocab.@=player on target has no effect: the legend says so
"#);
}
