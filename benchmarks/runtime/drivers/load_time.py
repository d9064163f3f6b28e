"""How long our engine takes to load a model in one process. Argument: the model's folder."""

import json
import sys
import time
from pathlib import Path

from millrace_runtime.execution.build import build_executor
from millrace_runtime.execution.settings import ExecutionSettings


def main() -> None:
    """Load the model and print the seconds."""
    settings = ExecutionSettings(
        model_path=Path(sys.argv[1]),
        device="cpu",
        dtype="bfloat16",
        kv_cache_bytes=64 << 20,
        max_model_length=512,
    )
    begin = time.perf_counter()
    build_executor(settings)
    print(json.dumps({"seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main()
