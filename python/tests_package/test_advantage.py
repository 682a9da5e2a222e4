"""Advantages: by hand, in every cut, and equal to verl's and TRL's."""

import itertools
import math
import pickle

import pytest
import tamis


def test_group_relative_by_hand():
    estimate = tamis.Advantage("grpo", scale="none").estimate([[1, 0], [1, 1, 0, None]])
    assert not estimate.is_per_token and estimate.returns is None
    assert list(estimate.values) == pytest.approx([0.5, -0.5, 1 / 3, 1 / 3, -2 / 3, 0])
    assert list(estimate.offsets) == [0, 2, 6]
    flat = tamis.Advantage("grpo", scale="none").estimate([1, 0, 1, 1, 0, math.nan], offsets=[0, 2, 6])
    assert flat.values == estimate.values


def test_per_token_with_a_critic():
    gae = tamis.Advantage("gae", **{"lambda": 0.5, "whiten": False})
    assert gae.needs == ["mask", "values"] and "token_rewards" in gae.uses
    estimate = gae.estimate([[1.0]], mask=[[1, 0, 1]], values=[[0.25, math.nan, 0.5]])
    assert estimate.is_per_token
    assert list(estimate.values) == [0.5, 0.0, 0.5]
    assert list(estimate.returns) == [0.75, 0.0, 1.0]
    flat = gae.estimate([[1.0]], mask=[1, 0, 1], values=[0.25, math.nan, 0.5], token_offsets=[0, 3])
    assert (flat.values, flat.offsets) == (estimate.values, estimate.offsets)


def test_state_goes_from_step_to_step():
    estimator = tamis.Advantage("bnpo_running")
    first = estimator.estimate([[1, 0], [1, 1]], generated=[[1, 0], [1, 1], [0, 0]])
    later = {"rewards": [[1, 0], [0, 0]], "generated": [[1, 0], [0, 0]]}
    second = estimator.estimate(**later, state=first.state)
    assert first.state["recent"] and len(second.state["recent"]) == 2
    assert second.values != estimator.estimate(**later).values
    with pytest.raises(tamis.ColumnError, match="`state`"):
        estimator.estimate(**later, state={"recent": 3})


def test_named_rewards():
    estimate = tamis.Advantage("gdpo").estimate(
        [[1.5, 0.0]], lengths=[3, 2], components={"acc": (1.0, [[1, 0]]), "format": (0.5, [[1, 0]])}
    )
    assert len(estimate.values) == 2 and estimate.values[0] > 0 > estimate.values[1]
    with pytest.raises(tamis.ColumnError, match="pair of its weight and its rewards"):
        tamis.Advantage("gdpo").estimate([[1.5, 0.0]], components={"acc": [[1, 0]]})


def test_every_kind_is_made_and_pickled():
    assert "grpo" in tamis.Advantage.kinds()
    for kind in tamis.Advantage.kinds():
        estimator = tamis.Advantage(kind)
        assert estimator.settings["kind"] == kind == estimator.kind
        assert pickle.loads(pickle.dumps(estimator)).settings == estimator.settings


def test_errors():
    with pytest.raises(tamis.ConfigError, match="did you mean `objective.advantage.scale`"):
        tamis.Advantage("grpo", scael="none")
    with pytest.raises(tamis.ColumnError, match="column `mask` is missing; `gae` needs it"):
        tamis.Advantage("gae").estimate([[1, 0]])
    with pytest.raises(tamis.ColumnError, match="infinite|inf"):
        tamis.Advantage("grpo").estimate([[math.inf, 0]])
    with pytest.raises(tamis.ColumnError, match="pass one row each, or `token_offsets`"):
        tamis.Advantage("gae").estimate([[1.0]], mask=[1, 0], values=[[0, 0]])


def rows(flat, lengths):
    """A flat list, cut."""
    values = iter(flat)
    return [list(itertools.islice(values, length)) for length in lengths]


def verl_groups(case):
    """Sizes of the groups of a case if its groups follow one another; otherwise None."""
    sizes = [len(list(members)) for _, members in itertools.groupby(case["inputs"]["group"])]
    return sizes if len(sizes) == len(set(case["inputs"]["group"])) else None


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("verl_adv_grpo", lambda params: {"scale": "group" if params["norm_adv_by_std_in_grpo"] else "none"}),
        ("verl_adv_rloo", lambda params: {}),
    ],
)
def test_equal_to_verl(golden, file, settings):
    compared = 0
    for case in golden(file):
        params, inputs, outputs = case["params"], case["inputs"], case["outputs"]
        sizes = verl_groups(case)
        if sizes is None or case.get("dtype", "float64") != "float64" or 1 in sizes:
            continue
        # Groups of equal members: verl keeps the rounding noise of its mean, here they are exactly 0.
        rewards = [sum(row) for row in rows(inputs["token_reward"], inputs["lengths"])]
        groups = rows(rewards, sizes)
        if any(max(group) == min(group) for group in groups):
            continue
        chosen = settings(params)
        if chosen.get("scale") == "group":
            chosen["epsilon"] = params["epsilon"]
        estimate = tamis.Advantage(params["estimator"], **chosen).estimate(groups)
        mask = rows(inputs["mask"], inputs["lengths"])
        spread = [on * value for value, row in zip(estimate.values, mask, strict=True) for on in row]
        assert spread == pytest.approx(outputs["advantage"], rel=1e-7, abs=1e-9), case["name"]
        compared += 1
    assert compared >= 5


def test_gae_equal_to_verl(golden):
    compared = 0
    for case in golden("verl_adv_gae"):
        params, inputs, outputs = case["params"], case["inputs"], case["outputs"]
        tokens = {name: rows(inputs[name], inputs["lengths"]) for name in ("mask", "token_reward", "value")}
        mask = tokens["mask"]
        if case.get("dtype", "float64") != "float64" or sum(map(sum, mask)) < 3 or not all(map(any, mask)):
            continue
        estimator = tamis.Advantage(
            "gae", gamma=params["gamma"], masked_rewards="lost", **{"lambda": params["lam"]}
        )
        rewards = [[sum(row) for row in tokens["token_reward"]]]
        estimate = estimator.estimate(
            rewards, mask=mask, values=tokens["value"], token_rewards=tokens["token_reward"]
        )
        flat = [on for row in mask for on in row]
        pairs = zip(flat, estimate.values, outputs["advantage"], strict=True)
        for on, ours, theirs in pairs:
            # verl leaves whitened numbers at masked tokens, and adds 1e-8 to variance and counts.
            assert not on or ours == pytest.approx(theirs, rel=1e-5, abs=1e-6), case["name"]
        pairs = zip(flat, estimate.returns, outputs["return"], strict=True)
        for on, ours, theirs in pairs:
            assert not on or ours == pytest.approx(theirs, rel=1e-9, abs=1e-9), case["name"]
        compared += 1
    assert compared >= 20


def test_group_normalisation_equal_to_trl(golden):
    compared = 0
    for case in golden("trl_advantages"):
        params = case["params"]
        rewards = case["inputs"]["rewards"]
        fits = (
            case.get("dtype", "float64") == "float64"
            and params["scale_rewards"] in ("group", "none")
            and params["multi_objective_aggregation"] == "sum_then_normalize"
            and params["num_reward_functions"] == 1
            and params["num_generations"] > 1
            and all(isinstance(row[0], float) for row in rewards)
        )
        if not fits:
            continue
        size = params["num_generations"]
        groups = rows([row[0] * params["reward_weights"][0] for row in rewards], [size] * (len(rewards) // size))
        if any(max(group) == min(group) or not all(map(math.isfinite, group)) for group in groups):
            continue
        estimator = tamis.Advantage("grpo", scale=params["scale_rewards"], epsilon=1e-4)
        values = list(estimator.estimate(groups).values)
        assert values == pytest.approx(case["outputs"]["advantage"], rel=1e-6, abs=1e-9), case["name"]
        compared += 1
    assert compared >= 3
