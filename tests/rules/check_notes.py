#!/usr/bin/env python3
"""Checks that every note that a comment or a page cites is defined once.

    check_notes.py ROOT

A line of a comment that begins with `Note [Name]`, and has nothing or a colon after it, defines the note, unless the line before it breaks
off in a sentence. Every other `Note [Name]` cites it, also across the end of a line. Where a file follows (`Note [Name] in path/file.h`),
it must be the one that defines the note. `Note [...]` stands for any note.

Prints one line for each violation. Exit code: 0 without violations, 1 with violations.
"""
import pathlib
import re
import sys

FOLDERS = ["include", "src", "sharding", "context_parallel", "python", "tests", "bench", "examples", "tools", "docs"]
SUFFIXES = {".h", ".cc", ".py", ".md", ".cmake", ".sh"}
PAGES = ["README.md", "CONTRIBUTING.md"]
DEFINITION = re.compile(r"^[ \t]*(//|#|)[ \t]*Note \[([^\]\n]+)\](:|$)", re.MULTILINE)
BREAKS_OFF = re.compile(r"[\w,(-]$")
LINE_END = re.compile(r"\n[ \t]*(?://|#|>)?[ \t]*")
CITATION = re.compile(r"Note \[([^\]\[]+)\](?: in `?([\w/]+\.\w+))?")


def files_of(root):
    yield from (root / page for page in PAGES if (root / page).exists())
    for folder in FOLDERS:
        yield from (path for path in sorted((root / folder).rglob("*")) if path.suffix in SUFFIXES)


def definitions(text):
    """Names of the notes that a source defines."""
    for found in DEFINITION.finditer(text):
        mark, name, colon = found.groups()
        before = text[:found.start()].removesuffix("\n").rpartition("\n")[2]
        comment = before.partition(mark)[2] if mark else before
        if colon or not BREAKS_OFF.search(comment.rstrip()):
            yield name


def violations(root):
    texts = {path.relative_to(root): path.read_text() for path in files_of(root) if not path.name.startswith("check_notes")}
    defined = {}
    for path, text in texts.items():
        if path.suffix == ".md":
            continue
        for name in definitions(text):
            if name in defined:
                yield f"{path}: defines Note [{name}], as {defined[name]} does"
            defined.setdefault(name, path)
    for path, text in texts.items():
        for name, file in CITATION.findall(LINE_END.sub(" ", text)):
            if name == "...":
                continue
            if name not in defined:
                yield f"{path}: cites Note [{name}], which no file defines"
            elif file and not str(defined[name]).endswith(file):
                yield f"{path}: cites Note [{name}] in {file}, but {defined[name]} defines it"


def main(root):
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"notes that are cited wrongly or defined twice: {len(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
