"""What Triton knows of our kernels after they have run: configurations that it chose, registers and spills.

This reads Triton's own objects, which change from version to version. So what is not found is left out.
"""

import sys
from collections.abc import Iterator
from typing import Any

PACKAGE = "millrace_kernels"
REPORTED = ("num_warps", "num_stages", "shared")


def read_tuned() -> dict[str, dict[str, str]]:
    """Return, for each kernel that tunes itself, what it chose for each key."""
    return {
        name: {str(key): str(config) for key, config in found.cache.items()}
        for name, found in _find_kernels()
        if isinstance(getattr(found, "configs", None), list) and getattr(found, "cache", None)
    }


def read_kernels() -> dict[str, list[dict[str, Any]]]:
    """Return, for each kernel that ran, what each of its compiled variants takes."""
    found = {name: [_describe(one) for one in _compiled(kernel)] for name, kernel in _find_kernels()}
    return {name: variants for name, variants in found.items() if variants}


def _find_kernels() -> Iterator[tuple[str, Any]]:
    """Yield each name of our kernels' modules that Triton made."""
    for module_name, module in sorted(sys.modules.items()):
        if module_name.startswith(f"{PACKAGE}."):
            for name, value in vars(module).items():
                if type(value).__module__.startswith("triton."):
                    yield name, value


def _compiled(kernel: Any) -> Iterator[Any]:
    """Yield the compiled variants of a kernel: an autotuner has the kernel inside."""
    caches = getattr(getattr(kernel, "fn", kernel), "device_caches", None) or getattr(
        kernel, "device_caches", None
    )
    for cache in (caches or {}).values():
        variants = cache[0] if isinstance(cache, tuple) else cache
        yield from getattr(variants, "values", list)()


def _describe(compiled: Any) -> dict[str, Any]:
    metadata = getattr(compiled, "metadata", None)
    sizes = {name: getattr(metadata, name) for name in REPORTED if hasattr(metadata, name)}
    used = {name: getattr(compiled, name, None) for name in ("n_regs", "n_spills")}
    return sizes | {name: number for name, number in used.items() if isinstance(number, int)}
