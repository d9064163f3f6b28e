import pytest

from millrace_operator.api.quantities import count_gpus, has_gpu


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "amd.com/gpu"])
def test_whole_gpus_are_counted(name: str) -> None:
    for amount in (4, "4"):
        limits = {"cpu": "8", name: amount}
        assert has_gpu(limits)
        assert count_gpus(limits) == 4


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-1g.10gb.me",
        "nvidia.com/mig-3g.40gb.shared",
        "nvidia.com/gpu.shared",
        "amd.com/spx_nps1",
        "amd.com/cpx_nps4",
    ],
)
def test_a_part_is_a_gpu_and_not_one_for_a_worker_each(name: str) -> None:
    assert has_gpu({name: 2})
    assert count_gpus({name: 2}) == 0


@pytest.mark.parametrize(
    "name",
    [
        "gpu.intel.com/i915",
        "gpu.intel.com/xe",
        "habana.ai/gaudi",
        "aws.amazon.com/neuron",
        "aws.amazon.com/neuroncore",
        "google.com/tpu",
        "huawei.com/Ascend910",
        "rdma/hca_shared_devices_a",
        "hugepages-2Mi",
        "memory",
    ],
)
def test_what_the_runtime_cannot_compute_on_is_no_gpu(name: str) -> None:
    assert not has_gpu({name: "8"})
    assert count_gpus({name: "8"}) == 0


def test_none_of_a_gpu_is_no_gpu() -> None:
    """A template may write 0 where a service has none."""
    assert not has_gpu({"nvidia.com/gpu": "0"})
    assert not has_gpu({"nvidia.com/mig-1g.10gb": 0})
    assert count_gpus({"nvidia.com/gpu": 0}) == 0


def test_what_is_no_amount_is_left_to_the_api_server() -> None:
    """It refuses the Deployment with words that get into status. A plan that failed would say nothing."""
    assert has_gpu({"nvidia.com/gpu": "many"})
    assert count_gpus({"nvidia.com/gpu": "many"}) == 1
    assert has_gpu({"nvidia.com/mig-1g.10gb": ""})
