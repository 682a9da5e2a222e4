"""Times of the Python package, from numpy arrays and from lists.

    python bench/python_package.py        in an environment with the package, numpy and pandas

- `Filter.keep` of 125,000 groups of 8, against `values.max(1) > values.min(1)` of numpy; and of the same values with
  ids, in order and shuffled, against the fastest transform of pandas that sees contrast at all
  (`values.groupby(ids).transform("max")`; a filter needs two of these). Without pandas this comparison is skipped.
- A loss of 100,000 tokens of 100 trajectories. `columns` is the part that reads the columns and computes nothing;
  `result` makes an array of the derivatives.
"""

import statistics
import time

import numpy
import tamis

try:
    import pandas
except ImportError:
    pandas = None

NUM_GROUPS, GROUP_SIZE = 125_000, 8
NUM_TOKENS, NUM_TRAJECTORIES = 100_000, 100


def milliseconds(call, rounds=30):
    """Median over rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def compared(name, ours, theirs, what, rounds=15):
    """Prints the medians of both and their ratio, in CPU time, which other programs do not change."""
    times = [[], []]
    for _ in range(rounds):
        for place, call in enumerate((ours, theirs)):
            start = time.process_time()
            call()
            times[place].append(1e3 * (time.process_time() - start))
    own, other = map(statistics.median, times)
    print(f"  {name:16} keep {own:7.2f}  {what} {other:7.2f}  ratio {own / other:.2f}")


def flags(generator):
    """`Filter.keep` against numpy and pandas."""
    print(f"{NUM_GROUPS} groups of {GROUP_SIZE}, filter `variance`, milliseconds of CPU time (medians)")
    values = (generator.random((NUM_GROUPS, GROUP_SIZE)) < 0.1).astype(float)
    keep = tamis.Filter("variance").keep
    for dtype in ("float64", "float32", "int64", "bool"):
        array = values.astype(dtype)
        assert numpy.array_equal(keep(array), array.max(1) > array.min(1))
        compared(dtype, lambda: keep(array), lambda: array.max(1) > array.min(1), "numpy max > min")
    if pandas is None:
        return
    ids = numpy.repeat(numpy.arange(NUM_GROUPS), GROUP_SIZE)
    order = generator.permutation(ids.size)
    for name, place in (("in order", slice(None)), ("shuffled", order)):
        flat = pandas.Series(values.reshape(-1)[place])
        for kind, column in (("numbers", ids[place]), ("texts", numpy.char.mod("q%d", ids[place]))):
            column = pandas.Series(column)
            contrast = flat.groupby(column).transform("max") > flat.groupby(column).transform("min")
            assert keep(flat, column).equals(contrast.rename("kept"))
            compared(
                f"{kind} {name}",
                lambda: keep(flat, column),
                lambda: flat.groupby(column).transform("max"),
                "pandas transform",
                rounds=5,
            )


def main():
    generator = numpy.random.default_rng(0)
    flags(generator)
    logprob = -generator.random(NUM_TOKENS)
    old = numpy.minimum(logprob + 0.1 * generator.normal(size=NUM_TOKENS), 0.0)
    advantage = generator.normal(size=NUM_TRAJECTORIES)
    mask = numpy.ones(NUM_TOKENS, dtype=bool)
    offsets = numpy.arange(NUM_TRAJECTORIES + 1) * (NUM_TOKENS // NUM_TRAJECTORIES)
    objective = tamis.Objective("clip")
    print(f"{NUM_TOKENS} tokens, {NUM_TRAJECTORIES} trajectories, loss `clip`, milliseconds (median of 30)")
    for name, of in (
        ("float64 arrays", lambda column: column),
        ("float32 arrays", lambda column: column.astype("float32") if column.dtype == float else column),
        ("lists", lambda column: column.tolist()),
    ):
        columns = {"offsets": of(offsets), "mask": of(mask), "old": of(old)}
        first = (of(logprob), of(advantage))
        evaluation = objective.evaluate(*first, **columns)
        print(
            f"  {name:15} evaluate {milliseconds(lambda: objective.evaluate(*first, **columns)):6.2f}"
            f"  of it columns {milliseconds(lambda: objective.select(*first, **columns)):6.2f}"
            f"  result {milliseconds(lambda: evaluation.dlogprob):6.2f}"
        )


if __name__ == "__main__":
    main()
