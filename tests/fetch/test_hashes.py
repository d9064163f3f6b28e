"""The hashes that sources announce, by what is published of them."""

import subprocess
import sys

import pytest

from millrace_fetch.plan.manifest import Algorithm, make_hash

CHECK = b"123456789"
KNOWN: dict[Algorithm, str] = {
    "crc64nvme": "ae8b14860a799888",
    "crc32c": "e3069283",
    "crc32": "cbf43926",
    "sha256": "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
    "git-sha1": "e2e107ac61ac259b87c544f6e7a4eb03422c6c21",
}


@pytest.mark.parametrize("algorithm", KNOWN)
def test_each_comes_to_the_known_value_also_in_pieces(algorithm: Algorithm) -> None:
    whole, pieces = make_hash(algorithm, len(CHECK)), make_hash(algorithm, len(CHECK))
    whole.update(CHECK)
    for piece in (CHECK[:4], b"", CHECK[4:]):
        pieces.update(piece)
    assert whole.hexdigest() == pieces.hexdigest() == KNOWN[algorithm]


@pytest.mark.parametrize("algorithm", ["crc64nvme", "crc32c", "crc32"])
def test_a_crc_keeps_its_zeros(algorithm: Algorithm) -> None:
    assert make_hash(algorithm, 0).hexdigest() == "0" * len(KNOWN[algorithm])


def test_the_library_is_loaded_for_a_crc_alone() -> None:
    modules = "millrace_fetch.transfer.partial_file, millrace_fetch.sources.hub"
    code = f"import sys, {modules}; sys.exit('awscrt' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
