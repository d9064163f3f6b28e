"""The failures of a replica, in words for the person who started it.

ReplicaError
├── SettingError   a flag has an invalid value
├── PortTaken      an address can't be bound
└── PeerGone       the process at the other end of a socket has ended
"""


class ReplicaError(Exception):
    """A replica can't go on. The text says what to do."""


class SettingError(ReplicaError):
    """A flag has an invalid value."""


class PortTaken(ReplicaError):  # noqa: N818  names the state, as a person would
    """An address can't be bound."""


class PeerGone(ReplicaError):  # noqa: N818  as PortTaken
    """The other process closed its end of the socket."""
