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
        ("top_k", {}, "needs one of `k` and `fraction`, but has neither", "`fraction: 0.5` is half of them"),
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


KEPT = [True, False, True, False, False]
GROUPS = [[1.0, 0.0], [0.0, 0.0], [0.25, 0.5], [math.nan, 1.0], [1.0, 1.0]]
IDS = ["b", "a", "c", "d", "e"]


def test_flags_come_in_the_library_of_the_values(request):
    keep = tamis.Filter().keep
    assert keep(GROUPS) == KEPT and keep(tuple(map(tuple, GROUPS))) == KEPT
    assert keep([]) == []
    flat = array.array("d", [value for group in GROUPS for value in group])
    flags = keep(flat, offsets=[0, 2, 4, 6, 8, 10])
    assert isinstance(flags, memoryview) and flags.format == "?" and flags.tolist() == KEPT
    numpy = pytest.importorskip("numpy")
    for dtype in ("float64", "float32"):
        flags = keep(numpy.array(GROUPS, dtype=dtype))
        assert (type(flags), flags.dtype, flags.shape, flags.tolist()) == (numpy.ndarray, bool, (5,), KEPT)
    flags[0] = False  # Writable.
    assert keep(numpy.zeros((0, 8))).shape == (0,) and keep(numpy.zeros((2, 0))).tolist() == [False, False]
    torch = request.getfixturevalue("torch")
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        flags = keep(torch.tensor(GROUPS, dtype=dtype, requires_grad=True))
        assert (flags.dtype, flags.shape, flags.tolist()) == (torch.bool, (5,), KEPT)
    assert keep(torch.zeros(0, 8)).shape == (0,)


def test_ids_of_groups_in_any_order():
    order = [(group, member) for member in (1, 0) for group in (3, 0, 4, 1, 2)]
    values = [GROUPS[group][member] for group, member in order]
    expected = [KEPT[group] for group, _ in order]
    for ids in (IDS, [7, -3, 2**40, 0, 5], [True, 2, "x", 1.5, (1, 2)]):
        groups = [ids[group] for group, _ in order]
        assert tamis.Filter().keep(values, groups) == expected
        verdicts = tamis.Filter().judge(values, groups=groups)
        assert list(verdicts) == [ids[group] for group in (3, 0, 4, 1, 2)]
        assert [verdicts[id].kept for id in ids] == KEPT
        assert verdicts[ids[3]].reason == "unscored" and verdicts[ids[4]].num_correct == 2
    numpy = pytest.importorskip("numpy")
    for dtype in ("int64", "int32", "uint64", "int8", "U3", "datetime64[s]"):
        groups = numpy.array([group for group, _ in order]).astype(dtype)
        assert tamis.Filter().keep(numpy.array(values), groups).tolist() == expected
    # Ids far apart, and every second of an array.
    far = numpy.repeat(numpy.array([group * 10**15 - 10**9 for group, _ in order]), 2)[::2]
    assert tamis.Filter().keep(values, far) == expected


def test_ids_judge_as_rows_do():
    numpy = pytest.importorskip("numpy")
    generator = numpy.random.default_rng(1)
    kinds = [("variance", {}), ("mean_range", {}), ("top_p", {"p": 0.5}), ("top_k", {"k": 3}), ("min_p", {"p": 0.5})]
    kinds += [("percentile", {"high": 0.4}), ("within_group", {"k": 2})]
    assert {kind for kind, _ in kinds} == set(tamis.Filter.kinds())
    for kind, settings in kinds:
        chosen = tamis.Filter(kind, **settings)
        for _ in range(20):
            sizes = generator.integers(1, 6, size=12)
            rows = [generator.choice([0, 0.5, 1, math.nan], size=size) for size in sizes]
            verdicts = chosen.judge(rows)
            assert chosen.keep(rows) == [verdict.kept for verdict in verdicts]
            ids = numpy.repeat(numpy.arange(12), sizes)
            # The first member of each group, then the others: apart, and the groups in their order, which settles
            # ties of a ranking.
            first = numpy.unique(ids, return_index=True)[1]
            place = numpy.concatenate([first, numpy.setdiff1d(numpy.arange(ids.size), first)])
            flat = numpy.concatenate(rows)[place]
            flags = chosen.keep(flat, ids[place])
            expected = {id: verdict.members or [verdict.kept] * verdict.size for id, verdict in enumerate(verdicts)}
            assert flags.tolist() == [expected[id].pop(0) for id in ids[place]]
            # As texts, because NaN equals nothing.
            assert list(map(repr, chosen.judge(flat, groups=ids[place]).values())) == list(map(repr, verdicts))


def test_series_and_frames_of_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"acc": [1.0, 0.0, 0.0, 0.0], "prompt_id": ["q", "p", "q", "p"]}, index=[4, 3, 2, 1])
    flags = tamis.Filter().keep(frame["acc"], frame["prompt_id"])
    assert flags.equals(pandas.Series([True, False, True, False], index=[4, 3, 2, 1]))
    assert tamis.Filter().keep(frame, "prompt_id").equals(flags)
    assert len(frame[flags]) == 2
    assert tamis.Filter().judge(frame, groups="prompt_id")["p"].reason == "all_wrong"
    for ids in ([1, 2, 1, 2], pandas.Categorical(["q", "p", "q", "p"]), pandas.array([1, 2, 1, 2], dtype="Int64")):
        assert tamis.Filter().keep(frame.assign(prompt_id=ids), "prompt_id").equals(flags)
    values = pandas.Series([1, None, 0, 0], dtype="Int64", index=[4, 3, 2, 1])
    assert tamis.Filter().keep(values, frame["prompt_id"]).equals(flags)
    rows = pandas.Series([[1, 0], [0, 0]], index=["q", "p"])
    assert tamis.Filter().keep(rows).equals(pandas.Series([True, False], index=["q", "p"]))
    for ids in (["q", None, "q", "p"], [1.0, math.nan, 1.0, 2.0]):
        with pytest.raises(tamis.ColumnError, match="id 1 of `groups` is missing"):
            tamis.Filter().keep(frame.assign(prompt_id=ids), "prompt_id")
    with pytest.raises(tamis.ColumnError, match=r"different indexes: pass `groups.reindex"):
        tamis.Filter().keep(frame["acc"], frame["prompt_id"].sort_index())
    refuse_frames(frame)
    with pytest.raises(tamis.ColumnError, match="a DataFrame, whose rows may be trajectories or groups"):
        tamis.Advantage("grpo").estimate(frame[["acc"]])


def test_series_and_frames_of_polars():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"acc": [1.0, 0.0, None, 0.0, 0.0], "prompt_id": ["q", "p", "q", "p", "q"]})
    flags = tamis.Filter().keep(frame["acc"], frame["prompt_id"])
    assert flags.dtype == polars.Boolean and flags.to_list() == [True, False, True, False, True]
    assert tamis.Filter().keep(frame, "prompt_id").to_list() == flags.to_list()
    assert tamis.Filter().keep(frame["acc"], [1, 2, 1, 2, 1]).to_list() == flags.to_list()
    assert len(frame.filter(flags)) == 3
    assert tamis.Filter().keep(polars.Series([[1, 0], [0, 0]])).to_list() == [True, False]
    refuse_frames(frame)
    with pytest.raises(tamis.ColumnError, match=r"pass `frame.collect\(\)`"):
        tamis.Filter().keep(frame.lazy(), "prompt_id")


def refuse_frames(frame):
    for call in (tamis.Filter().keep, tamis.Filter().judge):
        with pytest.raises(tamis.ColumnError, match=r"a DataFrame, whose rows may be.*groups=\"prompt_id\""):
            call(frame)
    with pytest.raises(tamis.ColumnError, match="without a column `prompt`; it has acc, prompt_id"):
        tamis.Filter().keep(frame, "prompt")
    with pytest.raises(tamis.ColumnError, match="without a column `length`"):
        tamis.Filter(metric="length").keep(frame, "prompt_id")


@pytest.mark.parametrize(
    ("values", "groups", "offsets", "message"),
    [
        ([1.0, 0.0], [1], None, "`groups` has 1 ids for 2 values"),
        ([1.0, 0.0], [1, None], None, "id 1 of `groups` is missing"),
        ([1.0, 0.0], [1, math.nan], None, "id 1 of `groups` is missing"),
        ([1.0, 0.0], [1, [2]], None, r"id 1 of `groups` is \[2\], which cannot be compared by hash"),
        ([[1.0], [0.0]], [1, 1], None, "one row per group already: leave out `groups`"),
        ([1.0, 0.0], [1, 1], [0, 2], "pass one of them"),
        ([1.0, 0.0], None, None, "or the id of each value's group as `groups`"),
        ([1.0, 0.0], "prompt_id", None, "`groups` is 'prompt_id': pass one id per value"),
        ([1.0, 0.0], 3, None, "`groups` is 3: pass one id per value"),
    ],
)
def test_ids_that_do_not_fit(values, groups, offsets, message):
    with pytest.raises((tamis.ColumnError, TypeError), match=message):
        tamis.Filter().keep(values, groups, offsets=offsets)


def test_help_lists_the_kinds_with_their_settings():
    for thing, kinds in (
        (tamis.Filter, tamis.Filter.kinds()),
        (tamis.Advantage, tamis.Advantage.kinds()),
        (tamis.Shaping, tamis.Shaping.kinds()),
        (tamis.Objective, tamis.Objective.losses()),
    ):
        text = thing.__doc__
        assert "Kinds, with their settings and defaults:" in text
        assert [kind for kind in kinds if f"\n    {kind}(" not in text] == [], thing
    assert "\n    variance(tolerance=" in tamis.Filter.__doc__
