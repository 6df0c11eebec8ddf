#!/usr/bin/env python3
"""Sorts the sources of each target into groups that may be compiled as one.

    group_sources.py ROOT < TARGETS

Each input line has a target and its sources, separated by semicolons. Each output line is `target|source|group`. Sources
that are not in the output are compiled alone.

A source has names of its own: what it declares in an anonymous namespace or with internal linkage, types, aliases,
using-declarations and tests. Two sources may share a group if no own name of one occurs in the other, nor in a header
of the project that only the other includes, and if no name that such a header declares occurs in the one. Each then
means what it means alone, as it cannot name anything of the other. Functions of one enumeration, such as Name(DType),
are overloads that no other argument chooses: their names may occur in the one. So may a type that such a header declares, but does not
define, if the one includes a header that declares this type, too. Equal using-declarations do not clash,
nor do equal aliases of namespaces. A source stays alone if it has a using-directive, a preprocessor line other than
#include, or a statement that this script does not understand, and if several targets contain it.

A source of nothing but includes checks that its headers include what they need. Two of them may share a group if neither could miss
an include that the other has: no name of a header that only one includes occurs in any header of the other.

Each source goes into the first group that has room for it. The sources that clash with most others come first, which gives fewer
groups than the order of the target (Welsh and Powell's coloring of a graph).
"""
import collections
import dataclasses
import functools
import itertools
import pathlib
import re
import sys

from cpp_statements import (NotUnderstood, TYPES, after_brackets, declared_names, forward_declared, is_word, own_names_of, statements_of,
                            tokens_of)

MAX_SOURCES = 32
MAX_LINES = 6000


@dataclasses.dataclass(eq=False)  # Compared and hashed by identity.
class Source:
    lines: int
    own: set
    using: dict  # The meaning of each name of a using-declaration.
    words: set
    all_words: set  # Also qualified ones.
    headers: frozenset
    only_includes: bool

    def stands_apart_from(self, other, tree):
        """True if no own name occurs in the other source, and no name of a header that only the other includes occurs here."""
        others_headers = other.headers - self.headers
        if any(tree.mentions(self, header) for header in others_headers):
            return False
        words = other.words.union(*map(tree.words, others_headers))
        same = {name for name, meaning in self.using.items() if other.using.get(name) == meaning}
        return self.own.isdisjoint(words) and words.isdisjoint(self.using.keys() - same)


def is_qualified(tokens, at):
    """True for a name after that of a type, of another library, or after ::testing, which is not weft::testing."""
    if at < 2 or tokens[at - 1] != "::":
        return False
    qualifier = tokens[at - 2]
    is_global = tokens[at - 3 : at - 2] == ["::"] and tokens[at - 4] != "weft"
    return qualifier in ("std", "absl") or qualifier[0].isupper() or (qualifier == "testing" and is_global)


def words_in(tokens):
    """All words that can name what a source declares at the scope of a namespace."""
    words = set()
    for i, token in enumerate(tokens):
        if is_word(token) and tokens[i - 1] not in (".", "->") and not is_qualified(tokens, i):
            words.add(token)
    return words


class Tree:
    """Sources and headers of the project, each read once."""

    def __init__(self, root):
        self.root = root

    @functools.lru_cache(maxsize=None)
    def tokens(self, path):
        return tokens_of(path.read_text())

    @functools.lru_cache(maxsize=None)
    def words(self, path):
        return words_in(self.tokens(path)[0])

    @functools.lru_cache(maxsize=None)
    def macros(self, path):
        return frozenset(re.findall(r"^\s*#\s*define\s+(\w+)", path.read_text(), re.MULTILINE))

    @functools.lru_cache(maxsize=None)
    def enumerations(self, path):
        """The enumerations of a header and of those that it includes."""
        return frozenset(
            statement[2 if statement[1] in TYPES else 1]
            for header in {path, *self.headers(path)}
            for statement, _ in statements_of(self.tokens(header)[0])
            if statement[0] == "enum"
        )

    @functools.lru_cache(maxsize=None)
    def names(self, path):
        """The names that a header declares; None if it declares something without a name of its own, such as an operator."""
        names = set()
        for statement, _ in statements_of(self.tokens(path)[0]):
            declared = declared_names(statement)
            if not declared and statement[0] not in TYPES:
                return None
            names.update(declared or statement[1:2])  # The outer class of a nested one.
        return frozenset(names)

    @functools.lru_cache(maxsize=None)
    def names_that_clash(self, path):
        """The names that a header declares for anything but functions of one enumeration, and types that it does not define."""
        names = set()
        for statement, _ in statements_of(self.tokens(path)[0]):
            if not self.takes_enumeration(statement, path) and not forward_declared(statement):
                names.update(declared_names(statement))
        return frozenset(names)

    @functools.lru_cache(maxsize=None)
    def forward_declared(self, path):
        return frozenset(filter(None, (forward_declared(statement) for statement, _ in statements_of(self.tokens(path)[0]))))

    @functools.lru_cache(maxsize=None)
    def types(self, path):
        """The types that a header declares, except templates."""
        statements = (statement for statement, _ in statements_of(self.tokens(path)[0]) if statement[0] in ("class", "struct"))
        return frozenset(name for statement in statements for name in declared_names(statement))

    @functools.lru_cache(maxsize=None)
    def mentions(self, source, header):
        """True if a source that does not include a header may have one of its names."""
        if source.only_includes:
            names = self.names(header)
            if names is None:
                return True
        else:
            types = self.forward_declared(header) & source.words
            names = self.names_that_clash(header) | types.difference(*map(self.types, source.headers))
        return not (source.words.isdisjoint(names) and source.all_words.isdisjoint(self.macros(header)))

    def takes_enumeration(self, statement, path):
        """True for a function of one argument, an enumeration that is passed by value."""
        if statement[0] in (*TYPES, "using", "namespace", "template") or "(" not in statement:
            return False
        at = statement.index("(")
        arguments = statement[at + 1 : after_brackets(statement, at) - 1]
        is_one = len(arguments) == 1 or (len(arguments) == 2 and is_word(arguments[1]))
        return is_one and arguments[0] in self.enumerations(path) and statement[at - 1] in declared_names(statement)

    def included_by(self, path):
        for include in self.tokens(path)[1]:
            for header in (self.root / "include" / include, self.root / include, path.parent / include):
                if header.is_file():
                    yield header
                    break

    @functools.lru_cache(maxsize=None)
    def headers(self, path):
        """All headers of the project that a file includes, directly or not."""
        found, left = set(), list(self.included_by(path))
        while left:
            header = left.pop()
            if header not in found:
                found.add(header)
                left += self.included_by(header)
        return frozenset(found)

    def source(self, path):
        """Raises NotUnderstood for a source that must be compiled alone."""
        tokens, _, has_directives = self.tokens(path)
        if has_directives:
            raise NotUnderstood("a preprocessor line")
        for header in self.headers(path):
            self.names_that_clash(header)
        lines, headers = path.read_text().count("\n"), self.headers(path)
        if not tokens:
            words = set().union(*map(self.words, headers))
            all_words = {word for header in headers for word in re.findall(r"\w+", header.read_text())}
            return Source(lines, set(), {}, words, all_words, headers, only_includes=True)
        own, using = set(), {}
        for statement, is_anonymous in statements_of(tokens):
            names, aliases = own_names_of(statement, is_anonymous)
            own.update(names)
            using.update(aliases)
        all_words = set(filter(is_word, tokens))
        return Source(lines, own, using, self.words(path) | own, all_words, headers, only_includes=False)

    def fit(self, one, other):
        return one.stands_apart_from(other, self) and other.stands_apart_from(one, self)


def clashes_of(tree, sources):
    """For each source, the set of the others that cannot share a group with it."""
    clashes = {path: set() for path in sources}
    for (path, source), (other_path, other) in itertools.combinations(sources.items(), 2):
        if not tree.fit(source, other):
            clashes[path].add(other_path)
            clashes[other_path].add(path)
    return clashes


def group_sources(tree, paths):
    """Groups of two or more sources, as lists of paths."""
    sources = {}
    for path in paths:
        try:
            sources[path] = tree.source(path)
        except NotUnderstood as reason:
            print(f"group_sources: {path} is compiled alone: {reason}", file=sys.stderr)
    clashes = clashes_of(tree, sources)
    groups = []
    for path in sorted(sources, key=lambda path: -len(clashes[path])):
        for group in groups:
            lines = sum(sources[member].lines for member in group) + sources[path].lines
            if len(group) < MAX_SOURCES and lines <= MAX_LINES and clashes[path].isdisjoint(group):
                group.append(path)
                break
        else:
            groups.append([path])
    return [sorted(group, key=paths.index) for group in groups if len(group) > 1]


def main(root, lines):
    tree = Tree(root)
    targets = [line.rstrip("\n").split(";") for line in lines]
    uses = collections.Counter(source for _, *sources in targets for source in sources)
    for target, *sources in targets:
        paths = [pathlib.Path(source) for source in sources if uses[source] == 1]
        for number, group in enumerate(group_sources(tree, paths), 1):
            for path in group:
                print(f"{target}|{path}|{number}")
    return 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.stdin))
