"""Checks before a library's use that it draws the same tokens as the reference."""

import numpy as np
import torch

from millrace_kernels.native.abi import Library
from millrace_kernels.native.errors import NativeError
from millrace_kernels.sampling.columns import NO_MASK, PARAMETERS, Draws, pack_parameters
from millrace_kernels.sampling.native import NativeSampler, weigh_natively
from millrace_kernels.sampling.reference import sample_reference, weigh
from millrace_kernels.sampling.state import SlotState, pack_bias

VOCABULARY, NUM_ROWS = 601, 12


def check_sampler(library: Library, vocabulary: int = VOCABULARY) -> None:
    """Compare weights, draws of every kind, masked, biased and not, and faults. Raises NativeError."""
    z = torch.linspace(-20, 0, 2000)
    if not torch.equal(weigh_natively(library, z, 1.25), weigh(z[None], torch.tensor([1.25]))[0]):
        raise NativeError("the native kernels weigh tokens differently than the reference")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(NUM_ROWS, vocabulary, generator=generator).bfloat16().float() * 3
    known = torch.randint(0, vocabulary, (NUM_ROWS, 20), generator=generator)
    words = (NUM_ROWS + 1, -(-vocabulary // 32))
    masks = torch.randint(-(2**31), 2**31, words, generator=generator, dtype=torch.int32)
    bias = {0: -torch.inf, vocabulary // 3: 4.5, vocabulary - 1: 1.25}
    biases = torch.from_numpy(pack_bias(bias)).repeat(NUM_ROWS, 1)
    state = SlotState(known, biases, masks[:-1])
    logits[5, vocabulary // 2] = torch.nan
    expected = sample_reference(logits, _draws(len(bias)), state, masks[-1:])
    found = NativeSampler(library, vocabulary).sample(logits, _draws(len(bias)), state, masks[-1:])
    if not torch.equal(found.tokens, expected.tokens):
        raise NativeError(f"the native kernels drew {found.tokens.tolist()}, not {expected.tokens.tolist()}")
    if not torch.equal(found.faults, expected.faults):
        faults = f"{found.faults.tolist()}, not {expected.faults.tolist()}"
        raise NativeError(f"the native kernels found faults {faults}")


def _draws(num_biases: int) -> Draws:
    packed = b"".join(
        pack_parameters(
            temperature=row % 4 * 0.6, top_k=row % 3 * 20, top_p=1 - row % 2 / 4, seed=row, frequency=row / 8,
            presence=0.0, repetition=1 + row % 2 / 4, min_p=row % 7 / 20, has_fixed_mask=row % 4 == 2,
        )
        for row in range(NUM_ROWS)
    )  # fmt: skip
    places = [
        (row, 4, 4 + row, 0 if row % 5 == 0 else NO_MASK, row % 2, num_biases if row % 3 else row % 2)
        for row in range(NUM_ROWS)
    ]
    return Draws(np.frombuffer(packed, dtype=PARAMETERS), np.array(places, dtype=np.int64))
