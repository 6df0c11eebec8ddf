"""The groups below a root and their names."""

from __future__ import annotations

from torch import nn

from weft.torch.sharding.group import Group


def collect(group: Group) -> tuple[list[Group], list[int]]:
    """The groups below a root, depth first, and the number of the group around each."""
    found: list[Group] = []
    parents: list[int] = []

    def visit(module: nn.Module, parent: int) -> None:
        own = module.__dict__.get("_weft_group")
        if own is not None:
            if own not in found:
                if own.root is not None and own.root.group is not own:
                    raise RuntimeError(
                        f"'{own.name}' belongs to the root '{own.root.group.name}', whose forward ran first: two roots cannot share a module, so "
                        "call fully_shard for a module around both, and run its forward first"
                    )
                if own.root is not None:
                    raise RuntimeError(
                        f"'{own.name}' is a root already, because its forward ran first: run the forward of '{group.name}' first"
                    )
                found.append(own)
                parents.append(parent)
            parent = found.index(own)
        for child in module.children():
            visit(child, parent)

    visit(group.modules[0], -1)
    return found, parents


def name_all(root: nn.Module, groups: list[Group]) -> None:
    """Names groups and parameters by their path below the root."""
    modules: dict[nn.Module, str] = {module: name for name, module in root.named_modules()}
    for number, group in enumerate(groups):
        group.name = "+".join(modules[module] for module in group.modules) or type(root).__name__
        if any(other.name == group.name for other in groups[:number]):
            group.name += f"#{number}"
        for parameter in group.parameters:
            module, name = parameter.owners[0]
            prefix = modules.get(module, "")
            parameter.name = f"{prefix}.{name}" if prefix else name
