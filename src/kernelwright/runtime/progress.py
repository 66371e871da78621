"""What takes long in a user's program says on standard error how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

SECONDS = 10.0
"""Between two lines where the output is no terminal."""


def steps(title: str) -> Callable[[int, int], None]:
    """Of work whose steps are counted: call it with (done, total). A terminal has one line that changes; a log gets one every ten seconds,
    so that short work leaves none."""
    out, last = sys.stderr, time.monotonic()

    def told(done: int, total: int) -> None:
        nonlocal last
        if out.isatty():
            out.write(f"\r{title}: {done} of {total}" + ("\n" if done == total else ""))
            out.flush()
        elif time.monotonic() - last > SECONDS:
            last = time.monotonic()
            print(f"{title}: {done} of {total}", file=out, flush=True)

    return told
