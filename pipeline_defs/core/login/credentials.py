"""Credentials as Kafka's properties have them: keys and certificates as PEM, and the login of `sasl.jaas.config`.

Pure. Invariant: no message here shows any part of a text, for all of it may be a secret.
"""

import base64
import re
from dataclasses import dataclass, field

CERTIFICATE = "CERTIFICATE"
PRIVATE_KEY = "PRIVATE KEY"  # of PKCS #8, which is what Kafka takes; those of one algorithm have its name before that
LOCKED_KEY = "ENCRYPTED PRIVATE KEY"
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
_HEAD = 64  # characters, in which the name of a key's encryption stands
_BLOCK = re.compile(r"-----\s*BEGIN ([A-Z0-9 ]+?)\s*-----([A-Za-z0-9+/=\s]*)-----\s*END \1\s*-----")
_WIDTH = 64
# of Java's StreamTokenizer as Kafka sets it up: quoted with either quote, words, and the two signs
_TOKEN = re.compile(
    r"""\s*(?:"((?:[^"\\\r\n]|\\.)*)"|'((?:[^'\\\r\n]|\\.)*)'|([A-Za-z_$][\w.$-]*)|([=;]))""", re.ASCII | re.DOTALL
)
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_CONTROL = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS = {"required", "requisite", "sufficient", "optional"}


def find_blocks(text: str, kind: str) -> str:
    """Return the blocks of one kind, empty where there is none.

    In a properties file a block may stand in one line, which OpenSSL does not read: each line gets the length that it wants.
    """
    return "".join(_block(found[1], found[2]) for found in _BLOCK.finditer(text) if found[1] == kind)


def is_locked_by_pbes2(blocks: str) -> bool:
    """Return whether a key is encrypted as openssl does it by itself, which Kafka's client on Java 17 cannot undo."""
    body = "".join(blocks.splitlines()[1:-1])[:_HEAD]
    try:
        return _PBES2 in base64.b64decode(body + "=" * (-len(body) % 4))
    except ValueError:  # a damaged one, of which OpenSSL says so
        return False


def _block(name: str, body: str) -> str:
    text = "".join(body.split())
    lines = [text[at : at + _WIDTH] for at in range(0, len(text), _WIDTH)]
    return "\n".join([f"-----BEGIN {name}-----", *lines, f"-----END {name}-----", ""])


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
