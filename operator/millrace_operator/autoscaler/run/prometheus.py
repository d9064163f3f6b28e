"""Queries Prometheus. A query that fails leaves its own signals unknown."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from millrace_kubernetes.connection_failures import describe_failure
from millrace_operator.autoscaler.run.settings import Access, SettingError
from millrace_operator.autoscaler.signals.answers import (
    PodKey,
    Reading,
    Sample,
    SignalError,
    parse_samples,
    sort_samples,
)
from millrace_operator.autoscaler.signals.queries import Question
from millrace_operator.autoscaler.signals.scrapes import Windows
from millrace_operator.kube.kinds import ServiceKey

UNTIMED = aiohttp.ClientTimeout()
"""aiohttp's own timeout can lose a cancellation: see `millrace_kubernetes.connection`."""
TIMEOUT_SECONDS = 2.0
"""Of one query."""
ADVICE = "set the chart's prometheus.url (--prometheus-url)"
CREDENTIALS = {
    401: "it needs credentials: set prometheus.tokenSecret, prometheus.serviceAccountToken, "
    "prometheus.basicAuthSecret or prometheus.clientCertificateSecret in the chart",
    403: "these credentials, or none, may not read it: give their owner the right to query, or set others "
    "(prometheus.tokenSecret and its neighbours in the chart)",
}
"""What to do about the two answers that concern credentials."""


class Prometheus:
    """A Prometheus, or another server with its API."""

    def __init__(
        self, session: aiohttp.ClientSession, access: Access, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        self._session = session
        self._access = access
        self._timeout = timeout

    async def ask(self, query: str, at: float) -> list[Sample]:
        """Return an instant query's samples at a time in seconds since 1970. Raises SignalError.

        It is a POST, because proxies limit the length of a URL.
        """
        url = self._access.settings.url
        try:
            request = self._session.post(
                f"{url.rstrip('/')}/api/v1/query",
                data={"query": query, "time": f"{at:.3f}"},
                headers=self._access.headers(),
                ssl=self._access.trust(),
                timeout=UNTIMED,
                allow_redirects=False,  # credentials go nowhere else
            )
            async with asyncio.timeout(self._timeout), request as response:
                return parse_samples(await self._read(response))
        except SettingError as error:
            raise SignalError(str(error)) from error
        except TimeoutError as error:
            raise SignalError(f"Prometheus did not answer within {self._timeout:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise SignalError(
                f"Prometheus at {url} did not answer: {describe_failure(error)}; if it is elsewhere, {ADVICE}"
            ) from error

    async def _read(self, response: aiohttp.ClientResponse) -> Any:
        """Return the answer's JSON. Errors of Prometheus are JSON too; those of a proxy are not."""
        url, status = self._access.settings.url, response.status
        if status in CREDENTIALS:
            raise SignalError(f"Prometheus at {url} answered {status}: {CREDENTIALS[status]}")
        try:
            body = await response.json(content_type=None)
        except ValueError:
            body = None
        if body is None:
            raise SignalError(f"the server at {url} is no Prometheus: status {status} and no JSON; {ADVICE}")
        return body


async def fetch_reading(
    prometheus: Prometheus,
    questions: Sequence[Question],
    owners: Mapping[PodKey, ServiceKey],
    now: float,
    windows: Windows,
) -> Reading:
    """Return Prometheus' answers at `now` (seconds since 1970), or why there are none.

    `owners` maps the pods to read to their services.
    """
    answers = await asyncio.gather(
        *(prometheus.ask(question.text, now) for question in questions), return_exceptions=True
    )
    samples: list[Sample] = []
    unknown: dict[str, str] = {}
    for question, answer in zip(questions, answers, strict=True):
        if isinstance(answer, list):
            samples += answer
        else:
            unknown |= dict.fromkeys(question.signals, _explain(answer))
    if all(not isinstance(answer, list) for answer in answers):
        return Reading(now, windows, failure=next(iter(unknown.values()), "there was no query"))
    return Reading(now, windows, sort_samples(samples, owners), unknown=unknown)


def _explain(error: BaseException) -> str:
    """Return the reason of a failed query; raise any other exception again."""
    if isinstance(error, SignalError):
        return str(error)
    if isinstance(error, Exception):
        return f"the query failed: {error!r}"
    raise error
