"""FSDP2 over the backend "weft" and weft.fully_shard against unsharded models. The cases are in fsdp2_cases.py."""

import fsdp2_cases
import pytest


@pytest.mark.parametrize("name", fsdp2_cases.CASES)
@pytest.mark.parametrize("interface", fsdp2_cases.INTERFACES)
@pytest.mark.parametrize("size", [2, 4], ids=lambda size: f"{size}ranks")
def test_behaves_as_fsdp2(pool_of, size: int, interface: str, name: str) -> None:
    pool_of(size, "weft").run(fsdp2_cases.run, name, interface)
