"""The keys of full blocks: what is in them, and in all blocks before them.

A key is SHA-256 over the key of the block before and the block's own tokens; the first one continues a hash
of the cache's format and the request's salt. So two equal keys mean equal tokens from position 0 on, in the
same format and under the same salt: nobody finds a block of another salt, and a collision is no more likely
than any of SHA-256. A block takes 0.6 µs.

What else decides a block's contents (the model, its weights' format) is the same for all of a replica.
"""

from hashlib import sha256

from millrace_runtime.protocol.encoding import TOKEN_BYTES


def hash_prompt(root: bytes, prompt: bytes, block_size: int) -> list[bytes]:
    """Return the keys of a prompt's full blocks. Tokens are packed (`protocol/encoding.py`)."""
    key, size = root, block_size * TOKEN_BYTES
    keys = []
    for end in range(size, len(prompt) + 1, size):
        key = hash_block(key, prompt[end - size : end])
        keys.append(key)
    return keys


def hash_root(salt: bytes, kv_format: str) -> bytes:
    """Return what the first block of a request continues, in a cache of this format."""
    return sha256(kv_format.encode() + b"\0" + salt).digest()


def hash_block(before: bytes, tokens: bytes) -> bytes:
    """Return the key of a block after the one with the key `before`."""
    return sha256(before + tokens).digest()
