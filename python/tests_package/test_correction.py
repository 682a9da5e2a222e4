"""The correction for a sampler that is not the policy: by hand, in every form, and on its way into the loss."""

import math
import pickle

import pytest
import tamis

HALF, QUARTER = math.log(0.5), math.log(0.25)
# The policy finds the first token twice as likely as the sampler did, the others exactly as likely.
OLD, BEHAVIOUR = [[HALF, HALF], [HALF]], [[QUARTER, HALF], [HALF]]


def test_weights_by_hand():
    corrected = tamis.Correction(weights={"level": "token", "max": 1.5}).correct(OLD, BEHAVIOUR)
    assert list(corrected.weight) == pytest.approx([1.5, 1.0, 1.0])
    assert list(corrected.mask) == [1, 1, 1]
    sequences = tamis.Correction(weights={"level": "sequence", "max": 3.0}).correct(OLD, BEHAVIOUR)
    assert list(sequences.weight) == pytest.approx([2.0, 2.0, 1.0])
    outside = tamis.Correction(weights={"max": 1.5, "outside": "mask"}).correct(OLD, BEHAVIOUR)
    assert list(outside.weight) == pytest.approx([0.0, 1.0, 1.0])


def test_rejection_by_hand():
    # k3 of the first token: 2 - 1 - log 2 = 0.307, half of it the mean of its trajectory.
    rejections = [{"statistic": "seq_mean_k3", "threshold": "0.1"}]
    corrected = tamis.Correction(rejections=rejections).correct(OLD, BEHAVIOUR)
    assert corrected.weight is None
    assert list(corrected.mask) == [0, 0, 1]
    assert corrected.metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(2 / 3)
    token = tamis.Correction(rejections=[{"statistic": "token_k3", "threshold": "0.1"}])
    assert list(token.correct(OLD, BEHAVIOUR).mask) == [0, 1, 1]
    # Masked tokens stay masked.
    assert list(token.correct(OLD, BEHAVIOUR, mask=[[1, 0], [1]]).mask) == [0, 0, 1]


def test_without_settings_it_measures():
    corrected = tamis.Correction().correct(OLD, BEHAVIOUR)
    assert corrected.weight is None and list(corrected.mask) == [1, 1, 1]
    # The mean of log p of the sampler over the policy.
    assert corrected.metrics["rollout_corr/kl"] == pytest.approx(-math.log(2) / 3)


def test_every_form_of_columns():
    correction = tamis.Correction("decoupled_token_is")
    nested = correction.correct(OLD, BEHAVIOUR)
    flat = correction.correct([HALF] * 3, [QUARTER, HALF, HALF], offsets=[0, 2, 3])
    padded = correction.correct([[HALF, HALF], [HALF, math.nan]], [[QUARTER, HALF], [HALF, 9.0]], mask=[[1, 1], [1, 0]])
    assert nested.weight == flat.weight
    assert list(padded.weight) == [*nested.weight, 0.0]
    assert nested.metrics == flat.metrics == padded.metrics
    # Without the sampler's log-probability, a token's ratio is 1.
    assert list(correction.correct(OLD, [[math.nan, HALF], [HALF]]).weight) == [1.0, 1.0, 1.0]


def test_into_the_loss():
    corrected = tamis.Correction(
        weights={"max": 1.5}, rejections=[{"statistic": "seq_max_k3", "threshold": "0.5"}]
    ).correct(OLD, BEHAVIOUR)
    plain = tamis.Objective("reinforce", aggregation="seq-mean-token-sum").evaluate(OLD, [1.0, 1.0])
    weighed = tamis.Objective("reinforce", aggregation="seq-mean-token-sum").evaluate(
        OLD, [1.0, 1.0], weight=corrected.weight, mask=corrected.mask
    )
    expected = [own * weight for own, weight in zip(plain.dlogprob, corrected.weight, strict=True)]
    assert list(weighed.dlogprob) == pytest.approx(expected)
    assert weighed.dlogprob[0] == pytest.approx(1.5 * plain.dlogprob[0])


@pytest.mark.parametrize("preset", tamis.Correction.presets())
def test_presets(preset):
    correction = tamis.Correction(preset)
    assert correction.settings["preset"] == preset
    copy = pickle.loads(pickle.dumps(correction))
    assert (copy.settings, copy.mode) == (correction.settings, correction.mode)
    assert copy.correct(OLD, BEHAVIOUR).weight == correction.correct(OLD, BEHAVIOUR).weight
    assert correction.mode == {"ppo": "bypass_clip", "pg": "bypass_reinforce"}.get(
        preset.removeprefix("bypass_").split("_")[0], "decoupled"
    )
    if correction.mode == "bypass_clip":
        # The ratio of the loss holds it already.
        assert correction.correct(OLD, BEHAVIOUR).weight is None


def test_of_a_configuration():
    config = tamis.Config({"objective": {"correction": {"preset": "decoupled_k3_rs"}}})
    assert config.correction().settings["preset"] == "decoupled_k3_rs"
    assert tamis.Config().correction() is None
    keys = ["algorithm.rollout_correction.rollout_is=sequence", "algorithm.rollout_correction.rollout_is_threshold=3.0"]
    of_verl = tamis.Config.load(overrides=keys).correction()
    assert list(of_verl.correct(OLD, BEHAVIOUR).weight) == pytest.approx([2.0, 2.0, 1.0])


def test_errors():
    with pytest.raises(tamis.ConfigError, match="did you mean `decoupled_token_is`"):
        tamis.Correction("decoupled_token_si")
    with pytest.raises(tamis.ConfigError, match="unknown key `objective.correction.weigths`"):
        tamis.Correction(weigths={})
    with pytest.raises(tamis.ConfigError, match="seq_mean_k9"):
        tamis.Correction(rejections=[{"statistic": "seq_mean_k9"}])
    with pytest.raises(tamis.ConfigError, match="`tamis.Correction` gives the `weight`"):
        tamis.Objective(correction={"preset": "disabled"})
    with pytest.raises(tamis.ColumnError, match="column `behaviour` has 1 values, expected 3"):
        tamis.Correction().correct(OLD, [[HALF]])
