"""What people read, and what programs read of it."""

import json

import pytest

from millrace_fit.accelerators import COMMON, GIB, GPUS, find_accelerator, read_labels
from millrace_fit.errors import SettingError
from millrace_fit.screen import WIDTH, render_json
from millrace_fit.settings import Settings
from millrace_fit.units import read_amount
from millrace_fit.verdict import Answer, judge
from tests.fit.screens import CASES, EXPECTED, find, make, render

ANSWERS = {
    "fits": Answer.FITS,
    "shorter sequences": Answer.TIGHT,
    "fewer sequences": Answer.TIGHT,
    "a length without room": Answer.DOES_NOT_FIT,
    "weights without room": Answer.DOES_NOT_FIT,
    "on several": Answer.FITS,
    "heads that can't be shared": Answer.UNSUPPORTED,
    "a pod": Answer.FITS,
    "a pod that is too small": Answer.DOES_NOT_FIT,
    "another architecture": Answer.UNSUPPORTED,
    "a sliding window": Answer.FITS,
    "windows in five of six layers": Answer.FITS,
}


def test_the_screens_are_as_they_were() -> None:
    assert render() == EXPECTED.read_text(), "python -m tests.fit.screens writes them anew"


def test_no_line_is_too_long() -> None:
    assert all(len(line) <= WIDTH for line in render().splitlines())


@pytest.mark.parametrize("title", ANSWERS)
def test_each_answer_is_given(title: str) -> None:
    name, settings, device = CASES[title]
    assert judge(make(name).facts, settings, find(device)).answer is ANSWERS[title]


def test_an_unknown_device_is_no_refusal() -> None:
    assert judge(make("llama-8b").facts, Settings(), None).answer is Answer.UNKNOWN


@pytest.mark.parametrize("title", CASES)
def test_what_is_proposed_fits(title: str) -> None:
    """A plan never takes more than there is."""
    name, settings, device = CASES[title]
    plan = judge(make(name).facts, settings, find(device)).plan
    if plan is not None and plan.cache is not None and not plan.is_over:
        assert plan.taken + plan.cache.num_bytes <= plan.total
        assert plan.cache.max_model_length <= plan.longest_alone


def test_json_has_the_same_in_bytes() -> None:
    written = json.loads(render_json(make("llama-8b"), Settings(), [GPUS[name] for name in COMMON]))
    assert [one["name"] for one in written["accelerators"]] == list(COMMON)
    first = written["accelerators"][0]
    assert first["answer"] == "Tight"
    assert first["plan"]["weights"] == 16060522496
    assert written["facts"]["shape"]["runs"] == [[[0], 32]]


@pytest.mark.parametrize(
    ("labels", "name", "gib"),
    [
        (
            {"nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            "NVIDIA-H100",
            79.1,
        ),
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, "h100-80g", 79.1),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}, "a100-40g", 39.3),
        ({"nvidia.com/gpu.product": "Tesla-T4"}, "t4-16g", 14.6),
        ({"nvidia.com/gpu.product": "NVIDIA-L4-SHARED"}, "l4-24g", 22.0),
        ({"nvidia.com/gpu.product": "NVIDIA-L40S"}, "l40s-48g", 44.3),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}, "1g.10gb", 9.5),
        ({"nvidia.com/gpu.memory": "23034", "nvidia.com/gpu.product": "NVIDIA-L4"}, "NVIDIA-L4", 22.0),
        ({"nvidia.com/gpu.memory": "143771"}, "a GPU of 143771 MiB", 139.7),
    ],
)
def test_a_nodes_labels_tell_the_memory(labels: dict[str, str], name: str, gib: float) -> None:
    found = read_labels(labels)
    assert found is not None
    assert found.name.startswith(name)
    assert found.memory_bytes / GIB == pytest.approx(gib, rel=0.02)


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"nvidia.com/gpu.product": "NVIDIA-X1"},
        {"nvidia.com/gpu.memory": "many"},
        {"nvidia.com/gpu.memory": "0"},
    ],
)
def test_labels_that_tell_nothing_are_unknown(labels: dict[str, str]) -> None:
    assert read_labels(labels) is None


def test_a_label_with_a_part_of_a_gpu_is_known_as_one() -> None:
    found = read_labels(
        {"nvidia.com/gpu.memory": "9984", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"}
    )
    assert found is not None
    assert found.is_part


def test_a_gpu_may_be_named_without_its_size() -> None:
    assert find_accelerator("H100") == GPUS["h100-80g"]
    assert find_accelerator("l4") == GPUS["l4-24g"]
    assert find_accelerator("h1000") is None


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("80GiB", 80 * GIB), ("16Gi", 16 * GIB), ("24G", 24 * 10**9), ("1.5 GiB", 3 * GIB // 2)],
)
def test_amounts_are_read_as_people_write_them(text: str, num_bytes: int) -> None:
    assert read_amount(text) == num_bytes


@pytest.mark.parametrize("text", ["", "much", "-1Gi", "0", "80GiBs", "1e9", "nan"])
def test_other_amounts_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match="write for example 80GiB"):
        read_amount(text)


@pytest.mark.parametrize(
    ("product", "has_bfloat16", "has_fp8"),
    [
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", True, False),
        ("NVIDIA-A100-80GB-PCIe-MIG-3g.40gb", True, False),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", True, True),
        ("NVIDIA-A30", True, False),
        ("NVIDIA-A40", True, False),
        ("NVIDIA-RTX-A6000", True, False),
        ("NVIDIA-GeForce-RTX-3090", True, False),
        ("Tesla-V100-SXM2-16GB", False, False),
        ("Quadro-RTX-8000", False, False),
        ("NVIDIA-L40S", True, True),
        ("NVIDIA-RTX-6000-Ada-Generation", True, True),
        ("NVIDIA-GB300", True, True),
    ],
)
def test_what_a_product_lacks_is_read_from_its_label(
    product: str, *, has_bfloat16: bool, has_fp8: bool
) -> None:
    found = read_labels({"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": "24000"})
    assert found is not None
    assert (found.has_bfloat16, found.has_fp8) == (has_bfloat16, has_fp8)
    assert found.memory_bytes < 24000 << 20
