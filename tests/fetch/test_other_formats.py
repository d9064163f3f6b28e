"""A model whose weights are of a format that no replica reads: refused by the format's name, unfetched."""

import json
from pathlib import Path

import pytest

from millrace_fetch.cli import remote_model
from millrace_fetch.errors import SourceError
from millrace_fetch.plan.head import Resolved
from millrace_fetch.plan.selection import is_of_another_format
from millrace_fit.facts import ModelFacts
from millrace_fit.files.formats import explain_formats
from testing.checkpoints.models import MEDIUM
from testing.model_sources.processes import finish, start_command, start_fetch
from testing.model_sources.registry import Registry
from testing.model_sources.servers import FakeHub, WebFolderServer
from tests.fetch.conftest import Fetcher

URI = "hf://org/m"
CONFIG = {"config.json": json.dumps(MEDIUM).encode()}
WEIGHTS = {"m.Q4.gguf": b"GGUF" * 5000}
REPOSITORIES = {
    "beside its config.json": CONFIG | WEIGHTS,
    "without a config.json": WEIGHTS,
    "with a config.json that names no architecture": {"config.json": b'{"model_type": "llama"}'} | WEIGHTS,
}
WORDS = "There are GGUF (m.Q4.gguf)."
EMPTY = (2).to_bytes(8, "little") + b"{}"
"""A safetensors file without tensors."""
DEEPSPEED = ("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt")


async def ask(fetcher: Fetcher, uri: str) -> Resolved:
    order = fetcher.order(uri)
    return await remote_model.resolve(order, fetcher.open_source(order), fetcher.witness.say)


def fault(found: Resolved) -> str:
    """What the operator reads of it."""
    facts = json.dumps(json.loads(found.render())["facts"])
    return ModelFacts.from_json(facts).fault or ""


@pytest.fixture
def contents(request: pytest.FixtureRequest) -> dict[str, bytes]:
    return dict(REPOSITORIES[getattr(request, "param", "beside its config.json")])


@pytest.mark.parametrize("contents", REPOSITORIES, indirect=True)
async def test_a_hub_tells_it_as_a_fault_of_the_model_and_sends_no_weights(
    hub: FakeHub, fetcher: Fetcher
) -> None:
    found = await ask(fetcher, URI)
    assert WORDS in fault(found)
    assert (found.revision, found.num_files) == (hub.commit, 0)
    assert not hub.large.sent["m.Q4.gguf"]
    assert len(found.render()) < 2000


async def test_a_registry_tells_it_too(fetcher: Fetcher, contents: dict[str, bytes]) -> None:
    async with Registry() as registry:
        registry.push_files(contents)
        assert WORDS in fault(await ask(fetcher, f"{registry.uri}:v1"))


async def test_of_a_web_server_which_lists_nothing_the_usual_names_are_tried(fetcher: Fetcher) -> None:
    async with WebFolderServer(CONFIG | {"pytorch_model.bin": b"pickle"}) as server:
        found = await ask(fetcher, server.uri)
    assert "There are pickled weights of torch (pytorch_model.bin)." in fault(found)


async def test_an_architecture_that_no_replica_serves_is_told_before_the_format(
    hub: FakeHub, fetcher: Fetcher
) -> None:
    config = {"config.json": b'{"architectures": ["T5ForConditionalGeneration"]}'}
    hub.files.contents = config | {"pytorch_model.bin": b"pickle"}
    told = fault(await ask(fetcher, URI))
    assert told.startswith("config.json names the architecture T5ForConditionalGeneration; docs/how-to/")
    assert "Besides, there are no *.safetensors" in told
    assert "(pytorch_model.bin)" in told


async def test_an_adapter_below_makes_no_other_format_a_model(hub: FakeHub, fetcher: Fetcher) -> None:
    hub.files.contents = CONFIG | WEIGHTS | {"lora/adapter_model.safetensors": b"adapter"}
    told = fault(await ask(fetcher, URI))
    assert told.startswith(
        f"there are no *.safetensors beside config.json, and replicas read no other weights. {WORDS}"
    )


def test_another_format_in_a_folder_is_named_beside_an_adapter_in_another() -> None:
    names = ["config.json", "x/model.gguf", "y/adapter.safetensors"]
    assert is_of_another_format(names)
    assert explain_formats(names) == (
        "there are no *.safetensors beside config.json, and replicas read no other weights. There are GGUF "
        "(x/model.gguf), and y/adapter.safetensors. Convert the model, or put its *.safetensors beside "
        "config.json"
    )


def test_a_format_in_a_folder_of_safetensors_or_below_it_is_of_that_model() -> None:
    names = ["config.json", "m/model.safetensors", "m/pytorch_model.bin", "m/onnx/model.onnx"]
    assert not is_of_another_format(names)
    assert explain_formats(names).startswith("m/model.safetensors is not beside config.json, where")


async def test_the_folder_above_a_models_is_not_taken_for_a_model_of_another_format(
    hub: FakeHub, fetcher: Fetcher
) -> None:
    model = CONFIG | {"pytorch_model.bin": b"pickle", "model.safetensors": b"weights"}
    hub.files.contents = {f"m/{name}": content for name, content in model.items()}
    with pytest.raises(SourceError, match=r"there is no config\.json"):
        await ask(fetcher, URI)


async def test_weights_in_a_folder_below_are_named(hub: FakeHub, fetcher: Fetcher) -> None:
    hub.files.contents = CONFIG | {"weights/model.safetensors": b"weights"}
    with pytest.raises(SourceError, match=r"^weights/model\.safetensors is not beside config\.json, where"):
        await ask(fetcher, URI)


@pytest.mark.parametrize(
    ("name", "told"),
    [("m.pkl", "pickles of Python"), ("weights.npz", "NumPy"), ("model.nemo", "NeMo"), ("m.PT", "torch")],
)
def test_formats_are_known_by_the_endings_of_names(name: str, told: str) -> None:
    assert f"{told} ({name})" in explain_formats(["config.json", name])
    assert is_of_another_format(["config.json", name])


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"training_args.bin": b"pickle", "optimizer.pt": b"pickle", "checkpoint-1/rng_state_0.pth": b"p"},
        {f"checkpoint-1/global_step5/{name}": b"p" for name in DEEPSPEED},
        {"m.gguf": b"GGUF", "model.safetensors.index.json": b'{"weight_map": {"a": "b.safetensors"}}'},
    ],
    ids=["no weights", "what training left", "what DeepSpeed left", "an index"],
)
async def test_what_somebody_may_be_uploading_is_an_error_that_passes(
    hub: FakeHub, fetcher: Fetcher, written: dict[str, bytes]
) -> None:
    hub.files.contents = CONFIG | written
    with pytest.raises(SourceError, match=r"no \*\.safetensors|model is incomplete"):
        await ask(fetcher, URI)


@pytest.mark.parametrize("contents", REPOSITORIES, indirect=True)
async def test_the_command_names_it_and_fetches_nothing(hub: FakeHub, fetcher: Fetcher) -> None:
    status, _, err = await finish(await start_fetch(URI, fetcher.folder, HF_ENDPOINT=hub.endpoint))
    assert status == 3
    assert WORDS in err
    assert not hub.large.sent["m.Q4.gguf"]
    assert not fetcher.names()


async def test_a_look_at_an_architecture_that_no_replica_serves_ends_well_and_says_so(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub.files.contents = {"config.json": b'{"architectures": ["T5"]}', "model.safetensors": EMPTY}
    process = await start_command(URI, "--resolve", str(tmp_path / "told"), HF_ENDPOINT=hub.endpoint)
    status, out, err = await finish(process)
    assert (status, err) == (0, "")
    assert "which no replica can serve: config.json names the architecture T5; docs/" in out


async def test_a_look_that_finds_it_ends_well_and_says_so(hub: FakeHub, tmp_path: Path) -> None:
    told = tmp_path / "told"
    process = await start_command(URI, "--resolve", str(told), HF_ENDPOINT=hub.endpoint)
    status, out, err = await finish(process)
    assert (status, err) == (0, "")
    assert WORDS in out
    assert told.exists()
