"""The blocks of one KV group, and who reads them.

A block is held by its readers, cached without a reader, or free. A full block gets a *key*, and later
sequences find it by the key. When its last reader leaves, it stays cached until its memory is needed; the
block that was released first goes first.

A key is SHA-256 over the key of the block before and the block's own tokens; the first one continues a hash
of the cache's format and the request's salt. So two equal keys mean equal tokens from position 0 on, in the
same format and under the same salt: nobody finds a block of another salt, and a collision is no more likely
than any of SHA-256. Hashing a block takes 0.6 µs. Whatever else decides a block's contents (the model, its
weights' format) is the same for all of a replica.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256

from millrace_runtime.protocol.encoding import TOKEN_BYTES


class BlockPool:
    """Owns blocks, numbered from 0 to num_blocks - 1."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # A stack: allocation takes the blocks freed last, so a small load stays in few blocks.
        self._free: list[int] = []
        self._num_touched = 0
        """Blocks from here on were never allocated. A small model's cache may have a million of them."""
        self._num_readers = array("I", bytes(4 * num_blocks))
        self._cached: dict[int, None] = {}
        """Blocks with a key and without a reader, in the order of their release."""
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks without a reader: the free and the cached ones."""
        return len(self._free) + self.num_blocks - self._num_touched + len(self._cached)

    def __contains__(self, key: bytes) -> bool:
        """Whether a block has this key."""
        return key in self._block_of

    def is_held(self, key: bytes) -> bool:
        """Whether the block with this key has a reader."""
        return self._block_of[key] not in self._cached

    def allocate(self, num_blocks: int) -> list[int]:
        """Return `num_blocks` blocks, each with one reader. The caller makes sure that there are enough."""
        assert 0 <= num_blocks <= self.num_free, f"{num_blocks} blocks wanted, {self.num_free} free"
        blocks = [self._free.pop() if self._free else self._take() for _ in range(num_blocks)]
        for block in blocks:
            self._num_readers[block] = 1
        return blocks

    def share(self, key: bytes) -> int:
        """Return the block with this key, with one more reader."""
        block = self._block_of[key]
        self._cached.pop(block, None)
        self._num_readers[block] += 1
        return block

    def name(self, block: int, key: bytes) -> None:
        """Let a held block be found by its key, unless another block has the same contents."""
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def release(self, blocks: Iterable[int]) -> None:
        """Take a reader from each block."""
        for block in blocks:
            assert self._num_readers[block], f"block {block} was freed twice"
            self._num_readers[block] -= 1
            if self._num_readers[block]:
                continue
            if block in self._key_of:
                self._cached[block] = None
            else:
                self._free.append(block)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Let nobody find the blocks with these keys any more."""
        for key in keys:
            if (block := self._block_of.pop(key, None)) is None:
                continue
            del self._key_of[block]
            if block in self._cached:
                del self._cached[block]
                self._free.append(block)

    def forget_all(self) -> None:
        """Free every cached block, and let nobody find a held one."""
        self._free += self._cached
        self._cached.clear()
        self._key_of.clear()
        self._block_of.clear()

    def check_integrity(self, held: Iterable[int]) -> None:
        """Assert that `held` names each block once for each reader, and that no block is lost."""
        counted = Counter(held)
        touched = range(self._num_touched)
        readers = {block: number for block in touched if (number := self._num_readers[block])}
        assert counted == readers, "a block leaked, or has a reader that nobody counted"
        assert sorted([*self._cached, *self._free, *readers]) == list(touched), "a free block is in use"
        assert {block: key for key, block in self._block_of.items()} == self._key_of, "a key is wrong"
        assert self._cached.keys() <= self._key_of.keys(), "a cached block has no key"

    def _take(self) -> int:
        """Return a block that nobody ever had, or else the cached one that was released first."""
        if self._num_touched < self.num_blocks:
            self._num_touched += 1
            return self._num_touched - 1
        block = next(iter(self._cached))
        del self._cached[block]
        del self._block_of[self._key_of.pop(block)]
        return block


def hash_prompt(root: bytes, prompt: bytes, block_size: int) -> list[bytes]:
    """Return the keys of a prompt's full blocks. Tokens are packed (`protocol/encoding.py`)."""
    key, size = root, block_size * TOKEN_BYTES
    keys = []
    for end in range(size, len(prompt) + 1, size):
        key = hash_block(key, prompt[end - size : end])
        keys.append(key)
    return keys


def hash_root(salt: bytes, kv_format: str) -> bytes:
    """Return the key that a request's first block continues, in a cache of this format."""
    return sha256(kv_format.encode() + b"\0" + salt).digest()


def hash_block(before: bytes, tokens: bytes) -> bytes:
    """Return the key of a block after the one with the key `before`."""
    return sha256(before + tokens).digest()
