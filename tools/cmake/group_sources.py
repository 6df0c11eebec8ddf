#!/usr/bin/env python3
"""Sorts the sources of each target into groups that may be compiled as one.

    group_sources.py ROOT < TARGETS

Each input line has a target and its sources, separated by semicolons. Each output line is `target|source|group`. Sources
that are not in the output are compiled alone.

A source has names of its own: what it declares in an anonymous namespace or with internal linkage, types, aliases,
using-declarations and tests. Two sources may share a group if no own name of one occurs in the other, nor in a header
of the project that only the other includes, and if no name that such a header declares occurs in the one. Each then
means what it means alone, as it cannot name anything of the other. Functions of one enumeration, such as Name(DType),
are overloads that no other argument chooses: their names may occur in the one. Equal using-declarations do not clash,
nor do equal aliases of namespaces. A source stays alone if it has a using-directive, a preprocessor line other than
#include, or a statement that this script does not understand, and if several targets contain it.

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

MAX_SOURCES = 32
MAX_LINES = 6000

TOKEN = re.compile(
    r"""
    (?P<skip>//[^\n]*|/\*.*?\*/|\s+)
    |(?P<line>\#(?:\\\n|[^\n])*)
    |(?P<text>(?:u8|[uUL])?(?:R"(?P<end>[^()\s\\]*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    |(?P<number>\.?\d(?:'?[\w.]|(?<=[eEpP])[+-])*)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign>::|->|[-+*/%&|^=!<>]=|.)
    """,
    re.VERBOSE | re.DOTALL,
)
INCLUDE = re.compile(r'#\s*include\s*(?:<[^>]*>|"([^"]*)")')
OPENING = {"(", "[", "{"}
CLOSING = {")", "]", "}"}
TYPES = {"class", "struct", "union", "enum"}
TESTS = {"TEST", "TEST_F", "TEST_P", "TYPED_TEST"}
MODULES = {"NB_MODULE", "PYBIND11_MODULE"}
SUITES = {"TYPED_TEST_SUITE", "INSTANTIATE_TEST_SUITE_P"}


class NotUnderstood(Exception):
    pass


def is_word(token):
    return token[0].isalpha() or token[0] == "_"


def tokens_of(text):
    """(tokens, paths in `#include "..."`, whether there are other preprocessor lines). A literal is the token `0`."""
    tokens, includes, has_directives = [], [], False
    for match in TOKEN.finditer(text):
        if match["line"]:
            include = INCLUDE.match(match["line"])
            if include and include[1]:
                includes.append(include[1])
            has_directives |= not include
        elif match["text"] or match["number"]:
            tokens.append("0")
        elif not match["skip"]:
            tokens.append(match[0])
    return tokens, includes, has_directives


# Statements at the scope of a namespace.


def after_brackets(tokens, at):
    """The position after the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += (tokens[i] in OPENING) - (tokens[i] in CLOSING)
        if depth == 0:
            return i + 1
    raise NotUnderstood(f"{tokens[at]} is not closed")


def after_angles(tokens, at):
    """The position after the > that closes the < at `at`."""
    depth = 0
    while at < len(tokens):
        if tokens[at] in OPENING:
            at = after_brackets(tokens, at)
            continue
        depth += (tokens[at] == "<") - (tokens[at] == ">")
        at += 1
        if depth == 0:
            return at
    raise NotUnderstood("< is not closed")


def starts_angles(tokens, at):
    return tokens[at] == "<" and at > 0 and is_word(tokens[at - 1]) and tokens[at - 1] != "operator"


def after_statement(tokens, at):
    """The position after a statement: after its `;`, or after the body of a function."""
    is_function = is_initialized = False
    while at < len(tokens):
        token = tokens[at]
        if token == ";":
            return at + 1
        if token == "{":
            at = after_brackets(tokens, at)
            if is_function and tokens[at : at + 1] not in ([","], ["{"], [";"]):  # Otherwise a member was initialized.
                return at
        elif token in OPENING:
            is_function |= token == "(" and not is_initialized
            at = after_brackets(tokens, at)
        elif not is_function and not is_initialized and starts_angles(tokens, at):
            at = after_angles(tokens, at)
        else:
            is_initialized |= token == "=" and tokens[at - 1] != "operator"
            at += 1
    raise NotUnderstood("the last statement has no end")


def statements_of(tokens):
    """(statement, whether it stands in an anonymous namespace) of each statement at the scope of a namespace."""
    is_anonymous = []  # One for each open namespace.
    at = 0
    while at < len(tokens):
        if tokens[at] == "}":
            if not is_anonymous:
                raise NotUnderstood("} without {")
            is_anonymous.pop()
            at += 1
        elif tokens[at] == "namespace" and "=" not in tokens[at : at + 3]:
            brace = tokens.index("{", at)
            is_anonymous.append(brace == at + 1)
            at = brace + 1
        else:
            end = after_statement(tokens, at)
            yield tokens[at:end], any(is_anonymous)
            at = end
    if is_anonymous:
        raise NotUnderstood("a namespace is not closed")


# Names that a statement declares.


def names_of_type(statement):
    """Names of the definition or declaration of a type; None if it declares something else, as `struct tm Now()` does."""
    at = 1
    while statement[at] in TYPES or statement[at] == "[":
        at = after_brackets(statement, at) if statement[at] == "[" else at + 1
    name, after = ("", statement[at]) if statement[at] in "{:" else (statement[at], statement[at + 1])
    if after in ("::", "<"):  # A member of a class, or a specialization.
        return []
    if after not in ("{", ":", ";", "final"):
        return None
    names = [name] if name else []
    if "{" in statement:
        begin = statement.index("{")
        end = after_brackets(statement, begin)
        names += statement[end:-1]
        if statement[:2] in (["enum", name], ["enum", ":"], ["enum", "{"]):
            names += statement[begin:end]
    return list(filter(is_word, names))


def declared_name(statement):
    """(name, whether it is a function) of a declared function or variable; None for a member that is defined here."""
    at = 0
    while statement[at] not in ("(", "=", "{", ";", ",", ":"):
        if statement[at] == "operator":
            return None
        if statement[at] == "[" or starts_angles(statement, at):
            skip = after_brackets if statement[at] == "[" else after_angles
            end = skip(statement, at)
            statement = statement[:at] + statement[end:]
        else:
            at += 1
    if at < 2 or not is_word(statement[at - 1]):
        raise NotUnderstood(" ".join(statement[:8]))
    if "::" in statement[at - 2 : at - 1]:
        return None
    return statement[at - 1], statement[at] == "("


def names_of_using(statement):
    """`using a::B;` is an own name together with its meaning, because equal using-declarations do not clash."""
    if statement[1] == "namespace":
        raise NotUnderstood("a using-directive")
    if statement[2] == "=":
        return [statement[1]], []
    return [], [(statement[-2], "".join(statement[1:-1]))]


def names_of_macro(statement):
    arguments = statement[2 : after_brackets(statement, 1) - 1]
    if statement[0] in TESTS:
        return [f"{arguments[0]}_{arguments[2]}_Test"]
    if statement[0].startswith("MATCHER"):
        return [arguments[0]]
    if statement[0] in SUITES:
        return ["".join(arguments[: 3 if statement[0].startswith("INSTANTIATE") else 1]) + " suite"]
    if statement[0] in MODULES:
        return [arguments[0]]
    if statement[0] == "static_assert":
        return []
    raise NotUnderstood(f"the macro {statement[0]}")


def own_names_of(statement, is_anonymous):
    """(names, [(name, meaning)] of using-declarations) that a statement adds to the names of its source."""
    while statement[0] in ("template", "__extension__", "inline"):
        if statement[0] == "template" and statement[1] != "<":  # An explicit instantiation.
            return [], []
        statement = statement[after_angles(statement, 1) if statement[0] == "template" else 1 :]
    if statement[0] == ";":
        return [], []
    if statement[0] == "using":
        return names_of_using(statement)
    if statement[0] == "namespace":  # An alias. Equal ones do not clash.
        return [], [(statement[1], "".join(statement[3:-1]))]
    if statement[0] in ("extern", "typedef", "requires", "concept"):
        raise NotUnderstood(statement[0])
    if statement[1] == "(":
        return names_of_macro(statement), []
    names = names_of_type(statement) if statement[0] in TYPES else None
    if names is not None:
        return names, []
    declared = declared_name(statement)
    if declared is None:
        return [], []
    name, is_function = declared
    before_name = statement[: statement.index(name)]
    is_internal = is_anonymous or not {"static", "constexpr"}.isdisjoint(before_name) or (
        not is_function and "const" in before_name)
    return [name] if is_internal else [], []


def declared_names(statement):
    """The names that a statement of a header declares at the scope of a namespace."""
    names, aliases = own_names_of(statement, is_anonymous=True)
    return {*names, *(name for name, _ in aliases)}


@dataclasses.dataclass
class Source:
    lines: int
    own: set
    using: dict  # The meaning of each name of a using-declaration.
    words: set
    all_words: set  # Also qualified ones.
    headers: frozenset

    def stands_apart_from(self, other, tree):
        """True if no own name occurs in the other source, and no name of a header that only the other includes occurs here."""
        others_headers = other.headers - self.headers
        words = other.words.union(*map(tree.words, others_headers))
        for header in others_headers:
            if not (self.words.isdisjoint(tree.names_that_clash(header)) and self.all_words.isdisjoint(tree.macros(header))):
                return False
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
    def names_that_clash(self, path):
        """The names that a header declares for anything but functions of one enumeration."""
        names = set()
        for statement, _ in statements_of(self.tokens(path)[0]):
            if not self.takes_enumeration(statement, path):
                names.update(declared_names(statement))
        return frozenset(names)

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
        own, using = set(), {}
        for statement, is_anonymous in statements_of(tokens):
            names, aliases = own_names_of(statement, is_anonymous)
            own.update(names)
            using.update(aliases)
        all_words = set(filter(is_word, tokens))
        return Source(path.read_text().count("\n"), own, using, self.words(path) | own, all_words, self.headers(path))

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
