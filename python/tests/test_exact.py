"""`learner.exact`: what is sampled and what is trained on have the same bits, however many tokens are computed together."""

import pathlib
import tempfile
import unittest.mock

# First: without PyTorch it reports that and skips the tests.
from support import OPTIMIZER, Case, call, columns, opened, save_tiny, tiny_config

import torch
from test_generate import PLAIN, to_the_end
from tamis.learner import tiles
from tamis.learner.protocol import Refused

# One of each architecture that `tiles` names, with widths that vector instructions do not divide, windows and soft caps.
WINDOW = {"sliding_window": 7}
KINDS = {
    "LlamaConfig": {"attention_bias": True},
    "MistralConfig": WINDOW,
    "Phi3Config": {},
    "Qwen2Config": {**WINDOW, "use_sliding_window": True, "max_window_layers": 1},
    "Qwen3Config": {"num_key_value_heads": 4},
    "Gemma2Config": {**WINDOW, "query_pre_attn_scalar": 6, "final_logit_softcapping": 3.0},
    "Gemma3TextConfig": {**WINDOW, "query_pre_attn_scalar": 6},
}
SIZES = {"vocab_size": 51, "hidden_size": 20, "intermediate_size": 37, "max_position_embeddings": 320}
# Prompts of many lengths and the sizes of their groups: 64 rows in all. One is longer than a block, one is a token.
GROUPS = [(3, 8), (70, 5), (1, 9), (12, 16), (129, 2), (30, 24)]


def config(kind, **more):
    return tiny_config(kind, **{**SIZES, **KINDS[kind], **more})


def groups_of(sizes, vocab_size=51):
    """Made-up prompts of these lengths, with the numbers of their samples."""
    generator, groups, number = torch.Generator().manual_seed(2), [], 0
    for length, size in sizes:
        groups.append((torch.randint(vocab_size, (length,), generator=generator).tolist(), list(range(number, number + size))))
        number += size
    return groups


def sampled(learner, groups, **more):
    """Samples of all groups: their wave, and log-probabilities and entropies as they were drawn."""
    found, _ = to_the_end(learner, groups, **more)
    order = [sample for _, samples in groups for sample in samples]
    sequences = [(place, found[sample]["token"]) for place, (_, samples) in enumerate(groups) for sample in samples]
    numbers = {name: torch.tensor([x for sample in order for x in found[sample][name]]) for name in ("logprob", "entropy")}
    return [prompt for prompt, _ in groups], sequences, numbers


def held(learner, wave):
    """Columns of a pass whose graph is kept, and the norm of a gradient through it."""
    _, found = call(learner, "forward_hold", {"network": "policy"}, wave)
    call(learner, "backward", {}, {"logprob": torch.cos(torch.arange(len(found["logprob"])) * 5.0), "entropy": found["entropy"]})
    gradients = {name: learner._policy.network.weights.gradient(name).clone() for name in learner._policy.network.weights.masters}
    learner._policy.network.weights.clear_gradients()
    return found, gradients


class Exact(Case):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def opened(self, kind="LlamaConfig", exact=True, sizes=None, rows=64, options=None, **more):
        folder = self.folder / f"{kind}{len(list(self.folder.iterdir()))}"
        save_tiny(folder, config(kind, **(sizes or {})))
        options = {"exact": exact, **(options or {})}
        return opened(folder, options=options, generation={"max_sequences": rows}, **more)

    def assert_exact(self, learner, sizes=GROUPS, **more):
        """Samples, passes over them with and without a graph, with prompts shared and not, and over one sequence alone."""
        groups = groups_of(sizes)
        prompts, sequences, drawn = sampled(learner, groups, **more)
        wave = columns(prompts, sequences)
        apart = columns([prompts[place] for place, _ in sequences], [(place, tokens) for place, (_, tokens) in enumerate(sequences)])
        first = columns(prompts[:1], sequences[:1])
        _, plain = call(learner, "forward", {"network": "policy"}, wave)
        with_graph, gradients = held(learner, wave)
        _, unshared = call(learner, "forward", {"network": "policy"}, apart)
        _, alone = call(learner, "forward", {"network": "policy"}, first)
        for name in ("logprob", "entropy"):
            self.assert_same(plain[name], drawn[name], f"{name} of a pass")
            self.assert_same(with_graph[name], drawn[name], f"{name} of a pass with a graph")
            self.assert_same(unshared[name], drawn[name], f"{name} of prompts that are not shared")
            self.assert_same(alone[name], drawn[name][: len(alone[name])], f"{name} of one sequence")
        return gradients

    def test_samples_and_passes_have_the_same_bits_for_every_architecture(self):
        for kind in KINDS:
            with self.subTest(kind):
                self.assert_exact(self.opened(kind), drawings=[{**PLAIN, "max_tokens": 30}])

    def test_the_architectures_are_those_that_are_accepted(self):
        self.assertEqual(sorted(config(kind).model_type for kind in KINDS), sorted(tiles.MODEL_TYPES))

    def test_one_row_and_three_have_the_bits_of_sixty_four(self):
        drawings = [{**PLAIN, "max_tokens": 24}]
        groups = groups_of(GROUPS)
        found = {rows: to_the_end(self.opened("Qwen2Config", rows=rows), groups, drawings=drawings)[0] for rows in (64, 3)}
        self.assertEqual(found[64], found[3])
        one = to_the_end(self.opened("Qwen2Config", rows=1), groups[1:2], drawings=drawings)[0]
        self.assertEqual(one, {sample: found[64][sample] for sample in groups[1][1]})

    def test_ordinary_passes_have_not(self):
        # So the tests above can fail.
        with self.assertRaisesRegex(AssertionError, "of a pass"):
            self.assert_exact(self.opened(exact=False), drawings=[{**PLAIN, "max_tokens": 30}])

    def test_draws_of_every_kind(self):
        drawing = {
            **PLAIN, "temperature": 0.7, "top_k": 9, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2, "max_tokens": 30,
            "end_tokens": [3, 4],
        }  # fmt: skip
        learner = self.opened(temperature=0.7)
        self.assert_exact(learner, drawings=[drawing])
        self.assert_exact(learner, [(5, 70)], drawings=[drawing])

    def test_it_stays_so_after_updates(self):
        learner = self.opened("Qwen3Config")
        for _ in range(2):
            self.assert_exact(learner, [(9, 3), (4, 2)])
            call(learner, "forward_hold", {"network": "policy"}, columns([[5, 6]], [(0, [7, 8, 9])]))
            call(learner, "backward", {}, {"logprob": torch.ones(3)})
            call(learner, "optim_step", {"network": "policy", "learning_rate": 1e-2})
            call(learner, "publish", {"version": 1})

    def test_gradients_are_those_of_ordinary_passes_and_the_same_every_time(self):
        for kind in ("LlamaConfig", "Gemma2Config"):
            with self.subTest(kind):
                drawings = [{**PLAIN, "max_tokens": 24}]
                exact = self.opened(kind)
                found = self.assert_exact(exact, drawings=drawings)
                again = self.assert_exact(exact, drawings=drawings)
                recomputed = self.assert_exact(self.opened(kind, recompute_activations=True), drawings=drawings)
                prompts, sequences, _ = sampled(exact, groups_of(GROUPS), drawings=drawings)
                _, plain = held(self.opened(kind, exact=False), columns(prompts, sequences))
                for name, gradient in found.items():
                    self.assert_same(again[name], gradient, name)
                    self.assert_same(recomputed[name], gradient, name)
                    self.assert_close(gradient, plain[name], 1e-4, name)

    def test_number_formats_threads_adapters_and_critics(self):
        small = [(5, 3), (66, 2)]
        self.assert_exact(self.opened("Qwen3Config", options={"dtype": "bf16"}), small)
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        for threads in (2,):
            # Wide enough that PyTorch uses them.
            wide = {"hidden_size": 120, "intermediate_size": 700, "vocab_size": 501}
            self.assert_exact(self.opened("Qwen2Config", sizes=wide, options={"threads": threads}), small)
        torch.set_num_threads(1)
        learner = self.opened(options={"lora": {"rank": 3, "alpha": 5.0}})
        call(learner, "forward_hold", {"network": "policy"}, columns([[5, 6]], [(0, [7, 8, 9])]))
        call(learner, "backward", {}, {"logprob": torch.ones(3)})
        call(learner, "optim_step", {"network": "policy", "learning_rate": 1e-2})
        self.assert_exact(learner, small)
        critic = self.opened(critic={"optimizer": {**OPTIMIZER}})
        call(critic, "copy", {"to": "critic"})
        _, values = call(critic, "forward", {"network": "critic"}, columns([[5, 6]], [(0, [7, 8, 9])]))
        self.assertEqual(values["value"].tolist(), [0.0, 0.0, 0.0])
        self.assert_exact(critic, small)

    def test_a_reference_is_the_policy_to_the_bit_until_it_learns(self):
        learner = self.opened()
        call(learner, "copy", {"to": "reference"})
        wave = columns([[5, 6], [7]], [(0, [7, 8, 9]), (0, [1, 2]), (1, [3])])
        policy, reference = (call(learner, "forward", {"network": name}, wave)[1]["logprob"] for name in ("policy", "reference"))
        self.assert_same(policy, reference)

    def test_what_is_not_known_to_be_exact_is_refused(self):
        experts = tiny_config("Qwen3MoeConfig", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
        save_tiny(self.folder / "experts", experts)
        self.assert_refused(
            Refused, r"not tested with Qwen3MoeModel \(model_type qwen3_moe\), only with gemma2, ", opened, self.folder / "experts",
            options={"exact": True},
        )  # fmt: skip
        stretched = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}
        self.assert_refused(Refused, "rotary positions depend on the length", self.opened, sizes=stretched)
        four_bits = {"rank": 3, "alpha": 5.0, "base": "nf4"}
        options = {"attention": "sdpa", "logprob_chunk": 8, "continuous_batching": True, "lora": four_bits}
        for name, value in options.items():
            self.assert_refused(Refused, f"learner.{name}|4 bits", self.opened, options={name: value})

    def test_a_model_whose_numbers_depend_on_the_place_in_a_tile_is_refused(self):
        real = tiles.compute

        def with_a_slip(network, tokens, positions, tile):
            found = real(network, tokens, positions, tile)
            # The last bit of a row, as an instruction for the rest of a vector has it.
            return found * torch.where(torch.arange(found.shape[0], device=found.device) == 7, 1 + 2.0**-23, 1.0)[:, None]

        with unittest.mock.patch.object(tiles, "compute", with_a_slip):
            self.assert_refused(Refused, "depend on a token's place in a tile", self.opened)


if __name__ == "__main__":
    unittest.main()
