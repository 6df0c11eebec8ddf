"""weft's engine and node memory. Use it through the package weft."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

class KeyValueStore(Protocol):
    """What the ranks of a session meet in."""

    def set(self, key: str, value: bytes) -> None: ...
    def get_all(self, keys: list[str], timeout_s: float) -> list[bytes | None]:
        """Waits until all keys are set, for at most `timeout_s`. The value of a key that is not set is None."""
    def delete(self, key: str) -> None: ...

class Session:
    """Bootstrap, node memory and communication engine of this process.

    Any thread may use a session. It belongs to the process that created it: a forked child may not use it.
    """

    def __init__(
        self, store: KeyValueStore | str, rank: int, size: int, timeout_s: float = 600.0, segment_bytes: int = 0
    ) -> None:
        """Creates the session. Collective: all ranks.

        `store` is a key-value store, or a folder that all ranks share. `timeout_s` bounds start-up and every wait that
        names no timeout. `segment_bytes` is the node memory that the rank reserves; 0: its share of what is free.
        WEFT_NODE_ID and WEFT_NETWORK of the environment choose node and network.

        Raises ValueError (rank or size out of range), TimeoutError (names the ranks that did not start), MemoryError.
        """
    def close(self) -> None:
        """Ends the engine. Waits a few seconds for unfinished operations, which then fail. Arrays stay valid."""
    def abort(self, cause: str) -> None:
        """Fails all unfinished operations of all groups, on all ranks."""
    @property
    def closed(self) -> bool: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def allocated_bytes(self) -> int:
        """Bytes of node memory in use by this rank."""
    def allocate_bytes(self, bytes: int) -> NDArray[np.uint8]:
        """Returns `bytes` bytes of node memory with undefined contents. The array keeps the memory."""
    def counters(self) -> dict[str, int]:
        """Totals of the engine: bytes by kind of collective, bytes copied and sent to other nodes, operations."""

class Operation:
    """An asynchronous collective. It holds its arrays until it is done."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Blocks until the results are valid and the arrays may be reused. Default: the session's timeout.

        Raises TimeoutError (names the ranks that are missing; the operation continues), RuntimeError (it failed).
        """
    @property
    def done(self) -> bool: ...
    @property
    def source(self) -> int:
        """Group rank of the sender, of a receive that is done; otherwise -1."""

class Group:
    """Collectives of C-contiguous arrays: numpy arrays, or others that support DLPack.

    All ranks of the group submit the same collectives in the same order. Arrays of `Session.allocate_bytes` are moved
    in place, others are staged through node memory. Reductions are "sum", "average", "max", "min", "product",
    "bit_and", "bit_or" and "bit_xor". An invalid argument raises ValueError or TypeError; nothing is sent then.
    """

    def __init__(self, session: Session, name: str, ranks: list[int]) -> None:
        """Forms the group of these ranks of the session. Collective: the ranks of the group."""
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def capsule(self) -> Any:
        """The group for other extension modules: python/interface/group_collectives.h."""
    def all_gather(self, input: Any, output: Any, counts: list[int] | None = None) -> Operation:
        """output = all inputs in rank order. `counts`: elements of each rank's input; default: equal."""
    def reduce_scatter(
        self, input: Any, output: Any, reduction: str = "sum", counts: list[int] | None = None
    ) -> Operation:
        """output = this rank's part of the reduction of all inputs. `counts`: elements of each rank's output."""
    def all_reduce(self, array: Any, reduction: str = "sum") -> Operation:
        """array = the reduction of all arrays."""
    def broadcast(self, array: Any, root: int = 0) -> Operation:
        """array = the array of group rank `root`."""
    def barrier(self) -> Operation: ...
    def send(self, array: Any, to: int, tag: int = 0) -> Operation:
        """Sends the array to a rank of the group. Messages match by tag, in the order of submission."""
    def receive(self, array: Any, source: int | None = None, tag: int = 0) -> Operation:
        """Receives an array of this size from a rank of the group; None: from any."""

def close_all() -> None:
    """Closes all sessions of this process."""
