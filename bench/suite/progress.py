"""Says what the suite is doing."""

from __future__ import annotations

import time

_begin = time.monotonic()


def say(text: str) -> None:
    """With the minutes and seconds since the suite began."""
    minutes, seconds = divmod(int(time.monotonic() - _begin), 60)
    print(f"[{minutes:02}:{seconds:02}] {text}", flush=True)
