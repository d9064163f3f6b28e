"""What is told of a quantised checkpoint's bytes is what the packers take."""

from pathlib import Path

import pytest
import torch

from millrace_fit.accelerators import CPU
from millrace_fit.families.registry import declare
from millrace_fit.matrices import Matrix, matrix_bytes
from millrace_fit.quantization.groups import cut_group
from millrace_fit.settings import FROM_CHECKPOINT, Settings
from millrace_fit.shard import Cut, whole
from millrace_fit.verdict import Answer, judge
from millrace_kernels.linear.gpu.choice import Capability
from millrace_kernels.linear.gpu.matrix import pack_for_gpu
from millrace_kernels.linear.stored import StoredMatrix
from millrace_kernels.native.weights.packing import NativePacker
from millrace_runtime.execution.weights.checkpoint import CheckpointWeights
from millrace_runtime.execution.weights.safetensors_files import Reader, read_json
from millrace_runtime.execution.weights.stored_reader import StoredReader
from millrace_runtime.models.decoder import find_architecture
from testing.checkpoints.allocated import LENGTH, count_bytes
from testing.checkpoints.models import MEDIUM, read_facts, write_model
from testing.checkpoints.quantized import FORMS, write_quantized

WIDTH = 704


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("plain"), MEDIUM | {"intermediate_size": WIDTH})


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", FORMS)
def test_strips_take_what_was_told(plain: Path, tmp_path: Path, name: str, count: int) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    folder = write_quantized(plain, tmp_path, FORMS[name])
    facts, settings = read_facts(folder), Settings(device="cpu", tensor_parallel=count)
    if judge(facts, settings, None).answer is Answer.UNSUPPORTED:
        assert (name, count) == ("GPTQ with an order", 2)
        return
    told = facts.weigh(settings)
    for shard in told.shards:
        architecture = find_architecture(read_json(folder / "config.json"), shard)
        weights = CheckpointWeights(Reader(folder), NativePacker(torch.float32), architecture.quantization)
        assert count_bytes(architecture.build(weights, LENGTH)) == told.count_bytes(shard)


@pytest.mark.parametrize("columns", [whole(WIDTH), Cut(WIDTH, 352, WIDTH)])
@pytest.mark.parametrize("name", FORMS)
def test_so_do_the_layouts_of_gpus(plain: Path, tmp_path: Path, name: str, columns: Cut) -> None:
    folder = write_quantized(plain, tmp_path, FORMS[name])
    quantization = declare(read_json(folder / "config.json")).quantization
    matrix, outputs = "model.layers.1.mlp.down_proj", MEDIUM["hidden_size"]
    scheme = quantization.find_scheme(matrix)
    assert scheme is not None
    if scheme.is_ordered and columns.begin:
        return
    part = StoredReader(Reader(folder), quantization).read(matrix, whole(outputs), columns)
    assert isinstance(part, StoredMatrix)
    packed = pack_for_gpu([part], outputs, None, torch.device(CPU), Capability(9, 0))
    told = Matrix(outputs, columns.size, 1, scheme=scheme, group=cut_group(scheme, columns))
    assert packed.nbytes == matrix_bytes(told, FROM_CHECKPOINT, 2, "cuda")
