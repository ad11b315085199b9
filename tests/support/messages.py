"""What the package says: every text of its source that is no docstring."""

from __future__ import annotations

import ast

from pipeline_defs.settings import PROJECT


def texts() -> list[tuple[str, str]]:
    """Return every text of the package that is no docstring, with its place; what is filled in stands as `{}`."""
    found = []
    for path in (PROJECT / "pipeline_defs").rglob("*.py"):
        tree = ast.parse(path.read_text())
        nodes = list(ast.walk(tree))
        skip = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        skip |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            if id(node) in skip:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
                found.append((f"{path.name}:{node.lineno}", "".join(parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append((f"{path.name}:{node.lineno}", node.value))
    return found
