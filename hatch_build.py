"""Puts the compiled CPU kernels into the wheel.

Where there is no compiler the wheel has none; a replica compiles them on first use or computes with torch.
"""

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
        from millrace_kernels.native.errors import BuildError  # noqa: PLC0415
        from millrace_kernels.native.instruction_sets import buildable_sets  # noqa: PLC0415

        try:
            build.build_ahead(build.PACKAGED, buildable_sets())
        except BuildError as error:
            self.app.display_warning(f"the wheel has no compiled kernels: {error}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append("kernels/millrace_kernels/native/lib/*.so")
