#!/usr/bin/env python3
"""Checks that the layers of the house depend downward only.

    check_layers.py ROOT

A layer may use those on lower floors, never its neighbours and never what is above. Its folders are
include/weft/<layer>, and src/<layer> or <layer>. Checked are the includes of headers and sources and the link lines of
CMakeLists.txt. Prints one line for each violation; exits with 1 if there is any, with 2 if ROOT has no layers.
"""
import pathlib
import re
import sys

FLOORS = [
    ["core"],
    ["mesh"],
    ["memory"],
    ["comm"],
    ["nn"],
    ["sharding", "context_parallel"],
    ["optim", "checkpoint"],
    ["train"],
    ["cli"],
]
FLOOR_OF = {layer: floor for floor, layers in enumerate(FLOORS) for layer in layers}

# Libraries that are an implementation's own business: a public header that includes one makes every user need it.
HIDDEN_LIBRARIES = re.compile(r"^(mpi\.h|omp\.h|dnnl.*|oneapi/.*|Eigen/.*|unsupported/Eigen/.*)$")

SOURCE_SUFFIXES = {".h", ".cc", ".c", ".cpp", ".hpp", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
TARGET = re.compile(r"\bweft(?:::|_)(\w+)\b")


def folders_of(root, layer):
    """(public headers, sources) of a layer; only those that exist."""
    public = [root / "include" / "weft" / layer]
    private = [root / "src" / layer, root / layer]
    return [f for f in public if f.is_dir()], [f for f in private if f.is_dir()]


def layer_of_include(path):
    """(layer, whether it is public), by the path in an include; (None, False) for other libraries and siblings."""
    parts = path.split("/")
    if parts[0] == "weft" and len(parts) > 2:
        return parts[1], True
    if parts[0] == "src" and len(parts) > 2:
        return parts[1], False
    if parts[0] in FLOOR_OF and len(parts) > 1:
        return parts[0], False
    return None, False


def fault_of_dependency(layer, other):
    """Why `layer` may not use `other`, or None."""
    if other not in FLOOR_OF:
        return f"'{other}' is no layer"
    if other == layer or FLOOR_OF[other] < FLOOR_OF[layer]:
        return None
    return f"{layer} may not use {other}: it is {'across' if FLOOR_OF[other] == FLOOR_OF[layer] else 'above'}"


def fault_of_include(layer, in_public_header, path):
    if ".." in path.split("/"):
        return "write paths from the root of the tree, without '..'"
    if in_public_header and HIDDEN_LIBRARIES.match(path):
        return "public headers do not expose this library"
    other, public = layer_of_include(path)
    if other is None:
        return None
    fault = fault_of_dependency(layer, other)
    if fault is None and not public and in_public_header:
        return "a public header may include public headers only"
    if fault is None and not public and other != layer:
        return f"this is {other}'s own; only its headers in include/weft/{other} are for others"
    return fault


def check_includes(root, layer):
    public, private = folders_of(root, layer)
    for folder in public + private:
        for file in sorted(f for f in folder.rglob("*") if f.suffix in SOURCE_SUFFIXES):
            for _, path in INCLUDE.findall(file.read_text()):
                fault = fault_of_include(layer, folder in public, path)
                if fault:
                    yield f"{file.relative_to(root)}: includes {path}: {fault}"


def check_links(root, layer):
    """A layer's CMakeLists.txt may name the targets of lower layers, and none of the umbrella's."""
    for folder in folders_of(root, layer)[1]:
        for file in sorted(folder.rglob("CMakeLists.txt")):
            text = re.sub(r"#.*", "", file.read_text())
            for other in TARGET.findall(text):
                if other == "weft":
                    yield f"{file.relative_to(root)}: links weft::weft: name the layers that are used"
                elif other in FLOOR_OF and fault_of_dependency(layer, other):
                    yield f"{file.relative_to(root)}: links weft::{other}: {fault_of_dependency(layer, other)}"


def unknown_layers(root):
    """Folders that belong to no layer would be checked by nobody."""
    for parent in (root / "include" / "weft", root / "src"):
        for folder in sorted(f for f in parent.glob("*") if f.is_dir()):
            if folder.name not in FLOOR_OF:
                yield f"{folder.relative_to(root)}: '{folder.name}' is no layer; add it to FLOORS"


def violations(root):
    yield from unknown_layers(root)
    for layer in FLOOR_OF:
        yield from check_includes(root, layer)
        yield from check_links(root, layer)


def main(root):
    if not any(folders_of(root, layer) != ([], []) for layer in FLOOR_OF):
        print(f"{root}: no layers here", file=sys.stderr)
        return 2
    found = list(violations(root))
    print("\n".join(found) if found else "includes and links go downward only")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
