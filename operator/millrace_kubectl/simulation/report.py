"""Writes the pictures and the page into a folder."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from millrace_kubectl.errors import UsageError
from millrace_kubectl.simulation.measure import Measured
from millrace_kubectl.simulation.page import render_page
from millrace_kubectl.simulation.picture import draw_courses, draw_sweep, to_png, to_svg
from millrace_kubectl.simulation.session import Session

NO_PICTURES = "--output draws with matplotlib, which is not installed: pip install 'millrace[simulate]'"


def prepare(folder: Path) -> None:
    """Refuse before anything is simulated what would fail afterwards. Raises UsageError."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(NO_PICTURES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {folder}: {error.strerror or error}; write a folder") from error


def write(
    folder: Path,
    session: Session,
    measured: Sequence[Measured],
    sweep: Sequence[Measured],
    notes: Sequence[str],
) -> list[Path]:
    """Write `simulation.png`, `sweep.png` after a sweep, and `simulation.html`; return their paths."""
    figures = {"simulation.png": draw_courses(session, measured)}
    if sweep:
        figures["sweep.png"] = draw_sweep(session, sweep)
    page = render_page(session, measured, sweep, [to_svg(figure) for figure in figures.values()], notes)
    contents = {name: to_png(figure) for name, figure in figures.items()}
    contents["simulation.html"] = page.encode()
    try:
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise UsageError(f"--output {folder}: {error.strerror or error}; write another folder") from error
    return [folder / name for name in contents]
