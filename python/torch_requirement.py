"""The dependencies of the package: numpy, and the PyTorch in the environment of the build.

The extension modules work with that version only. scikit-build-core calls `dynamic_metadata`.
"""

from collections.abc import Mapping
from importlib import metadata
from typing import Any


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the field `dependencies`. Errors: RuntimeError without PyTorch."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError as error:
        raise RuntimeError(
            "weft is built against PyTorch, which is not installed: run pip without --no-build-isolation, or first "
            "install the torch that pyproject.toml names"
        ) from error
    # The local part names a variant such as "cpu". All variants of a version have one interface.
    return {"dependencies": ["numpy", f"torch=={version.split('+')[0]}"]}
