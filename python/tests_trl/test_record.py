"""`record` writes a run folder: the commands read it, and its sums are those of the ledger."""

import json
import os
import resource
import shutil
import subprocess
import unittest
from collections import Counter

import pyarrow.parquet
from toy import Case, Judge, Killed, Killing, data, digit, noise
from transformers import TrainerCallback

from tamis.trl import AttachError
from tamis.trl.record import Record

PROGRAM = os.environ.get("TAMIS_PROGRAM") or shutil.which("tamis")


class RecordTests(Case):
    def recorded(self, name="record", **keywords):
        keywords.setdefault("sieve", {})["record"] = self.folder / name
        return self.sieved(**keywords)

    def rows(self, name="record"):
        files = sorted((self.folder / name / "rollouts").iterdir(), key=lambda file: int(file.stem.split("_")[1]))
        return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]

    def lines(self, name="record"):
        return [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]

    def check_sums(self, trainer, name="record"):
        totals, rows, lines = trainer.sieve.totals, self.rows(name), self.lines(name)
        for place in ("generated", "trained", "dropped", "surplus"):
            self.assertEqual(sum(line[f"groups/{place}"] for line in lines), totals[place]["groups"], place)
        self.assertEqual(len(rows), totals["generated"]["trajectories"])
        self.assertEqual(sum(len(row["token_ids"]) for row in rows), totals["generated"]["tokens"])
        verdicts = Counter(row["verdict"] for row in rows)
        groups: dict = {}
        for row in rows:
            groups.setdefault((row["step"], row["group_id"]), []).append(row["verdict"])
        for line in lines:
            own = [verdicts for (step, _), verdicts in groups.items() if step == line["step"]]
            for name in (name for name in line if name.startswith("train/num_dropped/")):
                self.assertEqual(line[name], own.count([name.rpartition("/")[2]] * 4), name)
            for name in (name for name in line if name.startswith("train/num_left_out/")):
                mixed = [verdict for verdicts in own if "trained" in verdicts for verdict in verdicts]
                self.assertEqual(line[name], mixed.count(name.rpartition("/")[2]), name)
        for kind, place, unit in (("dropped", "dropped", "groups"), ("left_out", "left_out", "trajectories")):
            names = {name for line in lines for name in line if name.startswith(f"train/num_{kind}/")}
            self.assertEqual(sum(line.get(name, 0) for line in lines for name in names), totals[place][unit], kind)
        self.assertEqual(verdicts["trained"], totals["trained"]["trajectories"])
        self.assertEqual(verdicts["surplus"], totals["surplus"]["trajectories"])
        self.assertEqual([line["step"] for line in lines], list(range(1, len(lines) + 1)))
        self.assertEqual(sorted({row["step"] for row in rows}), [line["step"] for line in lines])

    def test_rows(self):
        judge = Judge()

        def told(row, log_extra, **_):
            log_extra("row_of_it", list(row))
            log_extra("verdict", ["ours"] * len(row))
            return [0.0] * len(row)

        trainer = self.fit(self.recorded(rewards=[judge, told], reward_weights=[2.0, 0.0]))
        self.check_sums(trainer)
        rows = self.rows()
        wanted = data()["want"]
        self.assertEqual(
            Counter((row["prompt_id"], row["completion"]) for row in rows),
            Counter(judge.asked),
        )
        for row in rows:
            right = float(wanted[row["prompt_id"]] in row["completion"])
            self.assertEqual(row["prompt"], f"q{row['prompt_id']:03}:")
            self.assertEqual(
                (row["digit"], row["told"], row["reward"], row["metric_value"]), (right, 0, 2 * right, 2 * right)
            )
            self.assertEqual((row["row_of_it"], row["extra_verdict"]), (str(row["prompt_id"]), "ours"))
            self.assertEqual(row["metric"], "reward")
            self.assertEqual(row["finish_reason"], "stop" if row["token_ids"][-1] in (0, 1) else "length")
            self.assertTrue(all(row["loss_mask"]))
            self.assertEqual(row["advantage"] is not None, row["verdict"] == "trained")
            if row["verdict"] == "trained":
                self.assertEqual(row["advantage"] > 0, right == 1)
            else:
                self.assertIn(row["verdict"], ("all_wrong", "all_correct", "uniform", "surplus"))
        groups = Counter(row["group_id"] for row in rows)
        self.assertEqual(set(groups.values()), {4})
        lines = self.lines()
        logged = [line for line in trainer.state.log_history if "loss" in line]
        for ours, theirs in zip(lines, logged, strict=True):
            for name in ("loss", "grad_norm", "reward", "groups/generated", "learning_rate"):
                self.assertEqual(ours[name], theirs[name], name)
            own = [row["reward"] for row in rows if row["step"] == ours["step"]]
            self.assertAlmostEqual(ours["all/reward/mean"], sum(own) / len(own))
            self.assertAlmostEqual(ours["all/pass_rate"], sum(map(bool, own)) / len(own))

    def test_infinite_rewards(self):
        def endless(completions, want, **_):
            return [float("inf"), *digit(completions, want)[1:]]

        # One step: TRL 1.0 trains on such a reward, and then generates with weights that are not finite.
        self.fit(self.recorded(rewards=endless, max_steps=1))
        text = (self.folder / "record" / "metrics.jsonl").read_text()
        self.assertEqual(len(text.splitlines()), 1)
        for name in ("Infinity", "NaN"):
            self.assertNotIn(name, text)

    def test_two_runs_of_a_trainer(self):
        trainer = self.recorded(max_steps=2)
        self.fit(trainer)
        self.fit(trainer)
        lines = self.lines()
        self.assertEqual([line["step"] for line in lines], [1, 2, 3, 4])
        for name in ("train_loss", "train_runtime"):
            self.assertNotIn(name, lines[2])
        self.assertEqual(lines[2]["loss"], trainer.state.log_history[0]["loss"])

    def test_functions_of_one_name(self):
        def zero(completions, **_):
            return [0.0] * len(completions)

        zero.__name__ = "digit"
        self.fit(self.recorded(rewards=[zero, digit, zero], max_steps=1))
        for row in self.rows():
            self.assertEqual((row["digit"], row["digit_2"], row["digit_3"]), (0, row["reward"], 0))

    def test_several_steps_of_a_batch(self):
        for name, iterations, per_generation in (("steps", 1, 4), ("iterations", 2, 2)):
            with self.subTest(name):
                trainer = self.fit(
                    self.recorded(name, num_iterations=iterations, steps_per_generation=per_generation, max_steps=6)
                )
                self.assertEqual(len(self.lines(name)), 3)
                self.check_sums(trainer, name)
                losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
                for place, line in enumerate(self.lines(name)):
                    self.assertAlmostEqual(line["loss"], sum(losses[2 * place : 2 * place + 2]) / 2)

    def test_members_that_bear_no_loss(self):
        self.needs("1.6.0", "members that are left out, for it takes their reward for 0")

        def some(completions, want, **_):
            return [
                None if len(text) < 7 else float(digit in text) for digit, text in zip(want, completions, strict=True)
            ]

        trainer = self.fit(self.recorded("unscored", rewards=some))
        self.check_sums(trainer, "unscored")
        left_out = [row for row in self.rows("unscored") if row["verdict"] == "unscored" and len(row["completion"]) < 7]
        self.assertGreaterEqual(len(left_out), trainer.sieve.totals["left_out"]["trajectories"])
        self.assertEqual({row["reward"] for row in left_out} | {row["metric_value"] for row in left_out}, {None})
        trainer = self.fit(self.recorded("within", filter={"kind": "within_group", "k": 2}, rewards=noise))
        self.check_sums(trainer, "within")
        self.assertEqual(sum(row["verdict"] == "unchosen" for row in self.rows("within")), 24)

    def test_without_a_filter(self):
        trainer = self.fit(self.recorded(filter=None))
        self.check_sums(trainer)
        self.assertEqual({row["verdict"] for row in self.rows()}, {"trained"})

    def test_resume_leaves_no_step_twice(self):
        for name, settings in {
            "between": {"steps_per_generation": 2, "save_steps": 2},
            "inside": {"steps_per_generation": 4, "save_steps": 3},
            "seldom logged": {"steps_per_generation": 2, "save_steps": 2, "logging_steps": 3},
        }.items():
            with self.subTest(name):
                keywords = {"save_strategy": "steps", "max_steps": 8, **settings}
                whole = self.fit(self.recorded(f"{name} whole", out=f"{name} whole", **keywords))
                self.check_sums(whole, f"{name} whole")
                killed = self.recorded(name, out=name, **keywords)
                killed.add_callback(Killing(5))
                with self.assertRaises(Killed):
                    self.fit(killed)
                # The end of the run cut a line short.
                with (self.folder / name / "metrics.jsonl").open("a") as file:
                    file.write('{"step": 9, "lo')
                second = self.recorded(name, out=name, **keywords)
                self.fit(second, resume_from_checkpoint=True)
                self.check_sums(second, name)
                self.assertEqual(self.rows(name), self.rows(f"{name} whole"))
                for one, other in zip(self.lines(name), self.lines(f"{name} whole"), strict=True):
                    # Figures that TRL has not logged at a checkpoint are lost.
                    own = (
                        "groups/",
                        "all/",
                        "tokens/",
                        "train/",
                        *(() if name == "seldom logged" else ("loss", "grad_norm")),
                    )
                    self.assertEqual(*[{k: v for k, v in line.items() if k.startswith(own)} for line in (one, other)])

    def test_used_folder(self):
        self.fit(self.recorded())
        before = (self.folder / "record" / "metrics.jsonl").read_text()
        with self.assertRaisesRegex(AttachError, "has a run already, and this one starts anew"):
            self.fit(self.recorded())
        self.assertEqual((self.folder / "record" / "metrics.jsonl").read_text(), before)

    def test_folders_of_others(self):
        """A folder's content stays, unless it is this run's own."""
        settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
        self.fit(self.recorded("a", out="a", **settings))
        self.fit(self.recorded("b", out="b", seed=7, **settings))
        (self.folder / "rollouts of others" / "rollouts").mkdir(parents=True)
        (self.folder / "rollouts of others" / "rollouts" / "step_3.parquet").write_text("precious")
        (self.folder / "settings of others").mkdir()
        (self.folder / "settings of others" / "config.yaml").write_text("precious")
        for folder in ("b", "rollouts of others", "settings of others"):
            for resumes in (False, True):
                with self.subTest(folder, resumes=resumes):
                    files = [file for file in sorted((self.folder / folder).rglob("*")) if file.is_file()]
                    before = {file: file.read_bytes() for file in files}
                    trainer = self.recorded(folder, out="a" if resumes else "fresh", **settings)
                    why = "another run than the checkpoint's" if resumes else "a run already"
                    with self.assertRaisesRegex(AttachError, f"`record`: .*{folder} has {why}"):
                        self.fit(trainer, resume_from_checkpoint=resumes)
                    files = [file for file in sorted((self.folder / folder).rglob("*")) if file.is_file()]
                    self.assertEqual({file: file.read_bytes() for file in files}, before)

    def test_a_record_that_starts_with_a_resume(self):
        settings = {"save_strategy": "steps", "save_steps": 2}
        self.fit(self.sieved(max_steps=2, **settings))
        for steps in (4, 6):
            self.fit(self.recorded(max_steps=steps, **settings), resume_from_checkpoint=True)
            self.assertEqual([line["step"] for line in self.lines()], list(range(3, steps + 1)))

    def test_folders_that_cannot_be_continued(self):
        settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
        self.fit(self.recorded("a", **settings))
        file = self.folder / "a" / "metrics.jsonl"
        for text in ("{damaged\n", "[]\n", "{}\n"):
            with self.subTest(text), self.assertRaisesRegex(AttachError, "`record`: .*a cannot be continued: "):
                file.write_text(text)
                self.fit(self.recorded("a", **settings), resume_from_checkpoint=True)
            self.assertEqual(file.read_text(), text)
        with self.assertRaisesRegex(AttachError, "`record`: .*metrics.jsonl/b cannot be continued: "):
            self.fit(self.recorded("a/metrics.jsonl/b", out="fresh"))

    def test_errors_of_writing(self):
        """A batch that is not written is not trained on, and comes again."""
        whole, judge = Judge(), Judge()
        self.fit(self.recorded("whole", out="whole", rewards=whole, max_steps=4))
        trainer = self.recorded(rewards=judge, max_steps=4, save_strategy="steps", save_steps=1)
        blocked = self.folder / "record" / "rollouts" / "step_3.part"

        class Blocking(TrainerCallback):
            def on_step_begin(self, args, state, control, **_):
                if state.global_step == 2:
                    blocked.mkdir()

        trainer.add_callback(Blocking())
        with self.assertRaisesRegex(OSError, "`record`: step 3 cannot be written"):
            self.fit(trainer)
        self.assertEqual(trainer.sieve.totals["trained"]["groups"], 8)
        self.assertEqual([line["step"] for line in self.lines()], [1, 2])
        trainer.callback_handler.callbacks.pop()
        blocked.rmdir()
        place = trainer.sieve.state()["place"]
        judge.asked = judge.asked[: 4 * place]
        self.fit(trainer, resume_from_checkpoint=True)
        self.assertEqual(judge.asked, whole.asked)
        self.check_sums(trainer)

    def test_half_a_line(self):
        """A disk that was full leaves no half of a line before the next."""
        record = Record(self.folder)
        for step in (1, 2):
            record._due = {"step": step, "groups/generated": 7}
            if step == 2:
                file = self.folder / "metrics.jsonl"
                limits = resource.getrlimit(resource.RLIMIT_FSIZE)
                try:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 10, limits[1]))
                    with self.assertRaises(OSError):
                        record.flush()
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            record.flush()
        self.assertEqual([line["step"] for line in self.lines("")], [1, 2])

    def test_errors_of_the_log_and_the_figures(self):
        """They end a run at the next step, not in the middle of one, because other processes wait there."""
        for name, steps in (("metrics.jsonl", 2), ("metrics.jsonl", 1), ("run.log", 2)):
            with self.subTest(name, steps=steps):
                record = f"{name} {steps}"
                trainer = self.recorded(record, max_steps=steps)
                file = self.folder / record / name

                class Blocking(TrainerCallback):
                    def on_step_begin(self, args, state, control, file=file, **_):
                        if state.global_step == 0:
                            file.mkdir(parents=True)

                trainer.add_callback(Blocking())
                if name == "run.log":
                    with self.assertLogs("tamis.trl", "WARNING") as logged:
                        self.fit(trainer)
                    self.assertIn("run.log", logged.output[0])
                    continue
                with self.assertRaisesRegex(OSError, "`record`: .*metrics.jsonl"):
                    self.fit(trainer)
                self.assertEqual(trainer.sieve.totals["trained"]["groups"], 4)

    def test_empty_folder_and_missing_parents(self):
        (self.folder / "a").mkdir()
        self.fit(self.recorded("a", max_steps=1))
        self.fit(self.recorded("b/c", max_steps=1))
        self.assertEqual(len(self.lines("b/c")), 1)


@unittest.skipUnless(PROGRAM, "there is no program `tamis`: TAMIS_PROGRAM names it")
class CommandTests(Case):
    def run_program(self, *arguments):
        done = subprocess.run(
            [PROGRAM, *map(str, arguments)],
            cwd=self.folder,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "120"},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_commands(self):
        for chat in (False, True):
            with self.subTest(chat=chat):
                name = f"run {chat}"
                trainer = self.fit(self.sieved(sieve={"record": self.folder / name}, rows=data(chat=chat), max_steps=4))
                totals = {place: counts["groups"] for place, counts in trainer.sieve.totals.items()}
                monitor = self.run_program("monitor", name, "--once")
                line = next(line for line in monitor.splitlines() if line.startswith("groups"))
                for place in ("generated", "dropped", "trained"):
                    self.assertIn(f"{totals[place]} {place}", line)
                rollouts = self.run_program("rollouts", name, "--step", 2, "--limit", 1000, "--json")
                told = json.loads(rollouts)
                self.assertEqual(len(told["rows"]), told["num_trajectories"])
                self.assertEqual(told["verdicts"]["trained"], 16)
                for trajectory in told["rows"]:
                    self.assertIn(f"q{trajectory['prompt_id']:03}:", trajectory["prompt"])
                    self.assertTrue(trajectory["completion"] or trajectory["token_ids"][0] < 3, trajectory)
                self.run_program("report", name, "--out", "report.html")
                _, _, chart = (self.folder / "report.html").read_text().partition("Groups kept and dropped")
                self.assertIn("all wrong", chart[: chart.index("Every group that ended in the step")])
                judged = self.run_program(
                    "filter", *sorted((self.folder / name / "rollouts").iterdir()), "--metric", "reward"
                )
                self.assertIn(str(totals["generated"]), judged)
                advice = self.run_program("advise", name)
                self.assertIn(f"{totals['generated']} groups of 4", advice.splitlines()[0])
                kept = 100 * (1 - totals["dropped"] / totals["generated"])
                self.assertRegex(advice, rf"\n +\* +4 +{kept:.1f}%")


if __name__ == "__main__":
    unittest.main()
