"""Random numbers without state: each is a function of (seed, position, role, token id).

The bits come from integer arithmetic alone, so that any device, batch and replica
gives the same ones; the logarithms of ``gumbel`` may differ in the last digit of a
float64 between devices. Knows no probabilities. Fed to the rules and to the drafters.

    64-bit key = mix(seed, role, position, nonce)      Python integers
    32-bit bits of token x = hash(x + low half of key, high half of key)

The hash is a bijection of 32-bit integers for every key: two tokens never tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Roles keep uses of the noise apart. Public numbers: seeded answers depend on them.
GUMBEL = 1  # the target's own choice of a token, and the draft's ranking by it
ACCEPT = 2  # acceptance tests of the rejection rules
NEXT = 3  # the next token of the rejection rules
DRAFT = 4  # what a draft draws for the rejection rules; must never meet the roles above

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15
# Multipliers of a published 32-bit mixer with low avalanche bias (C. Wellons, "lowbias32").
_MUL_A = 0x7FEB352D
_MUL_B = 0x846CA68B
MAX_GUMBEL = float(-np.log(-np.log1p(-0.5 / 2**32)))  # about 22.87: the largest value there is


class Noise:
    """The noise of one request."""

    __slots__ = ("seed",)

    def __init__(self, seed: int) -> None:
        self.seed = seed & _MASK64

    def uniform(self, position: int, role: int, index: int = 0) -> float:
        """A number in [0, 1) with 53 random bits."""
        return (self.key(position, role, index) >> 11) * 2.0**-53

    def key(self, position: int, role: int, nonce: int = 0) -> int:
        """64 random bits, independent for every combination of the arguments."""
        mixed = _mix64(self.seed + _GOLDEN)
        for word in (role, position, nonce):
            mixed = _mix64((mixed ^ (word & _MASK64)) + _GOLDEN)
        return mixed

    def bits(self, position: int, token_ids: Tensor, role: int = GUMBEL, nonce: int = 0) -> Tensor:
        """32 random bits per token id as int64, in the shape of ``token_ids``."""
        key = self.key(position, role, nonce)
        if token_ids.device.type == "cpu":
            ids = token_ids.reshape(-1).numpy().astype(np.uint32)
            bits = hash_array(ids, key).astype(np.int64)
            return torch.from_numpy(bits).reshape(token_ids.shape)
        return hash_tensor(token_ids, key)

    def gumbel(
        self, position: int, token_ids: Tensor, role: int = GUMBEL, nonce: int = 0
    ) -> Tensor:
        """Standard Gumbel noise per token id, float64."""
        bits = self.bits(position, token_ids, role, nonce)
        if bits.device.type == "cpu":
            values = gumbel_from_bits(bits.reshape(-1).numpy())
            return torch.from_numpy(values).reshape(bits.shape)
        return -torch.log(-torch.log1p(-(bits.double() + 0.5) / 2**32))

    def gumbel_rows(
        self, positions: Sequence[int], vocab: int, device: torch.device | str = "cpu"
    ) -> Tensor:
        """[len(positions), vocab] float64; equal positions have equal rows."""
        ids = torch.arange(vocab, device=device)
        known = {position: self.gumbel(position, ids) for position in set(positions)}
        if not positions:
            return torch.empty((0, vocab), dtype=torch.float64, device=device)
        return torch.stack([known[position] for position in positions])

    def row_bits(self, position: int, vocab: int) -> npt.NDArray[np.uint32]:
        """The bits of all token ids below ``vocab`` at one position (role GUMBEL)."""
        return hash_array(_all_ids(vocab), self.key(position, GUMBEL))


def gumbel_from_bits(bits: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """Gumbel noise of 32-bit integers: small bits mean large noise.

    With v = (bits + 1/2) / 2**32 the uniform is 1 - v, so that large noise, which
    decides, is exact to the last digit.
    """
    v = (bits.astype(np.float64) + 0.5) / 2**32
    result: npt.NDArray[np.float64] = -np.log(-np.log1p(-v))
    return result


def hash_array(ids: npt.NDArray[np.uint32], key: int) -> npt.NDArray[np.uint32]:
    """The keyed hash of uint32 ids; a fresh array."""
    x = ids + np.uint32(key & _MASK32)
    x ^= x >> np.uint32(16)
    x *= np.uint32(_MUL_A)
    x ^= np.uint32(key >> 32)
    x ^= x >> np.uint32(15)
    x *= np.uint32(_MUL_B)
    x ^= x >> np.uint32(16)
    return x


def hash_tensor(ids: Tensor, key: int) -> Tensor:
    """The same hash on any device, in int64; multipliers are chosen so that nothing overflows."""
    x = (ids.long() + (key & _MASK32)) & _MASK32
    x = x ^ (x >> 16)
    x = (x * _MUL_A) & _MASK32
    x = x ^ (key >> 32)
    x = x ^ (x >> 15)
    x = (x * (_MUL_B - 2**32)) & _MASK32  # same low half, but below 2**63 in size
    return x ^ (x >> 16)


def _mix64(x: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    x &= _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


@lru_cache(maxsize=8)
def _all_ids(vocab: int) -> npt.NDArray[np.uint32]:
    ids = np.arange(vocab, dtype=np.uint32)
    ids.flags.writeable = False
    return ids
