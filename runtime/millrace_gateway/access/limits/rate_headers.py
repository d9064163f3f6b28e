"""The state of limits as headers, in the form of OpenAI's API. Pure."""

from collections.abc import Mapping

from millrace_gateway.access.limits.bucket import Bucket


def describe_limits(requests: Bucket | None, tokens: Bucket | None, share: float) -> Mapping[str, str]:
    """Return `x-ratelimit-{limit,remaining,reset}-{requests,tokens}` of the buckets that there are."""
    headers: dict[str, str] = {}
    if requests is not None:
        headers["x-ratelimit-limit-requests"] = str(requests.limit)
        headers["x-ratelimit-remaining-requests"] = str(int(requests.find_remaining(share)))
        headers["x-ratelimit-reset-requests"] = format_seconds(requests.find_reset(share))
    if tokens is not None:
        headers["x-ratelimit-limit-tokens"] = str(tokens.limit)
        headers["x-ratelimit-remaining-tokens"] = str(int(tokens.find_remaining(share)))
        headers["x-ratelimit-reset-tokens"] = format_seconds(tokens.find_reset(share))
    return headers


def format_seconds(seconds: float) -> str:
    """Return a time as `17ms`, `1.5s`, `6m0s` or `1h0m0s`, rounded up."""
    if seconds < 1.0:
        return f"{-int(-seconds * 1000 // 1)}ms"
    if seconds < 60.0:
        tenths = -int(-seconds * 10 // 1)
        return f"{tenths / 10:g}s" if tenths < 600 else "1m0s"
    minutes, rest = divmod(-int(-seconds // 1), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
