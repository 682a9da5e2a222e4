"""Time of a loss through the Python package: 100,000 tokens of 100 trajectories, from numpy arrays and from lists.

    python bench/python_package.py        in an environment with the package and numpy

`columns` is the part that reads the columns and computes nothing; `result` makes an array of the derivatives.
"""

import statistics
import time

import numpy
import tamis

NUM_TOKENS, NUM_TRAJECTORIES = 100_000, 100


def milliseconds(call, rounds=30):
    """Median over rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def main():
    generator = numpy.random.default_rng(0)
    logprob = -generator.random(NUM_TOKENS)
    old = logprob + 0.1 * generator.normal(size=NUM_TOKENS)
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
