"""Shapings of advantages: by hand, one after the other, with their counts and draws."""

import pickle

import pytest
import tamis

REWARDS = [[1.0, 0.0, 0.25, 0.0], [1.0, 1.0, 0.0, 0.0]]


def estimate(rewards=REWARDS):
    return tamis.Advantage("grpo", scale="none").estimate(rewards)


def test_the_worst_share_stays():
    shaped = tamis.Shaping("keep_neg_ratio", ratio=0.5).apply(estimate([[1.0, 0.0, 0.25, 0.75]]), [[1.0, 0.0, 0.25, 0.75]])
    # The mean is 0.5: of -0.5 and -0.25 one stays.
    assert list(shaped.values) == [0.5, -0.5, 0.0, 0.25]
    assert list(shaped.kept) == [1, 1, 0, 1]
    assert not shaped.is_per_token and list(shaped.offsets) == [0, 4]
    assert shaped.policy_factor == 1.0


def test_one_after_the_other():
    clipped = tamis.Shaping("clip_advantage", low=-0.4, high=0.6).apply(estimate(), REWARDS)
    assert min(clipped.values) == -0.4 and max(clipped.values) == 0.6
    assert clipped.kept is None
    lengths = [10, 10, 10, 10, 30, 10, 10, 10]
    long = tamis.Shaping("length_weight").apply(clipped, REWARDS, lengths=lengths)
    mean = sum(lengths) / 8
    expected = [value * mean / length for value, length in zip(clipped.values, lengths, strict=True)]
    assert list(long.values) == pytest.approx(expected)
    flat = tamis.Shaping("length_weight").apply(clipped, sum(REWARDS, []), offsets=[0, 4, 8], lengths=lengths)
    assert flat.values == long.values


def test_counts_of_the_step():
    scaling = tamis.Shaping("filter_loss_scaling", by="sqrt")
    assert scaling.apply(estimate(), REWARDS, num_kept=4, num_generated=16).policy_factor == 0.5
    assert scaling.apply(estimate(), REWARDS).policy_factor == 1.0
    with pytest.raises(tamis.ColumnError, match="`num_kept` is 3, of 2 generated"):
        scaling.apply(estimate(), REWARDS, num_kept=3)


def test_draws_are_those_of_the_group():
    rewards = [[1.0] + [0.0] * 30]
    shaping = tamis.Shaping("keep_neg_ratio", ratio=0.5)

    def kept(**keys):
        return list(shaping.apply(estimate(rewards), rewards, **keys).kept)

    assert sum(kept()) == 16 and kept() == kept() == kept(group_ids=[0])
    assert kept() != kept(seed=1) and kept() != kept(step=1) and kept() != kept(group_ids=[7])
    # Another group beside it does not change its draws.
    both = shaping.apply(estimate(REWARDS[1:] + rewards), REWARDS[1:] + rewards, group_ids=[3, 7])
    assert list(both.kept)[4:] == kept(group_ids=[7])


@pytest.mark.parametrize("kind", tamis.Shaping.kinds())
def test_kinds(kind):
    shaping = tamis.Shaping(kind)
    assert shaping.kind == kind == shaping.settings["kind"]
    copy = pickle.loads(pickle.dumps(shaping))
    columns = {"lengths": [3] * 8}
    if kind == "add_distillation":
        columns |= {"mask": [[True] * 3] * 8, "old_logprobs": [[-1.0] * 3] * 8, "teacher_logprobs": [[-0.5] * 3] * 8}
    assert copy.apply(estimate(), REWARDS, **columns).values == shaping.apply(estimate(), REWARDS, **columns).values


def test_of_a_configuration():
    entries = [{"kind": "keep_pos_ratio", "ratio": 0.5}, {"kind": "clip_advantage"}]
    config = tamis.Config({"objective": {"shaping": entries}})
    assert [shaping.kind for shaping in config.shapings()] == ["keep_pos_ratio", "clip_advantage"]
    assert config.shapings()[0].settings["ratio"] == 0.5
    assert tamis.Config().shapings() == []


def test_errors():
    with pytest.raises(tamis.ConfigError, match="did you mean `clip_advantage`"):
        tamis.Shaping("clip_advantages")
    with pytest.raises(tamis.ConfigError, match="must be from 0 to 1"):
        tamis.Shaping("keep_neg_ratio", ratio=2)
    with pytest.raises(tamis.ColumnError, match="lengths"):
        tamis.Shaping("length_weight").apply(estimate(), REWARDS)
    with pytest.raises(tamis.ColumnError, match="8"):
        tamis.Shaping("soft_reweight").apply(estimate(), REWARDS[:1])
    with pytest.raises(tamis.ColumnError, match="column `group_ids` has 1 values, expected 2"):
        tamis.Shaping("keep_neg_ratio").apply(estimate(), REWARDS, group_ids=[1])
    with pytest.raises(TypeError):
        tamis.Shaping("soft_reweight").apply([1.0], [[1.0]])
