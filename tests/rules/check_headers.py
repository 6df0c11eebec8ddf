#!/usr/bin/env python3
"""Checks that headers can be included alone and twice.

    check_headers.py ROOT

Every header has `#pragma once`. A public header include/weft/<layer>/x.h is the first include of the source x.cc of its layer.
The target weft_header_checks compiles each public header alone (tests/rules/CMakeLists.txt). Sources do not prove that a header
needs no other one before it: in most presets they have a precompiled header, or are compiled together.

Prints one line for each violation. Exit code: 0 without violations, 1 with violations.
"""
import pathlib
import re
import sys

FOLDERS = ["include", "src", "sharding", "context_parallel", "tests", "bench", "examples"]
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def sources_of(root, header):
    """The sources of the layer of a public header that have its stem."""
    layer = header.parent.name
    return [source for folder in (root / "src" / layer, root / layer) for source in folder.rglob(f"{header.stem}.cc")]


def check_pragmas(root):
    for folder in FOLDERS:
        for header in sorted((root / folder).rglob("*.h")):
            if not re.search(r"^#pragma once$", header.read_text(), re.MULTILINE):
                yield f"{header.relative_to(root)}: has no '#pragma once'"


def check_first_includes(root):
    for header in sorted((root / "include").rglob("*.h")):
        name = str(header.relative_to(root / "include"))
        for source in sources_of(root, header):
            first = INCLUDE.search(source.read_text())
            if not first or first.group(1) != name:
                yield f"{source.relative_to(root)}: its first include must be {name}"


def violations(root):
    yield from check_pragmas(root)
    yield from check_first_includes(root)


def main(root):
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"headers that cannot be included alone or twice: {len(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
