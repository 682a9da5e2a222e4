"""Generation and training beyond a plain model: vLLM, tools, environments, chat, PEFT, a reference model,
subclasses."""

import inspect
import itertools
import json
import random
import unittest
from collections import Counter

import pandas
import torch
import trl
from toy import (
    KEEP_ALL,
    TRL,
    Case,
    Judge,
    alike,
    data,
    digit,
    model,
    noise,
    prompt_text,
    row_of,
    seeing,
    text_of,
    tokenizer,
    tool_tokenizer,
)

from tamis.trl import NothingKept


class VllmTests(Case):
    def test_log_probabilities_and_syncs(self):
        """With a stand-in for vLLM that computes a token's log-probability from the token."""
        has_gaps = "if x is None" in inspect.getsource(trl.GRPOTrainer._generate_and_score_completions)

        class Vllm:
            def __init__(self):
                self.random = random.Random(0)
                self.events = []

            def sync_weights(self):
                self.events.append("sync")

            def generate(self, prompts, images, num_generations, profiler):
                self.events.append(len(prompts))
                for start in range(0, len(prompts), num_generations):
                    assert all(prompt == prompts[start] for prompt in prompts[start : start + num_generations])
                ids = [[self.random.randrange(3, 44) for _ in range(self.random.randrange(1, 8))] for _ in prompts]
                logprobs = [[[None if has_gaps and id == 9 else -id / 100] for id in own] for own in ids]
                return prompts, ids, logprobs, None

        class Seeing(seeing()):
            def _compute_loss(self, model, inputs):
                ids, mask = inputs["completion_ids"], inputs["completion_mask"].bool()
                known = mask & (ids != 9) if has_gaps else mask
                told = inputs["sampling_per_token_logps"]
                assert torch.allclose(told[known], -ids[known] / 100)
                if has_gaps:
                    assert told[mask & (ids == 9)].isnan().all()
                self.num_checked = getattr(self, "num_checked", 0) + int(known.sum())
                assert inputs["importance_sampling_ratio"].shape[0] == len(ids)
                return super()._compute_loss(model, inputs)

        judge = Judge()
        trainer = self.sieved(cls=Seeing, rewards=judge, max_steps=4)
        trainer.use_vllm = True
        trainer.vllm_generation = vllm = Vllm()
        trainer._last_loaded_step = -1
        trainer.vllm_importance_sampling_correction = True
        self.fit(trainer)
        self.assertGreater(trainer.num_checked, 100)
        self.assertEqual(vllm.events.count("sync"), 4)
        for before, after in itertools.pairwise(vllm.events):
            self.assertFalse(before == after == "sync")
        self.assertEqual(sum(event for event in vllm.events if event != "sync"), len(judge.asked))
        self.assertGreater(trainer.sieve.totals["dropped"]["groups"], 0)
        for _, _, advantage in itertools.chain(*trainer.seen):
            self.assertNotEqual(advantage, 0)


class Spelling:
    """Writes a call of a tool, and then an answer, in place of a model that would have to learn that."""

    tool = "double"

    def _generate_single_turn(self, prompt_ids, *_, **__):
        self.draw = getattr(self, "draw", None) or random.Random(1)
        completions = []
        for ids in prompt_ids:
            text = self.processing_class.decode(ids)
            row = int(text.split("<|im_start|>user\nq")[1][:3])
            if "<tool_response>" in text:
                answer = f"it is {self.draw.randrange(10)}<|im_end|>"
            else:
                call = json.dumps({"name": self.tool, "arguments": {"number": row}})
                answer = f"<tool_call>\n{call}\n</tool_call><|im_end|>"
            completions.append(self.processing_class(answer)["input_ids"])
        return completions, None


def right(completions, want, **_):
    """By the last message."""
    return [float(digit in completion[-1]["content"]) for digit, completion in zip(want, completions, strict=True)]


def told(completion):
    """All that a completion has, calls and answers of tools too: tables of TRL before 1.16 have it as text."""
    return completion if isinstance(completion, str) else str(list(completion))


class ToolTests(Case):
    def spelling(self, tool="double"):
        class Spells(Spelling, trl.GRPOTrainer):
            def _compute_loss(self, model, inputs):
                # No token of a tool's answer is in the loss.
                spoken = inputs["completion_ids"].clone()
                spoken[inputs["tool_mask"] * inputs["completion_mask"] == 0] = 0
                for own in self.processing_class.batch_decode(spoken):
                    assert "tool_response" not in own and own.count("<tool_call>") == 1, own
                    self.num_seen = getattr(self, "num_seen", 0) + 1
                return super()._compute_loss(model, inputs)

        Spells.tool = tool
        return Spells

    def keywords(self):
        return {
            "rows": data(chat=True),
            "processing_class": tool_tokenizer(),
            "model": model(len(tool_tokenizer())),
            "max_completion_length": 300,
            "log_completions": True,
            "num_completions_to_print": 0,
        }

    def tables(self):
        return [pandas.read_parquet(file) for file in sorted((self.folder / "out" / "completions").iterdir())]

    def test_tools(self):
        called = []

        def double(number: int) -> int:
            """
            Doubles a number.

            Args:
                number: The number.

            Returns:
                Twice the number.
            """
            called.append(number)
            return 2 * number

        judged = []

        def fits(completions, prompts, row, **_):
            for completion, prompt, own in zip(completions, prompts, row, strict=True):
                assert row_of(prompt) == own
                assert str(2 * own) in str(completion[1]), (completion, own)
                judged.append(own)
            return [0.0] * len(row)

        trainer = self.fit(
            self.sieved(
                cls=self.spelling(), rewards=[right, fits], reward_weights=[1.0, 0.0], tools=[double], **self.keywords()
            )
        )
        totals = trainer.sieve.totals
        self.assertEqual(called, judged)
        self.assertEqual(len(judged), totals["generated"]["trajectories"])
        self.assertGreater(totals["dropped"]["groups"], 0)
        self.assertEqual(trainer.num_seen, 48)
        # Tokens of the policy, without those of the tool.
        self.assertLess(totals["trained"]["tokens"], sum(map(len, (str(row) for row in judged))) + 48 * 120)
        for table in self.tables():
            for line in table.itertuples():
                self.assertRegex(told(line.completion), rf"\b{2 * row_of(line.prompt)}\b")
                self.assertNotEqual(line.advantage, 0)
        self.assert_adds_up(trainer)

    def test_environments(self):
        resets = []

        class World:
            def reset(self, row, **_) -> str:
                self.row = row
                resets.append(row)
                return f" in room {row}"

            def look(self, number: int) -> str:
                """
                Looks around.

                Args:
                    number: Of the room.

                Returns:
                    What is seen.
                """
                return f"room {self.row}"

        def fits(completions, prompts, row, environments, **_):
            for completion, prompt, own, environment in zip(
                completions, prompts, row, environments[: len(row)], strict=True
            ):
                assert environment.row == own
                assert prompt[-1]["content"] == f"q{own:03}: in room {own}", prompt
                assert f"room {own}" in str(completion[1])
            return [0.0] * len(row)

        trainer = self.fit(
            self.sieved(
                cls=self.spelling("look"),
                rewards=[right, fits],
                reward_weights=[1.0, 0.0],
                environment_factory=World,
                **self.keywords(),
            )
        )
        totals = trainer.sieve.totals
        self.assertEqual(len(resets), totals["generated"]["trajectories"])
        self.assertGreater(totals["dropped"]["groups"], 0)
        for table in self.tables():
            for line in table.itertuples():
                row = row_of(line.prompt)
                self.assertIn(f"q{row:03}: in room {row}", prompt_text(line.prompt))
                self.assertIn(f"room {row}", told(line.completion))
        self.assert_adds_up(trainer)

    def test_several_environments(self):
        self.needs("1.9.0", "several environments")
        resets = Counter()

        class North:
            def reset(self, row, **_) -> str:
                self.row = row
                resets[type(self).__name__] += 1
                return f" in room {row}"

            def look(self, number: int) -> str:
                """
                Looks around.

                Args:
                    number: Of the room.

                Returns:
                    What is seen.
                """
                return f"{type(self).__name__} {self.row}"

        class South(North):
            pass

        def fits(completions, row, environment, **_):
            for completion, own, name in zip(completions, row, environment, strict=True):
                assert f"{name.title()} {own}" in str(completion[1]), (completion, own, name)
            return [0.0] * len(row)

        keywords = self.keywords()
        names = ["north" if row % 4 else "south" for row in keywords["rows"]["row"]]
        keywords["rows"] = keywords["rows"].add_column("environment", names)
        trainer = self.fit(
            self.sieved(
                cls=self.spelling("look"),
                rewards=[right, fits],
                reward_weights=[1.0, 0.0],
                environment_factory={"north": North, "south": South},
                **keywords,
            )
        )
        self.assertEqual(resets.total(), trainer.sieve.totals["generated"]["trajectories"])
        self.assertEqual(len(resets), 2)
        self.assert_adds_up(trainer)


class OtherTests(Case):
    def test_chat(self):
        judge = Judge()
        trainer = self.fit(
            self.sieved(
                cls=seeing(), rewards=judge, rows=data(chat=True), log_completions=True, num_completions_to_print=0
            )
        )
        wanted = trainer.train_dataset["want"]
        for row, answer, advantage in itertools.chain(*trainer.seen):
            self.assertEqual(advantage > 0, wanted[row] in answer)
        for file in (self.folder / "out" / "completions").iterdir():
            for line in pandas.read_parquet(file).itertuples():
                self.assertEqual(line.digit, float(wanted[row_of(line.prompt)] in text_of(line.completion)))
        self.assertGreater(trainer.sieve.totals["dropped"]["groups"], 0)

    def test_adapter_and_reference(self):
        """The reference gets only the rows that are kept."""
        import peft

        for has_adapter in (False, True):
            with self.subTest(has_adapter):
                rows = []

                class Counting(seeing()):
                    def _get_per_token_logps_and_entropies(self, model, input_ids, *arguments, **keywords):
                        if not torch.is_grad_enabled():
                            rows.append(len(input_ids))
                        return super()._get_per_token_logps_and_entropies(model, input_ids, *arguments, **keywords)

                adapter = {"peft_config": peft.LoraConfig(r=2, target_modules=["q_proj"])} if has_adapter else {}
                trainer = self.fit(self.sieved(cls=Counting, beta=0.1, **adapter))
                self.assertEqual(sum(rows), 48)
                self.assertGreater(trainer.sieve.totals["generated"]["trajectories"], 48)
                if has_adapter:
                    self.assertIn("lora", "".join(name for name, _ in trainer.model.named_parameters()))

    def test_adapter_changes_nothing_if_all_is_kept(self):
        import peft

        trainers = []
        for make in (self.trainer, lambda **keywords: self.sieved(KEEP_ALL, **keywords)):
            torch.manual_seed(3)
            trainers.append(self.fit(make(beta=0.1, peft_config=peft.LoraConfig(r=2, target_modules=["q_proj"]))))
        self.assert_same_training(*trainers)

    def test_columns_that_are_not_used(self):
        trainer = self.fit(self.sieved(rewards=noise, remove_unused_columns=True))
        self.assertEqual(trainer.sieve.totals["trained"]["groups"], 12)

    def test_reward_model(self):
        from transformers import LlamaConfig, LlamaForSequenceClassification

        torch.manual_seed(0)
        judge = LlamaForSequenceClassification(
            LlamaConfig(
                vocab_size=44,
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_labels=1,
                pad_token_id=0,
            )
        )
        judge.config._name_or_path = "judge"
        trainer = self.fit(
            self.sieved(
                {"kind": "variance", "tolerance": 0.005},
                rewards=[judge, digit],
                reward_weights=[1.0, 0.0],
                reward_processing_classes=[tokenizer(), None],
            )
        )
        self.assertEqual(trainer.sieve.totals["trained"]["groups"], 12)
        self.assert_adds_up(trainer)


class SubclassTests(Case):
    def test_own_subclass(self):
        class Own(trl.GRPOTrainer):
            def _generate_and_score_completions(self, inputs):
                output = super()._generate_and_score_completions(inputs)
                output["advantages"] = output["advantages"] * 2
                return output

            def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
                rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
                self.num_rewards = getattr(self, "num_rewards", 0) + len(rewards)
                return rewards

        sieved = self.fit(self.sieved(KEEP_ALL, cls=Own))
        self.assert_same_training(self.fit(self.trainer(cls=Own)), sieved)
        self.assertIsInstance(sieved, Own)
        self.assertEqual(type(sieved).__name__, "SievedOwn")
        filtered = self.fit(self.sieved(cls=Own))
        self.assertEqual(filtered.num_rewards, filtered.sieve.totals["generated"]["trajectories"])
        self.assertGreater(filtered.num_rewards, 48)

    def test_subclasses_of_trl(self):
        """Classes of trl.experimental that can train a toy on a CPU."""
        found = []
        for module, name in (("gmpo", "GMPO"), ("dppo", "DPPO"), ("gspo_token", "GRPO")):
            try:
                package = __import__(f"trl.experimental.{module}", fromlist=["x"])
                cls = getattr(package, f"{name}Trainer")
            except ImportError:
                continue
            config = getattr(package, f"{name}Config", trl.GRPOConfig)
            more = {"importance_sampling_level": "sequence_token"} if module == "gspo_token" else {}
            with self.subTest(module):
                found.append(module)
                keep = self.fit(self.sieved(KEEP_ALL, cls=cls, config=config, **more))
                self.assert_same_training(self.fit(self.trainer(cls=cls, config=config, **more)), keep)
                judge = Judge()
                trainer = self.fit(self.sieved(cls=cls, config=config, rewards=judge, **more))
                self.assertEqual(len(judge.asked), trainer.sieve.totals["generated"]["trajectories"])
                self.assertGreater(trainer.sieve.totals["dropped"]["groups"], 0)
                self.assert_adds_up(trainer)
        self.assertTrue(found, TRL)

    def test_a_stop_in_a_subclass_is_no_error_that_it_catches(self):
        class Catching(trl.GRPOTrainer):
            def _generate_and_score_completions(self, inputs):
                try:
                    return super()._generate_and_score_completions(inputs)
                except Exception as error:
                    raise AssertionError("caught") from error

        self.fit(self.sieved(cls=Catching))
        with self.assertRaises(NothingKept):
            self.fit(self.sieved(cls=Catching, rewards=alike, sieve={"schedule": {"max_num_gen_batches": 1}}))


if __name__ == "__main__":
    unittest.main()
