"""The installed package: its metadata, its interface, its docstrings and type stubs."""

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule as TorchFSDPModule
from torch.distributed.fsdp import fully_shard as torch_fully_shard

import weft
import weft._core
from weft._torch_version import BUILT_AGAINST
from weft.torch import _hugging_face
from weft.torch._monitored_barrier import extend_monitored_barrier
from weft.torch.sharding import extend_conversions, extend_zero_grad

MODULES = ["weft", "weft.torch", "weft.torch.context_parallel"]
STUBS = ast.parse(Path(weft._core.__file__).with_name("_core.pyi").read_text())


def test_the_package_requires_the_pytorch_it_was_built_against() -> None:
    """And extras require no other one."""
    torch_requirements = [line for line in metadata.requires("weft") or [] if line.startswith("torch")]
    assert torch_requirements == [f"torch=={BUILT_AGAINST.split('+')[0]}"]


def names_of(module: str) -> list[str]:
    return importlib.import_module(module).__all__


def own_members(kind: type) -> dict[str, object]:
    """Public functions and properties that the class itself defines."""
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith("_") and (inspect.isroutine(value) or isinstance(value, (property, staticmethod, classmethod)))
    }


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_docstring(module: str) -> None:
    without = []
    for name in names_of(module):
        value = getattr(importlib.import_module(module), name)
        own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
        if not own or own.startswith(f"{name}("):  # What a dataclass writes itself.
            without.append(name)
        if inspect.isclass(value):
            without += [f"{name}.{member}" for member, bound in own_members(value).items() if not inspect.getdoc(bound)]
    assert not without


def test_all_lists_every_name_that_weft_loads_on_demand() -> None:
    assert set(weft._MODULE_OF) < set(weft.__all__)
    for name, module in weft._MODULE_OF.items():
        assert name in names_of(module)
        assert getattr(weft, name) is getattr(importlib.import_module(module), name)


def expect_same_arguments(ours: Callable, theirs: Callable) -> None:
    found, expected = (inspect.signature(function).parameters for function in (ours, theirs))
    assert list(found) == list(expected), theirs.__name__
    for name, parameter in expected.items():
        assert (found[name].kind, found[name].default) == (parameter.kind, parameter.default), theirs.__name__


def test_sharded_modules_have_every_method_of_fsdp2() -> None:
    for name, theirs in vars(TorchFSDPModule).items():
        if inspect.isfunction(theirs) and name not in ("__new__", "_apply"):
            expect_same_arguments(getattr(weft.FSDPModule, name), theirs)


def test_fully_shard_has_every_argument_of_fsdp2s() -> None:
    expect_same_arguments(weft.fully_shard, torch_fully_shard)


@pytest.mark.parametrize("change", _hugging_face._CHANGES.values(), ids=lambda change: change.__name__)
def test_a_package_that_weft_cannot_change_is_imported_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable
) -> None:
    """One without the names that weft looks for. A finder of an old kind is passed over."""

    class OldFinder:
        def find_module(self, name: str, path: object = None) -> None:
            pass

    name = f"without_names_for_{change.__name__}"
    (tmp_path / f"{name}.py").write_text("value = 3")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(_hugging_face._CHANGES, name, change)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path[:1], OldFinder(), *sys.meta_path[1:]])
    with pytest.warns(RuntimeWarning, match=rf"could not make {name} accept the backend 'weft' \(AttributeError: "):
        assert importlib.import_module(name).value == 3


def stub_functions(body: list[ast.stmt]) -> dict[str, ast.FunctionDef]:
    return {entry.name: entry for entry in body if isinstance(entry, ast.FunctionDef)}


def test_the_stubs_have_every_name_of_the_extension_module() -> None:
    classes = {entry.name: entry for entry in STUBS.body if isinstance(entry, ast.ClassDef)}
    functions = stub_functions(STUBS.body)
    for name, value in vars(weft._core).items():
        if name.startswith("_") or inspect.ismodule(value):
            continue
        if not inspect.isclass(value):
            assert name in functions
            continue
        missing = {member for member in vars(value) if not member.startswith("_")} - set(stub_functions(classes[name].body))
        assert not missing, f"{name}: {missing}"
        superfluous = {m for m in stub_functions(classes[name].body) if not m.startswith("_")} - set(vars(value))
        assert not superfluous, f"{name}: {superfluous}"


@pytest.mark.parametrize("name", ["Session", "Operation", "Group"])
def test_docstrings_of_the_extension_module_are_those_of_the_stubs(name: str) -> None:
    kind = getattr(weft._core, name)
    stub = next(entry for entry in STUBS.body if isinstance(entry, ast.ClassDef) and entry.name == name)
    assert ast.get_docstring(stub) == kind.__doc__
    for member, entry in stub_functions(stub.body).items():
        expected = ast.get_docstring(entry)
        assert expected, f"{name}.{member}"
        value = vars(kind)[member] if member != "__init__" else kind.__new__
        doc = inspect.cleandoc(value.__doc__ or "")
        assert doc == expected or doc.endswith("\n\n" + expected), f"{name}.{member}: {doc}"


@pytest.mark.parametrize(
    "owner, name, extend",
    [
        (nn.Module, "zero_grad", extend_zero_grad),
        (nn.Module, "_apply", extend_conversions),
        (dist, "monitored_barrier", extend_monitored_barrier),
    ],
    ids=["zero_grad", "_apply", "monitored_barrier"],
)
def test_a_function_that_others_have_wrapped_is_extended_once(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, extend: Callable[[], None]
) -> None:
    original = getattr(owner, name).__wrapped__

    @functools.wraps(original)
    def wrapped(*args: object, **kwargs: object) -> object:
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, wrapped)
    extend()
    extended = getattr(owner, name)
    assert extended is not wrapped
    extend()
    assert getattr(owner, name) is extended
