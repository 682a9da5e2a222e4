"""Rotary positions whose frequencies depend on how long the row is that is computed.

`longrope` (Phi-3 and Phi-4-mini with long contexts) takes one set of factors for a row up to
`original_max_position_embeddings` tokens and another for a longer one; `dynamic` stretches the frequencies with the
row. transformers chooses once for the whole row, from its largest position. Packed with others, a sequence would have
the frequencies of the longest of them, so such models are passed one sequence at a time.
"""


def _types(module):
    """Kinds of rotary positions of a module: one, or one for each type of layer."""
    own = getattr(module, "rope_type", None)
    return [one for one in (own.values() if isinstance(own, dict) else [own]) if isinstance(one, str)]


def _depends(kind):
    return kind == "longrope" or "dynamic" in kind


def depends_on_length(decoder):
    """Whether the numbers of a sequence depend on how long the row is that it stands in."""
    return any(_depends(kind) for module in decoder.modules() for kind in _types(module))


def original_length(config):
    """Tokens up to which the short factors hold, the largest of several; 0 where a configuration names none."""
    found = [getattr(config, "original_max_position_embeddings", None)]
    parameters = getattr(config, "rope_parameters", None) or {}
    for one in (parameters, *(part for part in parameters.values() if isinstance(part, dict))):
        found.append(one.get("original_max_position_embeddings"))
    return max((int(length) for length in found if isinstance(length, int | float)), default=0)
