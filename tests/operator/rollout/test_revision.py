from millrace_operator.api.types import Spec
from millrace_operator.rollout.revision import (
    HISTORY_LIMIT,
    Revision,
    find_expired,
    hash_inputs,
    next_number,
    revision_inputs,
)


def digest(**spec: object) -> str:
    return hash_inputs(revision_inputs(Spec.model_validate({"model": {"uri": "file:///m"}, **spec})))


def test_what_makes_a_pod_makes_a_revision() -> None:
    changes = (
        {"engine": {"maxSequences": 4}},
        {"engine": {"version": "0.1.0"}},
        {"engine": {"version": "0.2.0"}},
        {"parallelism": {"tensor": 2}},
        {"resources": {"limits": {"cpu": 1}}},
        {"pod": {"env": [{"name": "A", "value": "1"}]}},
        {"model": {"uri": "file:///other"}},
        {"model": {"uri": "file:///m", "quantization": {"weights": "Int8"}}},
        {"model": {"uri": "file:///m", "quantization": {"kvCache": "Int8"}}},
        {"model": {"uri": "file:///m", "speculation": {"method": "NGram"}}},
        {"model": {"uri": "file:///m", "speculation": {"method": "NGram", "tokens": 5}}},
    )
    assert len({digest(), *(digest(**change) for change in changes)}) == 1 + len(changes)


def test_what_makes_no_pod_makes_none() -> None:
    assert digest(scaling={"maxReplicas": 5}, replicas=3, rollout={"progressDeadline": "1m"}) == digest()
    assert digest(cost={"acceleratorHour": "2.50", "currency": "EUR"}) == digest()


def test_defaults_and_fields_of_other_versions_make_none() -> None:
    assert digest(engine={}, parallelism={}, pod={"labels": {}}, workload="Bulk") == digest()
    assert (
        digest(model={"uri": "file:///m", "quantization": {"weights": "FromCheckpoint", "kvCache": "Model"}})
        == digest()
    )


def test_a_default_that_is_written_makes_none() -> None:
    speculation = [{"method": "NGram"}, {"method": "NGram", "tokens": 4}]
    assert len({digest(model={"uri": "file:///m", "speculation": each}) for each in speculation}) == 1


def test_an_amount_is_the_same_as_number_and_as_text() -> None:
    assert digest(resources={"limits": {"nvidia.com/gpu": 1}}) == digest(
        resources={"limits": {"nvidia.com/gpu": "1"}}
    )


def test_the_hash_is_the_same_in_every_version_of_ours() -> None:
    """A golden value: changing it would restart every model at an upgrade."""
    assert digest() == "c58dd615a8"


def test_the_oldest_unused_revisions_are_forgotten() -> None:
    revisions = [Revision(hash=f"r{n}", number=n, inputs={}, template={}) for n in range(HISTORY_LIMIT + 3)]
    assert find_expired(revisions, frozenset({"r0"})) == {"r1", "r2"}
    assert next_number(revisions) == HISTORY_LIMIT + 3
    assert next_number([]) == 1
