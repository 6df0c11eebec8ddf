#!/usr/bin/env python3
"""Checks that headers can be included alone and twice.

    check_headers.py ROOT

Every header has `#pragma once`. A public header include/weft/<layer>/x.h is the first include of the source x.cc of its layer.
It includes each header of the standard library and of abseil whose names it uses; PROVIDERS lists these headers. The target
weft_header_checks compiles each public header alone (tests/rules/CMakeLists.txt). In presets that precompile these headers, it
cannot find that one of them is missing.

Prints one line for each violation. Exit code: 0 without violations, 1 with violations.
"""
import pathlib
import re
import sys

FOLDERS = ["include", "src", "sharding", "context_parallel", "python", "tests", "bench", "examples"]
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
COMMENT_OR_LITERAL = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.DOTALL)
INTEGER = r"(?:size|ptrdiff|u?intptr|u?int(?:8|16|32|64))_t"
NAME = re.compile(rf"\b(?:std::)?({INTEGER})\b|\b((?:std|absl)::\w+)")
# By header: the names that public headers use of it.
PROVIDERS = {
    "absl/container/flat_hash_map.h": "absl::flat_hash_map",
    "absl/container/inlined_vector.h": "absl::InlinedVector",
    "absl/functional/any_invocable.h": "absl::AnyInvocable",
    "absl/functional/function_ref.h": "absl::FunctionRef",
    "absl/status/status.h": "absl::Status absl::OkStatus",
    "absl/status/statusor.h": "absl::StatusOr",
    "absl/strings/str_cat.h": "absl::StrCat absl::Hex absl::kZeroPad2",
    "absl/strings/str_format.h": "absl::StrFormat",
    "absl/strings/string_view.h": "absl::string_view",
    "absl/time/time.h": "absl::Duration absl::Nanoseconds absl::Seconds absl::ZeroDuration",
    "absl/types/span.h": "absl::Span absl::MakeSpan absl::MakeConstSpan",
    "algorithm": "std::min std::max_element std::nth_element",
    "array": "std::array",
    "atomic": "std::atomic",
    "bit": "std::bit_cast",
    "chrono": "std::chrono",
    "cstddef": "std::byte ptrdiff_t size_t",
    "cstdint": "int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t intptr_t uintptr_t",
    "cstdio": "std::FILE",
    "deque": "std::deque",
    "functional": "std::function",
    "initializer_list": "std::initializer_list",
    "iterator": "std::size",
    "limits": "std::numeric_limits",
    "map": "std::map",
    "memory": "std::shared_ptr std::unique_ptr std::make_unique std::make_shared",
    "mutex": "std::mutex std::adopt_lock_t",
    "numeric": "std::iota",
    "optional": "std::optional std::nullopt",
    "string": "std::string",
    "string_view": "std::string_view",
    "thread": "std::thread",
    "typeindex": "std::type_index",
    "utility": "std::move std::exchange std::forward std::pair",
    "variant": "std::variant",
    "vector": "std::vector",
}
PROVIDER_OF = {name: header for header, names in PROVIDERS.items() for name in names.split()}


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


def check_own_includes(root):
    for header in sorted((root / "include").rglob("*.h")):
        text = header.read_text()
        included = set(INCLUDE.findall(text))
        for name in sorted({a or b for a, b in NAME.findall(COMMENT_OR_LITERAL.sub("", INCLUDE.sub("", text)))}):
            provider = PROVIDER_OF.get(name)
            if provider is None:
                yield f"{header.relative_to(root)}: uses {name}; add it to PROVIDERS in {pathlib.Path(__file__).name}"
            elif provider not in included:
                yield f"{header.relative_to(root)}: uses {name}, but does not include <{provider}>"


def violations(root):
    yield from check_pragmas(root)
    yield from check_first_includes(root)
    yield from check_own_includes(root)


def main(root):
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"headers that cannot be included alone or twice: {len(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
