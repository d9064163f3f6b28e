"""The errors of the Kubernetes API.

KubernetesError
├── AccessError                 no credentials can be used; the text says what to set
│   └── KubeconfigError         the file cannot be read, or it is no kubeconfig
├── ApiError                    the API server answered with an error status
│   └── ExpiredError            410: the resourceVersion is too old, list again
├── MalformedError              the API server sent neither a list nor an event
├── SinkError                   the sink failed at a list or at an event
└── StreamEndedError            the API server ended a watch as soon as it began
"""


class KubernetesError(Exception):
    """The root of this package's exceptions."""


class AccessError(KubernetesError):
    """No credentials can be used; the text says what to set."""


class KubeconfigError(AccessError):
    """The file cannot be read, or it is no kubeconfig. The caller adds what to set instead."""


class ApiError(KubernetesError):
    """The API server answered with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the API server answered {status}: {message}")
        self.status = status


class ExpiredError(ApiError):
    """410: the API server no longer knows our resourceVersion, so the collection must be listed again."""


class MalformedError(KubernetesError):
    """The API server sent neither a list nor an event."""


class SinkError(KubernetesError):
    """The sink failed at a list or at an event."""


class StreamEndedError(KubernetesError):
    """The API server ended a watch as soon as it began."""


def make_api_error(status: int, message: str) -> ApiError:
    """Return the exception for an error status."""
    return (ExpiredError if status == 410 else ApiError)(status, message)
