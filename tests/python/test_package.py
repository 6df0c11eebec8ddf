"""The installed package: its metadata."""

from importlib import metadata

from weft._torch_version import BUILT_AGAINST


def test_the_package_requires_the_pytorch_it_was_built_against() -> None:
    assert f"torch=={BUILT_AGAINST.split('+')[0]}" in (metadata.requires("weft") or [])
