"""Forward and backward of decoders: against golden vectors, whole-logits autograd, and one sequence at a time."""

import tempfile
import unittest
import unittest.mock

# First: without PyTorch it reports that and skips the tests.
from support import (
    ARCHITECTURES,
    OPTIMIZER,
    Case,
    call,
    columns,
    golden,
    golden_folder,
    next_token_columns,
    opened,
    random_columns,
    save_tiny,
    tiny_config,
)

import torch
import transformers
from tamis.learner import attention, model, packing, rotary
from tamis.learner.learner import Learner
from tamis.learner.protocol import Refused, RequestError, Wave


def policy(learner):
    return learner._policy.network


def grads(learner, name="policy"):
    weights = learner._named(name).network.weights
    return {one: None if weights.gradient(one) is None else weights.gradient(one).clone() for one in weights.masters}


def packing_wave(given):
    """The wave of these columns."""
    return Wave.from_columns(dict(given), 1, None)


def sequences_of(given):
    """Prompt and completion of each sequence, as lists."""

    def cut(tokens, offsets):
        return [tokens[a:b].tolist() for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist())]

    prompts = cut(given["prompt_token"], given["prompt_offset"])
    completions = cut(given["completion_token"], given["completion_offset"])
    return [(prompts[p], completion) for p, completion in zip(given["prompt_of"].tolist(), completions)]


def whole_logits(module, given, factor=1.0):
    """Log-probabilities and entropies one sequence at a time from transformers' own logits."""
    logprobs, entropies = [], []
    for prompt, completion in sequences_of(given):
        tokens = torch.tensor([prompt + completion])
        z = module(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1] * factor
        log_p = z.log_softmax(1)
        logprobs.append(log_p.gather(1, torch.tensor(completion)[:, None])[:, 0])
        entropies.append(-(log_p.exp() * log_p).sum(1))
    return torch.cat(logprobs), torch.cat(entropies)


def plain(folder, dtype=torch.float64):
    module = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return module.eval()


def derivatives(num_tokens, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_tokens, generator=generator), torch.randn(num_tokens, generator=generator)


class Golden(Case):
    def test_logprobs_and_entropies(self):
        for architecture in ARCHITECTURES:
            learner = opened(golden_folder(architecture))
            expected = [one for one in golden(architecture)["sequences"] if len(one["tokens"]) > 1]
            _, found = call(
                learner, "forward", {"network": "policy"}, next_token_columns([one["tokens"] for one in expected])
            )
            logprob = [x for one in expected for x in one["next_token_logprobs"]]
            # The last position predicts nothing that was sampled.
            entropy = [x for one in expected for x in one["entropy"][:-1]]
            self.assert_close(found["logprob"], logprob, 1e-5, architecture)
            self.assert_close(found["entropy"], entropy, 1e-5, architecture)

    def test_three_steps(self):
        for architecture in ARCHITECTURES:
            training = golden(architecture)["training"]
            learner = opened(golden_folder(architecture))
            given = next_token_columns(training["sequences"])
            coefficients = torch.tensor([x for one in training["coefs"] for x in one])
            for number, step in enumerate(training["steps"]):
                _, found = call(learner, "forward_hold", {"network": "policy"}, given)
                objective = (found["logprob"].double() * coefficients.double()).sum()
                self.assert_close(objective, step["objective"], 1e-5, architecture)
                call(learner, "backward", {}, {"logprob": coefficients})
                if number == 0:
                    scale = min(1.0, 1.0 / (step["grad_norm"] + 1e-6))
                    for name, gradient in grads(learner).items():
                        expected = step["clipped_grad"][name]
                        gradient = gradient * scale
                        self.assertAlmostEqual(gradient.norm().item() / expected["norm"], 1.0, delta=1e-5)
                        tolerance = 1e-5 * gradient.abs().max().item()
                        for x, y in zip(gradient.flatten()[:8].tolist(), expected["first8"]):
                            self.assertAlmostEqual(x, y, delta=tolerance, msg=f"{architecture} {name}")
                answer, norm = call(learner, "optim_step", {"network": "policy", "learning_rate": 1e-3})
                self.assertEqual(answer, {"skipped": False, "num_steps": number + 1})
                self.assertAlmostEqual(norm["grad_norm"].item() / step["grad_norm"], 1.0, delta=1e-5)
            for name, master in policy(learner).weights.masters.items():
                if name.endswith("k_proj.bias"):
                    # It moves no softmax: its gradient is a rounding error, and Adam turns that into whole steps.
                    continue
                expected = step["param_after"][name]
                self.assertAlmostEqual(master.norm().item() / expected["norm"], 1.0, delta=1e-5)
                for x, y in zip(master.flatten()[:8].tolist(), expected["first8"]):
                    self.assertAlmostEqual(x, y, delta=2e-5 * master.abs().max().item(), msg=f"{architecture} {name}")


class WholeLogits(Case):
    def check(self, folder, factor=1.0, tolerance=1e-5, given=None, exact=torch.float64, **more):
        module = plain(folder, exact)
        learner = opened(folder, temperature=1 / factor, **more)
        given = given or random_columns(policy(learner).vocab_size)
        expected = whole_logits(module, given, factor)
        _, found = call(learner, "forward_hold", {"network": "policy"}, given)
        self.assert_close(found["logprob"], expected[0], tolerance)
        self.assert_close(found["entropy"], expected[1], tolerance)
        d_logprob, d_entropy = derivatives(expected[0].numel())
        call(learner, "backward", {}, {"logprob": d_logprob, "entropy": d_entropy})
        torch.autograd.backward(expected, [d_logprob.to(exact), d_entropy.to(exact)])
        theirs = dict(module.named_parameters())
        self.assertEqual(list(theirs), list(grads(learner)))
        for name, gradient in grads(learner).items():
            if theirs[name].grad is None:
                self.assertTrue(gradient is None or not gradient.any(), name)
            elif theirs[name].grad.abs().max() < 1e-6:
                # A key's bias moves no softmax, so its gradient is only rounding.
                self.assertLess(gradient.abs().max(), 1e-5, name)
            else:
                self.assert_close(gradient, theirs[name].grad, tolerance, name)
        return learner

    def test_gradients_of_golden_models(self):
        for architecture in ARCHITECTURES:
            for factor, options in ((1.0, {}), (1 / 0.6, {"logprob_chunk": 3}), (0.8, {"attention": "sdpa"})):
                with self.subTest(architecture, factor=factor, **options):
                    learner = self.check(golden_folder(architecture), factor, 2e-5, options=options)
                    expected = options.get("attention", "tamis_sequences")
                    self.assertEqual(policy(learner).attention, expected)

    def test_recomputed_activations_change_nothing(self):
        given = random_columns(96)
        for architecture in ARCHITECTURES:
            found = []
            for recompute in (False, True):
                learner = opened(golden_folder(architecture), recompute_activations=recompute)
                count = 0
                layer = policy(learner).decoder.layers[1].mlp

                def see(*_):
                    nonlocal count
                    count += 1

                # Recomputation ends when the last tensor that is needed exists: before the layer's own end.
                layer.register_forward_pre_hook(see)
                _, scores = call(learner, "forward_hold", {"network": "policy"}, given)
                call(learner, "backward", {}, dict(zip(("logprob", "entropy"), derivatives(scores["logprob"].numel()))))
                found.append((scores["logprob"], grads(learner)))
                self.assertEqual(count, 2 if recompute else 1)
            self.assert_same(*(one[0] for one in found))
            for name in found[0][1]:
                self.assert_same(found[0][1][name], found[1][1][name], name)

    def test_nothing_is_dropped(self):
        # Its layers drop activations themselves, and a layer that recomputes is in training mode.
        config = tiny_config("OPTConfig", ffn_dim=40, word_embed_proj_dim=24, dropout=0.5, attention_dropout=0.5)
        with tempfile.TemporaryDirectory() as folder:
            save_tiny(folder, config)
            for recompute in (False, True):
                self.check(folder, tolerance=2e-5, recompute_activations=recompute)

    def test_other_architectures(self):
        gemma = dict(query_pre_attn_scalar=8, final_logit_softcapping=3.0, attn_logit_softcapping=2.0, sliding_window=4)
        cases = {
            # Soft-capped logits and attention, alternating windows, a scaled embedding.
            "Gemma2Config": (gemma, "eager", True),
            "Gemma3TextConfig": (dict(sliding_window=4, query_pre_attn_scalar=8), "tamis_sequences", True),
            # Scaled logits, residuals and attention.
            "GraniteConfig": (
                dict(logits_scaling=7.0, attention_multiplier=0.3, residual_multiplier=0.5),
                "tamis_sequences",
                True,
            ),
            "CohereConfig": (dict(logit_scale=0.3), "tamis_sequences", True),
            # A window in every layer.
            "MistralConfig": (dict(sliding_window=5), "tamis_sequences", True),
            # Positions that are learned.
            "GPT2Config": (dict(n_embd=24, n_head=4, n_layer=2, n_positions=64, n_inner=40), "tamis_sequences", True),
            # A head with a bias.
            "PhiConfig": (dict(hidden_size=32, head_dim=8, num_key_value_heads=4), "tamis_sequences", True),
            # Attention with sinks; its masks know nothing of packs.
            "GptOssConfig": (dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=4), "eager", False),
            # A mixture of experts.
            "Qwen3MoeConfig": (
                dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
                "tamis_sequences",
                True,
            ),
            # Distances without position ids.
            "BloomConfig": (dict(n_layer=2, n_head=4), None, False),
            # A state that runs on from one sequence into the next.
            "MambaConfig": (dict(state_size=4), None, False),
        }
        for kind, (more, attention, is_packed) in cases.items():
            with self.subTest(kind), tempfile.TemporaryDirectory() as folder:
                save_tiny(folder, tiny_config(kind, **more))
                # Products of several experts at once exist only in f32.
                exact = torch.float32 if "num_experts_per_tok" in more else torch.float64
                learner = self.check(folder, factor=1 / 0.9, tolerance=2e-5, exact=exact)
                self.assertEqual(policy(learner).is_packed, is_packed)
                if attention is not None:
                    self.assertEqual(policy(learner).attention, attention)

    def test_refused_models(self):
        with tempfile.TemporaryDirectory() as folder:
            save_tiny(folder, tiny_config("BertConfig", is_decoder=False))
            self.assert_refused(Refused, "in a way that this learner does not know", opened, folder)
        with tempfile.TemporaryDirectory() as folder:
            save_tiny(folder, tiny_config("LlamaConfig", is_causal=False))
            self.assert_refused(Refused, "no decoder", opened, folder)
        with tempfile.TemporaryDirectory() as folder:
            self.assert_refused(Refused, "config.json", opened, folder)
        self.assert_refused(
            Refused,
            "attention `sequence` cannot be used",
            opened,
            golden_folder("qwen2"),
            options={"attention": "sequence"},
        )
        with tempfile.TemporaryDirectory() as folder:
            save_tiny(folder, tiny_config("Gemma2Config", attn_logit_softcapping=2.0))
            self.assert_refused(
                Refused,
                "attention `sdpa` cannot be used with Gemma2Model",
                opened,
                folder,
                options={"attention": "sdpa"},
            )

    def test_logits_that_are_changed_unseen_are_refused(self):
        from tamis.learner import head

        class Bent(transformers.LlamaForCausalLM):
            def forward(self, *arguments, **more):
                output = super().forward(*arguments, **more)
                output.logits = output.logits.clamp(max=50.0)
                return output

        module = Bent(tiny_config("LlamaConfig"))
        bent = head.VocabularyHead(module, None)
        self.assert_refused(Refused, "in a way that this learner does not know", bent.check, module)
        # The same without the bend.
        module = transformers.LlamaForCausalLM(tiny_config("LlamaConfig"))
        head.VocabularyHead(module, None).check(module)


def varlen_by_hand(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, enable_gqa=False):
    """`varlen_attn`'s flash kernel, one sequence after another: the last query sees the last key. It only runs on GPUs."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32 and window_size[1] == 0
    assert (max_q, max_k) == (int(cu_seq_q.diff().max()), int(cu_seq_k.diff().max()))
    attended = []
    ranges = [list(zip(offsets[:-1].tolist(), offsets[1:].tolist())) for offsets in (cu_seq_q, cu_seq_k)]
    for own, seen in zip(*ranges, strict=True):
        q, k, v = (states[slice(*part)].transpose(0, 1) for states, part in ((query, own), (key, seen), (value, seen)))
        assert enable_gqa or q.shape[0] == k.shape[0]
        k, v = (states.repeat_interleave(q.shape[0] // k.shape[0], 0) for states in (k, v))
        places = torch.arange(k.shape[1])
        distance = places[-q.shape[1] :, None] - places
        seen = (distance >= 0) & ((window_size[0] < 0) | (distance <= window_size[0]))
        scores = (q @ k.transpose(1, 2) * scale).masked_fill(~seen, -torch.inf)
        attended.append((scores.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(attended)


def varlen_of_old(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size):
    """That of torch 2.11, which wants as many keys as queries."""
    return varlen_by_hand(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale, window_size=window_size)


class SharedPrompts(Case):
    """Sequences of a prompt follow it in a row, and have the numbers that they have behind prompts of their own."""

    def passes(self, learner, name, given):
        _, scores = call(learner, "forward_hold", {"network": name}, given)
        by = derivatives(next(iter(scores.values())).numel())
        call(learner, "backward", {}, dict(zip(scores, by)))
        found = grads(learner, name)
        learner._named(name).network.weights.clear_gradients()
        return scores, found

    def test_a_prompt_stands_once(self):
        given = columns([[1, 2, 3], [4, 5]], [(0, [6, 7, 8]), (0, [9]), (0, [10, 11]), (1, [12, 13])])
        wave = packing_wave(given)
        one = packing.pack(wave, "cpu", shares=True)
        self.assertEqual(one.input_ids.tolist(), [[1, 2, 3, 6, 7, 10, 4, 5, 12]])
        self.assertEqual(one.position_ids.tolist(), [[0, 1, 2, 3, 4, 3, 0, 1, 2]])
        self.assertEqual(one.rows.tolist(), [2, 3, 4, 2, 2, 5, 7, 8])
        self.assertEqual(one.targets.tolist(), [6, 7, 8, 9, 10, 11, 12, 13])
        layout = one.layout
        self.assertEqual(layout.query_offsets.tolist(), [0, 3, 5, 6, 9])
        self.assertEqual(layout.key_offsets.tolist(), [0, 3, 8, 12, 15])
        self.assertEqual(layout.key_rows.tolist(), [0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 5, 6, 7, 8])
        self.assertEqual((layout.longest_query, layout.longest_key), (3, 5))
        # If nothing is shared, nothing differs.
        self.assertIsNone(packing.pack(packing_wave(columns([[1], [2]], [(0, [3, 4]), (1, [5])])), "cpu", shares=True).layout)
        self.assertIsNone(packing.pack(wave, "cpu").layout)

    def test_numbers_and_gradients_are_those_behind_prompts_of_their_own(self):
        shape = ((9, (7, 1, 12, 3)), (1, (4, 4)), (30, (20,)), (6, (1, 2)))
        windowed = {"sliding_window": 5}
        kinds = [("Qwen2Config", {}), ("Qwen3Config", {}), ("LlamaConfig", {}), ("MistralConfig", windowed)]
        for kind, more in kinds:
            for options in ({}, {"lora": {"rank": 2, "alpha": 4.0}}, {"attention": "varlen"}):
                with (
                    self.subTest(kind, options=options),
                    tempfile.TemporaryDirectory() as folder,
                    unittest.mock.patch("torch.nn.attention.varlen.varlen_attn", varlen_by_hand),
                ):
                    save_tiny(folder, tiny_config(kind, **more))
                    critic = {} if options.get("lora") else {"critic": {"folder": None, "optimizer": OPTIMIZER}}
                    learner = opened(folder, options=options, recompute_activations=kind == "LlamaConfig", **critic)
                    names = ["policy"]
                    if critic:
                        call(learner, "copy", {"to": "critic"})
                        learner._critic.network.head.weight.data.normal_(generator=torch.Generator().manual_seed(3))
                        names.append("critic")
                    given = random_columns(50, shape=shape)
                    for name in names:
                        network = learner._named(name).network
                        self.assertTrue(network.shares_prompts)
                        scores, gradients = self.passes(learner, name, given)
                        _, again = call(learner, "forward", {"network": name}, given)
                        network.shares_prompts = False
                        expected, expected_gradients = self.passes(learner, name, given)
                        network.shares_prompts = True
                        for column, numbers in expected.items():
                            self.assert_close(scores[column], numbers, 1e-5, column)
                            self.assert_same(again[column], scores[column])
                        for tensor, gradient in expected_gradients.items():
                            self.assert_close(gradients[tensor], gradient, 1e-5, tensor)
                        # Keys for a branch or a few at a time, as if many see a long prompt.
                        for gathered in (0, 1) if options.get("attention") else ():
                            with unittest.mock.patch("tamis.learner.packing._GATHERED", gathered):
                                in_blocks, gradients_in_blocks = self.passes(learner, name, given)
                            for column, numbers in scores.items():
                                self.assert_close(in_blocks[column], numbers, 1e-6, column)
                            for tensor, gradient in gradients.items():
                                self.assert_close(gradients_in_blocks[tensor], gradient, 1e-5, tensor)

    def test_keys_that_many_see_are_gathered_in_blocks(self):
        # Rows of the pack: 10 + 6 x 2. Seen: 10, then 12 by each completion; four times 22 is 88.
        given = columns([list(range(10))], [(0, [1, 2, 3])] * 6)
        layout = packing.pack(packing_wave(given), "cpu", shares=True).layout
        self.assertEqual([block.rows for block in layout.blocks], [slice(0, 22)])
        with unittest.mock.patch("tamis.learner.packing._GATHERED", 2):
            layout = packing.pack(packing_wave(given), "cpu", shares=True).layout
            self.assertEqual([block.rows for block in layout.blocks], [slice(0, 14), slice(14, 20), slice(20, 22)])
            second = layout.blocks[1]
        self.assertEqual(second.key_rows.tolist(), [row for own in (14, 16, 18) for row in (*range(10), own, own + 1)])
        self.assertEqual((second.query_offsets.tolist(), second.key_offsets.tolist()), ([0, 2, 4, 6], [0, 12, 24, 36]))

    def test_rounded_they_are_as_near_as_behind_prompts_of_their_own(self):
        given = random_columns(50, shape=((9, (7, 1, 12, 3)), (30, (20, 4))))
        for recompute in (False, True):
            exact = self.passes(opened(golden_folder("qwen3")), "policy", given)
            learner = opened(golden_folder("qwen3"), options={"dtype": "bf16"}, recompute_activations=recompute)
            self.assertTrue(policy(learner).shares_prompts)
            shared = self.passes(learner, "policy", given)
            policy(learner).shares_prompts = False
            apart = self.passes(learner, "policy", given)

            def distance(found, expected=exact):
                return [
                    float((torch.cat([one.flatten() for one in part.values()]) - truth).norm() / truth.norm())
                    for part, truth in zip(found, (torch.cat([one.flatten() for one in part.values()]) for part in expected))
                ]

            for one, other in zip(distance(shared), distance(apart)):
                self.assertGreater(one, 0.0)
                self.assertLess(one, 1.5 * other)

    def test_what_cannot_share_has_a_prompt_for_each(self):
        def one_kind_of_offsets(query, key, value, cu_seq_q, cu_seq_k, *more, **settings):
            if cu_seq_q is not cu_seq_k:
                raise RuntimeError("causal attention requires the same offsets")
            return varlen_by_hand(query, key, value, cu_seq_q, cu_seq_k, *more, **settings)

        def from_the_first_key(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, enable_gqa=False):
            """Causal by the first key: a completion sees only the start of its prompt."""
            begins, lengths = cu_seq_k[:-1].tolist(), cu_seq_q.diff().tolist()
            rows = torch.cat([torch.arange(begin, begin + length) for begin, length in zip(begins, lengths)])
            return varlen_by_hand(
                query, key[rows], value[rows], cu_seq_q, cu_seq_q, max_q, max_q,
                scale=scale, window_size=window_size, enable_gqa=enable_gqa,
            )  # fmt: skip

        given = random_columns(50)
        folder = golden_folder("qwen3")
        plain = opened(folder)
        self.assertIn("prompts shared", plain.describe()[0])
        self.assertTrue(call(plain, "restore")[0]["shares_prompts"])
        _, expected = call(plain, "forward", {"network": "policy"}, given)
        for kernel in (one_kind_of_offsets, from_the_first_key):
            with (
                self.subTest(kernel.__name__),
                unittest.mock.patch("torch.nn.attention.varlen.varlen_attn", kernel),
            ):
                learner = opened(folder, options={"attention": "varlen"})
                self.assertEqual((policy(learner).attention, policy(learner).is_packed), ("tamis_varlen", True))
                self.assertFalse(call(learner, "restore")[0]["shares_prompts"])
                self.assertNotIn("prompts shared", learner.describe()[0])
                _, found = call(learner, "forward", {"network": "policy"}, given)
                self.assert_close(found["logprob"], expected["logprob"], 1e-5)
                self.assertIn("prompts are computed for each sequence: ", "\n".join(learner.describe()))
        self.assertFalse(call(opened(folder, options={"attention": "sdpa"}), "restore")[0]["shares_prompts"])

    def test_gradients_of_a_row_that_is_taken_often_add_up_in_f32(self):
        generator = torch.Generator().manual_seed(1)
        states = torch.randn(3, 8, generator=generator).bfloat16().requires_grad_()
        rows = torch.tensor([0] * 64 + [2])
        gradient = torch.randn(65, 8, generator=generator).bfloat16()
        packing.take_rows(states, rows).backward(gradient)
        expected = torch.stack([gradient[:64].float().sum(0), torch.zeros(8), gradient[64].float()]).bfloat16()
        self.assert_same(states.grad, expected)

    def test_layers_that_mix_neighbours_are_found_out_in_bf16_too(self):
        """Convolutions reach over the end of a sequence: packed, the next one would begin with its numbers."""
        config = transformers.Lfm2Config(
            vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=4,
            num_key_value_heads=2, layer_types=["conv", "conv", "full_attention", "conv"] * 2, initializer_range=0.05,
            block_auto_adjust_ff_dim=False,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
            for dtype in ("f32", "bf16"):
                network = policy(opened(folder, options={"dtype": dtype}))
                self.assertEqual((network.is_packed, network.shares_prompts), (False, False), dtype)

    def test_windows_that_only_masks_tell_of_are_kept(self):
        sizes = {
            "vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "sliding_window": 160, "initializer_range": 0.2,
        }  # fmt: skip
        configs = {
            "told by mask": transformers.PhimoeConfig(**sizes, num_local_experts=4, num_experts_per_tok=2),
            "told": transformers.MistralConfig(**sizes, head_dim=8),
        }
        given = random_columns(50, shape=((300, (20, 9)),))
        for kind, config in configs.items():
            with self.subTest(kind), tempfile.TemporaryDirectory() as folder:
                torch.manual_seed(0)
                module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
                module.save_pretrained(folder)
                learner = opened(folder)
                self.assertEqual(policy(learner).attention in attention.SHARING, kind == "told")
                _, found = call(learner, "forward", {"network": "policy"}, given)
                with torch.no_grad():
                    expected, _ = whole_logits(module, given)
                self.assert_close(found["logprob"], expected, 1e-5)

    def test_a_device_that_is_lost_is_no_matter_of_the_attention(self):
        def lost(*_, **__):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        def full(*_, **__):
            raise torch.OutOfMemoryError("CUDA out of memory")

        # A real GPU would still answer.
        self.enterContext(unittest.mock.patch("tamis.learner.device._computes", lambda: False))
        for kernel, kind in ((lost, RuntimeError), (full, torch.OutOfMemoryError)):
            with unittest.mock.patch("torch.nn.attention.varlen.varlen_attn", kernel):
                self.assertRaises(kind, opened, golden_folder("qwen3"), options={"attention": "varlen"})


class Kernels(Case):
    def test_what_they_do_not_compute_is_refused(self):
        states = torch.randn(1, 2, 5, 8)
        for attend in (attention.attend_sequences, attention.attend_varlen):
            given = {"scaling": 1.0, "cu_seq_lens_q": [5], "max_length_q": 5}
            refused = [
                {"softcap": 3.0},
                {"s_aux": states},
                {"is_causal": False},
                {"dropout": 0.1},
                {"cu_seq_lens_q": None},
            ]
            for more in refused:
                with self.subTest(attend.__name__, more=list(more)):
                    self.assertRaises(
                        attention.AttentionRefused, attend, None, states, states, states, None, **{**given, **more}
                    )
            mask = torch.ones(1, 1, 5, 5)
            self.assertRaises(attention.AttentionRefused, attend, None, states, states, states, mask, **given)
        attended, _ = attention.attend_sequences(
            None, states, states, states, None, softcap=None, use_cache=False, **given
        )
        self.assertEqual(attended.shape, (1, 5, 2, 8))


class Varlen(Case):
    def test_what_the_kernel_is_given(self):
        with tempfile.TemporaryDirectory() as folder:
            save_tiny(folder, tiny_config("MistralConfig", sliding_window=5))
            for kernel in (varlen_by_hand, varlen_of_old):
                with unittest.mock.patch("torch.nn.attention.varlen.varlen_attn", kernel):
                    for where in (golden_folder("qwen3"), golden_folder("llama"), folder):
                        for recompute in (False, True):
                            learner = opened(where, options={"attention": "varlen"}, recompute_activations=recompute)
                            self.assertEqual(policy(learner).attention, "tamis_varlen")
                            expected = opened(where)
                            given = random_columns(50)
                            found = []
                            for one in (learner, expected):
                                _, scores = call(one, "forward_hold", {"network": "policy"}, given)
                                call(one, "backward", {}, {"logprob": derivatives(scores["logprob"].numel())[0]})
                                found.append((scores["logprob"], grads(one)))
                            self.assert_close(found[0][0], found[1][0], 1e-5)
                            for name, gradient in found[1][1].items():
                                self.assert_close(found[0][1][name], gradient, 2e-5, name)

    def test_all_passes_take_one_kernel(self):
        """The kernel that torch would choose by itself, with a graph or without: the flash kernel."""
        seen = set()

        def kernel(query, *arguments, **more):
            flags = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.cudnn_sdp_enabled()
            seen.add((torch.is_grad_enabled() and query.requires_grad, *flags))
            return varlen_by_hand(query, *arguments, **more)

        with unittest.mock.patch("torch.nn.attention.varlen.varlen_attn", kernel):
            learner = opened(golden_folder("qwen3"), options={"attention": "varlen"}, recompute_activations=True)
            given = random_columns(50)
            _, without = call(learner, "forward", {"network": "policy"}, given)
            _, found = call(learner, "forward_hold", {"network": "policy"}, given)
            self.assert_same(found["logprob"], without["logprob"])
            call(learner, "backward", {}, {"logprob": torch.ones_like(found["logprob"])})
        self.assertEqual(seen, {(False, True, False), (True, True, False)})

    def test_without_the_kernel_it_is_refused(self):
        if torch.cuda.is_available():
            self.skipTest("there is one here")
        options = {"attention": "varlen"}
        self.assert_refused(Refused, "`varlen` cannot be used", opened, golden_folder("llama"), options=options)


class _FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query):
        return query.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no kernel for the backward of heads of 256")


class _WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query):
        return query.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0.5


class Choice(Case):
    """The chosen attention, with kernels of a GPU played on the CPU."""

    def test_order(self):
        learner = opened(golden_folder("qwen3"))
        decoder = policy(learner).decoder
        installed = "tamis.learner.attention.is_flash_attn_2_available"
        for has_flash in (False, True):
            with unittest.mock.patch(installed, lambda has_flash=has_flash: has_flash):
                flash = ["flash_attention_2"] if has_flash else []
                on_gpu = attention.candidates(decoder, "cuda", torch.bfloat16)
                self.assertEqual(on_gpu, ["tamis_varlen", *flash, "sdpa", "eager"])
                for device, dtype in (("cuda", torch.float32), ("cpu", torch.bfloat16), ("cpu", torch.float32)):
                    found = attention.candidates(decoder, device, dtype)
                    self.assertEqual(found, ["tamis_sequences", "sdpa", "eager"])
                decoder._supports_flash_attn = False
                self.assertEqual(attention.candidates(decoder, "cuda", torch.bfloat16), ["sdpa", "eager"])
                decoder._supports_flash_attn = True

    def opened_with(self, kernel, order):
        with (
            unittest.mock.patch("tamis.learner.attention.candidates", lambda *_: order),
            unittest.mock.patch("torch.nn.attention.varlen.varlen_attn", kernel),
        ):
            return opened(golden_folder("qwen3"))

    def test_one_that_fails_gives_way_to_the_next_and_that_is_said(self):
        def fails_backward(query, *arguments, **more):
            return varlen_by_hand(_FailsBackward.apply(query), *arguments, **more)

        def wrong_backward(query, *arguments, **more):
            return varlen_by_hand(_WrongBackward.apply(query), *arguments, **more)

        def wrong_when_long(query, key, value, *offsets, **more):
            found = varlen_by_hand(query, key, value, *offsets, **more)
            return found if offsets[-1] <= 128 else found * 1.1

        kernels = {
            fails_backward: "no kernel for the backward of heads of 256",
            wrong_backward: "its gradients are not those of the model's plain attention",
            wrong_when_long: "its numbers are not those of the model's plain attention",
        }
        for kernel, why in kernels.items():
            with self.subTest(kernel.__name__):
                learner = self.opened_with(kernel, ["tamis_varlen", "sdpa", "eager"])
                self.assertEqual((policy(learner).attention, policy(learner).is_packed), ("sdpa", True))
                self.assertIn(f"attention tamis_varlen is not used: {why}", "\n".join(learner.describe()))
                self.assertIs(policy(learner).weights.gradient("model.norm.weight"), None, "nothing is left of the trial")
        learner = self.opened_with(varlen_by_hand, ["tamis_varlen", "sdpa", "eager"])
        self.assertEqual((policy(learner).attention, policy(learner).is_packed), ("tamis_varlen", True))
        self.assertEqual(len(learner.describe()), 1)

    def test_a_deep_model_in_bf16_may_make_much_of_rounding(self):
        """And a kernel whose gradient is wrong is found out beside that."""
        config = tiny_config("LlamaConfig", num_hidden_layers=48, hidden_size=32, head_dim=8, max_position_embeddings=256)
        with tempfile.TemporaryDirectory() as folder:
            save_tiny(folder, config)
            learner = opened(folder, options={"dtype": "bf16"})
            self.assertEqual((policy(learner).attention, policy(learner).passed_over), ("tamis_sequences", {}))
            # A shallow model's rounding would have hidden it.
            shallow = model._Margins(model.tolerance(torch.bfloat16), 2 * model.tolerance(torch.bfloat16))
            with unittest.mock.patch.object(model.Network, "_margins", lambda *_: shallow):
                network = policy(opened(folder, options={"dtype": "bf16"}))
            self.assertIn("are not those of the model's plain attention", network.passed_over["tamis_sequences"])

            def wrong_backward(*arguments, plainly=attention.attend_sequences, **more):
                found, _ = plainly(*arguments, **more)
                return _WrongBackward.apply(found), None

            transformers.AttentionInterface.register("tamis_sequences", wrong_backward)
            self.addCleanup(transformers.AttentionInterface.register, "tamis_sequences", attention.attend_sequences)
            learner = opened(folder, options={"dtype": "bf16"})
            self.assertEqual(policy(learner).attention, "sdpa")

    def test_flash_attention_is_taken_where_varlen_cannot_be(self):
        given = []

        def attend(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **more):
            # As the package does it: over a whole row, by offsets.
            given.append(more)
            lengths = more["cu_seq_lens_q"].diff().tolist()
            more = {**more, "cu_seq_lens_q": lengths}
            return attention.attend_sequences(module, query, key, value, None, scaling, dropout, **more)

        transformers.AttentionInterface.register("played_kernel", attend)

        def cannot(*_, **__):
            raise RuntimeError("No viable backend for varlen_attn")

        learner = self.opened_with(cannot, ["tamis_varlen", "played_kernel", "sdpa", "eager"])
        self.assertEqual((policy(learner).attention, policy(learner).is_packed), ("played_kernel", True))
        self.assertIn("tamis_varlen is not used: No viable backend", "\n".join(learner.describe()))
        self.assertEqual({(one["max_length_q"], one["cu_seq_lens_q"].dtype) for one in given}, {(133, torch.int32)})


LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 3, "long_factor": [4.0] * 3,
    "original_max_position_embeddings": 16,
}  # fmt: skip


class Rotary(Case):
    """Frequencies that depend on the row's length: a row must not get those of a neighbour."""

    def test_a_short_sequence_beside_a_long_one_has_its_own(self):
        given = random_columns(50, shape=((4, (6,)), (4, (40,)), (9, (3, 20))))
        # Phi-4-mini and Phi-3; windows whose layers have positions of their own; a factor that goes by the length.
        by_layer = {"full_attention": LONGROPE, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
        cases = {
            "Phi3Config": dict(original_max_position_embeddings=16, rope_parameters=LONGROPE),
            "Gemma3TextConfig": dict(
                sliding_window=4, query_pre_attn_scalar=8, layer_types=list(by_layer)[::-1], rope_parameters=by_layer
            ),
            "LlamaConfig": dict(rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}),
        }
        for kind, more in cases.items():
            with self.subTest(kind), tempfile.TemporaryDirectory() as folder:
                save_tiny(folder, tiny_config(kind, **more))
                learner = opened(folder)
                self.assertFalse(policy(learner).is_packed)
                said = "its rotary positions depend on the length of a row, so sequences are not packed"
                self.assertIn(said, "\n".join(learner.describe()))
                _, found = call(learner, "forward", {"network": "policy"}, given)
                # transformers 5.17 cannot compute a second long row by itself.
                truth = plain(folder, torch.float32)
                rotary.mend(truth)
                expected, _ = whole_logits(truth, given)
                self.assert_close(found["logprob"], expected, 1e-5)
                self.assert_refused(
                    Refused, "rotary positions depend on the length of the whole sequence", opened, folder,
                    generation={"max_sequences": 4},
                )  # fmt: skip

    def test_others_are_packed(self):
        for rope in ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, {"rope_type": "default"}):
            with tempfile.TemporaryDirectory() as folder:
                save_tiny(folder, tiny_config("LlamaConfig", rope_parameters={"rope_theta": 10000.0, **rope}))
                self.assertTrue(policy(opened(folder, generation={"max_sequences": 4})).is_packed)

    def test_what_is_unknown_is_found_out_where_long_rows_begin(self):
        """A decoder that behaves like longrope without declaring it."""
        with tempfile.TemporaryDirectory() as folder:
            rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0}
            rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 200}
            save_tiny(folder, tiny_config("LlamaConfig", max_position_embeddings=300, rope_parameters=rope))
            self.assertTrue(policy(opened(folder)).is_packed)
            plainly = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding.forward

            def stretched(self, x, position_ids):
                cos, sin = plainly(self, x, position_ids)
                return (cos * 1.5, sin * 1.5) if position_ids.max() >= 200 else (cos, sin)

            with unittest.mock.patch("transformers.models.llama.modeling_llama.LlamaRotaryEmbedding.forward", stretched):
                self.assertFalse(policy(opened(folder)).is_packed)


class Packing(Case):
    def test_a_sequence_has_the_numbers_it_has_alone(self):
        given = random_columns(96, 3)
        for architecture in ARCHITECTURES:
            learner = opened(golden_folder(architecture), critic={"optimizer": OPTIMIZER})
            call(learner, "copy", {"to": "critic"})
            critic = learner._critic.network
            with torch.no_grad():
                critic.head.weight.copy_(torch.linspace(-1, 1, critic.head.weight.numel())[None])
            for network, names in (("policy", ("logprob", "entropy")), ("critic", ("value",))):
                _, packed = call(learner, "forward", {"network": network}, given)
                alone = []
                for prompt, completion in sequences_of(given):
                    _, one = call(learner, "forward", {"network": network}, columns([prompt], [(0, completion)]))
                    alone.append(one)
                for name in names:
                    # Kernels of other shapes sum in another order, on each processor its own.
                    self.assert_close(packed[name], torch.cat([one[name] for one in alone]), 5e-6, architecture)

    def test_gradients_of_packed_sequences_add_up(self):
        given = random_columns(96, 4)
        learner = opened(golden_folder("qwen3"))
        _, found = call(learner, "forward_hold", {"network": "policy"}, given)
        d_logprob, d_entropy = derivatives(found["logprob"].numel())
        call(learner, "backward", {}, {"logprob": d_logprob, "entropy": d_entropy})
        packed = grads(learner)
        call(learner, "grad_norm", {"network": "policy"})
        begin = 0
        for prompt, completion in sequences_of(given):
            part = slice(begin, begin + len(completion))
            begin += len(completion)
            call(learner, "forward_hold", {"network": "policy"}, columns([prompt], [(0, completion)]))
            call(learner, "backward", {}, {"logprob": d_logprob[part], "entropy": d_entropy[part]})
        for name, gradient in grads(learner).items():
            self.assert_close(gradient, packed[name], 1e-5, name)

    def test_one_sequence_does_not_see_another(self):
        learner = opened(golden_folder("llama"))
        first, second = [1, 2, 3, 4], [5, 6, 7]
        _, found = call(learner, "forward", {"network": "policy"}, columns([[9], [8, 7]], [(0, first), (1, second)]))
        _, other = call(
            learner, "forward", {"network": "policy"}, columns([[70], [8, 7]], [(0, [60, 50, 40, 30]), (1, second)])
        )
        self.assert_same(found["logprob"][4:], other["logprob"][4:])
        self.assertFalse(torch.equal(found["logprob"][:4], other["logprob"][:4]))

    def test_empty_wave(self):
        learner = opened(golden_folder("qwen2"))
        empty = columns([], [])
        _, found = call(learner, "forward_hold", {"network": "policy"}, empty)
        self.assertEqual(found["logprob"].shape, (0,))
        call(learner, "backward", {}, {"logprob": torch.zeros(0)})
        _, norm = call(learner, "grad_norm", {"network": "policy"})
        self.assertEqual(norm["grad_norm"].item(), 0.0)

    def test_what_does_not_fit_is_refused(self):
        learner = opened(golden_folder("qwen2"))
        self.assert_refused(
            RequestError, "holds 96", call, learner, "forward", {"network": "policy"}, columns([[1]], [(0, [96])])
        )
        self.assert_refused(
            RequestError, "holds -1", call, learner, "forward", {"network": "policy"}, columns([[-1]], [(0, [9])])
        )
        long = columns([[1] * 7], [(0, [2] * 250)])
        self.assert_refused(
            Refused, "257 tokens, and the model 256", call, learner, "forward", {"network": "policy"}, long
        )
        call(learner, "forward", {"network": "policy"}, columns([[1] * 6], [(0, [2] * 250)]))


class Memory(Case):
    def test_weights_are_held_twice_only_where_they_are_rounded(self):
        for dtype in ("f32", "bf16"):
            given = []
            plainly = model.Network.train

            def train(network, exact, *others):
                given.append(dict(exact))
                plainly(network, exact, *others)

            with unittest.mock.patch.object(model.Network, "train", train):
                learner = opened(golden_folder("qwen3"), options={"dtype": dtype})
            weights = policy(learner).weights
            self.assertEqual(list(given[0]), [] if dtype == "f32" else list(weights.masters))
            for name, parameter in policy(learner).module.named_parameters():
                same = weights.masters[name].data_ptr() == parameter.data_ptr()
                self.assertEqual(same, dtype == "f32", name)
                if dtype == "bf16":
                    self.assert_same(parameter.data, given[0][name].bfloat16(), name)


class Rounded(Case):
    """bf16 on the CPU: the arithmetic that a GPU has."""

    def test_near_f32(self):
        given = random_columns(96)
        for architecture in ARCHITECTURES:
            found = []
            for dtype, attention in (("f32", "auto"), ("bf16", "auto"), ("bf16", "sdpa")):
                learner = opened(golden_folder(architecture), options={"dtype": dtype, "attention": attention})
                _, scores = call(learner, "forward_hold", {"network": "policy"}, given)
                for column in scores.values():
                    self.assertEqual(column.dtype, torch.float32)
                for _ in range(2):
                    call(learner, "forward_hold", {"network": "policy"}, given)
                    call(learner, "backward", {}, {"logprob": derivatives(scores["logprob"].numel())[0]})
                found.append((scores["logprob"], grads(learner)))
                for name, parameter in policy(learner).weights.parameters.items():
                    self.assertEqual(parameter.dtype, torch.bfloat16 if dtype == "bf16" else torch.float32)
                    self.assertIsNotNone(found[-1][1][name], name)
                    self.assertEqual(found[-1][1][name].dtype, torch.float32)
            for logprob, gradients in found[1:]:
                self.assert_close(logprob, found[0][0], 2e-2, architecture)
                self.assertFalse(torch.equal(logprob, found[0][0]))
                for name, gradient in gradients.items():
                    self.assert_close(gradient, found[0][1][name], 8e-2, f"{architecture} {name}")


if __name__ == "__main__":
    unittest.main()
