"""Models read by parts: every parameter is what transformers reads whole, whichever rows each of several ranks takes."""

import json
import pathlib
import tempfile
import types
import unittest
import unittest.mock

# First: without PyTorch it reports that and skips the tests.
from support import ARCHITECTURES, Case, golden_folder, save_tiny, tiny_config

import torch
import transformers
from safetensors.torch import load_file, save_file
from tamis.learner import loading
from tamis.learner.protocol import FilesError, Refused
from tamis.learner.sharding import rows_of

KIND = transformers.AutoModelForCausalLM
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
CONFIGS = {
    "Qwen3MoeConfig": EXPERTS, "MixtralConfig": EXPERTS, "Ernie4_5_MoeConfig": EXPERTS, "GraniteMoeConfig": EXPERTS,
    "JambaConfig": EXPERTS, "Glm4MoeConfig": EXPERTS, "Gemma2Config": {}, "GPTNeoXConfig": {}, "GPT2Config": {}, "GptOssConfig": EXPERTS,
}  # fmt: skip


def load(folder, by_parts, dtype=torch.float32):
    return loading.load_module(loading.Source.read(folder), KIND, dtype, by_parts)


class Parts(Case):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def assert_alike(self, folder, dtype=torch.float32):
        """A model read in parts by 2, 3 and 7 ranks equals the model read whole."""
        whole, parts = load(folder, False, dtype), load(folder, True, dtype)
        self.assertIsNone(parts.read_whole)
        self.assertEqual(parts.unexpected, whole.unexpected)
        ours, theirs = (dict(one.module.named_parameters()) for one in (parts, whole))
        self.assertEqual(ours.keys(), theirs.keys())
        # The names that are one parameter.
        ties = [[id(one) for _, one in each.module.named_parameters(remove_duplicate=False)] for each in (parts, whole)]
        self.assertEqual(*[[ids.index(one) for one in ids] for ids in ties])
        # None of them takes memory.
        self.assertTrue(all(one.untyped_storage().nbytes() <= 8 for one in ours.values()))
        for number in (2, 3, 7):
            gang = [types.SimpleNamespace(number=number, rank=rank) for rank in range(number)]
            for name, one in ours.items():
                rows = torch.cat([parts.sources[one](*rows_of(one.shape, rank)) for rank in gang])
                self.assertEqual((rows.dtype, one.dtype), (theirs[name].dtype,) * 2, name)
                self.assert_same(rows, theirs[name].data, name)
        for (name, one), (_, other) in zip(parts.module.named_buffers(), whole.module.named_buffers(), strict=True):
            self.assertEqual(one.dtype, other.dtype, name)
            self.assert_same(one, other, name)
        conversions = [[str(one) for one in getattr(each.module, "_weight_conversions", [])] for each in (parts, whole)]
        self.assertEqual(*conversions)

    def test_parts_are_those_of_the_whole(self):
        for architecture in ARCHITECTURES:
            for dtype in (torch.float32, torch.bfloat16):
                with self.subTest(architecture, dtype=dtype):
                    self.assert_alike(golden_folder(architecture), dtype)
        for kind, more in CONFIGS.items():
            with self.subTest(kind):
                save_tiny(self.folder / kind, tiny_config(kind, **more))
                self.assert_alike(self.folder / kind)

    def saved(self, **more):
        """A folder with a model of several files, and its tensors."""
        save_tiny(self.folder, tiny_config("LlamaConfig", **more))
        return load_file(self.folder / "model.safetensors")

    def put(self, tensors):
        save_file(tensors, self.folder / "model.safetensors", {"format": "pt"})

    def test_a_head_beside_the_embedding_that_it_is_tied_to(self):
        tensors = self.saved(tie_word_embeddings=True)
        embedding = tensors["model.embed_tokens.weight"]
        for head, is_tied in ((embedding.clone(), True), (embedding + 1, False)):
            with self.subTest(is_tied=is_tied):
                self.put({**tensors, "lm_head.weight": head})
                self.assert_alike(self.folder)
                module = load(self.folder, True).module
                self.assertIs(module.lm_head.weight is module.model.embed_tokens.weight, is_tied)

    def test_a_tied_model_whose_files_name_only_the_head(self):
        tensors = self.saved(tie_word_embeddings=True)
        head = tensors.pop("model.embed_tokens.weight")
        self.put({**tensors, "lm_head.weight": head})
        self.assert_alike(self.folder)
        module = load(self.folder, True).module
        self.assertIs(module.lm_head.weight, module.model.embed_tokens.weight)

    def test_what_is_wrong_with_the_files_is_told_as_of_the_whole(self):
        tensors = self.saved()
        name = "model.layers.1.mlp.up_proj.weight"
        wrong = {
            "missing": {key: one for key, one in tensors.items() if key != name},
            "shape": {**tensors, name: tensors[name][:-1].contiguous()},
            "not finite": {**tensors, name: torch.full_like(tensors[name], float("nan"))},
        }
        for what, damaged in wrong.items():
            with self.subTest(what):
                self.put(damaged)
                with self.assertRaisesRegex(FilesError, f"`{name}`.*{what}") as whole:
                    load(self.folder, False)
                with self.assertRaises(FilesError) as parts:
                    loaded = load(self.folder, True)
                    loaded.sources[loaded.module.get_parameter(name)](0, 5)
                self.assertEqual(parts.exception.body(), whole.exception.body())
        self.put({**tensors, "strange": torch.ones(3)})
        self.assertEqual(load(self.folder, True).unexpected, ["strange"])
        (self.folder / "model.safetensors").write_bytes(b"none")
        self.assertRaises(FilesError, load, self.folder, True)
        (self.folder / "config.json").write_text(json.dumps({"model_type": "nonsense"}))
        self.assertRaises(Refused, load, self.folder, True)

    def test_what_cannot_be_read_by_parts_is_read_whole_and_said(self):
        from transformers import core_model_loading

        save_tiny(self.folder, tiny_config("Qwen3MoeConfig", **EXPERTS))
        convert = core_model_loading.MergeModulelist.convert

        def on_values_alone(self, tensors, *arguments, **more):
            if any(one.is_meta for each in tensors.values() for one in each):
                raise NotImplementedError("no values")
            return convert(self, tensors, *arguments, **more)

        with unittest.mock.patch.object(core_model_loading.MergeModulelist, "convert", on_values_alone):
            loaded = load(self.folder, True)
        self.assertRegex(loaded.read_whole, "experts.down_proj` cannot be made from only its files' tensors .no values")
        self.assertEqual(loaded.sources, {})
        for (name, one), (_, other) in zip(
            loaded.module.named_parameters(), load(self.folder, False).module.named_parameters(), strict=True
        ):
            self.assert_same(one.data, other.data, name)


if __name__ == "__main__":
    unittest.main()
