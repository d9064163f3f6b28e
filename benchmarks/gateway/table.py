"""The table of the gateways' figures, and how ours compare. Pure."""

from collections.abc import Mapping, Sequence
from statistics import median

DIRECT, OURS = "direct", "millrace"
RUST_ROUTERS = ("vllm-router", "sglang-router")
COLUMNS = {
    "requests_per_second": ("requests/s", "{:,.0f}"),
    "added_p50_ms": ("added p50 ms", "{:.2f}"),
    "added_p99_ms": ("added p99 ms", "{:.2f}"),
    "streams_carried": ("streams", "{:,.0f}"),
    "streams_lag_p50_ms": ("lag p50 ms", "{:.2f}"),
    "streams_lag_p99_ms": ("lag p99 ms", "{:.2f}"),
    "streams_cpu_percent": ("CPU %", "{:.0f}"),
    "idle_mb": ("idle MB", "{:.0f}"),
    "idle_stream_kb": ("KB a stream", "{:.1f}"),
}
Medians = Mapping[str, Mapping[str, float]]
Rounds = Mapping[str, Sequence[Mapping[str, float]]]


def add_latency(figures: Mapping[str, float], direct: Mapping[str, float]) -> dict[str, float]:
    """Return the latency that a gateway adds to the direct one."""
    return {
        f"added_{part}_ms": figures[f"latency_{part}_ms"] - direct[f"latency_{part}_ms"]
        for part in ("p50", "p99")
    }


def render(medians: Medians) -> str:
    """Return the table: a line a gateway, the direct way first."""
    lines = [f"{'':15}" + "".join(f"{title:>16}" for title, _ in COLUMNS.values())]
    for name, *cells in list_cells(medians):
        lines.append(f"{name:15}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n".join(lines)


def render_markdown(medians: Medians) -> str:
    """Return the same table in Markdown."""
    titles = ["", *(title for title, _ in COLUMNS.values())]
    return "\n".join(
        f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *list_cells(medians))
    )


def list_cells(medians: Medians) -> list[list[str]]:
    """Return the table's rows: a gateway's name, and its figures."""
    rows = []
    for name, figures in medians.items():
        shown = dict(figures) | (add_latency(figures, medians[DIRECT]) if DIRECT in medians else {})
        if name == DIRECT:  # no gateway slows the clients, and they leave the stubs too little of the core
            shown.pop("streams_carried", None)
        cells = [
            form.format(shown[column]) if column in shown else "-" for column, (_, form) in COLUMNS.items()
        ]
        rows.append([name, *cells])
    return rows


def compare(rounds: Rounds) -> dict[str, float]:
    """Return our figures beside the best Rust router's of the same round; the medians of the rounds."""
    found: dict[str, list[float]] = {}
    for number, ours in enumerate(rounds.get(OURS, ())):
        routers = [rounds[name][number] for name in RUST_ROUTERS if len(rounds.get(name, ())) > number]
        direct = rounds.get(DIRECT, ())
        if not routers or len(direct) <= number:
            continue
        best = max(one["requests_per_second"] for one in routers)
        found.setdefault("requests_over_best_router", []).append(ours["requests_per_second"] / best)
        for part in ("p50", "p99"):
            added = add_latency(ours, direct[number])[f"added_{part}_ms"]
            least = min(add_latency(one, direct[number])[f"added_{part}_ms"] for one in routers)
            found.setdefault(f"added_{part}_ms_over_best_router", []).append(added - least)
    return {name: median(values) for name, values in found.items()}
