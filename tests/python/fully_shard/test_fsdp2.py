"""FSDP2 over the backend "weft" and weft.fully_shard against unsharded models. unsharded_cases.py lists the cases."""

import pytest
import unsharded_cases


@pytest.mark.parametrize("name", unsharded_cases.CASES)
@pytest.mark.parametrize("interface", unsharded_cases.INTERFACES)
@pytest.mark.parametrize("size", [2, 4], ids=lambda size: f"{size}ranks")
def test_behaves_as_fsdp2(pool_of, size: int, interface: str, name: str) -> None:
    pool_of(size, "weft").run(unsharded_cases.run, name, interface)
