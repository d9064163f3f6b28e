"""At night the plugin must answer at once: this asks Python itself what it loads."""

import subprocess
import sys

SCRIPT = """
import importlib, pkgutil, sys
import millrace_kubectl
for module in pkgutil.walk_packages(millrace_kubectl.__path__, "millrace_kubectl."):
    importlib.import_module(module.name)
heavy = {"torch", "numpy", "kopf", "kubernetes", "aiohttp", "asyncio", "pydantic", "yaml", "matplotlib"}
heavy &= set(sys.modules)
sys.exit(f"loaded: {heavy}" if heavy else 0)
"""

PARSER = """
import sys
from millrace_kubectl.command import build_parser
build_parser()
found = [name for name in sys.modules if "autoscale" in name or "kubectl.simulation" in name]
sys.exit(f"loaded: {found}" if found else 0)
"""


def test_no_module_of_the_plugin_loads_anything_heavy() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_simulator_is_loaded_by_its_own_sub_command_alone() -> None:
    result = subprocess.run([sys.executable, "-c", PARSER], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
