#!/usr/bin/python3
"""Finds names that two sources of one unity target would both define, wherever CMake draws the line between its groups.

    tools/check_unity.py [ROOT]      prints one line per clash; exit 1 if there is any

The sanitizer builds compile several sources of a folder as one, so that names in their anonymous namespaces meet. Which
sources share a group shifts with every file that is added, and the release build never groups any: this looks at all
sources of a folder at once. (Tests are grouped in every build, where the compiler says it.)

Looked at is what has internal linkage: what stands in an anonymous namespace, and a source's constants and static
functions beside it. Functions clash if their parameters have the same types, spelled the same; aliases if they stand for
different types; types, constants and variables by their names alone.
"""

import re
import sys
from pathlib import Path
from typing import Iterator, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from check_includes import without_comments  # noqa: E402

# Each folder matched is one target, its folders within included: cmake/Folder.cmake, apps/ and python/.
TARGETS = ("src/*", "apps/unimem", "python/src")

TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|[A-Za-z_]\w*|\d[\w\'.]*|::|->|\S')
OPENING, CLOSING = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
# What a parenthesis behind which begins no list of parameters.
NO_FUNCTION = {"decltype", "noexcept", "alignas", "requires", "sizeof", "explicit", "__attribute__"}
SPECIFIERS = {"inline", "static", "constexpr", "consteval", "constinit", "extern", "thread_local", "mutable", "noexcept"}


class Name(NamedTuple):
    """What a source defines: in which namespace, what, and where."""
    scope: str
    name: str
    line: int
    parameters: "str | None" = None   # of a function, their types
    alias: "str | None" = None        # of an alias, what it stands for

    def clashes_with(self, other: "Name") -> bool:
        if self.parameters is not None and other.parameters is not None:
            return self.parameters == other.parameters
        return self.alias is None or self.alias != other.alias

    def __str__(self) -> str:
        return self.name if self.parameters is None else f"{self.name}({self.parameters})"


class Token(NamedTuple):
    text: str
    line: int


def tokens_of(text: str) -> "list[Token]":
    text = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", lambda it: "\n" * it.group(0).count("\n"), without_comments(text), flags=re.M)
    line, at, found = 1, 0, []
    for match in TOKEN.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        found.append(Token(match.group(0), line))
    return found


def end_of_group(tokens: "list[Token]", at: int) -> int:
    """One behind the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(tokens)):
        if tokens[i].text in OPENING:
            depth += 1
        elif tokens[i].text in CLOSING:
            depth -= 1
            if depth == 0:
                return i + 1
    return len(tokens)


def end_of_angles(tokens: "list[Token]", at: int) -> int:
    """One behind the `>` that closes the `<` at `at`."""
    depth = 0
    i = at
    while i < len(tokens):
        text = tokens[i].text
        if text in OPENING:
            i = end_of_group(tokens, i)
            continue
        depth += {"<": 1, ">": -1}.get(text, 0)
        i += 1
        if depth == 0:
            break
    return i


def types_of(parameters: "list[Token]") -> str:
    """The types in a list of parameters, their names and defaults left out."""
    types, current, i = [], [], 0
    while i <= len(parameters):
        text = parameters[i].text if i < len(parameters) else ","
        if text in OPENING or text == "<":
            end = end_of_group(parameters, i) if text in OPENING else end_of_angles(parameters, i)
            current += [token.text for token in parameters[i:end]]
            i = end
            continue
        if text == ",":
            if "=" in current:
                current = current[:current.index("=")]
            # A name is what stands behind a whole type.
            named = len(current) > 1 and re.match(r"[A-Za-z_]", current[-1]) and current[-2] != "::"
            types.append(" ".join(current[:-1] if named and current[-1] != "const" else current))
            current = []
        else:
            current.append(text)
        i += 1
    return ", ".join(types)


def parameters_of_operator(tokens: "list[Token]", at: int) -> int:
    """Where the parameters of the operator named at `at` begin."""
    return next((i for i in range(at + 2, len(tokens)) if tokens[i].text == "("), len(tokens))


def head_of(tokens: "list[Token]", at: int) -> int:
    """Where a declaration that begins at `at` has its body, its initializer or its end."""
    i = at
    while i < len(tokens) and tokens[i].text not in ("{", ";", "="):
        if tokens[i].text == "operator":
            i = parameters_of_operator(tokens, i)
        elif tokens[i].text in OPENING:
            i = end_of_group(tokens, i)
        elif tokens[i].text == "<":
            i = end_of_angles(tokens, i)
        else:
            i += 1
    return i


def named_by(head: "list[Token]", scope: str) -> "Name | None":
    """What the head of a declaration defines; None where that is nothing of its own (a member, a using-declaration)."""
    words = [token.text for token in head]
    if words[:1] == ["using"]:
        return None
    start = next((i for i, word in enumerate(words) if word not in SPECIFIERS), len(words))
    if words[start:start + 1] and words[start] in ("struct", "class", "union", "enum"):
        i = start + 1
        while i < len(words) and (words[i] in ("class", "struct", "alignas") or words[i] in OPENING):
            i = end_of_group(head, i) if words[i] in OPENING else i + 1
        if i < len(words) and words[i] != "::" and (i + 1 == len(words) or words[i + 1] in (":", "final", "<")):
            return Name(scope, words[i], head[i].line)
    i = 0
    while i < len(words):
        if words[i] == "<":
            i = end_of_angles(head, i)
            continue
        if words[i] == "operator":
            paren = parameters_of_operator(head, i)
            parameters = types_of(head[paren + 1:end_of_group(head, paren) - 1])
            return Name(scope, "".join(words[i:paren]), head[i].line, parameters)
        if words[i] == "(" and i > 0 and words[i - 1] not in NO_FUNCTION:
            if i > 1 and words[i - 2] == "::":
                return None  # a member of a class that is declared elsewhere
            return Name(scope, words[i - 1], head[i - 1].line, types_of(head[i + 1:end_of_group(head, i) - 1]))
        i = end_of_group(head, i) if words[i] in OPENING else i + 1
    variable = [i for i, word in enumerate(words) if re.match(r"[A-Za-z_]\w*$", word) and word not in SPECIFIERS]
    brackets = words.index("[") if "[" in words and words.index("[") != 0 else len(words)
    variable = [i for i in variable if i < brackets]
    if len(variable) < 2 or words[variable[-1] - 1] == "::":
        return None
    return Name(scope, words[variable[-1]], head[variable[-1]].line)


def begin_of_head(tokens: "list[Token]", at: int) -> int:
    """Where a declaration that begins at `at` has its head, one behind what makes it a template."""
    while tokens[at].text == "template":
        at = end_of_angles(tokens, at + 1)
    if tokens[at].text == "requires":
        at += 1
        while tokens[at].text in OPENING:
            at = end_of_group(tokens, at)
    return at


def end_of_declaration(tokens: "list[Token]", at: int) -> int:
    """One behind a declaration whose head ends at `at`: its body, or the semicolon behind its initializers."""
    initializes = at < len(tokens) and tokens[at].text == "="
    while at < len(tokens) and tokens[at].text != ";":
        braces = tokens[at].text == "{"
        at = end_of_group(tokens, at) if tokens[at].text in OPENING else at + 1
        if braces and not initializes and at < len(tokens) and tokens[at].text not in (";", ","):
            return at
    return at + 1


def further_variables(tokens: "list[Token]", scope: str) -> Iterator[Name]:
    """What a declaration of variables defines behind the first: `int a = 1, b = 2;`."""
    i = 0
    while i + 1 < len(tokens):
        if tokens[i].text == "," and re.match(r"[A-Za-z_]", tokens[i + 1].text):
            yield Name(scope, tokens[i + 1].text, tokens[i + 1].line)
        i = end_of_group(tokens, i) if tokens[i].text in OPENING else i + 1


def declared_by(tokens: "list[Token]", begin: int, scope: str, is_anonymous: bool) -> Iterator[Name]:
    """The names with internal linkage that the declaration with its head at `begin` defines."""
    body = head_of(tokens, begin)
    head = tokens[begin:body]
    words = [token.text for token in head]
    is_constant = "constexpr" in words and "inline" not in words and "(" not in words
    if body >= len(tokens) or not (is_anonymous or "static" in words or is_constant):
        return
    end = end_of_declaration(tokens, body)
    if words[:1] == ["using"]:
        if tokens[body].text == "=":
            yield Name(scope, words[1], head[1].line, alias=" ".join(token.text for token in tokens[body + 1:end - 1]))
        return
    named = named_by(head, scope)
    is_type = any(word in ("struct", "class", "enum", "union") for word in words[:1])
    declares_only = tokens[body].text == ";" and (is_type or (named is not None and named.parameters is not None))
    if named is None or declares_only:
        return
    yield named
    if not is_type and named.parameters is None:
        yield from further_variables(tokens[body:end], scope)


def names_of(text: str) -> Iterator[Name]:
    """Every name with internal linkage that a source defines."""
    tokens = tokens_of(text)
    scopes: "list[str]" = []   # names of the namespaces that are open; "" for an anonymous one
    i = 0
    while i < len(tokens):
        word = tokens[i].text
        if word == "}":
            scopes.pop()
            i += 1
        elif word == ";":
            i += 1
        elif word == "[":
            i = end_of_group(tokens, i)
        elif word == "extern" and tokens[i + 1].text.startswith('"') and tokens[i + 2].text == "{":
            scopes.append('extern "C"')
            i += 3
        elif word == "namespace":
            body = head_of(tokens, i)
            if tokens[body].text == "{":
                scopes.append("".join(token.text for token in tokens[i + 1:body]))
                i = body + 1
            else:
                i = end_of_declaration(tokens, body)
        else:
            begin = begin_of_head(tokens, i)
            is_specialization = word == "template" and tokens[i + 2].text == ">"
            if not is_specialization:
                yield from declared_by(tokens, begin, "::".join(scopes), "" in scopes)
            i = end_of_declaration(tokens, head_of(tokens, begin))


def check_target(sources: "dict[str, str]") -> "list[str]":
    """A line for every name that two of these sources define."""
    seen: "dict[tuple[str, str], list[tuple[str, Name]]]" = {}
    clashes = []
    for path, text in sorted(sources.items()):
        for name in names_of(text):
            known = seen.setdefault((name.scope, name.name), [])
            for other_path, other in known:
                if other_path != path and name.clashes_with(other):
                    clashes.append(f"{path}:{name.line}: {name} is in {other_path}:{other.line} too; a unity build may compile both as one")
                    break
            known.append((path, name))
    return clashes


def check_tree(root: Path) -> "list[str]":
    clashes = []
    for pattern in TARGETS:
        for folder in sorted(root.glob(pattern)):
            sources = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in folder.rglob("*.cpp")}
            clashes += check_target(sources)
    return clashes


def main(arguments: "list[str]") -> int:
    clashes = check_tree(Path(arguments[0]).resolve() if arguments else Path(__file__).resolve().parent.parent)
    for clash in clashes:
        print(clash)
    print(f"check_unity: {len(clashes)} clash{'es' if len(clashes) != 1 else ''}")
    return 1 if clashes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
