"""Credentials in Kafka's properties: keys and certificates as PEM, and the login of `sasl.jaas.config`.

Pure. Invariant: no message here quotes any part of a text, since all of it may be a secret.
"""

import base64
import re
from dataclasses import dataclass, field

CERTIFICATE = "CERTIFICATE"
PRIVATE_KEY = "PRIVATE KEY"  # of PKCS #8, which Kafka needs; other formats have the algorithm's name before that
LOCKED_KEY = "ENCRYPTED PRIVATE KEY"
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
_HEAD = 64  # characters that include the identifier of a key's encryption
_BLOCK = re.compile(r"-----\s*BEGIN ([A-Z0-9 ]+?)\s*-----([A-Za-z0-9+/=\s]*)-----\s*END \1\s*-----")
_WIDTH = 64
# as Java's StreamTokenizer, set up by Kafka, splits: texts in either quotes, words, and the two signs
_TOKEN = re.compile(
    r"""\s*(?:"((?:[^"\\\r\n]|\\.)*)"|'((?:[^'\\\r\n]|\\.)*)'|([A-Za-z_$][\w.$-]*)|([=;]))""", re.ASCII | re.DOTALL
)
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_CONTROL = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS = {"required", "requisite", "sufficient", "optional"}


def find_blocks(text: str, kind: str) -> str:
    """Return the blocks of one kind, empty where there is none.

    In a properties file a block may be a single line, which OpenSSL does not read: it is broken into lines as OpenSSL wants.
    """
    return "".join(_block(found[1], found[2]) for found in _BLOCK.finditer(text) if found[1] == kind)


def is_locked_by_pbes2(blocks: str) -> bool:
    """Return whether a key is encrypted by openssl's default, which Kafka's client on Java 17 cannot decrypt."""
    body = "".join(blocks.splitlines()[1:-1])[:_HEAD]
    try:
        return _PBES2 in base64.b64decode(body + "=" * (-len(body) % 4))
    except ValueError:  # damaged: OpenSSL reports it
        return False


def _block(name: str, body: str) -> str:
    text = "".join(body.split())
    lines = [text[at : at + _WIDTH] for at in range(0, len(text), _WIDTH)]
    return "\n".join([f"-----BEGIN {name}-----", *lines, f"-----END {name}-----", ""])


class NotJaas(ValueError):
    """A text is no entry of a JAAS configuration; the message says what was expected and never what was found."""


@dataclass(frozen=True, slots=True)
class Jaas:
    """One entry: the login module and its options."""

    module: str
    options: dict[str, str] = field(repr=False)


def parse_jaas(text: str) -> Jaas:
    """Read `<module> required key="value" ...;`, exactly one entry; raise `NotJaas` for anything else."""
    kinds, words = _split(text)
    if not re.fullmatch(r"ww(w=[wq])*;", kinds) or words[1].lower() not in _FLAGS:
        raise NotJaas('expected one `<login module> required username="..." password="...";`, quoted and with its semicolon')
    return Jaas(words[0], dict(zip(words[2:-1:3], words[4:-1:3], strict=True)))


def _split(text: str) -> tuple[str, list[str]]:
    """Split into tokens; return their kinds, one letter each (`w` word, `q` quoted, or the sign itself), and their texts."""
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
