"""One page of HTML with table and pictures in it. It loads nothing. Pure."""

from collections.abc import Sequence
from html import escape

from millrace_kubectl.simulation.measure import Measured
from millrace_kubectl.simulation.session import Session
from millrace_kubectl.simulation.table import LEFT, describe, list_cells, list_head

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff; max-width: 1100px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid #dfe3e8; text-align: right; }
th { font-size: .8rem; color: #57606a; }
.word { text-align: left; }
tr.first td { font-weight: 600; }
.wide { overflow-x: auto; }
svg { width: 100%; height: auto; }
li { margin: .2rem 0; }
"""
LIMITS = """
In time: the share of requests that met every target. Refused and lost ones did not.
Missed minutes: those in which an objective's percentile was not kept.
Replicas, replica-hours, cost: of every pod until it is gone. Those that start or drain cost, too.
Reversals: how often the count turned back within ten minutes.
Other autoscalers' rules are written anew from their descriptions, each with one knob. None is the original.
Latencies are those of the replica. Gateway and network are not simulated.
A simulation is as true as its replica: compare one count with a real one before you trust it.
""".strip().splitlines()


def render_page(
    session: Session,
    measured: Sequence[Measured],
    sweep: Sequence[Measured],
    pictures: Sequence[str],
    notes: Sequence[str],
) -> str:
    """Return the page. The first picture is that of the courses, the second that of the sweep."""
    title = f"Simulation of {session.manifest.name}"
    body = [
        f"<h1>{escape(title)}</h1>",
        _render_list(describe(session, notes)),
        _render_table(session, measured),
        "<h2>Over time</h2>",
        pictures[0],
    ]
    if sweep:
        body += ["<h2>Each policy over its knob</h2>", *pictures[1:], _render_table(session, sweep)]
    body += ["<h2>How to read it</h2>", _render_list(LIMITS)]
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            *body,
            "</body></html>\n",
        ]
    )


def _render_list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _render_table(session: Session, measured: Sequence[Measured]) -> str:
    head = "".join(
        _render_cell("th", text, column) for column, text in enumerate(list_head(session.manifest))
    )
    rows = [
        f"<tr{' class=first' if index == 0 else ''}>"
        + "".join(
            _render_cell("td", text, column) for column, text in enumerate(list_cells(session.manifest, each))
        )
        + "</tr>"
        for index, each in enumerate(measured)
    ]
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _render_cell(tag: str, text: str, column: int) -> str:
    return f"<{tag}{' class=word' if column < LEFT else ''}>{escape(text)}</{tag}>"
