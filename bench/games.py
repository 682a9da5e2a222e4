#!/usr/bin/env python3
"""Warm starts and charts of the sweeps in studies/learning-in-environments.md, which `tamis sweep` runs.

    cargo build --release
    python3 bench/games.py start frozen_lake sokoban       # two models in runs/games, about a minute each
    tamis sweep configs/sweeps/games_frozen_lake.yaml
    python3 bench/games.py table runs/games/frozen_lake games_frozen_lake
    python3 bench/games.py chart runs/games/frozen_lake games_frozen_lake docs/frozen_lake.svg --over steps

Both take what the comparison at a sweep's end has written (the results and the name of the sweep's file): a table with the success at validations, what was generated and how many groups were
kept; a chart with the names of its lines. Needs only Python's standard library.
"""

import argparse
import csv
import html
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What a game's warm start has that is not in its configuration.
STARTS = {
    "frozen_lake": ["model.init.num_layers=2", "environment.prompting.max_turns=10", "sft.steps=250", "data.gen_batch_size=32"],
    "sokoban": [],
}
CHART = re.compile(r"<svg xmlns.*?</svg>", re.DOTALL)
LINE = re.compile(r'<polyline [^>]*stroke="(#\w+)" stroke-width="1.6"([^>]*)><title>(.*?)</title>')


def start(program, game):
    folder = ROOT / "runs/games"
    name = f"{game}_start"
    shutil.rmtree(folder / name, ignore_errors=True)
    own = [f"run.dir={folder}", f"run.name={name}", "run.seed=0", "run.threads=1", "train.total_steps=1", "checkpoint.save_freq=1", "rollout.save=off"]
    result = subprocess.run([program, "train", f"configs/{game}.yaml", *STARTS[game], *own, "environment.val_size=512"], cwd=ROOT)
    if result.returncode != 0:
        raise SystemExit(f"the warm start of {game} ended with {result.returncode}")
    print(f"the model is in {folder / name / 'checkpoints/step_0'}")


def shorten(names):
    """Names without the words that all begin with."""
    common = os.path.commonprefix(names).rpartition("_")[0]
    return [name[len(common):].lstrip("_") or name for name in names]


def chart(page, metric, over):
    """The chart of a metric over steps, tokens or seconds, with a legend."""
    unit = {"steps": "steps", "tokens": "tokens", "seconds": "s"}[over]
    for drawn in CHART.findall(page):
        title = re.search(r'font-size="13">(.*?)</text>', drawn).group(1)
        if html.unescape(title) != metric or f'text-anchor="end">{unit}</text>' not in drawn:
            continue
        lines = LINE.findall(drawn)
        names = shorten([name for _, _, name in lines])
        height = 300 + 18 * ((len(lines) + 2) // 3)
        legend = []
        for place, ((colour, dash, _), name) in enumerate(zip(lines, names)):
            x, y = 60 + 190 * (place % 3), 310 + 18 * (place // 3)
            legend.append(f'<line x1="{x}" x2="{x + 18}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"{dash}/>'
                          f'<text x="{x + 23}" y="{y + 4}">{name}</text>')
        drawn = drawn.replace('viewBox="0 0 640 300"', f'viewBox="0 0 640 {height}"').replace('height="300"', f'height="{height}"')
        drawn = re.sub(r"(<svg [^>]*>)", rf'\1\n<rect width="640" height="{height}" fill="#fff"/>', drawn, count=1)
        return drawn.replace("</svg>", "\n".join(legend) + "\n</svg>\n")
    raise SystemExit(f"no chart of `{metric}` over {over} in this page")


def shares(folder, variant):
    """Of a variant's runs: success before training, groups generated, kept of them, mixed among all, tokens generated; means over steps and seeds."""
    found = []
    for file in folder.glob(f"{variant}_seed*/metrics.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        steps = [row for row in rows if "groups/generated" in row]
        first = next(value for name, value in rows[0].items() if name.startswith("val-core/") and "/mean@" in name)
        generated = sum(row["groups/generated"] for row in steps)
        kept = sum(row["groups/generated"] - row["groups/dropped"] for row in steps) / generated
        mixed = statistics.mean(row["diagnostics/pass_rate/mixed"] for row in steps)
        found.append((first, generated, kept, mixed, steps[-1]["num_tokens"]))
    return [statistics.mean(column) for column in zip(*found)]


def table(folder, sweep):
    cells = {}
    for row in csv.DictReader((folder / f"comparison_{sweep}.csv").open()):
        if row["metric"].startswith("val-core/"):
            spread = f" ± {100 * float(row['spread']):.1f}" if row["spread"] else ""
            cells.setdefault(row["variant"], {})[row["measure"]] = (f"{100 * float(row['mean']):.1f}{spread}", row["up_to"])
    tokens = next(iter(cells.values()))["equal_tokens"][1]
    print(f"| run | before | after | mean | equal tokens ({float(tokens) / 1e3:.0f}k) | groups | kept | mixed | tokens |")
    print("|" + " --- |" * 9)
    for (variant, measures), name in zip(cells.items(), shorten(list(cells))):
        first, generated, kept, mixed, num_tokens = shares(folder, variant)
        values = [measures[measure][0] for measure in ("last", "area", "equal_tokens")]
        print(f"| `{name}` | {100 * first:.1f} | {' | '.join(values)} | {generated:.0f} | {100 * kept:.0f} % | {100 * mixed:.0f} % | {num_tokens / 1e3:.0f}k |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/tamis")
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("start", help="train warm starts")
    starting.add_argument("games", nargs="+", choices=STARTS)
    drawing = commands.add_parser("chart", help="take a chart out of a comparison")
    drawing.add_argument("folder", type=pathlib.Path, help="results of the sweep")
    drawing.add_argument("sweep", help="name of its file, without .yaml")
    drawing.add_argument("out", type=pathlib.Path)
    drawing.add_argument("--metric", default="validation")
    drawing.add_argument("--over", choices=("steps", "tokens", "seconds"), default="steps")
    tabling = commands.add_parser("table", help="print a comparison as a table")
    tabling.add_argument("folder", type=pathlib.Path, help="results of the sweep")
    tabling.add_argument("sweep", help="name of its file, without .yaml")
    options = parser.parse_args()
    if options.command == "start":
        for game in options.games:
            start(options.program, game)
    elif options.command == "table":
        table(options.folder, options.sweep)
    else:
        page = (options.folder / f"comparison_{options.sweep}.html").read_text()
        options.out.write_text(chart(page, options.metric, options.over))


if __name__ == "__main__":
    main()
