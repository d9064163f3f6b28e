"""The grammar worker's process: it loads the model's vocabulary, and proves grammars in forks of itself.

python -m millrace_runtime.api.workers.grammar_process MODEL_PATH PARENT_PID SOCKET_FD SECONDS…
"""

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.matcher import Vocabulary
from millrace_runtime.grammar.proof import prove
from millrace_runtime.grammar.proof_server import ProofServer
from millrace_runtime.process import end_with_parent
from millrace_runtime.protocol.messages import Grammar


def open_proofs(model_path: Path) -> Callable[[str, str, str], Grammar]:
    """Return the function that proves a grammar. If the tokenizer can't be used, it refuses every grammar."""
    tokenizer = Tokenizer.load(model_path)
    try:
        return partial(prove, Vocabulary(tokenizer, tokenizer.config.num_rows))
    except GrammarError as error:
        return partial(_refuse, str(error))


def _refuse(why: str, *_: str) -> NoReturn:
    raise GrammarError(why)


def main(argv: list[str]) -> int:
    """Load, and serve until the socket closes."""
    model_path, parent_pid, fd = Path(argv[0]), int(argv[1]), int(argv[2])
    end_with_parent(parent_pid)
    # A Ctrl-C or a drain reaches the whole process group. This process ends when its socket closes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with socket.socket(fileno=fd) as connection:
        proofs = open_proofs(model_path)
        gc.freeze()  # a collection in a fork would copy every page
        ProofServer(connection, proofs, list(map(float, argv[3:]))).serve()
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
