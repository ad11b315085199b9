"""Names that were probably meant: what a person wrote, beside the names there are."""

from collections.abc import Iterable
from difflib import get_close_matches


def meant(written: str, known: Iterable[str]) -> str:
    """Return `, did you mean ...?` for a name that is close to what was written, in any case; nothing where none is."""
    by_folded = {name.lower(): name for name in known}
    close = get_close_matches(written.lower(), by_folded, n=1, cutoff=0.6)
    return f", did you mean `{by_folded[close[0]]}`?" if close else ""
