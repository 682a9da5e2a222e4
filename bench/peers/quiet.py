"""Timing that notices other work on the machine.

OpenMP's threads meet at barriers, so PyTorch on 2 threads can take ten times as long when something else runs on one of 2 cores.
A repetition during which other processes took more than `OTHERS` of the machine's CPU time is therefore measured again, up to a limit of
time. What remains noisy is counted in the output, so a figure that was taken on a busy machine can be recognised.
"""

import os
import statistics
import time

OTHERS = 0.08
TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def busy_seconds():
    """CPU seconds that all processes have used since boot, or None if the system does not report it."""
    try:
        with open("/proc/stat") as stat:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / TICK


class Watch:
    """Takes the time between two instants and whether other processes disturbed it."""

    def __init__(self):
        self.restart()

    def restart(self):
        self.busy, self.own, self.start = busy_seconds(), time.process_time(), time.perf_counter()

    def lap(self):
        """(seconds, disturbed) since the last restart or lap."""
        seconds = time.perf_counter() - self.start
        own = time.process_time() - self.own
        cores = os.cpu_count() or 1
        disturbed = False
        if self.busy is not None:
            # A tick of slack for each core: the counters advance in steps of 10 ms.
            others = busy_seconds() - self.busy - own - cores / TICK
            disturbed = others > OTHERS * seconds * cores
        self.restart()
        return seconds, disturbed


class Laps:
    """Collects laps until `wanted` of them were undisturbed or `limit` seconds are over."""

    def __init__(self, wanted, limit):
        self.wanted, self.limit = wanted, limit
        self.calm, self.disturbed = [], []

    def add(self, seconds, disturbed):
        (self.disturbed if disturbed else self.calm).append(seconds)

    def done(self):
        laps = self.calm + self.disturbed
        return len(self.calm) >= self.wanted or (len(laps) >= self.wanted and sum(laps) > self.limit)

    def result(self):
        """(seconds of `wanted` laps, how many of them were disturbed): the quickest disturbed ones fill what is missing."""
        missing = max(0, self.wanted - len(self.calm))
        return self.calm[: self.wanted] + sorted(self.disturbed)[:missing], missing


def measure(run, repetitions, warm_up=1, limit=20.0):
    """Times `run`: (seconds of each repetition, how many of them were disturbed)."""
    for _ in range(warm_up):
        run()
    laps = Laps(repetitions, limit)
    watch = Watch()
    while not laps.done():
        watch.restart()
        run()
        laps.add(*watch.lap())
    return laps.result()


def seconds_and_cpu(run, repetitions, warm_up=1):
    """Times `run`: (seconds of each repetition, CPU seconds of each). The latter mean something on a busy machine, too."""
    for _ in range(warm_up):
        run()
    laps = []
    for _ in range(repetitions):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        run()
        laps.append((time.perf_counter() - begin, time.process_time() - begin_cpu))
    return tuple(zip(*laps, strict=True))


def summary(seconds, disturbed):
    """The fields that every line of output has."""
    return {
        "seconds": float(f"{statistics.median(seconds):.4g}"),
        "seconds_min": float(f"{min(seconds):.4g}"),
        "repetitions": len(seconds),
        "disturbed": disturbed,
    }
