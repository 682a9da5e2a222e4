"""Prompts with images: each answer keeps the image that its prompt showed."""

import unittest

import datasets
import transformers
import trl
from PIL import Image
from toy import KEEP_ALL, Case, Judge, data, tokenizer
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

PICTURES = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
CHAT = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)


def processor():
    characters = tokenizer()
    characters.add_special_tokens({"additional_special_tokens": PICTURES})
    characters.chat_template = CHAT
    pictures = transformers.models.qwen2_vl.Qwen2VLImageProcessorPil(
        patch_size=7, merge_size=2, size={"shortest_edge": 14 * 14, "longest_edge": 14 * 14 * 4}, do_normalize=False
    )
    made = Processor(pictures, characters)
    made.chat_template = CHAT
    return made


class Processor(transformers.models.qwen2_vl.Qwen2VLProcessor):
    """Without videos, which need torchvision."""

    attributes = ["image_processor", "tokenizer"]

    @classmethod
    def get_attributes(cls):
        return cls.attributes

    def __init__(self, image_processor, tokenizer, **_):
        self.image_token, self.video_token = PICTURES[2:]
        self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids(PICTURES[2:])
        self.video_processor = None
        transformers.ProcessorMixin.__init__(self, image_processor, tokenizer)


def seer():
    ids = processor().tokenizer.convert_tokens_to_ids(PICTURES)
    text = {
        "vocab_size": len(processor().tokenizer),
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 1], "rope_theta": 10000.0},
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
    }
    vision = {
        "depth": 1,
        "num_heads": 2,
        "patch_size": 7,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "embed_dim": 16,
        "hidden_size": 24,
        "mlp_ratio": 2,
    }
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    transformers.set_seed(0)
    return Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(
            text_config=text, vision_config=vision, tie_word_embeddings=False, **dict(zip(names, ids, strict=True))
        )
    )


def pictures():
    """The grey of a row's picture names the row, and its width says whether that is odd."""
    rows = data(24, chat=True)
    return datasets.Dataset.from_list(
        [{**row, "image": Image.new("RGB", (14 + 14 * (row["row"] % 2), 14), (row["row"] * 10,) * 3)} for row in rows],
        features=datasets.Features({**rows.features, "image": datasets.Image()}),
    )


class Looking(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        self.seen = getattr(self, "seen", [])
        texts = self.processing_class.batch_decode(inputs["prompt_ids"], skip_special_tokens=True)
        rows = [int(text.removeprefix("q")[:3]) for text in texts]
        sizes = inputs["image_grid_thw"].prod(dim=1).tolist()
        start = 0
        for row, size, advantage in zip(rows, sizes, inputs["advantages"].tolist(), strict=True):
            grey = inputs["pixel_values"][start : start + size].mean().item() * 255
            start += size
            self.seen.append((row, round(grey / 10), advantage))
        assert start == len(inputs["pixel_values"])
        return super()._compute_loss(model, inputs)


class ImageTests(Case):
    def keywords(self):
        made = processor()
        # A model that knows nothing would draw them too.
        never = made.tokenizer.convert_tokens_to_ids(PICTURES)
        return {
            "cls": Looking,
            "rows": pictures(),
            "model": seer(),
            "processing_class": made,
            "generation_kwargs": {"suppress_tokens": never},
        }

    def test_each_answer_keeps_its_image(self):
        judge = Judge()
        trainer = self.fit(self.sieved(rewards=judge, **self.keywords()))
        self.assertEqual(len(trainer.seen), 48)
        for row, picture, advantage in trainer.seen:
            self.assertEqual(row, picture)
            self.assertNotEqual(advantage, 0)
        self.assertEqual(len(judge.asked), trainer.sieve.totals["generated"]["trajectories"])
        self.assertGreater(trainer.sieve.totals["dropped"]["groups"], 0)
        self.assert_adds_up(trainer)

    def test_keep_all(self):
        self.assert_same_training(
            self.fit(self.trainer(**self.keywords())), self.fit(self.sieved(KEEP_ALL, **self.keywords()))
        )


if __name__ == "__main__":
    unittest.main()
