"""The output head of a language model: from hidden states to log-probabilities and entropies.

Some models scale their logits or bound them softly. The rule is read from the model's configuration and checked against
the logits that the model computes.
"""

import torch
import torch.nn.functional as F

from .logprob import chunk_tokens, logits, logprob_and_entropy, top_tokens
from .protocol import Refused

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}


def tolerance(dtype):
    """Largest allowed difference between two ways to compute the same in this type, relative to the largest number."""
    return _TOLERANCE[dtype]


def is_close(truth, found, dtype):
    """Whether two ways to compute the same, each in this type, agree."""
    return bool((truth - found).abs().max() <= tolerance(dtype) * truth.abs().max().clamp_min(1e-6))


class VocabularyHead:
    """Log-probabilities and entropies from hidden states: the head's weights, and the model's transform of logits."""

    columns = ("logprob", "entropy")

    def __init__(self, module, chunk, device=None, tile=None):
        """`tile`: hidden states are computed so many rows at a time, the last ones filled up (`tiles`)."""
        output = module.get_output_embeddings()
        if not isinstance(output, torch.nn.Linear):
            message = f"{type(module).__name__} has no linear output head"
            raise Refused(message, "name a language model (`...ForCausalLM`)")
        self.output = output
        config = module.config.get_text_config()
        self.cap = getattr(config, "final_logit_softcapping", None)
        # Cohere and Falcon-H1 multiply, Granite divides.
        self.scale = getattr(config, "logit_scale", None) or getattr(config, "lm_head_multiplier", None) or 1.0
        self.scale /= getattr(config, "logits_scaling", None) or 1.0
        self.tile = tile
        self.chunk = tile or chunk or chunk_tokens(device or output.weight.device, output.weight.shape[0])

    @property
    def vocab_size(self):
        """Number of tokens that have a logit."""
        return self.output.weight.shape[0]

    def __call__(self, hidden, targets, factor, candidates=None):
        """Columns of the tokens that these hidden states [N, D] predict, and of candidates [N, k] at their places."""
        num_tokens = hidden.shape[0]
        hidden, targets, candidates = (self._padded(one, num_tokens) for one in (hidden, targets, candidates))
        found = logprob_and_entropy(
            hidden, self.output.weight, self.output.bias, targets, candidates=candidates, **self._constants(factor)
        )
        return found if self.tile is None else tuple(one[:num_tokens] for one in found)

    @torch.no_grad()
    def top(self, hidden, targets, factor, number):
        """Log-probabilities of the tokens, and the likeliest tokens at their places: ids and log-probabilities, [N, k] each."""
        num_tokens = hidden.shape[0]
        hidden, targets = (self._padded(one, num_tokens) for one in (hidden, targets))
        found = top_tokens(hidden, self.output.weight, self.output.bias, targets, number, **self._constants(factor))
        return found if self.tile is None else tuple(one[:num_tokens] for one in found)

    def _padded(self, rows, num_tokens):
        """Rows to a multiple of the tile, if there is one."""
        if self.tile is None or rows is None:
            return rows
        return F.pad(rows, (*(0, 0) * (rows.dim() - 1), 0, -num_tokens % self.tile))

    def _constants(self, factor):
        return {"scale": self.scale, "cap": self.cap, "factor": factor, "chunk": self.chunk}

    def logits(self, hidden):
        """Logits, f32 [n, V], of hidden states [n, D]."""
        constants = self.output.weight, self.output.bias, self.scale, self.cap
        if self.tile is None:
            return logits(hidden, *constants)
        num_tokens = hidden.shape[0]
        parts = F.pad(hidden, (0, 0, 0, -num_tokens % self.tile)).split(self.tile)
        found = [logits(part, *constants) for part in parts]
        return (found[0] if len(found) == 1 else torch.cat(found))[:num_tokens]

    @torch.no_grad()
    def check(self, module):
        """Refuses a model whose logits are not this head's of its decoder's last hidden states."""
        weight = self.output.weight
        generator = torch.Generator().manual_seed(1)
        hidden = torch.randn(8, weight.shape[1], generator=generator).to(weight.device)
        plain = logits(hidden.to(weight.dtype), weight, None, 1.0, None)
        # Large logits, so that bounds and other bends of the curve have an effect.
        hidden = (hidden * (100.0 / plain.abs().max().clamp_min(1e-3))).to(weight.dtype)

        def replace(_module, _arguments, output):
            output.last_hidden_state = hidden[None]
            return output

        hook = module.get_decoder().register_forward_hook(replace)
        try:
            tokens = torch.zeros(1, 8, dtype=torch.int64, device=weight.device)
            theirs = module(input_ids=tokens, use_cache=False).logits[0].float()
        finally:
            hook.remove()
        ours = logits(hidden, weight, self.output.bias, self.scale, self.cap)
        if theirs.shape != ours.shape or not is_close(theirs, ours, weight.dtype):
            message = f"{type(module).__name__} computes its logits in a way that this learner does not know"
            raise Refused(message, "models whose logits are a linear head's, scaled or soft-capped, can be trained")
