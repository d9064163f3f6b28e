"""import-linter's contract can hold while an `__init__.py` loads torch: this asks Python itself."""

import subprocess
import sys

SCRIPT = """
import importlib, pkgutil, sys
import millrace_operator
for module in pkgutil.walk_packages(millrace_operator.__path__, "millrace_operator."):
    importlib.import_module(module.name)
heavy = {"torch", "triton", "numpy", "millrace_runtime.replica"} & set(sys.modules)
sys.exit(f"loaded: {heavy}" if heavy else 0)
"""


def test_no_module_of_the_operator_loads_torch() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
