#!/usr/bin/env python3
"""Checks that layers and rooms depend downward only, and that no folder of sources grows too large.

    check_layers.py ROOT

Layers. A layer may use the layers below it; it may not use one beside it or above it. The folders of a layer are
include/weft/<layer>, and src/<layer> or <layer>. The check reads the includes of headers and sources, and the link lines
of CMakeLists.txt.

Rooms. The sources of a large layer are sorted into rooms: folders inside of the layer's folder. A file may include files
of its own room and of lower rooms of its layer. A public header belongs to the room of the source with its stem:
include/weft/comm/work.h belongs to the room of src/comm/engine/work.cc. A public header without such a source belongs to
the lowest room that its own includes allow.

Folders. A folder of sources holds at most 26 headers and sources.

Prints one line for each violation. Exit code: 0 without violations, 1 with violations, 2 if ROOT has no layers.
"""
import pathlib
import re
import sys

# Lowest first. Layers of one floor stand beside each other.
FLOORS = [
    ["core"],
    ["mesh"],
    ["memory"],
    ["comm"],
    ["nn"],
    ["sharding", "context_parallel"],
    ["optim"],
    ["train", "launch"],
    ["cli"],
]
FLOOR_OF = {layer: floor for floor, layers in enumerate(FLOORS) for layer in layers}

# Rooms of a layer, lowest first. Rooms of one floor stand beside each other. All other layers have no rooms.
ROOMS = {
    "core": [["base"], ["parallel"], ["copies"], ["tensors"]],
    "mesh": [["host"], ["base"], ["rounds"], ["tcp", "threads", "simulation"], ["mpi", "store"]],
    "comm": [["base"], ["trees"], ["codec"], ["links"], ["phases"], ["collectives"], ["messages"], ["engine"]],
    "nn": [["products"], ["kernels"], ["attention"], ["sparse"], ["base"], ["modules"], ["models"]],
    "sharding": [["plan"], ["pipeline"], ["group"], ["model"]],
    "context_parallel": [["layouts"], ["exchanges"], ["schemes"], ["hooks"]],
    "train": [["files"], ["checkpoint"], ["config"], ["data"], ["plan"], ["trace", "output"],
              ["loop", "diagnose", "generate", "planner"], ["report"]],
}

# The layers of libraries that have a name of their own.
LAYER_OF_LIBRARY = {"module_base": "nn", "products": "nn"}

# Libraries that only sources may use: if a public header included one, every user of weft would need it.
HIDDEN_LIBRARIES = re.compile(r"^(mpi\.h|omp\.h|hwloc.*|dnnl.*|oneapi/.*|Eigen/.*|unsupported/Eigen/.*)$")

MAX_FILES_OF_A_FOLDER = 26

SOURCE_SUFFIXES = {".h", ".cc", ".c", ".cpp", ".hpp", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
TARGET = re.compile(r"\bweft(?:::|_)(\w+)\b")


def folders_of(root, layer):
    """(folders of public headers, folders of sources) of a layer, without those that do not exist."""
    public = [root / "include" / "weft" / layer]
    private = [root / "src" / layer, root / layer]
    return [f for f in public if f.is_dir()], [f for f in private if f.is_dir()]


def sources_below(folder):
    return sorted(f for f in folder.rglob("*") if f.suffix in SOURCE_SUFFIXES)


def includes_of(file):
    return [path for _, path in INCLUDE.findall(file.read_text())]


# Layers.


def layer_of_include(path):
    """(layer, is it a public header) of the path in an include; (None, False) for other libraries and siblings."""
    parts = path.split("/")
    if parts[0] == "weft" and len(parts) > 2:
        return parts[1], True
    if parts[0] == "src" and len(parts) > 2:
        return parts[1], False
    if parts[0] in FLOOR_OF and len(parts) > 1:
        return parts[0], False
    return None, False


def fault_of_dependency(layer, other):
    """The reason why `layer` may not use `other`, or None."""
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
        return f"this header is private to {other}; other layers may include include/weft/{other} only"
    return fault


def check_includes(root, layer):
    public, private = folders_of(root, layer)
    for folder in public + private:
        for file in sources_below(folder):
            for path in includes_of(file):
                fault = fault_of_include(layer, folder in public, path)
                if fault:
                    yield f"{file.relative_to(root)}: includes {path}: {fault}"


def check_links(root, layer):
    """The CMakeLists.txt of a layer may name the targets of lower layers, but not the target of all layers."""
    for folder in folders_of(root, layer)[1]:
        for file in sorted(folder.rglob("CMakeLists.txt")):
            text = re.sub(r"#.*", "", file.read_text())
            for library in TARGET.findall(text):
                other = LAYER_OF_LIBRARY.get(library, library)
                if other == "weft":
                    yield f"{file.relative_to(root)}: links weft::weft: name the layers that are used"
                elif other in FLOOR_OF and fault_of_dependency(layer, other):
                    yield f"{file.relative_to(root)}: links weft::{library}: {fault_of_dependency(layer, other)}"


def check_layer_names(root):
    """Finds folders that belong to no layer: no other check reads them."""
    for parent in (root / "include" / "weft", root / "src"):
        for folder in sorted(f for f in parent.glob("*") if f.is_dir()):
            if folder.name not in FLOOR_OF:
                yield f"{folder.relative_to(root)}: '{folder.name}' is no layer; add it to FLOORS"


# Rooms.


class Rooms:
    """The rooms of one layer: which files belong to which, and which includes go up or across."""

    def __init__(self, root, layer):
        self.root = root
        self.layer = layer
        self.floor_of = {room: floor for floor, rooms in enumerate(ROOMS[layer]) for room in rooms}
        self.public, self.private = folders_of(root, layer)
        self.room_of_stem = {
            f.stem: self.room_of_source(f) for folder in self.private for f in sources_below(folder) if f.suffix != ".h"
        }

    def room_of_source(self, file):
        """The room of a source or a private header; None for a file outside of the rooms."""
        for folder in self.private:
            if folder in file.parents:
                parts = file.relative_to(folder).parts
                return parts[0] if len(parts) > 1 and parts[0] in self.floor_of else None
        return None

    def room_of_header(self, file):
        """The room of a public header; None if it has no source and its includes need no room."""
        if file.stem not in self.room_of_stem:
            self.room_of_stem[file.stem] = None  # Ends the recursion where headers include each other.
            rooms = [self.room_of_include(path) for path in includes_of(file)]
            self.room_of_stem[file.stem] = max((room for room in rooms if room), key=self.floor_of.get, default=None)
        return self.room_of_stem[file.stem]

    def room_of_include(self, path):
        """The room of the file that an include of this layer names; None for any other."""
        layer, public = layer_of_include(path)
        if layer != self.layer:
            return None
        file = self.root / "include" / path if public else self.root / path
        if not file.is_file():
            return None
        return self.room_of_header(file) if public else self.room_of_source(file)

    def fault_of_include(self, room, path):
        other = self.room_of_include(path)
        if other is None or other == room or self.floor_of[other] < self.floor_of[room]:
            return None
        direction = "across" if self.floor_of[other] == self.floor_of[room] else "above"
        return f"room {room} of {self.layer} may not use room {other}: it is {direction}"

    def faults(self):
        """(the file with its fault as text) of each include that goes up or across, and of each file without a room."""
        for folder in self.public + self.private:
            for file in sources_below(folder):
                room = self.room_of_header(file) if folder in self.public else self.room_of_source(file)
                name = file.relative_to(self.root)
                if room is None and folder in self.private:
                    yield f"{name}: is in no room of {self.layer}; move it into one of: {', '.join(self.floor_of)}"
                for path in includes_of(file) if room else []:
                    fault = self.fault_of_include(room, path)
                    if fault:
                        yield f"{name}: includes {path}: {fault}"


def check_rooms(root):
    for layer in ROOMS:
        yield from Rooms(root, layer).faults()


# Sizes of folders.


def check_folder_sizes(root):
    for top in [root / name for name in ("include", "src", "sharding", "context_parallel", "python", "tests", "bench", "examples")]:
        counts = {}
        for file in sources_below(top) if top.is_dir() else []:
            folder = str(file.parent.relative_to(root))
            counts[folder] = counts.get(folder, 0) + 1
        for folder, count in sorted(counts.items()):
            if count > MAX_FILES_OF_A_FOLDER:
                yield (f"{folder}: holds {count} headers and sources, of at most {MAX_FILES_OF_A_FOLDER}: "
                       "sort them into folders")


def check_layers(root):
    yield from check_layer_names(root)
    for layer in FLOOR_OF:
        yield from check_includes(root, layer)
        yield from check_links(root, layer)


def violations(root):
    yield from check_layers(root)
    yield from check_rooms(root)
    yield from check_folder_sizes(root)


def main(root):
    if not any(folders_of(root, layer) != ([], []) for layer in FLOOR_OF):
        print(f"{root}: has no layers", file=sys.stderr)
        return 2
    found = {
        "includes and links that go up or across between layers": list(check_layers(root)),
        "includes that go up or across between rooms": list(check_rooms(root)),
        "folders that are too large": list(check_folder_sizes(root)),
    }
    for lines in found.values():
        for line in lines:
            print(line)
    for title, lines in found.items():
        print(f"{title}: {len(lines)}")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
