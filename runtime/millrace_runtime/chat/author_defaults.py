"""The sampling that the model's author recommends, from generation_config.json, as vLLM takes it.

It counts where a request says nothing. `do_sample` is ignored, as a request always says how it is drawn.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from millrace_runtime.chat.errors import TokenizerError

FILE = "generation_config.json"


class AuthorDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the file says, within the bounds of a request; None where it says nothing."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    max_new_tokens: Annotated[int, Meta(ge=1)] | None = None

    def __str__(self) -> str:
        """Return them as a line: "temperature 0.6, top_p 0.95"."""
        return ", ".join(f"{name} {value:g}" for name, value in msgspec.to_builtins(self).items())


NO_DEFAULTS = AuthorDefaults()


def read_author_defaults(model_path: Path) -> AuthorDefaults:
    """Read the folder's file; without one there are none. Raises TokenizerError for one that is wrong."""
    path = model_path / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=AuthorDefaults)
    except FileNotFoundError:
        return NO_DEFAULTS
    except (OSError, msgspec.DecodeError) as error:
        raise TokenizerError(
            f"{path} is no usable generation config: {error}. --generation-config none serves without it"
        ) from error
