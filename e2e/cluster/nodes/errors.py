"""What can go wrong on a node, beside what millrace_kubernetes raises.

NodeError
├── SandboxError        the kernel or the file system refuses a container's namespaces or mounts
├── SettingsError       a flag or the kubeconfig cannot be used
└── PodRefusedError     a pod asks for something this node cannot give (carries the reason shown in status)
    └── ImageError      the image is unknown or its Containerfile cannot be read
"""


class NodeError(Exception):
    """Every error that this package raises by intent."""


class SandboxError(NodeError):
    """The kernel or the file system refuses a container's namespaces or mounts."""


class SettingsError(NodeError):
    """A flag or the kubeconfig cannot be used; the text says what to write."""


class PodRefusedError(NodeError):
    """A pod asks for something this node cannot give; `reason` is what its status shows."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ImageError(PodRefusedError):
    """The image is unknown or its Containerfile cannot be read."""
