"""Objectives and the critic's loss: by hand, by finite differences, in every cut, and equal to verl's and TRL's."""

import itertools
import math
import pickle
import random

import pytest
import tamis

LOGPROB = [[-1.0, -2.0, -0.3], [-0.5]]
OLD = [[-1.1, -1.9, -0.3], [-0.9]]


def rows(flat, lengths):
    values = iter(flat)
    return [list(itertools.islice(values, length)) for length in lengths]


def flat(nested):
    return [value for row in nested for value in row]


def test_by_hand():
    evaluation = tamis.Objective("reinforce").evaluate([[-1.0, -2.0], [-0.5]], [1.0, -1.0])
    # The mean over three tokens of -A logprob.
    assert evaluation.loss == pytest.approx((1.0 + 2.0 - 0.5) / 3)
    assert list(evaluation.dlogprob) == pytest.approx([-1 / 3, -1 / 3, 1 / 3])
    assert evaluation.dentropy is None
    assert evaluation.normalisers == tamis.Normalisers(3, 2, 2)
    assert evaluation.metrics["actor/pg_loss"] == evaluation.loss


@pytest.mark.parametrize("loss", tamis.Objective.losses())
def test_gradient_is_that_of_the_value(loss):
    generator = random.Random(7)
    lengths = [4, 1, 3]
    draw = lambda low, high: [[generator.uniform(low, high) for _ in range(length)] for length in lengths]  # noqa: E731
    logprob, entropy = draw(-3, -0.1), draw(0.1, 2)
    near = [[value + generator.uniform(-0.3, 0.3) for value in row] for row in logprob]
    aggregation = {"gspo": "seq-mean-token-mean", "geo_mean": "seq-mean-token-mean", "luspo": "seq-mean-token-sum"}
    objective = tamis.Objective(
        {"kind": "dro", "beta": 0.1} if loss == "dro" else loss,
        aggregation=aggregation.get(loss, "token-mean"),
        kl={"coefficient": 0.1},
        entropy={"coefficient": 0.01},
    )
    columns = {"old": near, "behaviour": near, "reference": near}
    advantage = [0.7, -1.3, 0.4]
    if objective.needs_selection:
        columns["selection"] = objective.select(logprob, advantage, old=near, entropy=entropy, seed=3)

    def value(logprob, entropy):
        return objective.evaluate(logprob, advantage, entropy=entropy, **columns)

    exact = value(logprob, entropy)
    step = 1e-6
    for table, derivatives in ((0, exact.dlogprob), (1, exact.dentropy)):
        for place, derivative in enumerate(derivatives):
            sides = []
            for sign in (step, -step):
                moved = [flat(logprob), flat(entropy)]
                moved[table][place] += sign
                sides.append(value(rows(moved[0], lengths), rows(moved[1], lengths)).loss)
            numeric = (sides[0] - sides[1]) / (2 * step)
            # These hold a weight fixed: their gradient is not that of their value.
            if loss in ("cispo", "vespo", "dppo_tv", "dppo_kl") and table == 0:
                assert math.isfinite(derivative)
            else:
                assert derivative == pytest.approx(numeric, rel=1e-4, abs=1e-7), (loss, table, place)


def test_one_batch_in_every_form():
    objective = tamis.Objective("clip", aggregation="seq-mean-token-mean")
    nested = objective.evaluate(LOGPROB, [1.0, -1.0], old=OLD)
    cut = objective.evaluate(flat(LOGPROB), [1.0, -1.0], offsets=[0, 3, 4], old=flat(OLD))
    spread = objective.evaluate(LOGPROB, [[1.0] * 3, [-1.0]], old=OLD)
    masked = objective.evaluate(
        [row + [math.nan] * (4 - len(row)) for row in LOGPROB],
        [1.0, -1.0],
        mask=[[1] * len(row) + [0] * (4 - len(row)) for row in LOGPROB],
        old=[row + [9.0] * (4 - len(row)) for row in OLD],
    )
    for other in (cut, spread, masked):
        assert other.loss == nested.loss
    assert cut.dlogprob == spread.dlogprob == nested.dlogprob
    kept = [value for value in masked.dlogprob if value != 0]
    assert kept == [value for value in nested.dlogprob if value != 0] and len(masked.dlogprob) == 8


def test_arrays_keep_their_precision():
    numpy = pytest.importorskip("numpy")
    objective = tamis.Objective("clip")
    double = objective.evaluate(LOGPROB, [1.0, -1.0], old=OLD)
    for dtype, code in (("float64", "d"), ("float32", "f")):
        padded = numpy.zeros((2, 3), dtype=dtype)
        old = numpy.zeros((2, 3), dtype=dtype)
        mask = numpy.zeros((2, 3), dtype=bool)
        for row, (new, before) in enumerate(zip(LOGPROB, OLD, strict=True)):
            padded[row, : len(new)], old[row, : len(new)], mask[row, : len(new)] = new, before, True
        evaluation = objective.evaluate(padded, numpy.array([1.0, -1.0]), mask=mask, old=old)
        assert evaluation.dlogprob.typecode == code
        assert evaluation.loss == pytest.approx(double.loss, rel=1e-6)
        derivatives = numpy.asarray(evaluation.dlogprob).reshape(2, 3)[mask]
        assert list(derivatives) == pytest.approx(list(double.dlogprob), rel=1e-6)


def test_micro_batches_add_up():
    objective = tamis.Objective("clip", aggregation="group-token-mean", entropy={"coefficient": 0.1})
    entropy = [[1.0, 1.1, 0.9], [0.5]]
    whole = objective.evaluate(LOGPROB, [1.0, -1.0], old=OLD, entropy=entropy, group_sizes=[2])
    parts = [
        objective.evaluate(
            [LOGPROB[i]], [advantage], old=[OLD[i]], entropy=[entropy[i]], normalisers=whole.normalisers, group_tokens=[4]
        )
        for i, advantage in enumerate([1.0, -1.0])
    ]
    assert parts[0].loss + parts[1].loss == pytest.approx(whole.loss, rel=1e-14)
    assert parts[0].dlogprob + parts[1].dlogprob == whole.dlogprob
    ranks = tamis.Normalisers(4, 2, 1, dp_size=2)
    assert objective.evaluate(
        LOGPROB, [1.0, -1.0], old=OLD, entropy=entropy, normalisers=ranks, group_tokens=[4, 4]
    ).loss == pytest.approx(2 * whole.loss)


def test_micro_batches_are_merged():
    adaptive = {"coefficient": 0.1, "adaptive": {"target": 0.5, "delta": 0.01}}
    objective = tamis.Objective("clip", entropy=adaptive, kl={"coefficient": 0.1})
    logprob, old = [[-1.0, -2.0, -0.3], [-0.5], [-0.1, -0.9]], [[-1.1, -1.4, -0.3], [-0.9], [-0.2, -0.9]]
    entropy, advantage = [[1.0, 1.1, 0.9], [0.5], [0.3, 0.2]], [1.0, -1.0, 0.5]
    state = objective.initial_state()
    state["entropy"]["coef"] = 0.07

    def evaluated(part, objective=objective, **more):
        return objective.evaluate(
            logprob[part], advantage[part], old=old[part], reference=old[part], entropy=entropy[part], state=state, **more
        )

    whole = evaluated(slice(None))
    parts = [evaluated(part, normalisers=whole.normalisers) for part in (slice(0, 2), slice(2, 3))]
    merged = objective.merge(parts, state=state)
    assert (merged.loss, merged.state) == (whole.loss, whole.state)
    # Some are NaN, because there is no sampler here.
    assert repr(merged.metrics) == repr(whole.metrics)
    assert (merged.dlogprob, merged.dentropy) == (whole.dlogprob, whole.dentropy)
    assert merged.normalisers == whole.normalisers
    # A part's own metrics are not those of the whole.
    assert parts[0].metrics["actor/ratio_mean"] != whole.metrics["actor/ppo_kl"]
    with pytest.raises(tamis.ColumnError, match="evaluation 1 was divided by other counts than the first"):
        objective.merge([parts[0], evaluated(slice(2, 3))])
    with pytest.raises(tamis.ColumnError, match="no evaluations"):
        objective.merge([])
    numpy = pytest.importorskip("numpy")
    single = tamis.Objective().evaluate(numpy.float32([[-1.0]]), [1.0], normalisers=whole.normalisers)
    double = tamis.Objective().evaluate([[-1.0]], [1.0], normalisers=whole.normalisers)
    with pytest.raises(tamis.ColumnError, match="another precision"):
        tamis.Objective().merge([single, double])


def test_state_is_carried():
    objective = tamis.Objective("clip", entropy={"coefficient": 0.1, "adaptive": {"target": 0.5, "delta": 0.01}})
    state = objective.initial_state()
    first = objective.evaluate(LOGPROB, [1.0, -1.0], entropy=[[0.1] * 3, [0.1]], state=state)
    assert first.state["entropy"]["coef"] == pytest.approx(state["entropy"]["coef"] + 0.01)
    second = objective.evaluate(LOGPROB, [1.0, -1.0], entropy=[[0.1] * 3, [0.1]], state=first.state)
    assert second.metrics["entropy_coef"] == pytest.approx(first.state["entropy"]["coef"])


def test_nothing_to_train_on():
    evaluation = tamis.Objective("clip").evaluate(LOGPROB, [1.0, -1.0], mask=[[0, 0, 0], [0]])
    assert evaluation.loss == 0.0 and list(evaluation.dlogprob) == [0.0] * 4


def test_settings():
    objective = tamis.Objective({"kind": "clip", "clip_high": 0.28}, kl={"coefficient": 0.01})
    assert objective.settings["loss"]["clip_high"] == 0.28
    assert objective.settings["kl"]["in"] == "loss"
    assert pickle.loads(pickle.dumps(objective)).settings == objective.settings
    scaled = tamis.Objective(aggregation="seq-mean-token-sum-norm", loss_scale_factor=64)
    assert pickle.loads(pickle.dumps(scaled)).settings["loss_scale_factor"] == 64


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "clipp"}, "did you mean `clip`"),
        ({"aggregatoin": "token-mean"}, "did you mean `objective.aggregation`"),
        ({"loss": {"kind": "clip", "clip_low": 2}}, "`objective.loss.clip_low` must be from 0 to 1"),
        ({"advantage": "grpo"}, "not part of an objective here"),
        ({"kl": {"in": "reward"}}, "rewards are not its input"),
        ({"masks": {"truncated": True}}, "leave those trajectories out of `mask`"),
        ({"aggregation": "seq-mean-token-sum-norm"}, "needs `objective.loss_scale_factor`"),
        ({"loss": "reinforce", "importance": "sequence"}, "has no importance `sequence`"),
    ],
)
def test_settings_that_do_not_go(settings, message):
    with pytest.raises(tamis.ConfigError, match=message):
        tamis.Objective(**settings)


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ({"old": [[-1.0]]}, {}, "column `old` has 1 values, expected 4"),
        ({}, {"kl": {}}, "column `reference` is missing; the KL term needs it"),
        ({}, {"entropy": {"coefficient": 0.1}}, "column `entropy` is missing"),
        ({}, {"loss": "kl_cov"}, "column `selection` is missing"),
        ({}, {"aggregation": "group-token-mean"}, "`group_sizes` is missing"),
        ({"group_sizes": [3]}, {"aggregation": "group-token-mean"}, "expected 3"),
        ({"mask": [[2, 0, 0], [0]]}, {}, "flags: booleans, or 0 and 1"),
        ({"state": {"kl": 3}}, {}, "`state`"),
    ],
)
def test_columns_that_do_not_fit(arguments, settings, message):
    with pytest.raises(tamis.ColumnError, match=message):
        tamis.Objective(**settings).evaluate(LOGPROB, [1.0, -1.0], **arguments)


def test_advantages_that_could_be_either():
    with pytest.raises(tamis.ColumnError, match="as many values as there are trajectories and tokens"):
        tamis.Objective().evaluate([-1.0, -2.0], [1.0, 1.0], offsets=[0, 2, 2])
    with pytest.raises(tamis.ColumnError, match="or `offsets`"):
        tamis.Objective().evaluate([-1.0, -2.0], [1.0, 1.0])


def test_critic():
    loss = tamis.ValueLoss(cliprange_value=0.5)
    evaluation = loss.evaluate([[1.0, 2.0]], [[1.0, 1.0]], [[0.0, 3.0]], mask=[[1, 1]])
    # max((1 - 0)^2, (1 - 0)^2) / 2 and max((2 - 3)^2, (1.5 - 3)^2) / 2, whose clipped branch does not move.
    assert evaluation.loss == pytest.approx((0.5 + 1.125) / 2)
    assert list(evaluation.dvalues) == pytest.approx([0.5, 0.0])
    assert evaluation.metrics["critic/vf_clipfrac"] == 0.5
    assert pickle.loads(pickle.dumps(loss)).settings == loss.settings
    with pytest.raises(tamis.ConfigError, match="not part of the critic's loss"):
        tamis.ValueLoss(warmup_steps=3)
    with pytest.raises(tamis.ConfigError, match="unknown key `critic.cliprange_vlaue`"):
        tamis.ValueLoss(cliprange_vlaue=3)


def test_clip_equal_to_verl(golden):
    compared = 0
    for case in golden("verl_loss_vanilla"):
        params, inputs, outputs = case["params"], case["inputs"], case["outputs"]
        if not any(inputs["mask"]):
            continue
        info = params.get("global_batch_info", {})
        lengths = inputs["lengths"]
        normalisers = tamis.Normalisers(
            tokens=info.get("batch_num_tokens", sum(inputs["mask"])),
            sequences=info.get("global_batch_size", sum(map(any, rows(inputs["mask"], lengths)))),
            groups=len(lengths),
            dp_size=info.get("dp_size", 1),
        )
        objective = tamis.Objective(
            {
                "kind": "clip",
                "clip_low": params["clip_ratio_low"],
                "clip_high": params["clip_ratio_high"],
                "dual_clip": params["clip_ratio_c"],
            },
            aggregation=params["loss_agg_mode"],
            loss_scale_factor=info.get("loss_scale_factor", inputs["padded_len"]),
        )
        evaluation = objective.evaluate(
            inputs["logp"],
            rows(inputs["advantage"], lengths),
            offsets=list(itertools.accumulate(lengths, initial=0)),
            mask=inputs["mask"],
            old=inputs["old_logp"],
            weight=inputs.get("rollout_is_weight"),
            normalisers=normalisers,
        )
        close = {"rel": 1e-6, "abs": 1e-8} if case.get("dtype", "float64") == "float64" else {"rel": 1e-4, "abs": 1e-5}
        assert evaluation.loss == pytest.approx(outputs["loss"], **close), case["name"]
        assert list(evaluation.dlogprob) == pytest.approx(outputs["dloss_dlogp"], **close), case["name"]
        for name, value in outputs["metrics"].items():
            assert evaluation.metrics[name] == pytest.approx(value, **close), (case["name"], name)
        compared += 1
    assert compared >= 30


def test_dapo_equal_to_trl(golden):
    compared = 0
    for case in golden("trl_loss_dapo"):
        params, inputs, outputs = case["params"], case["inputs"], case["outputs"]
        plain = params["top_entropy_quantile"] == 1.0 and params["off_policy_mask_threshold"] is None
        if not plain or params["beta"] or params["entropy_coef"] or case.get("dtype", "float64") != "float64":
            continue
        if params["steps_per_generation"] != 1 or params["gradient_accumulation_steps"] != 1:
            continue
        if params["num_processes"] != 1 or "old_logp" not in inputs or not any(inputs["mask"]):
            continue
        if "is_ratio" in inputs or params["use_vllm_is"]:
            continue
        lengths = inputs["lengths"]
        objective = tamis.Objective(
            {
                "kind": "clip",
                "clip_low": params["epsilon_low"],
                "clip_high": params["epsilon_high"],
                "delta": params["delta"],
                "dual_clip": None,
                "log_ratio_limit": None,
            },
            importance=params["importance_sampling_level"],
            aggregation="token-mean",
        )
        evaluation = objective.evaluate(
            inputs["logp"],
            inputs["advantage"] if len(inputs["advantage"]) == len(lengths) else rows(inputs["advantage"], lengths),
            offsets=list(itertools.accumulate(lengths, initial=0)),
            mask=inputs["mask"],
            old=inputs["old_logp"],
            normalisers=tamis.Normalisers(inputs["num_items_in_batch"], len(lengths), len(lengths)),
        )
        assert evaluation.loss == pytest.approx(outputs["loss"], rel=1e-9, abs=1e-12), case["name"]
        assert list(evaluation.dlogprob) == pytest.approx(outputs["dloss_dlogp"], rel=1e-7, abs=1e-10), case["name"]
        compared += 1
    assert compared >= 8


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("logprob", math.nan, "column `logprob` is NaN at token 1 of trajectory 1: leave"),
        ("logprob", 0.25, "`logprob` is 0.25 at token 1 of trajectory 1: log-probabilities are 0 or less"),
        ("logprob", math.inf, "column `logprob` is inf at token 1 of trajectory 1"),
        ("old", math.nan, "column `old` is NaN at token 1 of trajectory 1"),
        ("old", 1.0, "column `old` is 1 at token 1 of trajectory 1"),
        ("behaviour", 1.0, "column `behaviour` is 1 at token 1 of trajectory 1"),
        ("reference", math.nan, "column `reference` is NaN at token 1 of trajectory 1"),
        ("advantage", math.nan, "column `advantage` is NaN at token 1 of trajectory 1"),
    ],
)
def test_what_is_no_log_probability_is_refused_by_its_place(column, value, message):
    objective = tamis.Objective("clip", kl={"coefficient": 0.1})
    names = ("logprob", "advantage", "old", "behaviour", "reference")
    columns = {name: [[-1.0], [-2.0, -3.0]] for name in names}
    columns[column][1][1] = value
    with pytest.raises(tamis.ColumnError, match=message):
        objective.evaluate(**columns)
    # Masked values are never read.
    assert math.isfinite(objective.evaluate(**columns, mask=[[1], [1, 0]]).loss)


def test_rounding_above_0_and_tokens_without_a_sampler_are_no_fault():
    batch = tamis.Objective("clip").evaluate([[1e-6, -1.0]], [1.0], behaviour=[[-1.0, math.nan]])
    assert math.isfinite(batch.loss)
    with pytest.raises(tamis.ColumnError, match="`advantage` is NaN for trajectory 1: leave it out of `mask`"):
        tamis.Objective("clip").evaluate([[-1.0], [-1.0, -2.0]], [1.0, math.nan])
    with pytest.raises(tamis.ColumnError, match="`returns` is NaN at token 0 of trajectory 0"):
        tamis.ValueLoss().evaluate([[1.0]], [[1.0]], [[math.nan]])
    with pytest.raises(tamis.ColumnError, match="column `old` is NaN at token 0 of trajectory 0"):
        tamis.Correction().correct([[math.nan]], [[-1.0]])
