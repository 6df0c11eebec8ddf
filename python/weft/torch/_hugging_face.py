"""The name "weft" in accelerate and transformers, which list the backends that they know.

accelerate takes no backend for CPUs but gloo and MPI, and the command line of transformers' TrainingArguments has a fixed
list of names. Both are changed when a program imports them, so that neither is imported here.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def _names_weft(backend: str | None) -> bool:
    return backend is not None and bool({"weft", "cpu:weft"} & set(backend.split(",")))


def _accept_in_accelerate(state: ModuleType) -> None:
    """Lets PartialState(backend="weft") of accelerate.state start ranks on CPUs with that backend."""
    original = state.PartialState._prepare_backend

    @functools.wraps(original)
    def prepare(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None) -> tuple:
        chosen, kind = original(self, cpu, sagemaker_dp, backend)
        if not _names_weft(backend):
            return chosen, kind
        if kind == state.DistributedType.NO and "LOCAL_RANK" in os.environ:
            warnings.warn(
                "accelerate was not asked for CPUs, and will not reduce gradients: each rank trains alone. Set use_cpu=True in "
                "TrainingArguments, or cpu=True in Accelerator.",
                stacklevel=2,
            )
        return (backend if kind == state.DistributedType.MULTI_CPU else chosen), kind

    state.PartialState._prepare_backend = prepare


def _accept_on_command_lines(training_args: ModuleType) -> None:
    """Lets HfArgumentParser take `--ddp_backend weft`."""
    choices = training_args.TrainingArguments.__dataclass_fields__["ddp_backend"].metadata.get("choices", [])
    if "weft" not in choices:
        choices.append("weft")


_CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "accelerate.state": _accept_in_accelerate,
    "transformers.training_args": _accept_on_command_lines,
}


def _change(name: str, module: ModuleType) -> None:
    """Changes a module of _CHANGES. Warns if it is not made as weft expects, and leaves it then."""
    try:
        _CHANGES[name](module)
    except Exception as error:
        warnings.warn(
            f"weft could not make {name} accept the backend 'weft' ({type(error).__name__}: {error}): call init_process_group('weft') before "
            "TrainingArguments or Accelerator(cpu=True) is made, or install a version of the package that docs/torch_hugging_face.md names",
            RuntimeWarning,
            stacklevel=2,
        )


class _ChangeAtImport(importlib.abc.MetaPathFinder):
    """Finds the modules of _CHANGES as the other finders do, and changes each when it has been executed."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _CHANGES:
            return None
        finders = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        found = (finder.find_spec(fullname, path, target) for finder in finders)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            _change(fullname, module)

        spec.loader.exec_module = execute_and_change
        return spec


def register_name() -> None:
    """Makes accelerate and transformers accept the name "weft", now or when they are imported. Idempotent."""
    if any(isinstance(finder, _ChangeAtImport) for finder in sys.meta_path):
        return
    for name in _CHANGES:
        if name in sys.modules:
            _change(name, sys.modules[name])
    sys.meta_path.insert(0, _ChangeAtImport())
