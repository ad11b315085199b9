"""The login in Kafka's `sasl.jaas.config`, read as Kafka reads it.

Pure. Invariant: no message here shows any part of the text, for all of it may be a secret.
"""

import re
from dataclasses import dataclass, field

# of Java's StreamTokenizer as Kafka sets it up: quoted with either quote, words, and the two signs
_TOKEN = re.compile(
    r"""\s*(?:"((?:[^"\\\r\n]|\\.)*)"|'((?:[^'\\\r\n]|\\.)*)'|([A-Za-z_$][\w.$-]*)|([=;]))""", re.ASCII | re.DOTALL
)
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_CONTROL = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS = {"required", "requisite", "sufficient", "optional"}


class NotJaas(ValueError):
    """What was expected, and never what stands there."""


@dataclass(frozen=True, slots=True)
class Jaas:
    """One entry: the login module, and its options without those of its class."""

    module: str
    options: dict[str, str] = field(repr=False)


def parse_jaas(text: str) -> Jaas:
    """Read `<module> required key="value" ...;`, one entry and no more. Raises `NotJaas`."""
    kinds, words = _split(text)
    if not re.fullmatch(r"ww(w=[wq])*;", kinds) or words[1].lower() not in _FLAGS:
        raise NotJaas('expected one `<login module> required username="..." password="...";`, quoted and with its semicolon')
    return Jaas(words[0], dict(zip(words[2:-1:3], words[4:-1:3], strict=True)))


def _split(text: str) -> tuple[str, list[str]]:
    """Split into words (`w`), quoted texts (`q`) and signs, as one letter each, and what they say."""
    kinds, words, at = "", [], 0
    end = len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise NotJaas(f"its character {at + 1} begins no word, no quoted text, no = and no semicolon")
        double, single, word, sign = found.groups()
        quoted = double if double is not None else single
        kinds += "q" if quoted is not None else "w" if word is not None else sign
        words.append(_ESCAPE.sub(_unescape, quoted) if quoted is not None else word or sign)
        at = found.end()
    return kinds, words


def _unescape(found: re.Match[str]) -> str:
    what = found[1]
    return chr(int(what, 8)) if what[0] in "01234567" else _CONTROL.get(what, what)
