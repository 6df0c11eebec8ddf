"""weft's engine and node memory. Use it through the package weft."""

import os
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

class KeyValueStore(Protocol):
    """Store through which the ranks of a session find each other."""

    def set(self, key: str, value: bytes) -> None:
        """Sets the value of a key in one step. Replaces an earlier value."""
    def get_all(self, keys: list[str], timeout_s: float) -> list[bytes | None]:
        """Waits until all keys are set, for at most `timeout_s`. The value of a key that is not set is None."""
    def delete(self, key: str) -> None:
        """Removes a key. Nothing happens if it is not set."""

class Session:
    """Bootstrap, node memory and communication engine of this process.

    Any thread may use a session. It belongs to the process that created it: a forked child may not use it.
    """

    def __init__(
        self,
        store: KeyValueStore | str | bytes | os.PathLike[str],
        rank: int,
        size: int,
        timeout_s: float = 600.0,
        segment_bytes: int = 0,
        error: str = "",
    ) -> None:
        """Creates the session. Collective: all ranks.

        `store` is a key-value store, or a folder that all ranks share, an empty one for each job. `timeout_s` bounds start-up
        and every wait that names no timeout. `segment_bytes` is the node memory that the rank reserves; 0: its share of what
        is free. WEFT_NODE_ID, WEFT_NUMA_NODE and WEFT_NETWORK of the environment choose node, NUMA node and network.
        WEFT_SHARE_DOMAIN, auto, node, numa or none, chooses the ranks that share images. WEFT_WIRE_COMPRESSION, none or
        lossless, chooses whether floats are compressed between nodes; if it is unset, a measurement does. `error` is an
        error of this rank's options that the caller has found: every rank raises it.

        Raises ValueError (rank or size out of range; `error` of some rank), TimeoutError (names the ranks that did not
        start), MemoryError.
        """
    def close(self) -> None:
        """Ends the engine. Waits up to ten seconds for unfinished operations, which then fail. Arrays stay valid."""
    def abort(self, cause: str) -> None:
        """Fails all unfinished operations of all groups, on all ranks."""
    def reset(self) -> None:
        """Recovers from a failure: unfinished operations fail, and all groups take operations again. Collective: all ranks.

        No other thread may use the session meanwhile. weft.reset also resets sharded models.

        Raises TimeoutError (names the ranks that did not call it), RuntimeError (closed; a forked child).
        """
    @property
    def closed(self) -> bool:
        """True if the session is closed, or is being closed: it takes no more operations.

        Memory of operations that the end has failed may be used again once close() has returned.
        """
    @property
    def rank(self) -> int:
        """This process's rank in the session."""
    @property
    def size(self) -> int:
        """Number of ranks of the session."""
    @property
    def nonce(self) -> str:
        """A text that is the same on all ranks, and different for each session of a store."""
    @property
    def allocated_bytes(self) -> int:
        """Bytes of node memory in use by this rank."""
    def allocate_bytes(self, bytes: int) -> NDArray[np.uint8]:
        """Returns `bytes` bytes of node memory with undefined contents, 64-byte aligned. The array keeps the memory.

        Raises MemoryError (no room; has the free bytes), RuntimeError (closed; a forked child).
        """
    def counters(self) -> dict[str, int]:
        """Totals of the engine: bytes by kind of collective, bytes copied and sent to other nodes, operations, and
        nanoseconds in waits.
        """

class Operation:
    """An asynchronous collective. It holds its arrays until it is done."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Blocks until the results are valid and the arrays may be reused. Default: the session's timeout.

        Raises TimeoutError (names the ranks that are missing; the operation continues), RuntimeError (it failed).
        """
    @property
    def done(self) -> bool:
        """True if a wait would return at once. Does not block."""
    @property
    def source(self) -> int:
        """Group rank of the sender, of a receive that is done; otherwise -1."""

class Group:
    """Collectives of C-contiguous arrays that begin at a multiple of their element's size: numpy arrays, or others that
    support DLPack.

    All ranks of the group submit the same collectives in the same order. Arrays of `Session.allocate_bytes` are moved
    in place, others are staged through node memory. Reductions are "sum", "average", "max", "min", "product",
    "bit_and", "bit_or" and "bit_xor". An invalid argument raises ValueError or TypeError; nothing is sent then.
    """

    def __init__(self, session: Session, name: str, ranks: list[int], timeout_s: float | None = None) -> None:
        """Forms the group of these ranks of the session, within `timeout_s`, at most the session's timeout, which is the
        default. Collective: the ranks of the group.

        Raises ValueError (this rank is no member; a rank that occurs twice or is out of range), TimeoutError (names the
        ranks that did not make the group).
        """
    @property
    def rank(self) -> int:
        """This process's rank in the group."""
    @property
    def size(self) -> int:
        """Number of ranks of the group."""
    @property
    def name(self) -> str:
        """Name of the group, for messages."""
    @property
    def capsule(self) -> Any:
        """The group for other extension modules: python/interface/group_collectives.h."""
    def all_gather(self, input: Any, output: Any, counts: list[int] | None = None) -> Operation:
        """output = the elements of all inputs in rank order. `counts`: elements of each rank's input; default: equal.

        In place if `input` is this rank's part of `output`. Raises ValueError if they share memory otherwise.
        """
    def reduce_scatter(
        self, input: Any, output: Any, reduction: str = "sum", counts: list[int] | None = None
    ) -> Operation:
        """output = this rank's part of the reduction of all inputs. `counts`: elements of each rank's output; default:
        equal. In place if `output` is this rank's part of `input`. Raises ValueError if they share memory otherwise.
        """
    def all_reduce(self, array: Any, reduction: str = "sum") -> Operation:
        """array = the reduction of all arrays."""
    def broadcast(self, array: Any, root: int = 0) -> Operation:
        """array = the array of group rank `root`."""
    def barrier(self) -> Operation:
        """Done when all ranks of the group have submitted it."""
    def send(self, array: Any, to: int, tag: int = 0) -> Operation:
        """Sends the array to a rank of the group. Messages match by tag, in the order of submission."""
    def receive(self, array: Any, source: int | None = None, tag: int = 0) -> Operation:
        """Receives an array of this size and dtype from a rank of the group; None: from any."""

def close_all() -> None:
    """Closes all sessions of this process."""

def private_memory() -> Any:
    """The private heap of this process for other extension modules: python/interface/private_memory.h.

    Raises MemoryError (no addresses).
    """

def private_memory_in_use() -> int:
    """Bytes of the private heap in use."""

def release_private_memory() -> None:
    """Returns the memory of the private heap that is not in use to the system."""

class ShardedGroups:
    """Parameter groups of one model, for weft.torch.sharding: see weft/sharding/sharded_groups.h.

    Groups go by number, parameters by their index in the group. All ranks call the schedule in one order.
    """

    @staticmethod
    def create(
        session: Session,
        mesh: list[tuple[str, int]],
        groups: list[tuple[str, int, str, str, str, list[tuple[str, list[int], bool, int]]]],
        *,
        node_shared: str = "auto",
        in_rows: bool = True,
        reshard_after_forward_size: int = 0,
        prefetch_depth: int | None = None,
        gradient_divide_factor: float = 1.0,
        max_reduce_scatters: int = 2,
        max_all_reduces: int = 2,
        error: str = "",
    ) -> ShardedGroups:
        """Allocates the groups; masters are zero. Collective: all ranks.

        `mesh`: axes replicate and shard. `groups`: name, number of the parent, dtypes of masters, parameters and
        reductions, and for each parameter its name, shape, whether it requires a gradient, and the dim on which it is
        cut. `error` is an error of this rank's modules that the caller has found: every rank raises it.

        Raises ValueError (arguments, `error` of some rank, or ranks that describe a group differently).
        """
    def close(self) -> None: ...
    def before_forward(self, group: int, pass_: int, gradients: bool, /) -> None: ...
    def after_forward(self, group: int, pass_: int, gradients: bool, /) -> None: ...
    def before_backward(self, group: int, pass_: int, gradients: bool, /) -> None: ...
    def after_backward(self, group: int, /) -> None: ...
    def finish_backward(self) -> None: ...
    def prepare_gradients(self, group: int, /) -> None: ...
    def abandon(self, pass_: int, /) -> None: ...
    def stop(self, cause: str, /) -> None: ...
    def unshard(self, group: int, /) -> None: ...
    def wait_unshard(self, group: int, /) -> None: ...
    def reshard(self, group: int, /) -> None: ...
    def is_unsharded(self, group: int, /) -> bool: ...
    def is_being_unsharded(self, group: int, /) -> bool: ...
    def prepare_writes(self) -> None: ...
    def reset_after_error(self) -> None: ...
    def set_requires_gradient_sync(self, group: int, sync: bool, /) -> None: ...
    def set_requires_all_reduce(self, group: int, all_reduce: bool, /) -> None: ...
    def set_reshard_after_forward(self, group: int, reshard: bool, /) -> None: ...
    def set_reshard_after_backward(self, group: int, reshard: bool, /) -> None: ...
    def set_unshard_in_backward(self, group: int, unshard: bool, /) -> None: ...
    def set_forward_prefetch(self, group: int, groups: list[int], /) -> None: ...
    def set_backward_prefetch(self, group: int, groups: list[int], /) -> None: ...
    def set_gradient_divide_factor(self, group: int, factor: float, /) -> None: ...
    def set_is_last_backward(self, last: bool, /) -> None: ...
    def set_custom_all_gather(self, group: int, function: Any | None) -> None:
        """`function(gathered, part)` starts a gather and returns a Work, or None if it has ended."""
    def set_custom_reduce_scatter(self, group: int, function: Any | None) -> None:
        """`function(output, input)` starts a sum and returns a Work, or None if it has ended."""
    def set_gradient_hook(self, group: int, hook: Any | None) -> None: ...
    def data_addresses(self, group: int, /) -> list[int]:
        """Addresses of the gathered parameters; 0 while they are sharded."""
    def data_view(self, group: int, parameter: int, /) -> Any: ...
    def gradient_address(self, group: int, parameter: int, /) -> int:
        """Address of the gradient to write; 0 if there is none."""
    def gradient_view(self, group: int, parameter: int, /) -> Any: ...
    def begin_gradient_write(self, group: int, parameter: int, /) -> bool:
        """Marks the gradient as written. Returns whether a write must add to it."""
    def masters(self, group: int, /) -> list[tuple[int, Any]]:
        """This rank's pieces of the masters, one-dimensional, with the indices of their parameters."""
    def reduced_parameters(self, group: int, /) -> list[bool]: ...
    def reduced_gradients(self, group: int, /) -> list[tuple[int, Any | None]]:
        """This rank's pieces of the sums of earlier reductions, one-dimensional, with the indices of their parameters."""
    def forget_reduced_gradients(self, parameters: list[tuple[int, int]], /) -> None:
        """Leaves these gradients to those who hold them. Those of other parameters of their groups move to other memory."""
    def clip_grad_norm(self, max_norm: float, norm_type: float, external: list[tuple[int, int, int]], /) -> tuple[float, float]:
        """Norm of all gradients, infinite if one is infinite or NaN, and the factor that clips them. Collective.

        `external`: addresses of this rank's pieces of gradients that count in place of reduced ones, after group and parameter.
        """
    @property
    def residency(self) -> str: ...
    @property
    def residency_reason(self) -> str: ...
    def counters(self) -> dict[str, int]: ...
    def peaks(self) -> dict[str, int]: ...

def adamw_step_f32(
    slices: list[tuple[int, int, int, int, int]],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
    gradient_scale: float,
    threads: int,
) -> None:
    """Updates float32 slices: addresses of parameters, gradients and both moments, and numbers of elements."""

def adamw_step_f64(
    slices: list[tuple[int, int, int, int, int]],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
    gradient_scale: float,
    threads: int,
) -> None:
    """The same in float64."""
