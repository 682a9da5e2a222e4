"""transformers' continuous batching keeps the promises of row-wise generation, and what it may not share."""

import logging
import unittest
import unittest.mock

# First: without PyTorch it reports that and skips the tests.
from support import ARCHITECTURES, call, golden_folder, opened, tiny_config

import played_flash
import test_generate
import torch
import transformers
from tamis.learner import generate
from tamis.learner.protocol import Refused, RequestError
from test_generate import KINDS, PLAIN, asked, numbered, take, to_the_end

if not transformers.__version__.startswith(generate.CONTINUOUS_RELEASE):
    raise unittest.SkipTest(f"transformers is {transformers.__version__}")

from tamis.learner import continuous

CONTINUOUS = {"continuous_batching": True}
# Longer than a page of 16 tokens, which its samples share.
LONG = [1 + place * 7 % 43 for place in range(21)]


class Continuous(test_generate.Samples):
    """All tests of row-wise generation, except those that only apply there, and more."""

    # Tests that only apply to rows, or have another outcome (below).
    test_what_was_seen_stays_on_the_device = None
    test_the_host_may_look_after_several_steps = None
    test_a_group_holds_its_prompt_once = None
    test_a_prompt_that_has_begun_frees_its_slot_when_the_last_of_its_samples_is_aborted = None
    test_captured_steps_give_the_same_samples = None
    test_a_model_that_cannot_be_captured_runs_step_by_step = None
    test_a_model_that_forgets_what_the_cache_holds_is_refused = None
    test_windows_caps_and_experts = None
    test_what_cannot_be_sampled_from_is_refused_when_it_is_opened = None

    def opened(self, folder, max_sequences=64, options=None, **more):
        return super().opened(folder, max_sequences, options={**CONTINUOUS, **(options or {})}, **more)

    def num_held(self, generation):
        return 0 if generation._batches is None else generation._batches.cache.num_blocks

    def groups(self):
        return [(LONG, [0, 1, 2]), ([9, 8], [3, 4]), ([3], [5, 6, 7]), (LONG[:17], [8]), (LONG, [9, 10])]

    def test_tokens_are_those_of_rows(self):
        cut = {"temperature": 0.7, "top_k": 9, "top_p": 0.9, "repetition_penalty": 1.3}
        ways = [PLAIN, {**PLAIN, **cut}, {**PLAIN, "max_tokens": 30}]
        for architecture in ARCHITECTURES:
            rows = super().opened(golden_folder(architecture), 64)
            given = {"drawings": ways, "drawn_by": [0, 1, 1, 2, 0]}
            expected, _ = to_the_end(rows, self.groups(), **given)
            for max_sequences in (1, 4, 64):
                learner = self.opened(golden_folder(architecture), max_sequences)
                found, _ = to_the_end(learner, self.groups(), **given)
                self.assertEqual(sorted(found), sorted(expected))
                for sample, one in found.items():
                    self.assertEqual((one["token"], one["end"]), (expected[sample]["token"], expected[sample]["end"]))
                    for name in ("logprob", "entropy"):
                        self.assert_close(one[name], expected[sample][name], 1e-5, name)
            self.assertEqual(learner._policy.network.decoder.config._attn_implementation, learner._policy.network.attention)

    def test_a_group_computes_its_prompt_once_and_shares_its_pages(self):
        learner = self.opened(golden_folder("qwen2"), 8)
        generation = learner._generation
        call(learner, "generate", *asked([(LONG, [0, 1, 2, 3])], seconds=0.0))
        num_tokens = []
        compute = generation._compute

        def counted(places, keywords):
            num_tokens.append(keywords["input_ids"].shape[1])
            return compute(places, keywords)

        with unittest.mock.patch.object(generation, "_compute", counted):
            self.draw_some(generation, 2)
        # All but the last of the prompt, then that for each of the four, then a token of each.
        self.assertEqual(num_tokens, [20, 4, 4])
        (allocator,) = generation._batches.cache.cache_allocators.values()
        self.assertEqual(len({table[0] for table in allocator.block_table.values()}), 1, "the page that the prompt fills")
        self.assertEqual(len({table[1] for table in allocator.block_table.values()}), 4)
        # When it is aborted, each returns its own pages.
        while generation._rows:
            call(learner, "generate", *asked([], abort=[generation._rows[0].sample], seconds=0.0))
        self.assertEqual(self.num_held(generation), 0)

    def test_a_sample_may_be_given_up_before_its_group_is_forked(self):
        for gone in (0, 2):
            learner = self.opened(golden_folder("qwen3"), 8)
            generation = learner._generation
            groups = [(LONG * 2, [0, 1, 2, 3]), ([5], [4])]
            whole, _ = to_the_end(learner, groups)
            with unittest.mock.patch.object(continuous, "_SDPA_TOKENS", 8):
                call(learner, "generate", *asked(groups, seconds=0.0))
                with torch.no_grad(), generation._computing():
                    generation._admit()
                    generation._step()
                    generation._step()
                # A part of the prompt is computed.
                self.assertEqual([len(row.tokens) for row in generation._rows], [0, 0, 0, 0, 0])
                found = {}
                settings, answer = call(learner, "generate", *asked([], abort=[gone], seconds=0.0))
                self.assertEqual(settings["num_open"], 4)
                take(answer, found)
                while settings["num_open"]:
                    settings, answer = call(learner, "generate", *asked([]))
                    take(answer, found)
            self.assertEqual(sorted(found), sorted({0, 1, 2, 3, 4} - {gone}))
            for sample, one in found.items():
                self.assertEqual(one["token"], whole[sample]["token"])

    def change(self, learner, seed=3):
        generator = torch.Generator().manual_seed(seed)
        weights = learner._policy.network.weights
        with torch.no_grad():
            for master in weights.masters.values():
                master.add_(torch.randn(master.shape, generator=generator) * 0.02)
        weights.refresh()
        call(learner, "publish", {"version": 1})

    def test_nothing_of_old_weights_is_read_by_what_begins_after_a_publication(self):
        """Neither with the same prompt in flight, nor with one that has ended, nor with a prompt that was
        being computed."""
        learner = self.opened(golden_folder("llama"), 8)
        generation = learner._generation
        settings, _ = call(learner, "generate", *asked([(LONG, [0, 1])], seconds=0.0))
        self.draw_some(generation, 3)
        # This group's prompt is computed up to its last token, and no sample of it has a token.
        call(learner, "generate", *asked([(LONG, [2, 3])], seconds=0.0))
        with torch.no_grad(), generation._computing():
            generation._admit()
            generation._step()
        self.assertEqual([len(row.tokens) for row in generation._rows], [4, 4, 0, 0])
        (allocator,) = generation._batches.cache.cache_allocators.values()
        self.assertEqual(len(allocator.block_table), 4)
        self.assertFalse(allocator.ledger.hash_to_block, "nothing is found by content")
        found = {}
        self.change(learner)
        settings, answer = call(learner, "generate", *asked([(LONG, [4, 5])]))
        take(answer, found)
        while settings["num_open"]:
            settings, answer = call(learner, "generate", *asked([]))
            take(answer, found)
        begun = [(LONG, [2, 3, 4, 5])]
        self.assert_of_the_policy(learner, found, begun)
        anew, _ = to_the_end(learner, begun)
        for sample, one in anew.items():
            self.assertEqual(found[sample]["token"], one["token"])
        # Those in flight read what the old weights computed.
        _, expected = call(
            learner, "forward", {"network": "before"}, test_generate.columns([LONG], [(0, found[0]["token"])])
        )
        self.assertGreater(float((torch.tensor(found[0]["logprob"][4:]) - expected["logprob"][4:]).abs().max()), 1e-3)

    def test_a_cache_grows_beneath_samples_in_flight(self):
        rows = super().opened(golden_folder("qwen3"), 64)
        learner = self.opened(golden_folder("qwen3"), 64)
        generation = learner._generation
        first, second = [(LONG, [0, 1])], [(LONG * 2, [2, 3, 4, 5, 6]), ([7], [8])]
        expected = to_the_end(rows, first)[0] | to_the_end(rows, second)[0]
        call(learner, "generate", *asked(first, seconds=0.0))
        self.draw_some(generation, 3)
        held, found = self.num_held(generation), {}
        settings, answer = call(learner, "generate", *asked(second))
        take(answer, found)
        self.assertGreater(self.num_held(generation), held)
        while settings["num_open"]:
            settings, answer = call(learner, "generate", *asked([]))
            take(answer, found)
        self.assertEqual({sample: one["token"] for sample, one in found.items()}, {sample: one["token"] for sample, one in expected.items()})

    def test_samples_wait_where_memory_is_short(self):
        rows = super().opened(golden_folder("qwen2"), 64)
        learner = self.opened(golden_folder("qwen2"), 64)
        generation = learner._generation
        expected, _ = to_the_end(rows, self.groups())
        of_block = generation._bytes_of_block()
        for num_blocks in (1, 6, 9):
            most = []
            step = generation._step

            def counted():
                most.append(len(generation._rows))
                return step()

            with (
                unittest.mock.patch.object(generation, "_free_memory", lambda n=num_blocks: n * of_block / continuous.MEMORY_PART + 1),
                unittest.mock.patch.object(generation, "_step", counted),
            ):
                found, _ = to_the_end(learner, self.groups())
            self.assertEqual({k: one["token"] for k, one in found.items()}, {k: one["token"] for k, one in expected.items()})
            self.assertLess(max(most), 11)

    def test_what_fails_in_the_middle_of_a_step_leaves_nothing(self):
        learner = self.opened(golden_folder("qwen2"), 8)
        generation = learner._generation
        call(learner, "generate", *asked(self.groups(), seconds=0.0))
        self.draw_some(generation, 2)
        with unittest.mock.patch.object(generation, "_logits", unittest.mock.Mock(side_effect=torch.OutOfMemoryError("no room"))):
            with self.assertRaises(torch.OutOfMemoryError):
                call(learner, "generate", *asked([]))
        self.assertEqual((self.num_held(generation), generation._open), (0, {}))
        self.assertEqual(learner._policy.network.decoder.config._attn_implementation, learner._policy.network.attention)
        found, _ = to_the_end(learner, self.groups())
        self.assert_of_the_policy(learner, found, self.groups())

    def test_the_generator_of_pytorch_is_left_alone(self):
        learner = self.opened(golden_folder("qwen2"))
        state = torch.random.get_rng_state()
        to_the_end(learner, numbered())
        self.assert_same(torch.random.get_rng_state(), state)

    def test_windows_and_experts(self):
        for kind, more in KINDS.items():
            with self.subTest(kind):
                learner = self.opened(self.folder(tiny_config(kind, **more)), 6)
                found, _ = to_the_end(learner, self.groups())
                self.assert_of_the_policy(learner, found, self.groups())

    def test_what_it_cannot_compute_is_refused_when_it_is_opened(self):
        with self.assertRaisesRegex(Refused, "Mamba"):
            self.opened(self.folder(tiny_config("MambaConfig", state_size=4)))
        capped = tiny_config("Gemma2Config", sliding_window=4, query_pre_attn_scalar=6)
        with self.assertRaisesRegex(Refused, "Gemma2Model cannot be sampled from here"):
            self.opened(self.folder(capped))
        learner = opened(golden_folder("llama"))
        compute = continuous.ContinuousGeneration._compute

        def nearer(generation, places, keywords):
            return compute(generation, places, {**keywords, "position_ids": keywords["position_ids"] // 2})

        with unittest.mock.patch.object(continuous.ContinuousGeneration, "_compute", nearer):
            self.assert_refused(Refused, "one by one are not those of a whole", generate.make_generation, learner._policy.network, 4, True)

    def played_flash(self):
        """In a test, flash kernels computed by hand on the CPU. Returns how often each was called."""
        resolve = continuous.resolve_continuous_batching_config

        def resolved(config, settings, *more):
            found = resolve(config, settings, *more)
            # It requires a GPU.
            found.max_blocks_per_request = settings.max_blocks_per_request
            return found

        # It reports that there is no GPU.
        self.enterContext(unittest.mock.patch.object(logging.getLogger("ContinuousBatchingLogger"), "disabled", True))
        self.enterContext(unittest.mock.patch.object(continuous, "resolve_continuous_batching_config", resolved))
        return self.enterContext(played_flash.playing_flash())

    def test_over_flash_kernels_that_are_played(self):
        """The arguments of flash-attention on a GPU: tables of pages for single tokens, offsets with prompts."""
        rows = super().opened(golden_folder("qwen3"), 64)
        expected, _ = to_the_end(rows, self.groups())
        windowed = self.folder(tiny_config("Gemma3TextConfig", sliding_window=4, query_pre_attn_scalar=6))
        calls = self.played_flash()
        for max_sequences in (3, 64):
            learner = self.opened(golden_folder("qwen3"), max_sequences)
            found, _ = to_the_end(learner, self.groups())
            self.assertEqual({k: one["token"] for k, one in found.items()}, {k: one["token"] for k, one in expected.items()})
            self.assert_of_the_policy(learner, found, self.groups())
        self.assertGreater(calls["varlen"], 4)
        self.assertGreater(calls["with_kvcache"], 20)
        # A longer sample that comes while another is open, and for which there are pages, has room in the table, too.
        learner = self.opened(golden_folder("qwen3"), 16)
        drawings = [{**PLAIN, "max_tokens": length} for length in (100, 2)]
        groups = [([1, 2], [0]), ([3, 4], list(range(7, 16)))]
        left, _ = call(learner, "generate", *asked(groups, drawings=drawings, drawn_by=[0, 1], seconds=0.0))
        while left["num_open"] > 1:
            left, _ = call(learner, "generate", *asked([]))
        held = dict(calls)
        to_the_end(learner, [([7] * 100, [5, 6])], drawings=({**PLAIN, "max_tokens": 100},))
        self.assertGreater(calls["with_kvcache"] - held["with_kvcache"], calls["varlen"] - held["varlen"])
        held = calls["with_kvcache"]
        learner = self.opened(windowed, 6)
        self.assert_of_the_policy(learner, to_the_end(learner, self.groups())[0], self.groups())
        self.assertEqual(calls["with_kvcache"], held, "tables of pages know no windows")

    def test_a_gpu_needs_flash_attention_and_bf16(self):
        device = torch.device("cuda")
        with self.assertRaisesRegex(Refused, "needs flash-attention, which is not installed"):
            continuous.paged_attention(device, torch.bfloat16)
        with unittest.mock.patch.object(continuous, "is_flash_attn_2_available", lambda: True):
            self.assertEqual(continuous.paged_attention(device, torch.bfloat16), "flash_attention_2")
            with self.assertRaisesRegex(Refused, "does not compute in f32"):
                continuous.paged_attention(device, torch.float32)
        learner = opened(golden_folder("llama"))
        network = learner._policy.network
        with unittest.mock.patch.object(network.options, "device", device):
            self.assert_refused(Refused, "needs flash-attention", generate.make_generation, network, 4, True)

    def test_another_release_of_transformers_is_refused(self):
        with unittest.mock.patch.object(generate.transformers, "__version__", "5.24.0"):
            with self.assertRaisesRegex(Refused, "and this is 5.24.0"):
                self.opened(golden_folder("llama"))
        with self.assertRaisesRegex(RequestError, "continuous_batching"):
            self.opened(golden_folder("llama"), options={"continuous_batching": 1})


if __name__ == "__main__":
    unittest.main()
