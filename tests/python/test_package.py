"""The installed package: its metadata, its interface."""

import inspect
from importlib import metadata

from torch.distributed.fsdp import FSDPModule as TorchFSDPModule

import weft
from weft._torch_version import BUILT_AGAINST


def test_the_package_requires_the_pytorch_it_was_built_against() -> None:
    assert f"torch=={BUILT_AGAINST.split('+')[0]}" in (metadata.requires("weft") or [])


def test_sharded_modules_have_every_method_of_fsdp2() -> None:
    for name, theirs in vars(TorchFSDPModule).items():
        if not inspect.isfunction(theirs) or name in ("__new__", "_apply"):
            continue
        ours = inspect.signature(getattr(weft.FSDPModule, name)).parameters
        assert list(ours) == list(inspect.signature(theirs).parameters), name
        for parameter in inspect.signature(theirs).parameters.values():
            assert (ours[parameter.name].kind, ours[parameter.name].default) == (parameter.kind, parameter.default), name
