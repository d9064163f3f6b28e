"""Services as the operator leaves them in each state of a life, and the screen that `status` shows of each.

After a change of words, `python -m tests.kubectl.screens` writes screens.txt again: its diff shows each.
"""

import asyncio
import sys
from pathlib import Path

from millrace_kubectl.facts import Facts
from millrace_kubectl.screen import render_screen
from tests.kubectl.lives import counting, failing, refused, rolling_out, serving, starting
from tests.kubectl.lives.life import LIVES, Life

EXPECTED = Path(__file__).with_name("golden") / "screens.txt"
MODULES = (starting, serving, failing, counting, refused, rolling_out)
"""In their order here, whoever imports them first."""
SHOWN: list[Life] = [one for module in MODULES for one in LIVES if one.__module__ == module.__name__]


def render() -> str:
    return "\n\n".join(f"## {one.__name__}\n{asyncio.run(show(one))}" for one in SHOWN) + "\n"


async def show(one: Life) -> str:
    world = await one()
    return "\n".join(render_screen(Facts(world.service, world.now)))


if __name__ == "__main__":
    EXPECTED.write_text(render())
    sys.exit(0)
