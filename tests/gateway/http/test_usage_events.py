from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.http.usage_events import UsageEvents

DATA = [
    b'data: {"a": ": millrace-usage 1 1 1"}\n\n',
    b": waiting\n\n",
    b"event: x\ndata: 1\n\n",
    b"data: [DONE]\n\n",
]
USAGE = [b": millrace-usage 12 0 3\n\n", b": millrace-usage 12 4 90\n\n"]


@given(st.lists(st.sampled_from([*DATA, *USAGE])), st.lists(st.integers(0, 200)))
def test_however_a_stream_is_cut_only_usage_events_go(events: list[bytes], cuts: list[int]) -> None:
    told: list[bytes] = []
    stream, found = b"".join(events), UsageEvents(told.append)
    bounds = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[start:end] for start, end in pairwise(bounds)]
    assert b"".join(map(found.convert, pieces)) == b"".join(event for event in events if event not in USAGE)
    assert told == [event[17:-2] for event in events if event in USAGE]


def test_a_comment_without_an_end_is_not_kept_for_ever() -> None:
    found, sent = UsageEvents(), b": millrace-usage " + b"1" * 200
    assert found.convert(sent) == sent
