"""The documentation of a dataclass's fields, for ``--help``: the strings below them, without their markup."""

import ast
import inspect
import itertools
import re
import textwrap
from typing import Any

_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")
"""A cross-reference of Sphinx, of which the last name is left."""


def field_docs(kind: type) -> dict[str, str]:
    """Return the documentation of the fields that the class itself defines, by name, each in one line.

    Args:
        kind: a class whose source can be read.
    """
    definition: Any = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    docs = {}
    for field, text in itertools.pairwise(definition.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                docs[name] = plain(doc)
    return docs


def plain(text: str) -> str:
    """Return a text without line breaks and without the markup of reStructuredText."""
    return " ".join(_ROLE.sub(r"\1", text).replace("``", "").split())
