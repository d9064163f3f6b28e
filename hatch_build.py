"""Puts the compiled CPU kernels into the wheel.

What the compiler can't make the wheel lacks; a replica compiles it on first use or computes with torch. With
MILLRACE_REQUIRE_KERNELS=1 the build fails instead: an image has no compiler to make it later.
"""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface[Any]):
    """Runs before a wheel is made; an editable installation compiles on first use."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build a library for each instruction set, and say for which platform the wheel is."""
        if version == "editable":
            return
        sys.path.insert(0, str(Path(self.root) / "kernels"))
        from millrace_kernels.native import build  # noqa: PLC0415  its path is known only now
        from millrace_kernels.native.instruction_sets import list_buildable_sets  # noqa: PLC0415

        wanted = list_buildable_sets()
        failures = build.build_ahead(build.PACKAGED, wanted)
        if failures and os.environ.get("MILLRACE_REQUIRE_KERNELS") == "1":
            self.app.abort("kernels could not be compiled: " + "; ".join(failures))
        for failure in failures:
            self.app.display_warning(f"the wheel lacks compiled kernels: {failure}")
        if len(failures) == len(wanted):
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append("kernels/millrace_kernels/native/lib/*.so")
