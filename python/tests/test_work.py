"""Operations of a training pass, by hand and as PyTorch counts them, and the peaks of devices."""

import importlib.util
import tempfile
import unittest
import unittest.mock

# First: without PyTorch it reports that and skips the tests.
from support import Case, open_settings, opened, save_tiny, tiny_config

import torch
from torch.utils.flop_counter import FlopCounterMode

from tamis.learner import work
from tamis.learner.learner import Learner
from tamis.learner.protocol import Settings

# Of the tiny model: hidden 24, 4 heads and 2 key-value heads of 6, inner 40, 2 layers, 50 tokens.
OF_LAYER = 24 * 24 + 2 * 24 * 12 + 24 * 24 + 3 * 24 * 40
OF_HEAD = 24 * 50


def work_of(kind="Qwen3Config", options=None, **config):
    """The operations of a tiny model, and the module."""
    with tempfile.TemporaryDirectory() as folder:
        save_tiny(folder, tiny_config(kind, **config))
        learner = opened(folder, options=options or {})
    network = learner._policy.network
    return work.training_work(network), network


class Operations(Case):
    def test_by_hand(self):
        expected = {"token": 6 * 2 * OF_LAYER, "completion": 6 * OF_HEAD, "pair": 12 * 2 * 24}
        self.assertEqual(work_of()[0], expected)
        # A head that is the embedding does as much as one of its own.
        self.assertEqual(work_of(tie_word_embeddings=True)[0], expected)

    def test_an_adapter_has_no_gradients_of_the_base(self):
        found, _ = work_of(options={"lora": {"rank": 2, "alpha": 4, "seed": 1}})
        # 24 + 24 or 24 + 12 rows and columns of each of a layer's four attention maps, 24 + 40 of the other three.
        adapter = 2 * (2 * (24 + 24) + 2 * (24 + 12) + 3 * (24 + 40))
        self.assertEqual(found, {"token": 2 * (4 * OF_LAYER + 6 * adapter), "completion": 4 * OF_HEAD, "pair": 12 * 2 * 24})

    @unittest.skipIf(importlib.util.find_spec("bitsandbytes") is None, "bitsandbytes is not installed")
    def test_weights_in_4_bits_count_like_others(self):
        # Two of them are in a byte, and a tensor has half as many numbers.
        lora = {"rank": 2, "alpha": 4, "seed": 1}
        sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
        plain, packed = (work_of(options={"lora": one}, **sizes)[0] for one in (lora, {**lora, "base": "nf4"}))
        self.assertEqual(packed, plain)

    def count(self, network, length):
        """What PyTorch counts in a pass over one sequence, of which all positions have logits."""
        network._set_attention("eager")
        tokens = torch.arange(length)[None]
        with FlopCounterMode(display=False) as counter:
            network.module(input_ids=tokens, use_cache=False).logits.sum().backward()
        # transformers 5.17 computes the angles of rotary positions with a product, which counts, and newer ones without.
        by_module = counter.get_flop_counts().items()
        angles = sum(sum(counted.values()) for name, counted in by_module if name.endswith("rotary_emb"))
        return counter.get_total_flops() - angles

    def test_is_what_pytorch_counts(self):
        for config in ({}, {"tie_word_embeddings": True}, {"num_key_value_heads": 4, "attention_bias": True}):
            found, network = work_of(**config)
            # The plain attention computes also the pairs that are masked.
            expected = 9 * (found["token"] + found["completion"]) + 81 * found["pair"]
            self.assertEqual(self.count(network, 9), expected, config)

    def test_is_what_pytorch_counts_of_an_adapter(self):
        found, network = work_of(options={"lora": {"rank": 2, "alpha": 4, "seed": 1}})
        expected = 9 * (found["token"] + found["completion"]) + 81 * found["pair"]
        # Nothing below the first layer's maps of queries, keys and values learns: their input needs no gradient.
        frozen = 24 * 24 + 2 * 24 * 12
        first = 2 * 9 * (frozen + 3 * 24 * 2)
        self.assertEqual(self.count(network, 9), expected - first)

    def test_what_is_not_known_is_not_counted(self):
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
        self.assertIsNone(work_of("Qwen3MoeConfig", **experts)[0])

    def test_layers_with_a_window_have_no_pairs(self):
        kinds = ["sliding_attention", "full_attention"]
        found, _ = work_of(use_sliding_window=True, sliding_window=8, layer_types=kinds)
        self.assertEqual(found["pair"], 12 * 24)


class Peaks(Case):
    def test_names(self):
        known = {
            "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA H100 NVL": 835e12, "NVIDIA H200": 989e12,
            "NVIDIA GH200 480GB": 989e12, "NVIDIA A100-SXM4-80GB": 312e12, "NVIDIA L40S": 362e12, "NVIDIA L4": 121e12,
            "NVIDIA GeForce RTX 4090": 165.2e12, "NVIDIA B200": 2250e12, "NVIDIA H20": 148e12,
        }  # fmt: skip
        self.assertEqual({name: work.peak_of(name) for name in known}, known)

    def test_others_have_none(self):
        for name in (
            "Tesla T4", "NVIDIA A10G", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D",
            "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "AMD Instinct MI300X", "",
        ):  # fmt: skip
            self.assertIsNone(work.peak_of(name), name)

    def test_a_learner_reports_them_only_with_a_known_device(self):
        with tempfile.TemporaryDirectory() as folder:
            save_tiny(folder, tiny_config("Qwen3Config"))
            asked = open_settings(folder, options={"device": "cpu"})

            def answer():
                return Learner().calls["/v1/open"](Settings(asked), {})[0]["work"]

            with unittest.mock.patch("tamis.learner.learner.device_peak", lambda device: None):
                self.assertIsNone(answer())
            # A CPU's is measured, and no draw of the run depends on it.
            state = torch.get_rng_state()
            self.assertGreater(answer()["peak"], 1e8)
            self.assert_same(torch.get_rng_state(), state)
            with unittest.mock.patch("tamis.learner.learner.device_peak", lambda device: 312e12):
                self.assertEqual(answer(), {"peak": 312e12, "token": 6 * 2 * OF_LAYER, "completion": 6 * OF_HEAD, "pair": 576})


if __name__ == "__main__":
    unittest.main()
