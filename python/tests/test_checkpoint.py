"""Folders: written and read again bit for bit, in other types, with other heads, by other programs."""

import json
import pathlib
import shutil
import struct
import tempfile
import unittest
import zlib

# First: without PyTorch it reports that and skips the tests.
from support import (
    ARCHITECTURES,
    OPTIMIZER,
    Case,
    call,
    golden_folder,
    opened,
    random_columns,
    save_tiny,
    tiny_config,
)

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tamis.learner import checkpoint
from tamis.learner.protocol import DiskError, FilesError, Refused, RequestError, StateError


def train(learner, steps=2, network="policy"):
    """A few updates on a made-up wave."""
    given = random_columns(min(50, learner._policy.network.vocab_size))
    for step in range(steps):
        _, found = call(learner, "forward_hold", {"network": network}, given)
        derivatives = {name: torch.sin(column * 3 + step) for name, column in found.items() if name != "entropy"}
        call(learner, "backward", {}, derivatives)
        call(learner, "optim_step", {"network": network, "learning_rate": 1e-2})


def with_critic(folder, **more):
    learner = opened(folder, critic={"optimizer": OPTIMIZER}, **more)
    call(learner, "copy", {"to": "critic"})
    return learner


def trained(folder, **more):
    learner = with_critic(folder, **more)
    train(learner)
    train(learner, 3, "critic")
    return learner


def save(learner, folder, content="checkpoint", dtype="f32", untied=False):
    answer, _ = call(learner, "save", {"folder": str(folder), "content": content, "dtype": dtype, "untied": untied})
    return answer


def state(learner, name="policy"):
    own = learner._named(name)
    optimizer = own.optimizer
    tensors = {f"weight.{key}": value for key, value in own.network.weights.masters.items()}
    tensors |= {f"first.{key}": value for key, value in optimizer.first.items()}
    tensors |= {f"second.{key}": value for key, value in optimizer.second.items()}
    return {key: value.clone() for key, value in tensors.items()}, optimizer.num_steps


class Folders(Case):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.number = 0

    def empty(self):
        self.number += 1
        folder = self.folder / str(self.number)
        folder.mkdir()
        return folder

    def assert_same_state(self, one, other, network="policy"):
        (found, steps), (expected, expected_steps) = state(one, network), state(other, network)
        self.assertEqual(steps, expected_steps)
        self.assertEqual(found.keys(), expected.keys())
        for name, tensor in found.items():
            self.assert_same(tensor, expected[name], name)


class RoundTrip(Folders):
    def test_bit_for_bit_in_every_type(self):
        for architecture in ARCHITECTURES:
            for dtype in ("f32", "bf16", "f16"):
                learner = trained(golden_folder(architecture))
                folder = self.empty()
                answer = save(learner, folder, dtype=dtype)
                self.assertIsNone(answer["overflow"])
                self.assertEqual((folder / "master").exists(), dtype != "f32")
                other = with_critic(golden_folder(architecture))
                sizes, _ = call(other, "load", {"folder": str(folder), "content": "checkpoint"})
                self.assertEqual(sizes["num_steps"], 2)
                self.assertEqual(sizes["critic"]["num_parameters"], sizes["critic"]["num_trained"])
                for network, steps in (("policy", 2), ("critic", 3)):
                    self.assert_same_state(learner, other, network)
                    self.assertEqual(state(other, network)[1], steps)
                # And they continue alike.
                train(learner), train(other)
                self.assert_same_state(learner, other)

    def test_rounded_networks_keep_their_exact_weights(self):
        folder = self.empty()
        learner = trained(golden_folder("qwen2"), options={"dtype": "bf16"})
        save(learner, folder, dtype="bf16")
        other = with_critic(golden_folder("qwen2"), options={"dtype": "bf16"})
        call(other, "load", {"folder": str(folder), "content": "checkpoint"})
        self.assert_same_state(learner, other)
        given = random_columns(50)
        for network in ("policy", "critic"):
            _, one = call(learner, "forward", {"network": network}, given)
            _, two = call(other, "forward", {"network": network}, given)
            for name in one:
                self.assert_same(one[name], two[name])

    def test_shards(self):
        learner = trained(golden_folder("llama"))
        folder = self.empty()
        own = learner._policy
        checkpoint.save(folder, "checkpoint", "bf16", False, own.network, own.optimizer, max_bytes=30_000)
        for where in (folder, folder / "master"):
            index = json.loads((where / "model.safetensors.index.json").read_text())
            files = {path.name for path in where.glob("model-*.safetensors")}
            self.assertGreater(len(files), 2)
            self.assertEqual(set(index["weight_map"].values()), files)
            sizes = [path.stat().st_size for path in where.glob("model-*.safetensors")]
            self.assertEqual(
                index["metadata"]["total_size"], own.network.weights.num_parameters * (4 if where != folder else 2)
            )
            self.assertLess(max(sizes), 35_000)
        other = opened(golden_folder("llama"))
        call(other, "load", {"folder": str(folder), "content": "checkpoint"})
        self.assert_same_state(learner, other)

    def test_files_and_checksums(self):
        learner = trained(golden_folder("qwen2"))
        folder = self.empty()
        answer = save(learner, folder, dtype="bf16", untied=True)
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        self.assertEqual({one["name"] for one in answer["files"]}, found)
        weights = {"config.json", "generation_config.json", "model.safetensors"}
        expected = weights | {f"master/{name}" for name in weights} | {f"critic/{name}" for name in weights}
        self.assertEqual(found, expected | {"optimizer.safetensors", "critic/optimizer.safetensors"})
        for one in answer["files"]:
            content = (folder / one["name"]).read_bytes()
            self.assertEqual(one["bytes"], len(content))
            self.assertEqual(one["crc32"], f"{zlib.crc32(content):08x}")
        original = (golden_folder("qwen2") / "generation_config.json").read_bytes()
        self.assertEqual((folder / "generation_config.json").read_bytes(), original)

    def test_the_optimizers_file(self):
        learner = trained(golden_folder("qwen2"))
        folder = self.empty()
        save(learner, folder)
        names = list(learner._policy.network.weights.masters)
        self.assertNotIn("lm_head.weight", names)
        with safe_open(folder / "optimizer.safetensors", "pt") as file:
            self.assertEqual(file.metadata()["step"], "2")
            self.assertEqual(set(file.keys()), {f"{moment}.{name}" for moment in ("first", "second") for name in names})
            self.assert_same(file.get_tensor(f"second.{names[3]}"), learner._policy.optimizer.second[names[3]])


class Others(Folders):
    """The tensors that transformers reads from it."""

    def test_weights_in_other_types(self):
        for dtype, torch_dtype in (("f32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16)):
            learner = trained(golden_folder("qwen3"))
            folder = self.empty()
            save(learner, folder, "weights", dtype)
            self.assertFalse((folder / "optimizer.safetensors").exists())
            self.assertFalse((folder / "critic").exists() or (folder / "master").exists())
            module = transformers.AutoModelForCausalLM.from_pretrained(folder)
            self.assertEqual(module.dtype, torch_dtype)
            for name, parameter in module.named_parameters():
                self.assert_same(parameter.data, learner._policy.network.weights.masters[name].to(torch_dtype), name)

    def test_the_rotary_base_stands_where_older_programs_read_it(self):
        scaled = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        for rope in ({"rope_type": "default", "rope_theta": 5e5}, scaled | {"original_max_position_embeddings": 32}):
            source, folder = self.empty(), self.empty()
            save_tiny(source, tiny_config("LlamaConfig", rope_parameters=rope))
            self.assertNotIn("rope_theta", json.loads((source / "config.json").read_text()))
            save(opened(source), folder, "weights")
            config = json.loads((folder / "config.json").read_text())
            self.assertEqual(config["rope_theta"], 5e5)
            self.assertEqual(config.get("rope_scaling"), rope if rope["rope_type"] == "llama3" else None)
            self.assertEqual(transformers.AutoConfig.from_pretrained(folder).rope_parameters, rope)

    def test_untied_head(self):
        learner = trained(golden_folder("qwen2"))
        tied, untied = self.empty(), self.empty()
        save(learner, tied, "weights")
        save(learner, untied, "weights", untied=True)
        self.assertNotIn("lm_head.weight", load_file(tied / "model.safetensors"))
        self.assertTrue(json.loads((tied / "config.json").read_text())["tie_word_embeddings"])
        tensors = load_file(untied / "model.safetensors")
        self.assert_same(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])
        self.assertFalse(json.loads((untied / "config.json").read_text())["tie_word_embeddings"])
        module = transformers.AutoModelForCausalLM.from_pretrained(untied)
        self.assertIsNot(module.lm_head.weight, module.model.embed_tokens.weight)
        tokens = torch.arange(9)[None]
        other = transformers.AutoModelForCausalLM.from_pretrained(tied)
        self.assert_close(module(tokens).logits, other(tokens).logits, 1e-6)
        # A model with a head of its own has no other.
        learner = opened(golden_folder("llama"))
        folder = self.empty()
        save(learner, folder, "weights", untied=True)
        self.assertEqual(len(load_file(folder / "model.safetensors")), len(learner._policy.network.weights.masters))

    def test_a_head_of_its_own_in_the_files_of_a_tied_model(self):
        source = self.empty()
        shutil.copytree(golden_folder("qwen2"), source, dirs_exist_ok=True)
        tensors = load_file(source / "model.safetensors")
        head = tensors["model.embed_tokens.weight"].roll(-1, 0).contiguous()
        save_file({**tensors, "lm_head.weight": head}, source / "model.safetensors", {"format": "pt"})
        self.assertTrue(json.loads((source / "config.json").read_text())["tie_word_embeddings"])
        learner = opened(source)
        self.assertIn("an output head of its own", "\n".join(learner.describe()))
        for content in ("weights", "checkpoint"):
            with self.subTest(content):
                folder = self.empty()
                save(learner, folder, content)
                self.assert_same(load_file(folder / "model.safetensors")["lm_head.weight"], head)
                # Servers and the next process would tie it.
                self.assertFalse(json.loads((folder / "config.json").read_text())["tie_word_embeddings"])
                again = opened(folder)
                self.assert_same(again._policy.network.weights.masters["lm_head.weight"], head)
                self.assertNotIn("an output head of its own", "\n".join(again.describe()))

    def test_critic(self):
        learner = trained(golden_folder("qwen2"))
        folder = self.empty()
        save(learner, folder, dtype="bf16")
        config = json.loads((folder / "critic/config.json").read_text())
        self.assertEqual(config["architectures"], ["Qwen2ForTokenClassification"])
        self.assertEqual(config["id2label"], {"0": "LABEL_0"})
        tensors = load_file(folder / "critic/model.safetensors")
        self.assertEqual(tensors["score.weight"].shape, (1, 48))
        self.assertEqual(tensors["score.bias"].shape, (1,))
        self.assertEqual({tensor.dtype for tensor in tensors.values()}, {torch.float32})
        module = transformers.AutoModelForTokenClassification.from_pretrained(folder / "critic").eval()
        given = random_columns(50)
        _, found = call(learner, "forward", {"network": "critic"}, given)
        begin, end = given["completion_offset"][:2].tolist()
        tokens = torch.cat([given["prompt_token"][: given["prompt_offset"][1]], given["completion_token"][begin:end]])
        values = module(tokens[None].long()).logits[0, given["prompt_offset"][1] - 1 : -1, 0]
        self.assert_close(found["value"][begin:end], values, 1e-5)

    def test_critic_from_its_folder(self):
        learner = trained(golden_folder("llama"))
        folder = self.empty()
        save(learner, folder)
        critic = {"folder": str(folder / "critic"), "optimizer": OPTIMIZER}
        other = opened(golden_folder("llama"), critic=critic)
        for name, tensor in other._critic.network.weights.masters.items():
            self.assert_same(tensor, learner._critic.network.weights.masters[name], name)
        self.assertEqual(other._critic.optimizer.num_steps, 0)
        # A model that is neither a critic nor a language model is refused.
        config = json.loads((folder / "critic/config.json").read_text())
        (folder / "critic/config.json").write_text(json.dumps(config | {"id2label": {"0": "no", "1": "yes"}}))
        self.assert_refused(
            Refused, "holds LlamaForTokenClassification, and a critic", opened, golden_folder("llama"), critic=critic
        )

    def test_critic_with_the_layers_of_a_language_model(self):
        sizes = {"GPT2Config": {"n_embd": 24, "n_head": 4, "n_layer": 1, "n_positions": 64, "n_inner": 40}}
        for kind in ("Qwen2Config", "LlamaConfig", "GPT2Config"):
            with self.subTest(kind), tempfile.TemporaryDirectory() as folder:
                module = save_tiny(folder, tiny_config(kind, **sizes.get(kind, {})), seed=4)
                critic = {"folder": folder, "optimizer": OPTIMIZER}
                # Also beside an adapter, whose policy cannot be copied.
                lora = {"rank": 2, "alpha": 4.0} if kind == "LlamaConfig" else None
                learner = opened(folder, critic=critic, options={"lora": lora})
                masters = learner._critic.network.weights.masters
                expected = {name: one for name, one in module.named_parameters() if not name.startswith("lm_head.")}
                self.assertEqual(set(masters), {*expected, "score.weight", "score.bias"})
                for name, master in masters.items():
                    self.assert_same(master, expected[name] if name in expected else torch.zeros_like(master), name)
                given = random_columns(50)
                values = call(learner, "forward", {"network": "critic"}, given)[1]["value"]
                self.assert_same(values, torch.zeros_like(values))
                # It learns, is saved as a critic, and is read as one.
                train(learner, 2, "critic")
                values = call(learner, "forward", {"network": "critic"}, given)[1]["value"]
                self.assertGreater(values.abs().min().item(), 0)
                target = self.empty()
                save(learner, target)
                critic["folder"] = str(target / "critic")
                again = opened(folder, critic=critic)
                self.assert_same(call(again, "forward", {"network": "critic"}, given)[1]["value"], values)

    def test_names_that_are_not_the_usual(self):
        with tempfile.TemporaryDirectory() as folder:
            save_tiny(folder, tiny_config("GPT2Config", n_embd=24, n_head=4, n_layer=1, n_positions=64, n_inner=40))
            learner = trained(folder)
            target = self.empty()
            save(learner, target)
            transformers.AutoModelForCausalLM.from_pretrained(target)
            other = with_critic(folder)
            call(other, "load", {"folder": str(target), "content": "checkpoint"})
            self.assert_same_state(learner, other)
            self.assert_same_state(learner, other, "critic")


class Fused(Folders):
    """Mixtures, whose experts transformers fuses into one tensor."""

    def test_servers_get_them_as_they_were(self):
        experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True)
        for kind, more in (("Qwen3MoeConfig", experts), ("MixtralConfig", dict(num_local_experts=4))):
            with self.subTest(kind), tempfile.TemporaryDirectory() as folder:
                save_tiny(folder, tiny_config(kind, **more))
                names = set(load_file(pathlib.Path(folder) / "model.safetensors"))
                learner = trained(folder)
                for dtype in ("f32", "bf16"):
                    target = self.empty()
                    save(learner, target, dtype=dtype)
                    self.assertEqual(set(load_file(target / "model.safetensors")), names)
                    other = with_critic(folder)
                    call(other, "load", {"folder": str(target), "content": "checkpoint"})
                    self.assert_same_state(learner, other)
                    self.assert_same_state(learner, other, "critic")
                critic = {"folder": str(target / "critic"), "optimizer": OPTIMIZER}
                again = opened(str(target), critic=critic, options={"dtype": "bf16"})
                other = opened(folder, critic=critic)
                for name, tensor in again._policy.network.weights.masters.items():
                    self.assert_same(tensor, learner._policy.network.weights.masters[name].bfloat16().float(), name)
                for name, tensor in other._critic.network.weights.masters.items():
                    self.assert_same(tensor, learner._critic.network.weights.masters[name], name)


class Order(Folders):
    """Servers read layer after layer, so the tensors are in that order in the file."""

    def layers(self, path):
        """The layer of each tensor by its place in the file: -1 before the layers, 99 after them."""
        content = path.read_bytes()
        (length,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8 : 8 + length])
        header.pop("__metadata__")
        self.assertEqual(sorted(header, key=lambda name: header[name]["data_offsets"]), list(header))
        ends = {"model.embed_tokens.weight": -1, "model.norm.weight": 99, "lm_head.weight": 99}
        return [ends[name] if name in ends else int(name.split(".")[2]) for name in header]

    def test_tensors_rise_by_layer(self):
        experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
        # Eleven: 10 comes before 2 if names are sorted.
        for kind, more in (("Qwen3Config", {}), ("Qwen3MoeConfig", experts), ("MixtralConfig", dict(num_local_experts=4))):
            for tied in (True, False):
                with self.subTest(kind, tied=tied), tempfile.TemporaryDirectory() as folder:
                    save_tiny(folder, tiny_config(kind, num_hidden_layers=11, tie_word_embeddings=tied, **more))
                    target = self.empty()
                    save(opened(folder), target, content="weights", dtype="bf16", untied=True)
                    found = self.layers(target / "model.safetensors")
                    self.assertEqual(found, sorted(found))
                    self.assertEqual(set(found), {-1, *range(11), 99})
                    self.assertEqual(found[-2:], [99, 99])


class Overflow(Folders):
    def test_everything_is_written_in_f32(self):
        learner = with_critic(golden_folder("qwen2"))
        name = "model.layers.0.mlp.up_proj.weight"
        learner._policy.network.weights.masters[name][2, 3] = -70000.0
        folder = self.empty()
        answer = save(learner, folder, dtype="f16")
        self.assertEqual(answer["overflow"], {"tensor": name, "largest": 70000.0})
        self.assertFalse((folder / "master").exists())
        self.assertEqual(json.loads((folder / "config.json").read_text())["dtype"], "float32")
        self.assertEqual(load_file(folder / "model.safetensors")[name][2, 3].item(), -70000.0)
        self.assertIsNone(save(learner, self.empty(), dtype="bf16")["overflow"])


class Wrong(Folders):
    def setUp(self):
        super().setUp()
        self.learner = trained(golden_folder("qwen2"))
        self.saved = self.empty()
        save(self.learner, self.saved)
        self.other = with_critic(golden_folder("qwen2"))
        self.before = state(self.other)

    def check(self, error, pattern):
        self.assert_refused(
            error, pattern, call, self.other, "load", {"folder": str(self.saved), "content": "checkpoint"}
        )
        after = state(self.other)
        self.assertEqual(after[1], self.before[1])
        for name, tensor in after[0].items():
            self.assert_same(tensor, self.before[0][name], name)

    def edit(self, file, change, metadata=None):
        path = self.saved / file
        with safe_open(path, "pt") as opened_file:
            metadata = metadata or opened_file.metadata()
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata)

    def test_a_critic_that_is_not_there_is_not_made(self):
        for path in (self.saved / "critic").iterdir():
            path.unlink()
        self.other = opened(golden_folder("qwen2"), critic={"optimizer": OPTIMIZER})
        self.before = state(self.other)
        self.check(FilesError, "critic holds neither")
        self.assert_refused(StateError, "no weights yet", train, self.other, 1, "critic")

    def test_missing_files(self):
        (self.saved / "model.safetensors").unlink()
        self.check(FilesError, "holds neither")

    def test_policies_that_are_not_whole(self):
        self.edit("model.safetensors", lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
        self.assert_refused(FilesError, "`model.layers.1.mlp.up_proj.weight` is missing", opened, self.saved)
        self.edit(
            "model.safetensors",
            lambda tensors: tensors.update({"model.layers.1.mlp.up_proj.weight": torch.zeros(3, 3)}),
        )
        self.assert_refused(FilesError, r"up_proj.weight` .* has shape \[3, 3\], expected \[112, 48\]", opened, self.saved)
        (self.saved / "model.safetensors").write_bytes(b"nothing")
        self.assert_refused(FilesError, "failed to load", opened, self.saved)

    def test_missing_tensor(self):
        self.edit("model.safetensors", lambda tensors: tensors.pop("model.norm.weight"))
        self.check(FilesError, "tensor `model.norm.weight` is missing")

    def test_foreign_tensor(self):
        self.edit("optimizer.safetensors", lambda tensors: tensors.update({"first.other": torch.zeros(1)}))
        self.check(FilesError, "tensor `first.other` .* does not belong")

    def test_other_shape(self):
        self.edit("critic/model.safetensors", lambda tensors: tensors.update({"score.bias": torch.zeros(2)}))
        self.check(FilesError, r"score.bias` .* has shape \[2\], expected \[1\]")

    def test_other_type(self):
        self.edit(
            "optimizer.safetensors",
            lambda tensors: tensors.update({"first.model.norm.weight": torch.zeros(48, dtype=torch.int32)}),
        )
        self.check(FilesError, "is of type I32")

    def test_no_step(self):
        self.edit("optimizer.safetensors", lambda tensors: None, {"format": "pt"})
        self.check(FilesError, "no number `step`")

    def test_torn_file(self):
        path = self.saved / "optimizer.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
        self.check(FilesError, "failed to read")

    def test_not_finite(self):
        self.edit("model.safetensors", lambda tensors: tensors["model.norm.weight"].fill_(float("nan")))
        self.assert_refused(
            FilesError, "not finite", call, self.other, "load", {"folder": str(self.saved), "content": "checkpoint"}
        )

        self.assert_refused(FilesError, "`model.norm.weight` .* not finite", opened, self.saved)

    def test_a_full_disk(self):
        if not pathlib.Path("/dev/full").exists():
            self.skipTest("there is no /dev/full here")
        folder = self.empty()
        output = checkpoint.Output(folder)
        (folder / "model.safetensors").symlink_to("/dev/full")
        with self.assertRaises(DiskError) as refused:
            output.write("model.safetensors", [b"x"])
        path = str(folder / "model.safetensors")
        message = f"failed to write {path}: No space left on device"
        more = {"operation": "write", "path": path, "errno": 28}
        expected = {"error": {"kind": "disk", "message": message, "hint": None, **more}}
        self.assertEqual((refused.exception.status, refused.exception.body()), (500, expected))

    def test_folders_to_save_into(self):
        self.assert_refused(RequestError, "is not empty", save, self.learner, self.saved)
        self.assert_refused(DiskError, "failed to open .*/none: No such file", save, self.learner, self.folder / "none")
        self.assert_refused(RequestError, "is not absolute", save, self.learner, "here")

    def test_critic_without_weights(self):
        learner = opened(golden_folder("qwen2"), critic={"optimizer": OPTIMIZER})
        self.assert_refused(StateError, "no weights yet", train, learner, 1, "critic")
        learner = opened(golden_folder("qwen2"))
        self.assert_refused(Refused, "without a critic", train, learner, 1, "critic")


if __name__ == "__main__":
    unittest.main()
