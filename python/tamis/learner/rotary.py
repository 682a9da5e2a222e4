"""Rotary positions whose frequencies depend on the length of the computed row.

`longrope` (Phi-3 and Phi-4-mini with long contexts) uses one set of factors for rows of up to
`original_max_position_embeddings` tokens and another for longer ones; `dynamic` stretches the frequencies with the row.
transformers chooses once for the whole row, by its largest position. Packed with others, a sequence would get the
frequencies of the longest of them, so such models are passed one sequence at a time.
"""


def _types(module):
    """Kinds of rotary positions of a module: one, or one for each type of layer."""
    own = getattr(module, "rope_type", None)
    return [one for one in (own.values() if isinstance(own, dict) else [own]) if isinstance(one, str)]


def _depends(kind):
    return kind == "longrope" or "dynamic" in kind


def depends_on_length(decoder):
    """Whether a sequence's numbers depend on the length of its row."""
    return any(_depends(kind) for module in decoder.modules() for kind in _types(module))


def mend(decoder):
    """Lets layers of several types use `longrope`. transformers 5.17 computes the factors of long rows once for a type of
    layer, and fails when it needs them again, so they are forgotten before each pass.
    """
    for module in decoder.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, dict) and "longrope" in kinds.values():
            module.register_forward_pre_hook(_forget_long_factors)


def _forget_long_factors(module, _arguments):
    for kind in module.rope_type:
        vars(module).pop(f"{kind}_long_inv_freq", None)


def original_length(config):
    """Tokens up to which the short factors hold, the largest of several; 0 if a configuration names none."""
    found = [getattr(config, "original_max_position_embeddings", None)]
    parameters = getattr(config, "rope_parameters", None) or {}
    for one in (parameters, *(part for part in parameters.values() if isinstance(part, dict))):
        found.append(one.get("original_max_position_embeddings"))
    return max((int(length) for length in found if isinstance(length, int | float)), default=0)
