"""Reads C++ as far as group_sources.py needs it: tokens, statements at the scope of a namespace, and the names that they declare."""
import re

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


def forward_declared(statement):
    """The name of a type that a statement declares, but does not define; None for other statements."""
    return statement[1] if statement[0] in ("class", "struct") and len(statement) == 3 else None


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


def names_of_extern(statement):
    """The name of a variable, or of a function with the name of C: its definition replaces that of a library in the whole program."""
    if statement[1] == "template" or statement[1:3] == ["0", "{"]:
        raise NotUnderstood("extern")
    declared = declared_name(statement[2 if statement[1] == "0" else 1 :])
    return [declared[0]]


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
    if statement[0] == "extern":
        return names_of_extern(statement), []
    if statement[0] in ("typedef", "requires", "concept"):
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
