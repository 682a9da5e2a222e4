#!/usr/bin/env python3
"""Runs tamis and its peers in turn on 2 threads of this machine and prints how many times as fast tamis is.

    bench/install_peers.sh                once; without it the peers are skipped and tamis's own figures printed
    python3 bench/run.py                  everything but smollm2 (about 10 minutes and the build, on 2 quiet cores)
    python3 bench/run.py --only filter    one part of: engine, step, filter, loss, advantage, smollm2
    python3 bench/run.py --rounds 5 --json ratios.json
    python3 bench/run.py --only engine --avx2      both sides without AVX-512, on a processor that has it

Needs python3 and cargo; beside this folder only the standard library is imported here.

How a ratio comes about. Each peer case has several forms (see `peers/torch_engine.py`) and two settings of the C allocator: glibc's defaults, and
keeping freed memory (`keep-memory`: what PyTorch's tuning guide gets from tcmalloc or jemalloc). A first pass, one repetition each, tries every form, and
the quickest two of each case with the other allocator. The quickest of all, and the next if it is within 10 %, take part in the rounds. In every round
tamis's program runs, then the peer's (A B A B), on the same two cores. A program reports the median of its own repetitions; a ratio is taken within its
round, against the form that is the quickest over the rounds, and the table shows the median ratio of the rounds with its range and names that form.
`--as-users-run-it` adds the rows against transformers and TRL as they come.

The share of peak is the part of the machine's measured single-precision matrix-product speed (2 threads) that the case's products reach in tamis,
prompt and attention counted. `engine_speed` measures and prints both; PyTorch's own peak is printed beside it.

tamis's side, all built with `cargo --release`:

| part | program | lines read from its standard output |
|---|---|---|
| engine | example `engine_speed` of tamis-model | {"what": "train", "model": "small", "tokens_per_s": ..., "peak_share": ...}; also "generate_separate", "generate_grouped"; {"what": "matmul_peak", "gflops": ...} |
| step | `tamis train configs/bench_step.yaml run.dir=DIR` | `timing_s/step` of each line of DIR/**/metrics.jsonl, the first two left out |
| filter | example `filter_speed` of tamis-bench | {"what": "filter", "form": "tamis", "seconds": ...} |
| loss | example `loss_speed` of tamis-bench, 1 thread (PyTorch: 2) | {"what": "policy_loss", "loss": "clip", "tokens_per_second": ..., "share": of a plain pass over the same arrays, "scratch_share": ...} |
| advantage | example `advantage_speed` of tamis-bench, 1 thread (as NumPy's elementwise operations) | {"what": "advantage" or "statistics", "trajectories": ..., "seconds": ...} |
| smollm2 | bench/smollm2.py on 1 thread, if `scripts/smollm2` has run; a round takes about a quarter of an hour, so it is measured only if it is named | |

Both sides must do the same work. The engine's lines may report their work, and PyTorch is then given the same: training `sequences` of `length`
(or of `shortest` to `longest`) tokens; generation `prompts`, `samples`, `prompt_length`, `new_tokens`; the model `hidden`, `layers`, `heads`,
`kv_heads`, `intermediate`, `vocab`. What they leave out is as in `peers/torch_engine.py`. If the `parameters` or the `tokens` of the two sides
differ, the run prints a message. A part whose program or configuration is not there is skipped with a message.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import smollm2

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv-bench" / "bin" / "python"
PEERS = ROOT / "bench" / "peers"
STEP_CONFIG = ROOT / "configs" / "bench_step.yaml"
THREADS = 2

# glibc then neither maps nor returns memory for each tensor, which saves the page faults.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_TOP_PAD_": "67108864"}

# PyTorch and the libraries that it multiplies with then do without AVX-512.
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}

# (what, model): (title, aim as a ratio)
CASES = {
    ("train", "small"): ("training, small", 1.6),
    ("train", "mid"): ("training, mid", 1.15),
    ("generate_separate", "small"): ("generation, small, 256 prompts", 2.2),
    ("generate_grouped", "small"): ("generation, small, groups of 16", 3.3),
    ("generate_separate", "mid"): ("generation, mid, 64 prompts", 1.3),
    ("generate_grouped", "mid"): ("generation, mid, groups of 16", 2.2),
    ("grpo_step", "small"): ("whole GRPO step against TRL", 3.5),
    ("grpo_step", "smollm2"): ("GRPO step of SmolLM2-135M against TRL, 1 thread", 5.0),
    ("grpo_step", "smollm2 dapo"): ("the same, 16 groups, DAPO's bounds", 5.0),
    ("grpo_step", "smollm2 differ"): ("the same, rewards by which groups seldom score alike", 5.0),
    ("filter", None): ("filter, 65,536 trajectories", 1000.0),
    ("policy_loss", "verl"): ("policy loss with gradient, against verl's", 50.0),
    ("policy_loss", "trl"): ("policy loss with gradient, against TRL's", None),
    ("advantage", "verl"): ("advantages, 1,048,576, against verl's loops", 1000.0),
    ("advantage", "numpy"): ("advantages, 1,048,576, against NumPy", 5.0),
    ("statistics", "numpy"): ("filter and statistics, 1,048,576, against NumPy", 5.0),
    ("advantage", "numpy, 10 M"): ("advantages, 10,485,760, against NumPy", 5.0),
    ("statistics", "numpy, 10 M"): ("filter and statistics, 10,485,760, against NumPy", 5.0),
}

# Names that the same measurement may go by.
ALIASES = {"generate_groups": "generate_grouped", "peak": "matmul_peak"}

# Fields of our lines and what peers/torch_engine.py calls them.
SHAPE = {name: name for name in ("hidden", "layers", "heads", "kv_heads", "intermediate", "vocab")}
TRAIN = {name: name for name in ("sequences", "shortest", "longest")}
GENERATE = {"prompts": "prompts", "samples": "samples", "prompt_length": "prompt", "new_tokens": "new"}


class Unavailable(Exception):
    """A program cannot be run here; the text names it and the fix."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def two_cores():
    """Keeps the programs on two cores, so that a larger machine does not change what is compared."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])


def environment(extra=None):
    threads = str(THREADS)
    names = ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return os.environ | {name: threads for name in names} | (extra or {})


def json_lines(command, extra=None):
    """The JSON objects that a program prints, one a line; other lines are passed over."""
    result = subprocess.run(
        command, cwd=ROOT, env=environment(extra), preexec_fn=two_cores, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if result.returncode != 0:
        raise Unavailable(f"`{' '.join(map(str, command))}` ended with {result.returncode}:\n{result.stderr.strip()[-1500:]}")
    lines = []
    for line in result.stdout.splitlines():
        if line.startswith("{"):
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:
                say(f"  not JSON, passed over: {line[:120]}")
    return lines


def build(*arguments):
    """Builds with cargo on all cores, before anything is timed."""
    say(f"building: cargo build --release {' '.join(arguments)}")
    result = subprocess.run(["cargo", "build", "--release", *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise Unavailable(f"`cargo build --release {' '.join(arguments)}` fails:\n{result.stderr.strip()[-1500:]}")


def target_folder():
    output = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--no-deps"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    return pathlib.Path(json.loads(output)["target_directory"]) / "release"


def require_peers():
    if not PYTHON.exists():
        raise Unavailable("the peers are not installed: run bench/install_peers.sh (about 1.9 GB from PyPI)")


def speed(line):
    """Higher is better, for every kind of line."""
    if "tokens_per_s" in line:
        return line["tokens_per_s"]
    return line["gflops"] if "gflops" in line else 1.0 / line["seconds"]


def workload(lines):
    """The work that our lines report, as peers/torch_engine.py takes it."""

    def renamed(line, names):
        return {to: line[name] for name, to in names.items() if name in line}

    models, train, generate = {}, {}, {}
    for line in lines:
        model = line.get("model")
        models.setdefault(model, {}).update(renamed(line, SHAPE))
        if line["what"] == "train":
            train[model] = renamed(line, TRAIN)
            if "length" in line:
                train[model] |= {"shortest": line["length"], "longest": line["length"]}
        elif line["what"].startswith("generate"):
            generate.setdefault(line["what"], {})[model] = renamed(line, GENERATE)
    models = {model: shape for model, shape in models.items() if shape}
    return {"MODELS": models, "TRAIN": train, "GENERATE": generate}


def key(line):
    return line["what"], line.get("model")


class Part:
    """One comparison: a program of ours and one of theirs. `ours` and `theirs` return JSON lines."""

    name = ""

    def prepare(self):
        """Builds our side."""

    def ours(self):
        raise NotImplementedError

    def theirs(self, forms):
        """`forms`: None for a first pass over all, else {(what, model): [(form, allocator)]} to measure only those."""
        raise NotImplementedError

    def remarks(self):
        """Lines to print beside the table."""
        return []


class Engine(Part):
    name = "engine"

    def __init__(self, models, repetitions, limit, avx2):
        self.models, self.repetitions, self.limit, self.avx2, self.work = models, repetitions, limit, avx2, {}

    def prepare(self):
        build("-p", "tamis-model", "--example", "engine_speed")
        self.program = target_folder() / "examples" / "engine_speed"

    def ours(self):
        command = [self.program, *([str(THREADS), "3", "", "avx2"] if self.avx2 else [])]
        lines = [line | {"what": ALIASES.get(line["what"], line["what"])} for line in json_lines(command)]
        self.work = workload(lines)
        return lines

    def run(self, allocator, *more):
        extra = (KEEP_MEMORY if allocator == "keep-memory" else {}) | (AVX2 if self.avx2 else {})
        command = [
            PYTHON, PEERS / "torch_engine.py", "--threads", str(THREADS), "--models", self.models,
            "--workload", json.dumps(self.work), *more,
        ]  # fmt: skip
        return [line | {"allocator": allocator} for line in json_lines(command, extra)]

    def theirs(self, forms):
        if forms is None:
            once = ("--repetitions", "1", "--limit", "0")
            lines = self.run("glibc", *once)
            cases = {case: {} for case in map(key, lines) if case in CASES}
            for line in lines:
                if key(line) in cases:
                    cases[key(line)][line["form"]] = speed(line)
            best = {case: sorted(speeds, key=speeds.get)[-2:] for case, speeds in cases.items()}
            wanted = [f"{what}:{model}:{form}" for (what, model), names in best.items() for form in names]
            return lines + self.run("keep-memory", *once, "--what", "train,generate", "--only", ",".join(wanted))
        lines = []
        for allocator in ("glibc", "keep-memory"):
            wanted = [f"{what}:{model}:{form}" for (what, model), some in forms.items() for form, a in some if a == allocator]
            if wanted:
                measured = ("--repetitions", str(self.repetitions), "--limit", str(self.limit))
                lines += self.run(allocator, *measured, "--what", "train,generate", "--only", ",".join(wanted))
        return lines


class Step(Part):
    name = "step"

    def __init__(self, steps, limit):
        self.steps, self.limit = steps, limit

    def prepare(self):
        if not STEP_CONFIG.exists():
            raise Unavailable("configs/bench_step.yaml is not there: our side of the GRPO step cannot be run")
        build()
        self.program = target_folder() / "tamis"

    def ours(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="tamis-bench-"))
        try:
            run = folder / "run"
            command = [self.program, "train", STEP_CONFIG, f"run.dir={run}"]
            result = subprocess.run(
                command, cwd=ROOT, env=environment(), preexec_fn=two_cores, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            if result.returncode != 0:
                raise Unavailable(f"`tamis train configs/bench_step.yaml` ended with {result.returncode}:\n{result.stderr.strip()[-1500:]}")
            seconds = []
            for file in sorted(folder.rglob("metrics.jsonl")):
                for line in file.read_text().splitlines():
                    value = json.loads(line).get("timing_s/step")
                    if value is not None:
                        seconds.append(value)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        # The first steps warm the caches up, as in peers/trl_step.py.
        seconds = seconds[2:] if len(seconds) > 4 else seconds
        if not seconds:
            raise Unavailable("no `timing_s/step` in the run's metrics.jsonl")
        return [{"what": "grpo_step", "model": "small", "form": "tamis", "seconds": statistics.median(seconds)}]

    def theirs(self, forms):
        lines = []
        for allocator, extra in (("glibc", {}), ("keep-memory", KEEP_MEMORY)):
            if forms is not None and allocator not in [a for _, a in forms[("grpo_step", "small")]]:
                continue
            steps, limit = (1, 0) if forms is None else (self.steps, self.limit)
            command = [PYTHON, PEERS / "trl_step.py", "--threads", str(THREADS), "--steps", str(steps), "--limit", str(limit)]
            lines += [line | {"allocator": allocator} for line in json_lines(command, extra)]
        return lines


class Filter(Part):
    name = "filter"

    def prepare(self):
        build("-p", "tamis-bench", "--example", "filter_speed")
        self.program = target_folder() / "examples" / "filter_speed"

    def ours(self):
        return [line | {"model": None} for line in json_lines([self.program])]

    def theirs(self, forms):
        return [
            line | {"allocator": "glibc", "model": None} for line in json_lines([PYTHON, PEERS / "filter_verl.py"])
        ]


class Loss(Part):
    name = "loss"
    # About 1, 10 and 100 million tokens.
    SIZES = (1024, 10240, 102400)

    def __init__(self):
        self.clip, self.scaling = [], []

    def prepare(self):
        build("-p", "tamis-bench", "--example", "loss_speed")
        self.program = target_folder() / "examples" / "loss_speed"

    def measured(self, sizes):
        return json_lines([self.program, ",".join(map(str, sizes)), "clip"])

    def ours(self):
        (line,) = self.measured([2048])
        self.clip.append(line)
        if not self.scaling:
            self.scaling = self.measured(self.SIZES)
        line = {"what": "policy_loss", "tokens_per_s": line["tokens_per_second"]}
        return [line | {"model": form} for form in ("verl", "trl")]

    def remarks(self):
        if not self.clip:
            return
        for line in [*self.clip, *self.scaling]:
            scratch = line["scratch_share"]
            beyond = "memory not measured here" if scratch is None else f"{100 * scratch:.1f} % memory beyond columns and derivatives"
            yield (
                f"policy loss, {line['tokens'] / 1e6:.2f} M tokens, 1 thread: {line['nanoseconds_per_token']:.2f} ns a token,"
                f" {line['share_of_least']:.2f} of a plain pass, {beyond}"
            )

    def theirs(self, forms):
        lines = json_lines([PYTHON, PEERS / "loss_torch.py", "--threads", str(THREADS)])
        # The cost of padded tokens is no useful work.
        return [
            {"what": line["what"], "model": line["form"], "form": line["form"], "allocator": "glibc", "tokens_per_s": line["tokens"] / line["seconds"]}
            for line in lines
        ]  # fmt: skip


class Advantage(Part):
    name = "advantage"

    def prepare(self):
        build("-p", "tamis-bench", "--example", "advantage_speed")
        self.program = target_folder() / "examples" / "advantage_speed"

    @staticmethod
    def case(line, form):
        return f"{form}, 10 M" if line["trajectories"] > 2_000_000 else form

    def ours(self):
        lines = json_lines([self.program])
        return [line | {"model": self.case(line, form)} for line in lines for form in ("numpy", "verl")]

    def theirs(self, forms):
        lines = json_lines([PYTHON, PEERS / "advantage_peers.py", "--threads", str(THREADS)])
        return [line | {"model": self.case(line, line["form"]), "allocator": "glibc"} for line in lines]


class SmolLM2(Part):
    name = "smollm2"
    FORMS = {"smollm2": [], "smollm2 dapo": ["--dapo"], "smollm2 differ": ["--differ"]}

    def __init__(self, steps):
        self.steps, self.first = ["--steps", str(steps)], None

    def prepare(self):
        build()

    def measured(self, side, form):
        lines = []
        for model, words in self.FORMS.items():
            given = smollm2.arguments([*self.steps, *words])
            try:
                smollm2.check(given)
                row = side(given)
            except SystemExit as reason:
                raise Unavailable(str(reason)) from reason
            lines.append({"what": "grpo_step", "model": model, "form": form, "allocator": "glibc", "seconds": row["wall"]})
        return lines

    def ours(self):
        return self.measured(smollm2.ours, "tamis")

    def theirs(self, forms):
        # There is one form: the first pass over all is the first round.
        if forms is None:
            self.first = self.measured(smollm2.theirs, "trl")
            return self.first
        lines, self.first = self.first, None
        return lines or self.measured(smollm2.theirs, "trl")


def quickest_forms(lines, margin=0.9):
    """{(what, model): [(form, allocator)]}: the quickest, and the next if it is near; the filter is compared with verl's own logic."""
    cases = {}
    for line in lines:
        if key(line) in CASES and (line["what"] != "filter" or line["form"] == "verl"):
            cases.setdefault(key(line), []).append(line)
    quickest = {}
    for case, some in cases.items():
        some = sorted(some, key=speed, reverse=True)[:2]
        quickest[case] = [(line["form"], line["allocator"]) for line in some if speed(line) >= margin * speed(some[0])]
    return quickest


def winners(measured, forms):
    """{(what, model): (form, allocator)}: of the forms measured in the rounds the one with the best median."""
    best = {}
    for case, some in forms.items():
        medians = {}
        for form in some:
            speeds = [
                speed(line)
                for _, lines in measured
                for line in lines
                if key(line) == case and (line["form"], line["allocator"]) == form
            ]
            if speeds:
                medians[form] = statistics.median(speeds)
        if medians:
            best[case] = max(medians, key=medians.get)
    return best


def as_users_run_it(lines):
    """{(what, model): (form, allocator)}: the quickest library form with the allocator as it comes."""
    return {
        key(line): (line["form"], line["allocator"])
        for line in sorted(lines, key=speed)
        if key(line) in CASES and line["allocator"] == "glibc" and line["form"].split("/")[0] in ("transformers", "trl")
    }


def peaks(lines):
    return [line["gflops"] for line in lines if line["what"] == "matmul_peak"]


def measure(part, rounds, users):
    """[(our lines, their lines)] of each round, either empty if that side cannot be run; and the lines of the first pass."""
    sides = {"ours": True, "theirs": True}

    def run(side, program, what):
        if sides[side]:
            say(f"{part.name}: {what}, {'tamis' if side == 'ours' else 'peer'}")
            try:
                return program()
            except Unavailable as reason:
                say(f"{part.name}: skipping {side}: {reason}")
                sides[side] = False
        return []

    run("ours", lambda: part.prepare() or [], "preparing")
    run("theirs", lambda: require_peers() or [], "preparing")
    measured, forms, known = [], {}, []
    for number in range(1, rounds + 1):
        ours = run("ours", part.ours, f"round {number} of {rounds}")
        if number == 1:
            # Here, since our lines report the work that the peer is given.
            known = run("theirs", lambda: part.theirs(None), "first pass over all forms")
            forms = quickest_forms(known)
            for case, form in (as_users_run_it(known) if users else {}).items():
                if form not in forms[case]:
                    forms[case].append(form)
        measured.append((ours, run("theirs", lambda: part.theirs(forms), f"round {number} of {rounds}")))
    return measured, forms, known


def rows_of(measured, forms, known, users):
    """One row per case: medians of both sides, and the ratio within each round."""
    rows = []
    for case, (title, aim) in CASES.items():
        ours = [next((line for line in lines if key(line) == case), None) for lines, _ in measured]
        if not any(ours) and case not in forms:
            continue
        compared = [(forms.get(case), aim)]
        if users and case in users and users[case] != forms.get(case):
            compared.append((users[case], None))
        for form, aim_here in compared:
            theirs = [
                next((line for line in lines if key(line) == case and (line["form"], line["allocator"]) == form), None)
                for _, lines in measured
            ]
            pairs = [(a, b) for a, b in zip(ours, theirs) if a and b]
            ratios = sorted(speed(a) / speed(b) for a, b in pairs)
            shares = [a["peak_share"] for a in ours if a and "peak_share" in a]
            different = [
                f"{field} {a[field]} and {b[field]}"
                for a, b in pairs
                for field in ("tokens", "parameters")
                if field in a and field in b and a[field] != b[field]
            ]
            either = [line for line in ours + theirs if line]
            row = {
                "case": title,
                "aim": aim_here,
                "ours": statistics.median(speed(a) for a in ours if a) if any(ours) else None,
                "theirs": statistics.median(speed(b) for b in theirs if b) if any(theirs) else None,
                "unit": "tokens/s" if "tokens_per_s" in either[0] else "s",
                "form": " ".join(form) if form else None,
                "ratio": statistics.median(ratios) if ratios else None,
                "ratio_range": [ratios[0], ratios[-1]] if ratios else None,
                "disturbed": sum(b.get("disturbed", 0) for b in theirs if b),
                "different_work": sorted(set(different)),
                "share_of_peak": statistics.median(shares) if shares else None,
            }
            rows.append(row)
    if any(line["what"] == "filter" for line in known):
        for form in ("set", "numpy"):
            line = next(line for line in known if line.get("form") == form)
            own = next((row["ours"] for row in rows if row["case"] == CASES[("filter", None)][0]), None)
            if own:
                rows.append(
                    {"case": f"filter, written with {form}", "aim": None, "ours": own, "theirs": speed(line), "unit": "s",
                     "form": form, "ratio": own / speed(line), "ratio_range": None, "disturbed": 0, "different_work": [],
                     "share_of_peak": None}
                )  # fmt: skip
    return rows


def number(value, unit):
    if value is None:
        return "-"
    if unit == "s":
        seconds = 1.0 / value
        return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
    return f"{value:,.0f} tok/s"


def table(rows):
    heading = ("case", "tamis", "peer", "ratio", "range", "aim", "share of peak", "peer's form")
    lines = [heading]
    for row in rows:
        reached = "" if row["aim"] is None or row["ratio"] is None else (" yes" if row["ratio"] >= row["aim"] else " NO")
        lines.append(
            (
                row["case"],
                number(row["ours"], row["unit"]),
                number(row["theirs"], row["unit"]),
                "-" if row["ratio"] is None else f"{row['ratio']:.2f}" if row["ratio"] < 100 else f"{row['ratio']:,.0f}",
                "-" if row["ratio_range"] is None else "{:.4g} to {:.4g}".format(*row["ratio_range"]),
                "-" if row["aim"] is None else f">= {row['aim']:g}{reached}",
                "-" if row["share_of_peak"] is None else f"{100 * row['share_of_peak']:.0f} %",
                row["form"] or "-",
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(heading))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", help="parts, separated by commas: engine, step, filter, loss, advantage, smollm2")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--models", default="small,mid", help="models of the engine's part")
    parser.add_argument("--avx2", action="store_true", help="the engine's part without AVX-512 on both sides, on a processor that has it")
    parser.add_argument("--repetitions", type=int, default=3, help="repetitions of a peer's case within a round")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds to wait for undisturbed repetitions of a peer's case")
    parser.add_argument("--as-users-run-it", action="store_true", help="add rows against transformers and TRL as they come")
    parser.add_argument("--json", help="also write rows and raw lines to this file")
    arguments = parser.parse_args()
    parts = [Engine(arguments.models, arguments.repetitions, arguments.limit, arguments.avx2), Step(2 + arguments.repetitions, 2 * arguments.limit), Filter()]
    parts += [Loss(), Advantage()]
    at_length = [SmolLM2(1 + arguments.repetitions)]
    if arguments.only:
        parts += at_length
        unknown = set(arguments.only.split(",")) - {part.name for part in parts}
        if unknown:
            parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(part.name for part in parts)}")
        parts = [part for part in parts if part.name in arguments.only.split(",")]

    rows, raw = [], {}
    for part in parts:
        measured, forms, known = measure(part, max(1, arguments.rounds), arguments.as_users_run_it)
        users = as_users_run_it(known) if arguments.as_users_run_it else None
        rows += rows_of(measured, winners(measured, forms), known, users)
        raw[part.name] = {"first_pass": known, "rounds": measured}
        for side, who in ((0, "tamis"), (1, "PyTorch")):
            lines = [line for pair in measured for line in pair[side]] + (known if side == 1 else [])
            peak = max(peaks(lines), default=None)
            if peak:
                print(f"matrix-product peak on {THREADS} threads, {who}: {peak:.0f} GFLOP/s")
        for remark in part.remarks():
            print(remark)
    if not rows:
        say("nothing could be measured")
        return 1
    print(table(rows))
    for row in rows:
        if row["different_work"]:
            print(f"! {row['case']}: the two sides did different work: tamis and the peer have {'; '.join(row['different_work'])}")
        if row["disturbed"]:
            print(f"! {row['case']}: other processes disturbed {row['disturbed']} repetitions of the peer: measure on a quiet machine")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps({"rows": rows, "raw": raw}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
