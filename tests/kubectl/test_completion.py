"""The candidates for a command line that is not finished."""

import subprocess
import sys

import pytest

from millrace_kubectl.command import SUB_COMMANDS
from millrace_kubectl.completion import FILES, NO_FILES, complete
from tests.kubectl.conftest import Terminal


def candidates(*words: str) -> list[str]:
    *found, directive = complete(words)
    assert directive == NO_FILES
    return [one.partition("\t")[0] for one in found]


def test_the_sub_commands_come_first_each_with_what_it_does() -> None:
    assert candidates("") == list(SUB_COMMANDS)
    assert candidates("ex") == ["explain"]
    assert complete(["ab"])[0] == "abort\tgive a new revision up"
    assert candidates("nothing-of-ours") == []


NAMELESS = {"simulate", "size", "models", "key"}


@pytest.mark.parametrize("sub_command", [name for name in SUB_COMMANDS if name not in NAMELESS])
@pytest.mark.usefixtures("terminal")
def test_then_the_services_names(sub_command: str) -> None:
    assert candidates(sub_command, "") == ["chat", "chess", "draft"]
    assert candidates(sub_command, "ch") == ["chat", "chess"]
    assert candidates(sub_command, "chat", "") == []


@pytest.mark.parametrize(
    "words",
    [
        ["-n", "shop", "status", ""],
        ["status", "-n", "shop", ""],
        ["status", "--namespace=shop", ""],
        ["explain", "--since", "6h", "-n", "shop", "-v", ""],
    ],
)
def test_they_are_of_the_namespace_that_the_line_names(words: list[str], terminal: Terminal) -> None:
    assert candidates(*words) == ["chat", "chess", "draft"]
    assert "--namespace=shop" in terminal.calls[-1]


def test_options_and_their_values(terminal: Terminal) -> None:
    assert "--since" in candidates("explain", "--")
    assert candidates("explain", "chat", "-o", "") == ["text", "json"]
    assert candidates("explain", "chat", "-o", "j") == ["json"]
    assert candidates("pin", "chat", "3", "--for", "") == []
    assert candidates("--", "") == list(SUB_COMMANDS)
    assert terminal.calls == []
    assert candidates("simulate", "--like", "d") == ["draft"]


def test_the_actions_of_a_sub_command_come_after_it(terminal: Terminal) -> None:
    assert candidates("key", "") == ["create", "list", "revoke"]
    assert candidates("-n", "shop", "key", "re") == ["revoke"]
    assert "--models" in candidates("key", "create", "--")
    assert candidates("key", "create", "") == []
    assert terminal.calls == []


def test_where_a_file_is_wanted_the_shell_names_files() -> None:
    assert complete(["simulate", "-f", ""]) == [FILES]
    assert complete(["status", "--kubeconfig", "/et"]) == [FILES]
    assert complete(["size", "mod"]) == [FILES]
    assert candidates("size", "--weights", "Int") == ["Int8", "Int4"]
    assert candidates("size", "--kv-cache", "") == ["Model", "Fp8", "Int8"]


def test_a_cluster_that_does_not_answer_leaves_the_line_as_it_is(terminal: Terminal) -> None:
    terminal.refuse("Unable to connect to the server: dial tcp: i/o timeout")
    assert candidates("status", "") == []


def test_an_empty_line_is_completed_too() -> None:
    assert complete([])[-1] == NO_FILES


def test_as_a_program_it_prints_a_line_each() -> None:
    script = "from millrace_kubectl.completion import main; main()"
    done = subprocess.run([sys.executable, "-c", script, "unp"], capture_output=True, text=True, check=True)
    assert done.stdout == "unpin\tend a pin\n:4\n"
