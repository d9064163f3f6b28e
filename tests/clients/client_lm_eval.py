"""EleutherAI's evaluation harness, with tasks and a tokenizer of this machine."""

from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager
from replica import Replica

TASKS = TaskManager(include_path=str(Path(__file__).parent / "tasks"), include_defaults=False)


def evaluate(task: str, model: str, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return the task's results."""
    shared = {"model": "scripted", "num_concurrent": 2, "max_retries": 1}
    done = lm_eval.simple_evaluate(
        model=model, model_args=shared | arguments, tasks=[task], task_manager=TASKS, **options
    )
    return done["results"][task]


def test_a_generated_answer(replica: Replica) -> None:
    """The script says 7 to both questions, and one of them asks for 6."""
    results = evaluate(
        "apples",
        "local-chat-completions",
        {"base_url": f"{replica.openai_url}/chat/completions"},
        apply_chat_template=True,
    )
    assert results["exact_match,strict-match"] == 0.5


def test_a_choice_by_its_likelihood(replica: Replica) -> None:
    arguments = {
        "base_url": f"{replica.openai_url}/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": str(replica.model),
    }
    assert evaluate("facts", "local-completions", arguments)["acc,none"] == 1.0
