"""What the processes of a replica load, and what they do not: all of it takes time at every start."""

import subprocess
import sys

_CHECK = """
import sys
import millrace_runtime.replica.MODULE
roots = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(sorted(root for root in roots if not root.startswith(("millrace", "__main", "_"))))
"""


def list_libraries(module: str) -> str:
    # -S leaves out what an installed .pth file would import; the path is handed over instead.
    check = _CHECK.replace("MODULE", module)
    code = f"import sys; sys.path[:0] = {sys.path!r}\n{check}"
    answer = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    return answer.stdout.strip()


def test_the_supervisor_loads_the_standard_library_only() -> None:
    assert list_libraries("command") == "[]"


def test_the_http_process_loads_no_templates_and_no_torch() -> None:
    libraries = list_libraries("http_process")
    assert "fastapi" in libraries
    assert "jinja2" not in libraries
    assert "torch" not in libraries
    assert "wsproto" not in libraries
