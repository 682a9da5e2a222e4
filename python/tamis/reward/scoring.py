"""From texts to scores: tokenizer, model, logit.

A score is what transformers gives: the text through the model's own tokenizer, padded on the right, the logit of
the label. That is how TRL scores with a model, and why the padding token is set as it sets it: the model takes its
logit at the last token that is not the padding token.
"""

import json
import math
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from ..learner.device import is_out_of_memory, take_device
from ..learner.messages import first_line
from ..learner.protocol import Refused, RequestError
from ..learner.weights import first_not_finite

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
OVERLONG = ("unscored", "left", "right")
ACTIVATIONS = ("none", "sigmoid", "softmax")
# A tokenizer's limit above this means that it has none.
_NO_LIMIT = 1 << 30


class TextError(Exception):
    """A text that has no score, with the reason."""


class RewardModel:
    """A model with its tokenizer, ready to score."""

    def __init__(self, settings):
        folder = Path(settings.text("folder"))
        self.device = take_device(settings.text("device", "auto"), "device")
        dtype = settings.choice("dtype", ["auto", *DTYPES], "auto")
        self.label = settings.count("label", 0)
        self.activation = settings.choice("activation", ACTIVATIONS, "none")
        max_length = settings.count("max_length", None, least=1)
        self.overlong = settings.choice("overlong", OVERLONG, "unscored")
        self.add_special_tokens = settings.flag("add_special_tokens", False)
        self.batch_size = settings.count("batch_size", 16, least=1)
        chat = settings.flag("chat", False)
        threads = settings.count("threads", None, least=1)
        settings.finish()
        if threads is not None:
            torch.set_num_threads(threads)
        if dtype == "auto":
            dtype = "bf16" if self.device.type == "cuda" else "f32"
        self.folder, self.dtype = folder, dtype
        self.module = load_module(folder, DTYPES[dtype])
        self._check_label()
        self.tokenizer = load_tokenizer(folder)
        if chat and not self.tokenizer.chat_template:
            hint = "write the text that the model reads as `template`, as in `{prompt}{completion}`"
            raise Refused(f"the tokenizer in {folder} has no chat template", hint)
        self._set_padding()
        self.max_length = self._limit(max_length)
        self._place()

    def _place(self):
        try:
            self.module.to(self.device)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            message = f"out of memory: the model in {self.folder} does not fit on {self.device}: {first_line(error)}"
            hint = "set the reward's `dtype` to bf16, or another `device`"
            raise Refused(message, hint) from None

    @property
    def num_labels(self):
        """Logits of a text."""
        return self.module.config.num_labels

    def describe(self):
        """What it is and how it computes, for a log."""
        limit = "any length" if self.max_length is None else f"at most {self.max_length} tokens"
        name = type(self.module).__name__
        return f"{self.folder}: {name}, {self.num_labels} labels, {self.dtype} on {self.device}, texts of {limit}"

    def _check_label(self):
        if self.label >= self.num_labels:
            labels = "1 label" if self.num_labels == 1 else f"{self.num_labels} labels"
            hint = f"set `label` to a number from 0 to {self.num_labels - 1}"
            raise Refused(f"the model in {self.folder} has {labels}, and no label {self.label}", hint)

    def _set_padding(self):
        """As in TRL: the end token, if there is no padding token."""
        tokenizer = self.tokenizer
        if tokenizer.pad_token_id is None and tokenizer.eos_token is not None:
            tokenizer.pad_token = tokenizer.eos_token
        self.pad = tokenizer.pad_token_id
        for config in (self.module.config, self.module.config.get_text_config()):
            config.pad_token_id = self.pad
        if self.pad is None:
            # Without one no two texts go together.
            self.batch_size = 1

    def _limit(self, wanted):
        config = self.module.config.get_text_config()
        limits = [getattr(config, "max_position_embeddings", None), self.tokenizer.model_max_length]
        limits = [limit for limit in limits if isinstance(limit, int) and 0 < limit < _NO_LIMIT]
        most = min(limits, default=None)
        if wanted is not None and most is not None and wanted > most:
            hint = f"set `max_length` to at most {most}, or leave it out"
            raise Refused(f"the model in {self.folder} reads {most} tokens, and `max_length` is {wanted}", hint)
        return most if wanted is None else wanted

    def tokens(self, text):
        """A text's tokens, and whether some were cut."""
        if isinstance(text, list):
            if not self.tokenizer.chat_template:
                raise TextError("the model's tokenizer has no chat template: write the text as `template`")
            try:
                text = self.tokenizer.apply_chat_template(text, tokenize=False)
            except Exception as error:  # a template raises what it likes
                raise TextError(f"the model's chat template refuses the messages: {first_line(error)}") from None
            special = False
        else:
            special = self.add_special_tokens
        ids = self.tokenizer(text, add_special_tokens=special)["input_ids"]
        if not ids:
            raise TextError("the text has no tokens")
        if self.max_length is None or len(ids) <= self.max_length:
            return ids, False
        if self.overlong == "unscored":
            raise TextError(
                f"the text has {len(ids)} tokens, and at most {self.max_length} are read; raise `max_length`, or set "
                "`overlong: left` or `right` to cut it"
            )
        # The tokenizer keeps its special tokens when it cuts.
        self.tokenizer.truncation_side = self.overlong
        cut = self.tokenizer(text, add_special_tokens=special, truncation=True, max_length=self.max_length)
        return cut["input_ids"], True

    def score(self, texts):
        """A score for each text, which is a `str` or a list of messages: dicts as the wire has them."""
        found = [None] * len(texts)
        rows = []
        for place, text in enumerate(texts):
            try:
                rows.append((place, *self.tokens(text)))
            except TextError as error:
                found[place] = {"error": str(error)}
        # Texts of about one length waste little padding.
        rows.sort(key=lambda row: len(row[1]))
        for begin in range(0, len(rows), self.batch_size):
            batch = rows[begin : begin + self.batch_size]
            for (place, _, truncated), logits in zip(batch, self._logits([ids for _, ids, _ in batch]), strict=True):
                found[place] = self._answer(logits, truncated)
        return found

    def _answer(self, logits, truncated):
        if isinstance(logits, str):
            return {"error": logits}
        score = logits[self.label]
        if self.activation == "sigmoid":
            score = torch.sigmoid(score)
        elif self.activation == "softmax":
            score = torch.softmax(logits, 0)[self.label]
        score = score.item()
        if not math.isfinite(score):
            return {"error": f"the model's score is {score}"}
        return {"score": score, "truncated": truncated}

    def _logits(self, batch):
        """Logits of each row in f64, or a message if its memory is not enough."""
        try:
            return list(self._forward(batch).double().cpu())
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(batch) == 1:
                advice = "lower `max_length`, or choose a smaller `dtype` (`batch_size` was 1 in the end)"
                return [f"out of memory for {len(batch[0])} tokens: {first_line(error)}; {advice}"]
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        half = len(batch) // 2
        return self._logits(batch[:half]) + self._logits(batch[half:])

    @torch.inference_mode()
    def _forward(self, batch):
        longest = max(map(len, batch))
        # Without a padding token, a batch is one text.
        ids = torch.full((len(batch), longest), 0 if self.pad is None else self.pad)
        mask = torch.zeros(len(batch), longest, dtype=torch.long)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        return self.module(input_ids=ids.to(self.device), attention_mask=mask.to(self.device)).logits


def load_module(folder, dtype):
    """A model for sequence classification on the host, every one of its weights read from the folder."""
    config_file = folder / "config.json"
    try:
        written = json.loads(config_file.read_text())
    except OSError as error:
        hint = "name a folder with the model's `config.json`, weights and tokenizer"
        raise Refused(f"failed to read {config_file}: {error.strerror}", hint) from None
    except ValueError as error:
        raise Refused(f"{config_file} is not JSON: {error}", "download or save the model again") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    hint = (
        "name a model with a head for sequence classification (`...ForSequenceClassification`), as TRL's RewardTrainer "
        "saves it; a language model can be asked with `kind: judge`"
    )
    architectures = written.get("architectures") if isinstance(written, dict) else None
    is_what = f", it is a {architectures[0]}" if isinstance(architectures, list) and architectures else ""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        module, report = AutoModelForSequenceClassification.from_pretrained(
            folder, config=config, dtype=dtype, local_files_only=True, trust_remote_code=False,
            output_loading_info=True, ignore_mismatched_sizes=True,
        )  # fmt: skip
    except Exception as error:  # transformers raises what it likes
        raise Refused(f"failed to load a reward model from {folder}{is_what}: {first_line(error)}", hint) from None
    missing = sorted(report["missing_keys"])
    if missing:
        # transformers would fill it with random numbers.
        message = f"{folder} holds no reward model{is_what}: tensor `{missing[0]}` is missing from its weights"
        raise Refused(message, hint)
    if report["mismatched_keys"]:
        name, found, expected = sorted(report["mismatched_keys"])[0]
        message = f"tensor `{name}` in {folder} has shape {list(found)}, expected {list(expected)}"
        raise Refused(message, "write the number of labels into its config.json (`num_labels`)")
    broken = first_not_finite(module.named_parameters())
    if broken is not None:
        hint = "take a model whose training did not diverge, or download it again"
        raise Refused(f"tensor `{broken}` in {folder} holds numbers that are not finite", hint)
    return module.eval().requires_grad_(False)


def load_tokenizer(folder):
    """The tokenizer beside a model."""
    hint = "save the tokenizer beside the model (`tokenizer.save_pretrained`)"
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise Refused(f"failed to load a tokenizer from {folder}: {first_line(error)}", hint) from None
    # Without its files transformers makes an empty one of some classes.
    if not any((folder / name).exists() for name in tokenizer.vocab_files_names.values()):
        raise Refused(f"no tokenizer is in {folder}", hint)
    return tokenizer


def read_texts(values):
    """The texts of a request's body, checked."""
    texts = values.get("texts")
    if set(values) != {"texts"} or not isinstance(texts, list):
        raise RequestError('the body must be {"texts": [..]}')
    return [_read_text(text) for text in texts]


def _read_text(text):
    if isinstance(text, str):
        return text
    messages = text.get("messages") if isinstance(text, dict) and set(text) == {"messages"} else None
    is_sound = isinstance(messages, list) and all(
        isinstance(message, dict) and set(message) == {"role", "content"} and all(map(_is_text, message.values()))
        for message in messages
    )
    if not (is_sound and messages):
        raise RequestError('each of `texts` must be a text or {"messages": [{"role", "content"}, ..]}')
    return messages


def _is_text(value):
    return isinstance(value, str)
