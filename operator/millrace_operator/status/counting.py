"""How many of the desired replicas do something, in words. As a rollout ends, more may. Pure."""


def count_replicas(count: int, desired: int, verb: str) -> str:
    """Return how many of the desired replicas do what `verb` says, or both counts where more do."""
    if count <= desired:
        return f"{count} of {desired} desired replicas {verb}"
    return f"{count} replicas {verb}, and {desired} {'is' if desired == 1 else 'are'} desired"
