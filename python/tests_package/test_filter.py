"""Filters: verdicts by hand, every form of input, errors as the program words them."""

import array
import math
import pickle

import pytest
import tamis


def reasons(verdicts):
    return [verdict.reason for verdict in verdicts]


def test_verdicts_and_statistics():
    verdicts = tamis.Filter("variance").judge([[1, 0, 1], [0, 0], [1, 1, 1], [None, 1.0], [0.5, 0.5]])
    assert reasons(verdicts) == [None, "all_wrong", "all_correct", "unscored", "uniform"]
    assert [bool(verdict) for verdict in verdicts] == [True, False, False, False, False]
    kept, unscored = verdicts[0], verdicts[3]
    assert (kept.size, kept.num_scored, kept.num_correct, kept.min, kept.max) == (3, 3, 2, 0.0, 1.0)
    assert (kept.mean, kept.std) == (2 / 3, pytest.approx(math.sqrt(2) / 3))
    assert (unscored.size, unscored.num_scored) == (2, 1)


@pytest.mark.parametrize(
    "values",
    [
        [[1.0, 0.0], [0.0, 0.0]],
        ([True, False], [False, False]),
        [array.array("d", [1, 0]), array.array("f", [0, 0])],
        memoryview(array.array("d", [1, 0, 0, 0])).cast("B").cast("d", (2, 2)),
    ],
)
def test_forms_of_groups(values):
    assert reasons(tamis.Filter().judge(values)) == [None, "all_wrong"]


def test_forms_of_arrays():
    numpy = pytest.importorskip("numpy")
    for dtype in ("float64", "float32", "int64", "int32", "uint8", "bool"):
        groups = numpy.array([[1, 0], [0, 0], [1, 1]], dtype=dtype)
        assert reasons(tamis.Filter().judge(groups)) == [None, "all_wrong", "all_correct"]
        assert reasons(tamis.Filter().judge(groups.T)) == [None, None]
        flat = groups.reshape(-1)
        assert reasons(tamis.Filter().judge(flat, [0, 2, 6])) == [None, None]
        assert reasons(tamis.Filter().judge(flat, numpy.array([0, 2, 6]))) == [None, None]
        # Every second value: not contiguous.
        assert reasons(tamis.Filter().judge(flat[::2], [0, 3])) == [None]
    with pytest.raises(tamis.ColumnError, match="float32 or float64"):
        tamis.Filter().judge(numpy.zeros((2, 2), dtype="float16"))
    with pytest.raises(tamis.ColumnError, match="3 dimensions"):
        tamis.Filter().judge(numpy.zeros((2, 2, 2)))


def test_pools_and_members():
    pool = tamis.Filter("top_k", k=1)
    assert pool.compares_groups and not tamis.Filter().compares_groups
    assert reasons(pool.judge([[0, 1], [0, 0.5], [0, 0]])) == [None, "outside_pool", "uniform"] or reasons(
        pool.judge([[0, 1], [0, 0.5], [0, 0]])
    ) == [None, "outside_pool", "all_wrong"]
    chosen = tamis.Filter("within_group", k=2).judge([[0.0, 1.0, 0.5]])[0].members
    assert chosen == [True, True, False]
    assert tamis.Filter().judge([[0, 1]])[0].members is None


def test_metric_without_outcomes():
    lengths = tamis.Filter("variance", metric="length").judge([[0, 0], [7, 7]])
    assert reasons(lengths) == ["uniform", "uniform"]
    assert lengths[0].num_correct is None


def test_settings_are_those_of_the_configuration():
    chosen = tamis.Filter("variance", tolerance=0.1)
    assert chosen.settings == {"kind": "variance", "tolerance": 0.1, "singleton": "keep", "metric": None}
    assert (chosen.kind, chosen.metric, chosen.rule) == ("variance", "acc", "groups with max - min > 0.1")
    again = pickle.loads(pickle.dumps(chosen))
    assert again.settings == chosen.settings
    assert "variance" in repr(chosen) and "variance" in tamis.Filter.kinds()


@pytest.mark.parametrize(
    ("kind", "settings", "message", "hint"),
    [
        ("variance", {"tolerence": 0.1}, "unknown key `filter.tolerence`", "did you mean `filter.tolerance`?"),
        ("varience", {}, "`filter.kind` cannot be `varience`", "did you mean `variance`?"),
        ("variance", {"tolerance": -1}, "`filter.tolerance` must be 0 or more, got -1", "tamis config explain"),
        ("variance", {"tolerance": "a lot"}, "`filter.tolerance` must be a number", "tamis config explain"),
        ("variance", {"tolerance": math.inf}, "`filter.tolerance` must be a number", "tamis config explain"),
        ("variance", {"k": 3}, "the kind here is `variance`", "`top_k` and `within_group` have it"),
        ("top_k", {}, "needs one of `k` and `fraction`, and has neither", "`fraction: 0.5` is half of them"),
    ],
)
def test_errors_and_hints_are_those_of_the_program(kind, settings, message, hint):
    with pytest.raises(tamis.ConfigError) as caught:
        tamis.Filter(kind, **settings)
    ((told, fix),) = caught.value.problems
    assert message in told and hint in fix
    assert str(caught.value) == f"{told}\nhint: {fix}"
    assert isinstance(caught.value, ValueError)
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems


def test_all_violations_at_once():
    with pytest.raises(tamis.ConfigError) as caught:
        tamis.Filter("variance", tolerence=0.1, singleton="kepe")
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("values", "offsets", "message"),
    [
        ([1.0, 0.0], None, "no rows"),
        ([1.0, 0.0], [0, 3], "expected 3 values"),
        ([1.0, 0.0], [1, 2], "must begin at 0"),
        ([1.0, 0.0], [0, 2, 1], "never go backwards"),
        ([1.0, 0.0], [0.5], "whole numbers"),
        ([[1.0], 0.0], None, "mixes"),
        ([[[1.0]]], None, "has rows itself"),
        ([["yes", 0.0]], None, "value 0 of column `values` is 'yes'"),
    ],
)
def test_columns_that_do_not_fit(values, offsets, message):
    with pytest.raises(tamis.ColumnError, match=message):
        tamis.Filter().judge(values, offsets)


def test_what_holds_itself():
    endless = []
    endless.append(endless)
    with pytest.raises(tamis.ColumnError, match="has rows itself"):
        tamis.Filter().judge(endless)
    with pytest.raises(ValueError, match="nested more than 32 deep"):
        tamis.Filter("variance", tolerance=endless)


def test_not_a_column():
    for values in ("1.0", {"acc": [1]}, 3, None):
        with pytest.raises(TypeError, match="column `values` must hold numbers"):
            tamis.Filter().judge(values)
    assert tamis.Filter().judge([]) == []


def test_equal_groups_of_verls_vectors(golden):
    # verl's own rule by the standard deviation, and equality of the extremes, which is what a filter here goes by.
    compared = 0
    for case in golden("verl_filter_groups"):
        if "values" not in case["inputs"]:
            continue
        verdict = tamis.Filter("variance", metric="seq_reward").judge([case["inputs"]["values"]])[0]
        is_single = verdict.size == 1
        assert verdict.kept == (is_single or not case["outputs"]["max_eq_min"]), case["name"]
        if case["outputs"]["np_std"] is not None:
            assert verdict.std == pytest.approx(case["outputs"]["np_std"], abs=1e-12)
        compared += 1
    assert compared == 30
