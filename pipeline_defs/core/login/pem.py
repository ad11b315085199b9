"""PEM as Kafka takes it: in a properties file it may stand in one line, which OpenSSL does not read.

Pure. Invariant: a key is never part of a message.
"""

import base64
import re

CERTIFICATE = "CERTIFICATE"
PRIVATE_KEY = "PRIVATE KEY"  # of PKCS #8, which is what Kafka takes; those of one algorithm have its name before that
LOCKED_KEY = "ENCRYPTED PRIVATE KEY"
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
_HEAD = 64  # characters, in which the name of a key's encryption stands
_BLOCK = re.compile(r"-----\s*BEGIN ([A-Z0-9 ]+?)\s*-----([A-Za-z0-9+/=\s]*)-----\s*END \1\s*-----")
_WIDTH = 64


def find_blocks(text: str, kind: str) -> str:
    """Return the blocks of one kind, each line as long as OpenSSL wants it; empty where there is none."""
    return "".join(_written(found[1], found[2]) for found in _BLOCK.finditer(text) if found[1] == kind)


def is_locked_by_pbes2(blocks: str) -> bool:
    """Return whether a key is encrypted as openssl does it by itself, which Kafka's client on Java 17 cannot undo."""
    body = "".join(blocks.splitlines()[1:-1])[:_HEAD]
    try:
        return _PBES2 in base64.b64decode(body + "=" * (-len(body) % 4))
    except ValueError:  # a damaged one, of which OpenSSL says so
        return False


def _written(name: str, body: str) -> str:
    text = "".join(body.split())
    lines = [text[at : at + _WIDTH] for at in range(0, len(text), _WIDTH)]
    return "\n".join([f"-----BEGIN {name}-----", *lines, f"-----END {name}-----", ""])
