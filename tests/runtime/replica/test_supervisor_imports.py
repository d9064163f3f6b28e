import subprocess
import sys

_CHECK = """
import sys
import millrace_runtime.replica.command
roots = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(sorted(root for root in roots if not root.startswith(("millrace", "__main", "_"))))
"""


def test_the_supervisor_loads_the_standard_library_only() -> None:
    # -S leaves out what an installed .pth file would import; the path is handed over instead.
    code = f"import sys; sys.path[:0] = {sys.path!r}\n{_CHECK}"
    answer = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
