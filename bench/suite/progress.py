"""Progress messages of the suite."""

from __future__ import annotations

import time

_begin = time.monotonic()


def log(text: str) -> None:
    """Prints `text` with the time since the start, as [minutes:seconds]."""
    minutes, seconds = divmod(int(time.monotonic() - _begin), 60)
    print(f"[{minutes:02}:{seconds:02}] {text}", flush=True)
