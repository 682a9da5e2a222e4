"""Random numbers from a key and a counter: Philox4x32-10, as `tamis_core::random` computes it.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A sample's token t is drawn with
`uniform(key, t)`, so it does not depend on other draws.
"""

import torch

_LOW = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85


def _product(words, multiplier):
    """High and low half of the product of 32-bit words with a constant."""
    # Signed multiplication wraps, so its 64 bits are those of the unsigned product.
    product = words * multiplier
    return (product >> 32) & _LOW, product & _LOW


def uniform(keys, counters):
    """Numbers in [0, 1) with 53 bits, f64, of keys (64 bits as i64) and counters (i64 from 0) of one shape."""
    key = [keys & _LOW, (keys >> 32) & _LOW]
    zero = torch.zeros_like(counters)
    words = [counters & _LOW, (counters >> 32) & _LOW, zero, zero]
    for _ in range(10):
        high0, low0 = _product(words[0], _MULTIPLIERS[0])
        high2, low2 = _product(words[2], _MULTIPLIERS[1])
        words = [high2 ^ words[1] ^ key[0], low2, high0 ^ words[3] ^ key[1], low0]
        key = [(half + weyl) & _LOW for half, weyl in zip(key, _WEYL, strict=True)]
    bits = (words[1] << 21) | (words[0] >> 11)
    return bits.double() * 2.0**-53
