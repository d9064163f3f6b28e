"""Documents and search results of Anthropic's dialect that are text. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from millrace_runtime.api.request.messages import write_left_out


def read_document(block: Any) -> str | None:
    """Return the text of a document or a search result, below what names it; None if it has none."""
    match block:
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            texts = [text]
        case {"type": "document", "source": {"type": "content", "content": str() | list() as content}}:
            texts = list(_list_texts(content))
        case {"type": "search_result", "content": list(content)}:
            texts = list(_list_texts(content))
        case _:
            return None
    return "\n".join([*_list_names(block), *filter(None, texts)])


def _list_names(block: Mapping[str, Any]) -> Iterator[str]:
    """Yield its title, what a document is about, and where a result was found."""
    for name in ("title", "context", "source"):
        if isinstance(value := block.get(name), str) and value:
            yield value


def _list_texts(content: str | list[Any]) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for block in content:
        match block:
            case {"type": "text", "text": str(text)}:
                yield text
            case {"type": str(kind)}:
                yield write_left_out(kind[:64])
