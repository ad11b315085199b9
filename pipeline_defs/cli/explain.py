"""`offsetlake explain`: what an error means and what to do about it, from the runbook that comes with the package."""

from __future__ import annotations

import click
from rich.markdown import Markdown

from ..documents import explain as find_text
from ..documents import read_runbook
from .show import print_table
from .terminal import OUT


@click.command()
@click.argument("kind", required=False)
def explain(kind: str | None) -> None:
    """Print what KIND, the word before an error's message, means and what to do. Without it: all kinds.

    The name of a document, such as `security` or `decoding`, prints that document.

    \b
    Examples:
      offsetlake explain broker_unavailable
      offsetlake explain security
    """
    if kind:
        OUT.print(Markdown(find_text(kind)))
        return
    rows = [(paragraph.kind, paragraph.first_sentence) for paragraph in read_runbook().values()]
    print_table("kinds of errors", ["kind", "what it means"], rows)
