"""The state of limits as headers, in the form of OpenAI's API. Pure."""

from collections.abc import Mapping

from millrace_gateway.access.limits.bucket import Bucket


def describe_limits(
    requests: Bucket | None, tokens: Bucket | None, now: float, share: float
) -> Mapping[str, str]:
    """Return `x-ratelimit-{limit,remaining,reset}-{requests,tokens}` of the buckets that there are."""
    headers: dict[str, str] = {}
    for name, bucket in (("requests", requests), ("tokens", tokens)):
        if bucket is not None:
            headers[f"x-ratelimit-limit-{name}"] = str(bucket.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(int(bucket.find_remaining(now, share)))
            headers[f"x-ratelimit-reset-{name}"] = format_seconds(bucket.find_reset(now, share))
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
