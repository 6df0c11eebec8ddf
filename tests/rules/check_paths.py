#!/usr/bin/env python3
"""Checks that the files and folders that the documentation names exist.

    check_paths.py ROOT

In every Markdown page, apart from those in folders that .gitignore names, these are checked:
- links to files, from the folder of the page, and to parts of pages;
- code spans that are a path below a folder of the tree, such as `src/comm/links`;
- names of sources and scripts with a folder, such as `weft/comm/work.h` or tools/test.sh. They may lie below the page's folder,
  include/, include/weft/ or python/, too.
`<layer>` and `*` stand for any name.

Prints one line for each violation. Exit code: 0 without violations, 1 with violations.
"""
import collections
import fnmatch
import pathlib
import re
import sys

SUFFIXES = "h|cc|py|sh|md|cmake|sbatch"
BASES = ["", "include", "include/weft", "python"]
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")
PART = re.compile(r"\]\(([^)#:\s]*)#([^)\s]*)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([\w.<>*-]+(?:/[\w.<>*-]+)*/?)`")
WORD = re.compile(rf"(?<![\w./<>*$-])([A-Za-z_][\w.<>*-]*(?:/[\w.<>*-]+)+\.(?:{SUFFIXES}))(?![\w/])")
# Files of other projects, and of the build.
FOREIGN = re.compile(r"accelerate/|test/|build/")


def pages_of(root, folders):
    yield from sorted(root.glob("*.md"))
    for folder in folders:
        yield from sorted((root / folder).rglob("*.md"))


def exists(base, path):
    pattern = re.sub(r"<\w+>", "*", path).rstrip("/")
    return any(base.glob(pattern)) if "*" in pattern else (base / pattern).exists()


def paths_of(text, folders):
    """The paths that a page names, apart from links."""
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    spans = {span for span in SPAN.findall(text) if "/" in span and span.split("/")[0] in folders}
    return sorted(path for path in spans | set(WORD.findall(text)) if not FOREIGN.match(path))


def parts_of(text):
    """The anchors of a page's headings, as GitHub makes them."""
    counts = collections.Counter()
    for heading in re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w -]", "", heading).replace(" ", "-")
        yield f"{anchor}-{counts[anchor]}" if counts[anchor] else anchor
        counts[anchor] += 1


def folders_of(root):
    """The names of the folders in the root, without hidden ones and those that .gitignore names."""
    rules = root / ".gitignore"
    ignored = [line.strip("/") for line in rules.read_text().splitlines() if line.endswith("/")] if rules.exists() else []
    names = {path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")}
    return {name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)}


def violations(root):
    folders = folders_of(root)
    for page in pages_of(root, sorted(folders)):
        text = page.read_text()
        for link in sorted(set(LINK.findall(text))):
            if not exists(page.parent, link):
                yield f"{page.relative_to(root)}: links to {link}, which does not exist"
        for link, part in sorted(set(PART.findall(text))):
            target = page.parent / link if link else page
            if target.suffix == ".md" and target.exists() and part not in parts_of(target.read_text()):
                yield f"{page.relative_to(root)}: links to {link}#{part}, but that page has no such part"
        for path in paths_of(text, folders):
            if not any(exists(base, path) for base in [page.parent, *(root / base for base in BASES)]):
                yield f"{page.relative_to(root)}: names {path}, which does not exist"


def main(root):
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"names of files and folders that do not exist: {len(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
