"""Seconds that balancing 65,536 sequences over 256 ranks takes in Python, as verl does it, on the lengths of `balance_speed`.

Prints JSON lines {"what": "balance", "form": "verl", "method": ..., "seconds": median, "seconds_min": ..., "spread": ...}.

Written from a description of what verl computes (cost 24576 L + L^2; the largest differencing method over k parts: a heap of partial
solutions, the two of largest max - min merged, the i-th heaviest part of one with the i-th lightest of the other; equal sizes begin with k
sorted neighbours each), in the objects that it uses: parts are Python lists of (index, cost) with their sum, kept sorted by comparing
sum, length and items. The result is the same as verl's, part for part, on the reference vectors.

Free sizes hold k parts for every single sequence, which for 65,536 and 256 is 17 million Python objects: `--free` measures them at a
size that fits (default 2,048 sequences over 64 ranks).
"""

import argparse
import heapq
import json

from quiet import measure, summary


def lengths(sequences):
    state, mask = 1, (1 << 64) - 1
    found = []
    for _ in range(sequences):
        product = 1
        for _ in range(3):
            state = (state * 6364136223846793005 + 1442695040888963407) & mask
            product *= state >> 54
        found.append(32 + (product >> 17))
    return found


class Part:
    def __init__(self):
        self.sum, self.items = 0, []

    def add(self, index, cost):
        self.items.append((index, cost))
        self.sum += cost

    def take(self, other):
        for index, cost in other.items:
            self.add(index, cost)

    def __lt__(self, other):
        if self.sum != other.sum:
            return self.sum < other.sum
        if len(self.items) != len(other.items):
            return len(self.items) < len(other.items)
        return self.items < other.items


class Solution:
    def __init__(self, items, parts):
        self.parts = [Part() for _ in range(parts)]
        for part, (index, cost) in zip(self.parts, items):
            part.add(index, cost)
        self.parts.sort(reverse=True)

    def spread(self):
        return self.parts[0].sum - self.parts[-1].sum

    def merge(self, other):
        for mine, theirs in zip(self.parts, reversed(other.parts)):
            mine.take(theirs)
        self.parts.sort(reverse=True)

    def __lt__(self, other):
        if self.spread() != other.spread():
            return self.spread() > other.spread()
        return other.parts[0] < self.parts[0]


def karmarkar_karp(costs, parts, equal_size):
    order = sorted((cost, index) for index, cost in enumerate(costs))
    size = parts if equal_size else 1
    heap = []
    for begin in range(0, len(order), size):
        heapq.heappush(heap, Solution([(index, cost) for cost, index in order[begin : begin + size]], parts))
    while len(heap) > 1:
        one, other = heapq.heappop(heap), heapq.heappop(heap)
        one.merge(other)
        heapq.heappush(heap, one)
    return [sorted(index for index, _ in part.items) for part in heap[0].parts]


def run(sequences, ranks, equal_size, repetitions):
    tokens = lengths(sequences)

    def share():
        costs = [24576 * length + length * length for length in tokens]
        return costs, karmarkar_karp(costs, ranks, equal_size)

    timing = summary(*measure(share, repetitions, warm_up=0, limit=60.0))
    costs, parts = share()
    sums = [sum(costs[index] for index in part) for part in parts]
    line = {
        "what": "balance",
        "form": "verl",
        "method": "karmarkar_karp_equal" if equal_size else "karmarkar_karp_free",
        "sequences": sequences,
        "ranks": ranks,
        "tokens": sum(tokens),
        "spread": max(sums) - min(sums),
        "max_over_mean": max(sums) * ranks / sum(costs),
        **timing,
    }
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sequences", type=int, default=65536)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--free", nargs=2, type=int, default=[2048, 64], metavar=("SEQUENCES", "RANKS"))
    arguments = parser.parse_args()
    run(arguments.sequences, arguments.ranks, True, arguments.repetitions)
    run(*arguments.free, False, arguments.repetitions)


if __name__ == "__main__":
    main()
