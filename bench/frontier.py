#!/usr/bin/env python3
"""The frontier of cost against bias in studies/simulation.md: selectors and screens at several settings, simulated and drawn.

    cargo build --release
    python3 bench/frontier.py studies/simulate-frontier.svg

Prints the numbers as a table and writes the chart. Takes about a minute. Needs only Python's standard library.
"""

import argparse
import html
import json
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The world of "Choosing prompts" in studies/simulation.md.
WORLD = [
    "examples/simulate.yaml", "simulate.servers=null", "simulate.length.sigma=0", "simulate.drift.logit=0.006",
    "simulate.drift.noise=0.03", "schedule.mode=streaming",
]
REFERENCES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


def posterior(policy, memory):
    return [
        (f"reference {reference}", policy, f"schedule.selector={{kind: posterior, reference: {reference}, memory: {memory}}}")
        for reference in REFERENCES
    ]


# Name, colour, dashes, and its points: what a point is, the policy and the setting.
CURVES = [
    ("no choice (streaming_carry)", "#000000", "", [("", "streaming_carry", None)]),
    ("screening, 2 to 6 first members", "#d55e00", "", [(f"{n} first", "screening", f"schedule.screen_first={n}") for n in range(2, 7)]),
    ("zero_variance_skip", "#7f3c8d", "", [("", "zero_variance_skip", None)]),
    ("difficulty_pools, rates 0.05 to 0.8", "#a87400", "", [
        (f"rate {rate}", "difficulty_pools", f"schedule.selector={{kind: difficulty_pools, hard_rate: {rate}, easy_rate: {rate}}}")
        for rate in [0.05, 0.1, 0.2, 0.4, 0.8]
    ]),
    ("posterior_biased, reference 0.1 to 1", "#0072b2", "5 3", posterior("posterior_biased", 0.995)),
    ("posterior, reference 0.1 to 1", "#0072b2", "", posterior("posterior", 0.995)),
    ("posterior, memory 0.98", "#009e73", "", posterior("posterior", 0.98)),
    ("posterior, memory 1", "#cc79a7", "", posterior("posterior", 1.0)),
]


def simulate(program, policy, setting, seeds):
    """Mean cost, share of hard prompts and effective share of the weights over seeds."""
    found = []
    for seed in range(1, seeds + 1):
        words = [program, "simulate", *WORLD, f"simulate.policies=[{policy}]", f"run.seed={seed}", "--json"]
        words += [setting] if setting else []
        result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        if result.returncode != 0:
            raise SystemExit(f"{' '.join(words)} ended with {result.returncode}: {result.stderr}")
        of = json.loads(result.stdout)["policies"][0]
        found.append([of["generated_per_kept"], of["hard_share"], of["weight_ess"]])
    return [statistics.fmean(column) for column in zip(*found)]


class Panel:
    """Curves of two numbers in a frame."""

    WIDTH, HEIGHT = 292, 230

    def __init__(self, left, title, x, y, curves):
        self.left, self.title, self.x, self.y, self.curves = left, title, x, y, curves
        points = [point for _, _, _, points in curves for point in points]
        self.ranges = []
        for number in (x, y):
            values = [point[number] for point in points]
            margin = 0.06 * (max(values) - min(values)) or 0.5
            self.ranges.append((min(values) - margin, max(values) + margin))

    def place(self, point):
        (x0, x1), (y0, y1) = self.ranges
        x = self.left + (point[self.x] - x0) / (x1 - x0) * self.WIDTH
        return x, 30 + self.HEIGHT - (point[self.y] - y0) / (y1 - y0) * self.HEIGHT

    def draw(self):
        bottom, right = 30 + self.HEIGHT, self.left + self.WIDTH
        parts = [f'<text x="{self.left}" y="18" font-size="12">{html.escape(self.title)}</text>']
        for number, (low, high) in zip("xy", self.ranges):
            step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0) if (high - low) / step < 6)
            tick = step * -(-low // step)
            while tick <= high:
                label = f"{tick:.2f}".rstrip("0").rstrip(".")
                if number == "x":
                    x = self.left + (tick - low) / (high - low) * self.WIDTH
                    parts.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{label}</text>')
                else:
                    y = bottom - (tick - low) / (high - low) * self.HEIGHT
                    parts.append(f'<line x1="{self.left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
                    parts.append(f'<text x="{self.left - 5}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
                tick += step
        parts.append(f'<line x1="{self.left}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="#888"/>')
        parts.append(f'<text x="{right}" y="{bottom + 30}" text-anchor="end">generated a trained group</text>')
        for name, colour, dashes, points in self.curves:
            places = [self.place(point) for point in points]
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.4"{dashed}><title>{html.escape(name)}</title></polyline>')
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>' for x, y in places]
        return parts


def draw(curves):
    weighted = [curve for curve in curves if any(point[2] < 0.999 for point in curve[3]) or curve[0].startswith("no choice")]
    panels = [
        Panel(44, "weighted share of hard prompts (p < 0.1)", 0, 1, curves),
        Panel(392, "effective share of the weights", 0, 2, weighted),
    ]
    rows = -(-len(curves) // 2)
    height = 306 + 18 * rows
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 {height}" width="700" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="700" height="{height}" fill="#fff"/>',
    ]
    for panel in panels:
        parts += panel.draw()
    for number, (name, colour, dashes, _) in enumerate(curves):
        x, y = 44 + 348 * (number // rows), 306 + 18 * (number % rows)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        parts.append(f'<line x1="{x}" x2="{x + 22}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="1.4"{dashed}/>')
        parts.append(f'<circle cx="{x + 11}" cy="{y}" r="2.6" fill="{colour}"/><text x="{x + 28}" y="{y + 4}">{html.escape(name)}</text>')
    return "\n".join(parts) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="the chart to write")
    parser.add_argument("--program", default=str(ROOT / "target/release/tamis"), help="the program (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds that each point is the mean of (%(default)s)")
    arguments = parser.parse_args()
    curves = []
    print("| policy | setting | generated | hard | ESS |\n|---|---|---|---|---|")
    for name, colour, dashes, points in CURVES:
        found = []
        for what, policy, setting in points:
            numbers = simulate(arguments.program, policy, setting, arguments.seeds)
            found.append(numbers)
            print(f"| {name.partition(',')[0]} | {what} | {numbers[0]:.2f} | {numbers[1]:.3f} | {numbers[2]:.2f} |", flush=True)
        curves.append((name, colour, dashes, found))
    arguments.out.write_text(draw(curves))


if __name__ == "__main__":
    main()
