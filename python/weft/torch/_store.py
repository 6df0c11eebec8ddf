"""A c10d store as the key-value store of a session."""

import time

from torch.distributed import Store

# A wait of a c10d store notices no signals, and logs warnings when it ends without the key. So the adapter polls.
_SHORTEST_SLEEP_S = 0.001
_LONGEST_SLEEP_S = 0.02


class StoreAdapter:
    """Key-value store of weft._core over a c10d store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        """Sets the value of a key."""
        self._store.set(key, value)

    def get_all(self, keys: list[str], timeout_s: float) -> list[bytes | None]:
        """Waits until all keys are set, for at most `timeout_s`. The value of a key that is not set is None."""
        deadline = time.monotonic() + timeout_s
        sleep_s = _SHORTEST_SLEEP_S
        while not self._store.check(keys):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return [self._store.get(key) if self._store.check([key]) else None for key in keys]
            time.sleep(min(sleep_s, left_s))
            sleep_s = min(2 * sleep_s, _LONGEST_SLEEP_S)
        if self._store.has_extended_api():
            return self._store.multi_get(keys)  # One request.
        return [self._store.get(key) for key in keys]

    def delete(self, key: str) -> None:
        """Removes a key. Nothing happens if it is not set."""
        self._store.delete_key(key)
