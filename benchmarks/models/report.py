"""The table of the figures of models, with what each aims at. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.models.on_nodes import Starts
from benchmarks.models.transfers import Rounds, Turn
from benchmarks.runtime.figures import ratios, spread
from benchmarks.runtime.report import describe_cpu
from testing.model_sources.kills import Tale

AIMS = {
    "fetch_over_curl": ">= 0.9",
    "synced_fetch_over_curl": "",
    "fetch_rss_mb": "<= 200",
    "kill_resume_wrong": "0",
    "downloads_for_ten_pods": "1",
    "warm_apply_to_token_over_local": "<= 1.2",
    "fit_error_percent": "<= 5",
}


def summarise_rounds(rounds: Rounds) -> dict[str, Any]:
    """Return medians; of fetch over curl within the rounds, and of memory the most."""
    ratio = spread(ratios(_rates(rounds.fetch), _rates(rounds.curl)))
    return {
        "fetch_over_curl": round(ratio.median, 3),
        "lowest": round(ratio.lowest, 3),
        "highest": round(ratio.highest, 3),
        "synced_fetch_over_curl": round(spread(ratios(_rates(rounds.synced), _rates(rounds.curl))).median, 3),
        "synced_megabytes_per_second": round(statistics.median(_rates(rounds.synced)) / 1e6, 1),
        "fetch_megabytes_per_second": round(statistics.median(_rates(rounds.fetch)) / 1e6, 1),
        "curl_megabytes_per_second": round(statistics.median(_rates(rounds.curl)) / 1e6, 1),
        "server_megabytes_per_second": round(rounds.unlimited_bytes_per_second / 1e6),
        "fetch_rss_mb": round(max(turn.peak_mb for turn in (*rounds.fetch, *rounds.synced)), 1),
    }


def summarise_kills(tales: Mapping[str, Tale]) -> dict[str, Any]:
    """Return the sum of what was wrong, and each source's kills."""
    return {
        "kill_resume_wrong": sum(tale.num_wrong for tale in tales.values()),
        "kills": {name: tale.num_kills for name, tale in tales.items()},
        "whole_models": {name: tale.num_whole for name, tale in tales.items()},
    }


def summarise_sizes(errors: Mapping[str, float]) -> dict[str, Any]:
    """Return the worst, and of what it is."""
    worst = max(errors, key=lambda name: errors[name])
    return {"fit_error_percent": round(errors[worst], 3), "fit_worst": worst, "fit_models": len(errors)}


def summarise_starts(starts: Starts) -> dict[str, Any]:
    """Return the downloads, and of the seconds the median ratio within the rounds and the medians."""
    kept, local = zip(*starts.pairs, strict=True)
    return {
        "downloads_for_ten_pods": starts.num_downloads,
        "warm_apply_to_token_over_local": round(spread(ratios(kept, local)).median, 3),
        "warm_apply_to_token_seconds": round(statistics.median(kept), 2),
        "local_apply_to_token_seconds": round(statistics.median(local), 2),
    }


def render(found: Mapping[str, Any], terms: str, machine: Mapping[str, Any]) -> str:
    """Return the measured figures beside their aims, and what curl does not do."""
    rows = [f"| {name} | {found[name]:.3g} | {aim} |" for name, aim in AIMS.items() if name in found]
    speeds = [_describe_speeds(found)] if "fetch_over_curl" in found else []
    head = "; ".join([*([terms] if terms else []), f"{machine['cores']} cores, {describe_cpu(machine)}"])
    return "\n".join([head, *speeds, "", "| measure | found | aim |", "|---|---|---|", *rows])


def _describe_speeds(found: Mapping[str, Any]) -> str:
    return (
        f"fetch {found['fetch_megabytes_per_second']} MB/s, hashed; "
        f"{found['synced_megabytes_per_second']} MB/s, hashed and on the disk; "
        f"curl {found['curl_megabytes_per_second']} MB/s, neither; "
        f"the server without a limit {found['server_megabytes_per_second']} MB/s"
    )


def _rates(turns: Sequence[Turn]) -> list[float]:
    return [turn.bytes_per_second for turn in turns]
