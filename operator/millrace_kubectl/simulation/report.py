"""Writes the pictures and the page into a folder."""

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from millrace_kubectl.errors import UsageError
from millrace_kubectl.simulation.measure import Measured
from millrace_kubectl.simulation.page import render_page
from millrace_kubectl.simulation.picture import draw_courses, draw_sweep, to_png, to_svg
from millrace_kubectl.simulation.session import Session

NO_PICTURES = "--output draws with matplotlib, which is not installed: pip install 'millrace[simulate]'"
COURSES, SWEEP, PAGE = "simulation.png", "sweep.png", "simulation.html"


def prepare(folder: Path, *, with_sweep: bool) -> None:
    """Refuse before anything is simulated what would fail afterwards. Raises UsageError."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(NO_PICTURES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (COURSES, SWEEP, PAGE) if with_sweep else (COURSES, PAGE):
            _try_to_write(folder / name)
    except OSError as error:
        raise UsageError(describe_failure(folder, error)) from error


def _try_to_write(file: Path) -> None:
    """Open a file as a writer does, and leave all as it was. Raises OSError."""
    is_new = not os.path.lexists(file)
    file.open("ab").close()
    if is_new:
        file.unlink()


def describe_failure(folder: Path, error: OSError) -> str:
    """Return why the folder can't be used, and what to do."""
    return f"--output {error.filename or folder}: {error.strerror or error}; write another folder"


def write(
    folder: Path,
    session: Session,
    measured: Sequence[Measured],
    sweep: Sequence[Measured],
    notes: Sequence[str],
) -> list[Path]:
    """Write `simulation.png`, `sweep.png` after a sweep, and `simulation.html`; return their paths.

    Raises OSError.
    """
    figures = {COURSES: draw_courses(session, measured)}
    if sweep:
        figures[SWEEP] = draw_sweep(session, sweep)
    page = render_page(session, measured, sweep, [to_svg(figure) for figure in figures.values()], notes)
    contents = {name: to_png(figure) for name, figure in figures.items()}
    contents[PAGE] = page.encode()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]
