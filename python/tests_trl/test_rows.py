"""Rows belong together: each answer with its prompt and its row's columns, in rewards, in the loss and in
tables."""

import itertools
import threading
import types
import unittest

import pandas
import torch
import trl
import tamis.trl
from toy import KEEP_ALL, Case, Judge, data, digit, seeing, text_of

SHAPES = [(1, 4, 4), (2, 4, 2), (1, 8, 2), (3, 2, 2)]
"""`num_iterations`, `steps_per_generation`, `gradient_accumulation_steps`"""


class RowTests(Case):
    def test_micro_batches(self):
        wanted = data()["want"]
        for iterations, per_generation, accumulation in SHAPES:
            with self.subTest((iterations, per_generation, accumulation)):
                judge = Judge()
                trainer = self.fit(
                    self.sieved(
                        cls=seeing(),
                        rewards=judge,
                        num_iterations=iterations,
                        steps_per_generation=per_generation,
                        gradient_accumulation_steps=accumulation,
                        max_steps=4,
                    )
                )
                self.assertEqual(len(trainer.seen), 4 * accumulation)
                for row, answer, advantage in itertools.chain(*trainer.seen):
                    # Groups without signal are gone, so each advantage shows whether the answer is right.
                    self.assertEqual(advantage > 0, wanted[row] in answer, (row, answer))
                    self.assertNotEqual(advantage, 0)
                totals = trainer.sieve.totals
                self.assertEqual(len(judge.asked), 4 * totals["generated"]["groups"])
                self.assertGreater(totals["dropped"]["groups"], 0)
                self.assert_adds_up(trainer)
                # In the loss each completion of a batch is seen once per iteration, and was judged.
                batch = list(itertools.chain(*trainer.seen[:per_generation]))
                self.assertEqual(len(batch), 8 * per_generation)
                self.assertLessEqual({(row, answer) for row, answer, _ in batch}, set(judge.asked))
                again = list(itertools.chain(*trainer.seen[per_generation : iterations * per_generation]))
                self.assertEqual(batch * (iterations - 1), again[: len(batch) * (iterations - 1)])

    def test_each_completion_is_judged_once(self):
        for kind in (trl.GRPOTrainer, trl.RLOOTrainer):
            with self.subTest(kind.__name__):
                judge = Judge()
                trainer = self.fit(self.sieved(cls=kind, rewards=judge))
                self.assertEqual(len(judge.asked), trainer.sieve.totals["generated"]["trajectories"])
                self.assertGreater(len(judge.asked), 3 * 16)

    def test_table_of_completions(self):
        def told(completions, row, log_extra, **_):
            log_extra("row_of_it", list(row))
            log_extra("text_of_it", [text_of(completion) for completion in completions])
            return [0.0] * len(row)

        trainer = self.fit(
            self.sieved(
                rewards=[told, digit], reward_weights=[0.0, 1.0], log_completions=True, num_completions_to_print=0
            )
        )
        wanted = data()["want"]
        self.assertGreater(trainer.sieve.totals["dropped"]["groups"], 0)
        for step in (1, 2, 3):
            table = pandas.read_parquet(self.folder / "out" / "completions" / f"completions_{step:05}.parquet")
            self.assertEqual(len(table), 16)
            for line in table.itertuples():
                self.assertEqual(line.prompt, f"q{line.row_of_it:03}:")
                self.assertEqual(line.completion, line.text_of_it)
                self.assertEqual(line.digit, float(wanted[line.row_of_it] in line.completion))
                self.assertEqual(line.advantage > 0, line.digit == 1)

    def test_column_that_is_logged_now_and_then(self):
        calls = itertools.count()

        def told(row, log_extra, **_):
            if next(calls) % 2:
                log_extra("sometimes", [str(own) for own in row])
            return [0.0] * len(row)

        trainer = self.fit(
            self.sieved(
                rewards=[told, digit],
                reward_weights=[0.0, 1.0],
                log_completions=True,
                num_completions_to_print=0,
                max_steps=4,
            )
        )
        seen = set()
        for step in (1, 2, 3, 4):
            table = pandas.read_parquet(self.folder / "out" / "completions" / f"completions_{step:05}.parquet")
            if "sometimes" in table:
                for prompt, own in zip(table["prompt"], table["sometimes"], strict=True):
                    seen.add(own is None or own != own)
                    if isinstance(own, str):
                        self.assertEqual(prompt, f"q{int(own):03}:")
        self.assertEqual(seen, {True, False})
        self.assertGreater(trainer.sieve.totals["dropped"]["groups"], 0)

    def test_metrics_that_rewards_log_are_of_all_that_was_judged(self):
        judged = []

        def counted(completions, log_metric, **_):
            judged.append(len(completions))
            log_metric("mean_of_call", len(judged))
            return [0.0] * len(completions)

        trainer = self.fit(self.sieved(rewards=[counted, digit], reward_weights=[0.0, 1.0], max_steps=1))
        calls = len(judged)
        self.assertGreater(calls, 1)
        self.assertEqual(trainer.state.log_history[0]["mean_of_call"], sum(range(1, calls + 1)) / calls)


class PromptTests(Case):
    def test_once_a_pass(self):
        judge = Judge()
        trainer = self.fit(self.sieved(rewards=judge, rows=data(32), max_steps=8))
        rows = judge.rows
        self.assertGreater(len(rows), 64)
        for start in range(0, len(rows) - 31, 32):
            self.assertEqual(sorted(rows[start : start + 32]), list(range(32)))
        self.assertNotEqual(rows[:32], rows[32:64])
        self.assertEqual(len(rows), trainer.sieve.state()["epoch"] * 32 + trainer.sieve.state()["place"])
        self.assertAlmostEqual(trainer.state.log_history[7]["sieve/epoch"], len(rows) / 32)

    def test_order_of_the_data(self):
        judge = Judge()
        self.fit(self.sieved(rewards=judge, rows=data(18), shuffle_dataset=False, max_steps=4))
        # 18 rows are four batches of four: like TRL, a pass leaves the last two out.
        self.assertEqual(judge.rows, [place % 16 for place in range(len(judge.rows))])
        self.assertGreater(len(judge.rows), 16)

    def test_seed(self):
        def rows(trainers_seed, **sieve):
            judge = Judge()
            self.fit(self.sieved(KEEP_ALL, sieve, rewards=judge, seed=trainers_seed, max_steps=2))
            return judge.rows

        self.assertEqual(rows(1, seed=7), rows(2, seed=7))
        self.assertEqual(rows(7), rows(2, seed=7))
        self.assertNotEqual(rows(1), rows(2))

    def test_large_draws_come_in_batches(self):
        judge = Judge()
        sizes = []

        def size(completions, **_):
            sizes.append(len(completions))
            return [0.0] * len(completions)

        trainer = self.fit(
            self.sieved(
                sieve={"schedule": {"mode": "rounds", "gen_batch_size": 10}},
                rewards=[judge, size],
                reward_weights=[1.0, 0.0],
                max_steps=2,
            )
        )
        self.assertEqual(sizes[:3], [16, 16, 8])
        self.assertEqual(len(judge.rows) % 10, 0)
        self.assertGreater(trainer.sieve.totals["surplus"]["groups"], 0)
        self.assert_adds_up(trainer)


class MetricTests(Case):
    def test_names_and_values(self):
        trainer = self.fit(self.sieved())
        lines = [line for line in trainer.state.log_history if "loss" in line]
        for name, total in (
            ("generated", "generated"),
            ("dropped", "dropped"),
            ("trained", "trained"),
            ("surplus", "surplus"),
        ):
            self.assertEqual(sum(line[f"groups/{name}"] for line in lines), trainer.sieve.totals[total]["groups"], name)
        for line in lines:
            self.assertEqual(line["groups/trained"], 4)
            self.assertEqual(line["frac_reward_zero_std"], 0)
            self.assertGreaterEqual(line["train/num_gen_batches"], 1)
            self.assertTrue(0 < line["all/pass_rate"] < 1)
        self.assertIn("4", trainer.sieve.report["text"])


class NameTests(Case):
    def test_each_is_there_once(self):
        numbered = tamis.trl.rows.numbered
        for names, expected in (
            (["a", "b"], ["a", "b"]),
            (["a", "a", "b", "a"], ["a", "a_2", "b", "a_3"]),
            (["a", "a", "a_2"], ["a", "a_3", "a_2"]),
            (["a_2", "a", "a", "a_2"], ["a_2", "a", "a_3", "a_2_2"]),
            ([], []),
        ):
            self.assertEqual(numbered(names), expected)


class Processes:
    """The messages between so many processes, each on a thread of its own."""

    def __init__(self, number):
        self.said = [None] * number
        self.barrier = threading.Barrier(number, timeout=60)

    def gather(self, rank, tensor):
        self.said[rank] = tensor
        self.barrier.wait()
        gathered = torch.cat(self.said)
        self.barrier.wait()
        return gathered


class Parent:
    """In TRL's place: each completion is a token of its own, and its reward is that token."""

    def __init__(self, sieve, rank, gather):
        self.sieve, self.rank, self.gather = sieve, rank, gather

    def _generate_and_score_completions(self, rows):
        self.sieve._generate([row["prompt"] for row in rows], self.generate)

    def generate(self, prompts):
        ids = [[100 * self.rank + i] for i in range(len(prompts))]
        return [[0]] * len(prompts), ids, [str(token) for [token] in ids]

    def _calculate_rewards(self, rows, prompts, completions, ids):
        return self.gather(torch.tensor(ids, dtype=torch.float32))


class PaddingTests(Case):
    def test_more_processes_than_members(self):
        """Three members on five processes: rows of the last two are not used."""
        number, found, failed = 5, {}, []
        processes = Processes(number)
        sieve_of = self.sieved(num_generations=4).sieve

        def process(rank):
            try:
                accelerator = types.SimpleNamespace(
                    num_processes=number,
                    process_index=rank,
                    device="cpu",
                    gather=lambda tensor: processes.gather(rank, tensor),
                )
                trainer = types.SimpleNamespace(
                    **{name: getattr(sieve_of._trainer, name) for name in ("train_dataset", "processing_class", "args")},
                    accelerator=accelerator,
                    num_generations=3,
                    data_collator=list,
                    reward_func_names=["token"],
                    reward_weights=torch.ones(1),
                    _pending_extra_logs={},
                )
                sieve = type(sieve_of).__new__(type(sieve_of))
                sieve.__dict__ |= {"_trainer": trainer, "_metric": None, "_filter": None, "_is_rolling": False}
                group, members = tamis.trl.sieve.Group(7, 2, 0, 0), {}
                sieve._roll(Parent(sieve, rank, accelerator.gather), [group], members)
                found[rank] = group, members
            except BaseException as error:
                failed.append(error)
                processes.barrier.abort()

        threads = [threading.Thread(target=process, args=(rank,)) for rank in range(number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])
        tokens = {}
        for group, members in found.values():
            self.assertEqual(group.values, [0.0, 100.0, 200.0])
            tokens |= {place: member.parts[1] for place, member in members.items()}
        self.assertEqual(tokens, {(7, 0): [0], (7, 1): [100], (7, 2): [200]})


if __name__ == "__main__":
    unittest.main()
