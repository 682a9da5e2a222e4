"""Images in a policy of the Qwen2-VL family (Qwen2-VL, Qwen2.5-VL).

    file of an image --processor--> patches and grid --vision tower--> features [n, D]
    tokens of a prompt: text .. <vision start> n times the image token <vision end> .. text
                                               the features in place of their embeddings

Images come by path and are read here. A wave's distinct images pass through the vision tower once, however many
sequences have them, and their gradients are summed. Rotary positions have three coordinates (transformers'
`get_rope_index`): text advances in all of them, an image's features lie on its grid.

The image token in a completion is an ordinary token: only prompts have images.
"""

from collections import OrderedDict
from dataclasses import dataclass

import torch

from .protocol import Refused

# Bytes of patches that are cached, so that an image is not read again in every pass.
_CACHE_BYTES = 1 << 28

MODEL_TYPES = ("qwen2_vl", "qwen2_5_vl")


def is_vision(config):
    """Whether a model's `config.json` is of a supported family."""
    return config.get("model_type") in MODEL_TYPES


@dataclass
class _Image:
    """Patches of an image, f32 [T*H*W, C], its grid i64 [3] of T, H and W, and its number of tokens."""

    patches: torch.Tensor
    grid: torch.Tensor
    num_tokens: int


@dataclass
class View:
    """A pack's data besides tokens.

        position_ids: i64 [4, 1, M]: places in the sequence, then the three coordinates of rotary positions
        places:       i64 [K], places in the row that are features of images, in order; `None` without images
        images:       paths of the images whose features these are, in order
    """

    position_ids: torch.Tensor
    places: torch.Tensor | None
    images: list


class Images:
    """Reads images as the processor in a model's folder makes patches of them."""

    def __init__(self, folder):
        try:
            from PIL import Image  # noqa: F401, only whether it is there

            # The name in `transformers` needs torchvision with 5.17. The module has the one that does with pillow.
            from transformers.models.auto.image_processing_auto import AutoImageProcessor
        except ImportError as error:
            raise Refused(f"images need {error.name}, which is not installed", "pip install pillow") from None
        try:
            self._processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            self._merged = self._processor.merge_size**2
        except Exception as error:  # transformers raises errors of any kind
            text = str(error).strip().splitlines()[0]
            hint = "preprocessor_config.json comes with the model"
            raise Refused(f"failed to read the image processor in {folder}: {text}", hint) from None
        self._kept, self._num_bytes = OrderedDict(), 0

    def get(self, path):
        """An image by its path."""
        found = self._kept.get(path)
        if found is None:
            found = self._read(path)
            self._kept[path] = found
            self._num_bytes += found.patches.nbytes
            while self._num_bytes > _CACHE_BYTES and len(self._kept) > 1:
                self._num_bytes -= self._kept.popitem(last=False)[1].patches.nbytes
        self._kept.move_to_end(path)
        return found

    def _read(self, path):
        from PIL import Image

        try:
            with Image.open(path) as file:
                made = self._processor(images=[_as_seen(file)], return_tensors="pt")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise Refused(f"failed to read the image {path}: {error}", "it is read on the learner's machine") from None
        grid = made["image_grid_thw"][0]
        return _Image(made["pixel_values"], grid, int(grid.prod()) // self._merged)


def _as_seen(file):
    """Colours as in vLLM: rotated as the camera was held, with transparency on white."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(file)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(image, mask=image.getchannel("A"))
        return white
    return image.convert("RGB")


class Vision:
    """The part of a network that sees: the decoder's vision tower, and the placing of its features in packs."""

    def __init__(self, decoder, images):
        self.decoder, self.images = decoder, images

    @property
    def text(self):
        """The part that gives hidden states from embeddings."""
        return self.decoder.language_model

    def freeze(self):
        """Freezes the tower, with its connection to the text."""
        self.decoder.visual.requires_grad_(False)

    def features(self, wave):
        """Features of each image of a wave by its path."""
        paths = list(dict.fromkeys(path for paths in wave.images or [] for path in paths))
        if not paths:
            return {}
        images = [self.images.get(path) for path in paths]
        device = self.decoder.get_input_embeddings().weight.device
        patches = torch.cat([image.patches for image in images]).to(device)
        grids = torch.stack([image.grid for image in images]).to(device)
        made = self.decoder.get_image_features(patches, image_grid_thw=grids, return_dict=True).pooler_output
        return dict(zip(paths, made, strict=True))

    def view(self, wave, first, end):
        """The positions and images of sequences `first` to `end` of a wave in a pack."""
        prompts, positions, places, images, begin = {}, [], [], [], 0
        of, completion_offset = wave.prompt_of.tolist(), wave.completion_offset.tolist()
        for s in range(first, end):
            if of[s] not in prompts:
                prompts[of[s]] = self._prompt(wave, of[s])
            own, own_places = prompts[of[s]]
            num_more = completion_offset[s + 1] - completion_offset[s] - 1
            # Text after the prompt continues one behind its largest coordinate.
            after = own.max() + 1 + torch.arange(num_more)
            own = torch.cat([own, after.expand(3, -1)], 1)
            length = own.shape[1]
            positions.append(torch.cat([torch.arange(length)[None], own]))
            places.append(begin + own_places)
            images += wave.images[of[s]] if wave.images else []
            begin += length
        return View(torch.cat(positions, 1)[:, None], torch.cat(places) if images else None, images)

    def _prompt(self, wave, p):
        """Rotary positions [3, T] of a prompt, and the places of its images' features."""
        tokens = wave.prompt_token[wave.prompt_offset[p] : wave.prompt_offset[p + 1]].long()
        paths = wave.images[p] if wave.images else []
        is_image = tokens == self.decoder.config.image_token_id
        images = [self.images.get(path) for path in paths]
        expected, found = [image.num_tokens for image in images], _runs(is_image)
        if expected != found:
            raise Refused(
                f"the images of a prompt are {expected} tokens long ({', '.join(paths) or 'none'}), and in its tokens {found}",
                "the run counted them by another preprocessor_config.json, or the files have changed since",
            )
        if not paths:
            return torch.arange(tokens.numel()).expand(3, -1), torch.empty(0, dtype=torch.int64)
        grids = torch.stack([image.grid for image in images])
        positions, _ = self.decoder.get_rope_index(
            tokens[None], mm_token_type_ids=is_image[None].int(), image_grid_thw=grids
        )
        return positions[:, 0], is_image.nonzero()[:, 0]

    def embed(self, one, view, features):
        """Embeddings [1, M, D] of a pack, with features in the places of images."""
        embedded = self.decoder.get_input_embeddings()(one.input_ids)
        if view is None or view.places is None:
            return embedded
        shown = torch.cat([features[path] for path in view.images]).to(embedded.dtype)
        return embedded.index_copy(1, view.places.to(embedded.device), shown[None])

    def positions(self, one, view):
        """Position ids [4, 1, M]; without images, the position in the sequence in every coordinate."""
        if view is None:
            return one.position_ids.expand(4, *one.position_ids.shape)
        return view.position_ids.to(one.input_ids.device)


def _runs(flags):
    """Lengths of the runs of true."""
    padded = torch.cat([torch.zeros(1), flags.float(), torch.zeros(1)]).diff()
    return ((padded == -1).nonzero() - (padded == 1).nonzero())[:, 0].tolist()
