"""Configurations: files, overrides, presets, keys of other systems."""

import pytest
import tamis


def test_presets_and_parts():
    config = tamis.Config({"preset": "dapo"})
    assert config.filter().kind == "variance"
    assert config.advantage().kind == "grpo"
    objective = config.objective()
    assert (objective.loss, objective.settings["loss"]["clip_high"]) == ("clip", 0.28)
    assert config["objective.aggregation"] == "token-mean"
    assert tamis.Config().filter() is None


def test_files_and_overrides(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("rollout:\n  n: 4\nobjective: {advantage: {kind: rloo}}\n")
    config = tamis.Config.load(file, overrides=["rollout.n=6"])
    assert config["rollout.n"] == 6 and config.advantage().kind == "rloo"
    assert config.to_dict()["rollout"]["n"] == 6


def test_keys_of_verl():
    keys = ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc"]
    config = tamis.Config.load(overrides=keys)
    assert config.filter().settings["kind"] == "variance"
    assert any("algorithm.filter_groups.enable" in note for note in config.notes)


def test_errors():
    with pytest.raises(tamis.ConfigError, match="did you mean `rollout.n`") as caught:
        tamis.Config({"rollout": {"nn": 4}, "train": {"ppo_epochs": -1}})
    assert len(caught.value.problems) == 2
    with pytest.raises(tamis.ConfigError, match="failed to read"):
        tamis.Config.load("nowhere.yaml")
    with pytest.raises(tamis.ConfigError, match="unknown key `rollout.m`"):
        tamis.Config()["rollout.m"]
    with pytest.raises(TypeError, match="expected None, a boolean"):
        tamis.Config({"rollout": {"n": object()}})


def test_numbers_of_numpy():
    numpy = pytest.importorskip("numpy")
    config = tamis.Config({"rollout": {"n": numpy.int64(4), "temperature": numpy.float32(0.5)}})
    assert (config["rollout.n"], config["rollout.temperature"]) == (4, 0.5)
