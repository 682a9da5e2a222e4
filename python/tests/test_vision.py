"""Policies that see images (Qwen2.5-VL and Qwen2-VL, tiny and random) against transformers' own passes."""

import pathlib
import shutil
import tempfile

from support import OPTIMIZER, Case, call, columns, open_settings, save_tiny, tiny_config

import torch
import transformers

try:
    from PIL import Image
except ImportError:
    import sys
    import unittest

    print("\nSKIPPED: pillow is not installed; scripts/install-torch brings it\n", file=sys.stderr)
    raise unittest.SkipTest("pillow is not installed") from None

from tamis.learner.learner import Learner
from tamis.learner.protocol import Refused, RequestError
from tamis.learner.vision import Images

IMAGE, START, END = 5, 3, 4
PROCESSOR = {"patch_size": 7, "merge_size": 2, "size": {"shortest_edge": 14 * 14, "longest_edge": 14 * 14 * 20}}


def tiny(kind="qwen2_5_vl"):
    """A configuration of the family."""
    text = {
        "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 1], "rope_theta": 10000.0},
        "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
    }  # fmt: skip
    ids = {"image_token_id": IMAGE, "video_token_id": 6, "vision_start_token_id": START, "vision_end_token_id": END}
    sizes = {"depth": 2, "num_heads": 2, "patch_size": 7, "spatial_merge_size": 2, "temporal_patch_size": 2}
    if kind == "qwen2_5_vl":
        more = {"hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 24, "window_size": 28}
        vision = {**sizes, **more, "fullatt_block_indexes": [1]}
        return transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **ids)
    vision = {**sizes, "embed_dim": 16, "hidden_size": 24, "mlp_ratio": 2}
    return transformers.Qwen2VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **ids)


def draw(path, size, seed):
    """An image of noise."""
    width, height = size
    noise = torch.randint(256, (height, width, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    Image.fromarray(noise.numpy()).save(path)
    return str(path)


class Sees(Case):
    kind = "qwen2_5_vl"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = self.folder / "model"
        self.module = save_tiny(self.model, tiny(self.kind), kind=transformers.AutoModelForImageTextToText)
        transformers.models.qwen2_vl.Qwen2VLImageProcessorPil(**PROCESSOR).save_pretrained(self.model)
        sizes = {"wide.png": (50, 30), "small.png": (20, 20), "tall.jpg": (30, 61)}
        self.paths = [draw(self.folder / name, size, i) for i, (name, size) in enumerate(sizes.items())]
        self.images = Images(self.model)

    def shown(self, path):
        """Tokens of an image in a prompt."""
        return [START, *[IMAGE] * self.images.get(path).num_tokens, END]

    def wave(self):
        """Columns and settings: two images, none, one that a prompt before has too; groups and single ones."""
        wide, small, tall = self.paths
        prompts = [
            [7, *self.shown(wide), 8, 9, *self.shown(small), 10],
            [11, 12, 13],
            [*self.shown(small), 14, 15, 16, 17],
            [20, *self.shown(tall), 21],
        ]
        # The image token of a completion is a token like any other.
        sequences = [(0, [30, 31, IMAGE, 32]), (0, [33]), (1, [34, 35]), (2, [36, 37, 38]), (3, [39, 2]), (3, [40, 41])]
        images = [[wide, small], [], [small], [tall]]
        return columns(prompts, sequences), images, [(prompts[p], images[p], completion) for p, completion in sequences]

    def expected(self, module, sequences):
        """Log-probabilities and entropies by transformers' own passes over single sequences."""
        logprobs, entropies = [], []
        for prompt, paths, completion in sequences:
            tokens = torch.tensor([prompt + completion])
            is_image = torch.tensor([[token == IMAGE for token in prompt] + [False] * len(completion)])
            given = {}
            if paths:
                images = [self.images.get(path) for path in paths]
                given = {
                    "pixel_values": torch.cat([image.patches for image in images]),
                    "image_grid_thw": torch.stack([image.grid for image in images]),
                    "mm_token_type_ids": is_image.int(),
                }
            # transformers treats every image token as an image. Here it is embedded like any other token.
            inner = module.model
            embedded = inner.get_input_embeddings()(tokens)
            if paths:
                made = inner.get_image_features(given["pixel_values"], given["image_grid_thw"], return_dict=True)
                shown = torch.cat(list(made.pooler_output))
                embedded = embedded.masked_scatter(is_image[..., None], shown)
            positions = None
            if paths:
                positions, _ = inner.get_rope_index(tokens, given["mm_token_type_ids"], given["image_grid_thw"])
            output = inner.language_model(inputs_embeds=embedded, position_ids=positions, use_cache=False)
            logits = module.lm_head(output.last_hidden_state)[0, len(prompt) - 1 : -1]
            logp = logits.log_softmax(-1)
            logprobs.append(logp.gather(1, torch.tensor(completion)[:, None])[:, 0])
            entropies.append(-(logp.exp() * logp).sum(-1))
        return torch.cat(logprobs), torch.cat(entropies)

    def opened(self, **more):
        learner = Learner()
        call(learner, "open", open_settings(self.model, **more))
        return learner

    def passed(self, learner, name="forward", network="policy"):
        given, images, _ = self.wave()
        return call(learner, name, {"network": network, "images": images}, given)[1]


class Passes(Sees):
    def test_numbers_of_every_sequence_alone(self):
        learner = self.opened()
        self.assertTrue(learner._policy.network.is_packed)
        _, _, sequences = self.wave()
        with torch.no_grad():
            logprobs, entropies = self.expected(self.module, sequences)
        for found in (self.passed(learner), self.passed(learner, "forward_hold")):
            self.assert_close(found["logprob"], logprobs, 1e-5, "log-probabilities")
            self.assert_close(found["entropy"], entropies, 1e-5, "entropies")

    def test_a_pass_of_transformers_from_its_front_door(self):
        """The whole model, given tokens and pixels, if no completion has the image token."""
        prompt, paths = [7, *self.shown(self.paths[0]), 8], [self.paths[0]]
        completion = [30, 31, 32]
        image = self.images.get(paths[0])
        tokens = torch.tensor([prompt + completion])
        with torch.no_grad():
            output = self.module(
                input_ids=tokens, pixel_values=image.patches, image_grid_thw=image.grid[None],
                mm_token_type_ids=(tokens == IMAGE).int(),
            )  # fmt: skip
        logp = output.logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        expected = logp.gather(1, torch.tensor(completion)[:, None])[:, 0]
        given = columns([prompt], [(0, completion)])
        _, found = call(self.opened(), "forward", {"network": "policy", "images": [paths]}, given)
        self.assert_close(found["logprob"], expected, 1e-5)

    def test_one_by_one_and_attentions_give_the_same(self):
        expected = self.passed(self.opened())["logprob"]
        for name in ("sdpa", "eager"):
            found = self.passed(self.opened(options={"attention": name}))["logprob"]
            self.assert_close(found, expected, 1e-5, name)
        learner = self.opened()
        learner._policy.network.is_packed = False
        self.assert_close(self.passed(learner)["logprob"], expected, 1e-5, "one by one")

    def test_an_image_matters(self):
        learner = self.opened()
        before = self.passed(learner)["logprob"]
        self.paths[1] = draw(self.folder / "other.png", (20, 20), 9)
        after = self.passed(learner)["logprob"]
        changed = (before != after).tolist()
        self.assertEqual(changed, [True] * 5 + [False] * 2 + [True] * 3 + [False] * 4)

    def gradients(self, **more):
        learner = self.opened(**more)
        found = self.passed(learner, "forward_hold")
        generator = torch.Generator().manual_seed(3)
        by_logprob, by_entropy = (torch.randn(found["logprob"].shape, generator=generator) for _ in range(2))
        call(learner, "backward", {}, {"logprob": by_logprob, "entropy": by_entropy})
        return learner, by_logprob, by_entropy

    def test_gradients(self):
        learner, by_logprob, by_entropy = self.gradients()
        _, _, sequences = self.wave()
        logprobs, entropies = self.expected(self.module, sequences)
        ((logprobs * by_logprob).sum() + (entropies * by_entropy).sum()).backward()
        weights = learner._policy.network.weights
        names = {name for name, _ in self.module.named_parameters()}
        self.assertEqual(set(weights.masters), names)
        self.assertTrue(any(".visual." in name for name in names))
        for name, parameter in self.module.named_parameters():
            self.assert_close(weights.gradient(name), parameter.grad, 1e-5, name)

    def test_recomputed_activations_change_nothing(self):
        plain, _, _ = self.gradients()
        again, _, _ = self.gradients(recompute_activations=True)
        of = [learner._policy.network.weights for learner in (plain, again)]
        for name in of[0].masters:
            self.assert_close(of[1].gradient(name), of[0].gradient(name), 1e-6, name)

    def test_a_frozen_tower_stays(self):
        learner, _, _ = self.gradients(options={"freeze_vision": True})
        call(learner, "optim_step", {"network": "policy", "learning_rate": 0.01})
        network = learner._policy.network
        self.assertFalse(any(".visual." in name for name in network.weights.masters))
        own = dict(self.module.named_parameters())
        for name, parameter in network.module.named_parameters():
            self.assertEqual(torch.equal(parameter, own[name]), ".visual." in name, name)
        self.check_saved(learner, options={"freeze_vision": True})

    def test_a_frozen_tower_stays_to_the_bit_over_resumes(self):
        """However a checkpoint is rounded, and however passes compute: the tower is the one that it was at first."""
        original = {name: one for name, one in self.module.state_dict().items() if ".visual." in name}
        self.assertTrue(original)
        number = 0
        for dtype, save_dtype in (("f32", "bf16"), ("bf16", "bf16"), ("bf16", "f16"), ("bf16", "f32"), ("f32", "f32")):
            with self.subTest(dtype=dtype, save_dtype=save_dtype):
                options = {"freeze_vision": True, "dtype": dtype}
                learner, _, _ = self.gradients(options=options)
                call(learner, "optim_step", {"network": "policy", "learning_rate": 0.01})
                first = self.model
                for _ in range(2):
                    expected = self.passed(learner)["logprob"]
                    number += 1
                    saved = self.folder / f"checkpoint_{number}"
                    saved.mkdir()
                    call(learner, "save", {"folder": str(saved), "content": "checkpoint", "dtype": save_dtype})
                    shutil.copy(first / "preprocessor_config.json", saved)
                    # A resume opens the checkpoint's own weights.
                    self.model = saved
                    learner = self.opened(options=options)
                    call(learner, "load", {"folder": str(saved), "content": "checkpoint"})
                    self.assert_same(self.passed(learner)["logprob"], expected)
                for name, _, make in learner._policy.network.file_tensors():
                    if ".visual." in name:
                        self.assert_same(make(), original[name], name)
                self.model = first

    def check_saved(self, learner, **more):
        """A checkpoint comes back, and transformers reads the weights."""
        expected = self.passed(learner)["logprob"]
        for content in ("checkpoint", "weights"):
            saved = self.folder / content
            saved.mkdir()
            call(learner, "save", {"folder": str(saved), "content": content, "dtype": "f32"})
        other = self.opened(**more)
        call(other, "load", {"folder": str(self.folder / "checkpoint"), "content": "checkpoint"})
        self.assert_same(self.passed(other)["logprob"], expected)
        self.assertEqual(other._policy.optimizer.num_steps, 1)
        loaded = transformers.AutoModelForImageTextToText.from_pretrained(self.folder / "weights")
        _, _, sequences = self.wave()
        with torch.no_grad():
            logprobs, _ = self.expected(loaded.eval(), sequences)
        self.assert_close(logprobs, expected, 1e-5)

    def test_a_step_is_saved_and_loaded(self):
        before = self.opened()
        learner, _, _ = self.gradients()
        _, norm = call(learner, "optim_step", {"network": "policy", "learning_rate": 0.01})
        self.assertGreater(norm["grad_norm"].item(), 0.0)
        changed = self.passed(learner)["logprob"] != self.passed(before)["logprob"]
        self.assertTrue(changed.all())
        self.check_saved(learner)

    def test_references(self):
        learner, _, _ = self.gradients()
        expected = self.passed(learner)["logprob"]
        call(learner, "copy", {"to": "reference"})
        call(learner, "keep")
        call(learner, "optim_step", {"network": "policy", "learning_rate": 0.01})
        self.assertFalse(torch.equal(self.passed(learner)["logprob"], expected))
        for network in ("reference", "before"):
            self.assert_same(self.passed(learner, network=network)["logprob"], expected, network)
        other = self.opened(reference=str(self.model))
        self.assert_close(self.passed(other, network="reference")["logprob"], expected, 1e-6)

    def test_an_adapter_is_of_the_text(self):
        expected = self.passed(self.opened())["logprob"]
        lora = {"options": {"lora": {"rank": 2, "alpha": 4.0}}}
        learner, _, _ = self.gradients(**lora)
        self.assert_close(self.passed(learner)["logprob"], expected, 1e-6)
        call(learner, "optim_step", {"network": "policy", "learning_rate": 0.01})
        self.assertFalse(torch.equal(self.passed(learner)["logprob"], expected))
        self.assert_close(self.passed(learner, network="base")["logprob"], expected, 1e-6)
        names = list(learner._policy.network.weights.masters)
        self.assertTrue(names and not any("visual" in name for name in names), names[:3])
        self.check_saved(learner, **lora)


class Qwen2(Sees):
    """The family's first model."""

    kind = "qwen2_vl"
    test_numbers = Passes.test_numbers_of_every_sequence_alone
    test_gradients = Passes.test_gradients
    gradients = Passes.gradients


class RefusedImages(Sees):
    def refused(self, given, images, learner=None, error=Refused):
        with self.assertRaises(error) as caught:
            call(learner or self.opened(), "forward", {"network": "policy", "images": images}, given)
        return caught.exception.message

    def test_what_does_not_fit(self):
        wide = self.paths[0]
        given = columns([[7, *self.shown(wide), 8]], [(0, [9])])
        num = self.images.get(wide).num_tokens
        self.assertIn(f"[{num}]", self.refused(given, [[]]))
        self.assertIn(f"are [{num}, {num}] tokens long", self.refused(given, [[wide, wide]]))
        short = columns([[7, START, IMAGE, END, 8]], [(0, [9])])
        self.assertIn("in its tokens [1]", self.refused(short, [[wide]]))
        gone = str(self.folder / "gone.png")
        self.assertIn(f"failed to read the image {gone}", self.refused(given, [[gone]]))
        text = self.folder / "text.png"
        text.write_text("no image")
        self.assertIn(f"failed to read the image {text}", self.refused(given, [[str(text)]]))
        self.assertIn("is not absolute", self.refused(given, [["a.png"]], error=RequestError))
        self.assertIn("has 2 lists", self.refused(given, [[wide], []], error=RequestError))
        self.assertIn("`images`", self.refused(given, [wide], error=RequestError))

    def test_a_model_of_text_sees_none(self):
        folder = self.folder / "text"
        save_tiny(folder, tiny_config("Qwen2Config"))
        learner = Learner()
        call(learner, "open", open_settings(folder))
        given = columns([[7, 8]], [(0, [9])])
        self.assertIn("sees no images", self.refused(given, [[self.paths[0]]], learner))
        # Unused images are dropped.
        call(learner, "forward", {"network": "policy", "images": [[]]}, columns([[7, 8]], [(0, [9])]))

    def test_without_a_processor(self):
        (self.model / "preprocessor_config.json").unlink()
        with self.assertRaises(Refused) as caught:
            self.opened()
        self.assertIn("failed to read the image processor", caught.exception.message)

    def test_exact_passes_see_none(self):
        self.assert_refused(Refused, "`learner.exact` does not compute images", self.opened, options={"exact": True})

    def test_a_critic_sees_none(self):
        learner = self.opened(critic={"folder": None, "optimizer": OPTIMIZER})
        with self.assertRaises(Refused) as caught:
            call(learner, "copy", {"to": "critic"})
        self.assertIn("a critic cannot see images", caught.exception.message)


class Files(Sees):
    def test_colours_as_they_are_seen(self):
        """Turned as the camera was held, and white in place of transparency: what servers make of a file."""
        plain = Image.open(self.paths[0]).convert("RGB")
        turned = self.folder / "turned.png"
        exif = Image.Exif()
        exif[0x0112] = 6
        plain.rotate(90, expand=True).save(turned, exif=exif)
        self.assert_same(self.images.get(str(turned)).patches, self.images.get(self.paths[0]).patches)
        clear, white = self.folder / "clear.png", self.folder / "white.png"
        Image.new("RGBA", (30, 30), (200, 10, 10, 0)).save(clear)
        Image.new("RGB", (30, 30), (255, 255, 255)).save(white)
        self.assert_same(self.images.get(str(clear)).patches, self.images.get(str(white)).patches)

    def test_few_are_kept(self):
        from tamis.learner import vision

        before, vision._CACHE_BYTES = vision._CACHE_BYTES, 1
        self.addCleanup(setattr, vision, "_CACHE_BYTES", before)
        images = Images(self.model)
        first = images.get(self.paths[0])
        self.assertIs(images.get(self.paths[0]), first)
        images.get(self.paths[1])
        self.assertIsNot(images.get(self.paths[0]), first)
        self.assertEqual(len(images._kept), 1)
        self.assertEqual(images._num_bytes, first.patches.nbytes)


