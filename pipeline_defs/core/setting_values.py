"""Allowed values of settings: addresses, sizes and words, checked before anything uses them.

Invariant: a message shows no value that may contain a login, and names what is expected.
"""

import re
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

VARIABLES = (  # docs/settings.md says what each is, in this order
    "OFFSETLAKE_BOOTSTRAP_SERVERS",
    "OFFSETLAKE_KAFKA_PROPERTIES",
    "OFFSETLAKE_LAKE",
    "OFFSETLAKE_RAW_TABLE",
    "OFFSETLAKE_LANES",
    "OFFSETLAKE_RUN_RETENTION_DAYS",
    "OFFSETLAKE_SPARK_MASTER",
    "OFFSETLAKE_SPARK_DRIVER_MEMORY",
    "OFFSETLAKE_ENGINE",
    "OFFSETLAKE_SPARK_REMOTE",
    "OFFSETLAKE_HOME",
    "OFFSETLAKE_ALERT_URLS",
    "OFFSETLAKE_PAGES_URL",
    "DAGSTER_HOME",
)
LAKE_SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "file")
LEAST_MEMORY_MIB = 512
LONGEST_SHOWN = 60
_NOT_OF_JARS, _NOT_OF_SQLITE = re.compile(r"[,\"\[\]{}?#:]"), re.compile(r"[%?]")
_LIKE_A_SCHEME = re.compile(rf"([A-Za-z][A-Za-z0-9+.-]+(?=:/)|{'|'.join(LAKE_SCHEMES)}):")
_MASTER = re.compile(
    r"local|local\[(\*|[1-9][0-9]{0,3})(, *[1-9][0-9]{0,3})?\]|local-cluster\[[0-9, ]+\]|spark://\S+|k8s://\S+|yarn"
)
# Spark's client sends each parameter that is not its own as a header, and gRPC expects bytes for names that end in -bin; it
# cuts a URL at ? and #, shows a URL that has a further /, and decodes %XX before it sends a header
_REMOTE = re.compile(
    r"sc://(?=[^:/]{1,253}([:/]|$))[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?(:(?P<port>[0-9]{1,5}))?"
    r"(/(;[a-z0-9_.-]+(?<!-bin)=([A-Za-z0-9._~!$&'()*+,:@-]|%([2-6][0-9A-Fa-f]|7[0-9A-Ea-e]))+)*)?"
)
_ENCODE = "write such signs as %2F for /, %3D for =, %2B for +, %23 for #, %3F for ?, %3B for ; and %25 for %"
_LIKE_A_LOGIN = re.compile(r"[@=;]")
_MEMORY = re.compile(r"([0-9]{1,9})([kmgt])", re.IGNORECASE)
_MIB_OF = {"k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0 * 1024}


def check_plain(text: str) -> str:
    """Return a value; raise `ValueError` for one with control characters, or with spaces around it."""
    if any(ord(sign) < ord(" ") or ord(sign) == 0x7F for sign in text):
        raise ValueError("it has a control character, such as a line break or NUL")
    if text != text.strip():
        raise ValueError("it has spaces around it")
    return text


def check_own_home(path: str) -> str:
    """Return the path of OFFSETLAKE_HOME; raise `ValueError` for one with characters that break Spark's list of jars."""
    return _without(path, _NOT_OF_JARS, "Spark does not start, or not with its jars")


def check_dagster_home(path: str) -> str:
    """Return the path of Dagster's home; raise `ValueError` for one that SQLite would take for another file."""
    return _without(path, _NOT_OF_SQLITE, "Dagster's database is another file")


def _without(path: str, signs: re.Pattern[str], consequence: str) -> str:
    if found := signs.search(path):
        raise ValueError(f"its path has {found[0]}, with which {consequence}")
    return path


def check_lake(text: str) -> str:
    """Return the location of a lake, a path or the URL of a known store; raise `ValueError` for any other."""
    if "://" not in text:
        if alike := _LIKE_A_SCHEME.match(text):
            raise ValueError(f"it begins with {alike[1]}: and has no //, expected a path, or a URL such as s3://bucket/lake")
        return text
    url = _split(text)
    if url.scheme.lower() not in LAKE_SCHEMES or not text.startswith(f"{url.scheme.lower()}://"):
        raise ValueError(
            f"it begins with {_shown(text.partition('://')[0])}://, expected a path, or one of s3://, gs://, az://"
        )
    if "@" in url.netloc and not url.scheme.startswith("abfs"):
        raise ValueError(
            "it has a login in it (not shown), expected the address alone; logins come as the store's own variables, "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY say"
        )
    if url.scheme != "file" and not url.netloc:
        raise ValueError(f"it names no bucket, expected such as {url.scheme}://bucket/lake")
    return text


def check_master(text: str) -> str:
    """Return a Spark master; raise `ValueError` for anything else."""
    if not _MASTER.fullmatch(text):
        raise ValueError(
            f"found {shown_value(text)}, expected local[*], local[N] with N from 1, or spark://host:port; sc://host:port is "
            "OFFSETLAKE_SPARK_REMOTE's"
        )
    return text


def check_memory(text: str) -> str:
    """Return the size of a JVM's heap; raise `ValueError` for one that is malformed or too small."""
    found = _MEMORY.fullmatch(text)
    if found is None:
        raise ValueError(f"found {shown_value(text)}, expected a number with k, m, g or t, such as 4g")
    if int(found[1]) * _MIB_OF[found[2].lower()] < LEAST_MEMORY_MIB:
        raise ValueError(f"found {shown_value(text)}, expected at least {LEAST_MEMORY_MIB}m: Spark does not start with less")
    return text


def check_remote(text: str) -> str:
    """Return the address of a Spark Connect server; the `ValueError` for any other shows none of it: it may have a token."""
    found = _REMOTE.fullmatch(text)
    is_tls = remote_parameters(text).get("use_ssl", "true").lower()
    if found is None or not 0 < int(found["port"] or 1) < 2**16 or is_tls not in {"true", "false"}:
        raise ValueError(
            "found another (not shown: it may have a token), expected sc://host:port, the host a name, or with parameters "
            f"sc://host:port/;use_ssl=true;token=...; in their values {_ENCODE}"
        )
    return text


def remote_parameters(url: str) -> dict[str, str]:
    """Return the parameters of a Spark Connect server's URL by name, not decoded; treat them as secrets."""
    pairs = (each.partition("=") for each in url.partition(";")[2].split(";") if each)
    return {name: value for name, _, value in pairs}


def is_this_machine(host: str) -> bool:
    """Return whether a host is this machine, judged by its name or address alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_web_address(text: str) -> str:
    """Return an http or https address; raise a `ValueError` that shows no login for anything else."""
    url = _split(text)
    if url.scheme.lower() not in {"http", "https"}:
        found = f"begins with {_shown(url.scheme)}:" if url.scheme else "has no scheme"
        raise ValueError(f"it {found}, expected http:// or https://")
    if "@" in url.netloc:
        raise ValueError("it has a login in it (not shown), expected the address alone")
    try:
        is_address = bool(url.hostname) and url.port != 0 and not re.search(r"[\s\x00-\x1f\\<>\"'`{}|^]", text)
    except ValueError:  # no port up to 65535
        is_address = False
    if not is_address:
        raise ValueError("it has no host, no port from 1 to 65535, or signs of no address, expected such as http://host:8081")
    return text


def _split(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError:
        raise ValueError("it is no address: its brackets, or its host, cannot be read") from None


def shown_value(text: str) -> str:
    """Return a value, quoted, as a message may show it; one that may contain a login is not shown."""
    return "another (not shown: it may have a login)" if _LIKE_A_LOGIN.search(text) else repr(_shown(text))


def _shown(text: str) -> str:
    cut = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    return "".join(sign if sign.isprintable() else "?" for sign in cut)
