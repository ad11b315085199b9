"""A Schema Registry, through confluent-kafka's own client: schemas by id and by subject, with those they refer to.

Only reads. Invariants: the schema of an id never changes, so it is asked for once; a subject's latest version is asked for
each time; no answer is believed for its status alone: only the registry's own error codes say that there is no such schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from ...core.decode.schema_text import MOST_LEVELS, MOST_REFERENCES
from ...core.errors import BadSetting, RegistryUnavailable, UnknownSubject, first_line, unusable_schema
from ...core.login.client_properties import ANYBODY, RegistryLogin
from ...core.setting_values import is_this_machine
from ..system.outage import Outage, ask_within

if TYPE_CHECKING:
    import httpx2
    from confluent_kafka.schema_registry import RegisteredSchema, Schema

Result = TypeVar("Result")

NOT_FOUND = 404
NOT_FOUND_CODES = {40401, 40402, 40403}  # a subject, a version, a schema; any other 404 is another server's, or a proxy's
NOT_LET_IN = {401, 403}
REDIRECTS = range(300, 400)
TIMEOUT_SECONDS = 10
ADVICE = "see whether it runs and `registry` in defs.yaml names it"
EXPECTED = "expected what a Schema Registry answers"
RETRIES, RETRY_WAIT_MS = 2, 300
MOST_SECONDS = 60  # for an answer, however it trickles in
MOST_BYTES = 16 << 20  # of an answer, decompressed
LONGEST = 300  # characters of an address and of what is answered there


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema as the registry has it; `kind` is AVRO, PROTOBUF or JSON.

    `references` are the texts of the schemas that it refers to, by the names that it uses, dependencies first.
    """

    id: int
    kind: str
    text: str
    references: Mapping[str, str]


@cache
def connect(url: str, login: RegistryLogin = ANYBODY) -> Registry:
    """Return the registry at `url`, one for the life of the process, which keeps what it has read. Raises `BadSetting`."""
    return Registry(url, login)


class Registry:
    """One registry."""

    def __init__(self, url: str, login: RegistryLogin = ANYBODY) -> None:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        self.url = without_login(url)
        self._answered = "nothing"
        self._outage = Outage()
        self._refuse_open_login(login)
        settings = {"timeout": TIMEOUT_SECONDS, "max.retries": RETRIES, "retries.wait.ms": RETRY_WAIT_MS}
        entry = {"basic.auth.user.info": login.user, "ssl.ca.location": login.authority}
        try:
            self._client = SchemaRegistryClient({"url": url, **settings, **{k: v for k, v in entry.items() if v}})
            session: httpx2.Client = self._client._rest_client.session  # noqa: SLF001 (it takes none)
        except OSError as error:
            raise BadSetting(
                f"schema.registry.ssl.ca.location {login.authority} cannot be used: {error.strerror or error}, expected a file "
                "of certificates in PEM; nothing was decoded; correct the file that OFFSETLAKE_KAFKA_PROPERTIES names"
            ) from None
        except ValueError as error:
            raise BadSetting(
                f"registry {self.url!r} is no address of a Schema Registry, expected such as http://localhost:8081: {error}; "
                "nothing was decoded; correct `registry` in defs.yaml"
            ) from error
        session.event_hooks["response"] = [self._look]

    def _refuse_open_login(self, login: RegistryLogin) -> None:
        """Refuse to send a login in the clear to another machine: Basic authentication does not encrypt it."""
        for each in self.url.split(",") if login.user else ():
            address = urlsplit(each.strip())
            if address.scheme.lower() != "https" and not is_this_machine(address.hostname or ""):
                raise BadSetting(
                    f"registry {self.url} is asked over plain http, where everybody on the way reads the login of "
                    "schema.registry.basic.auth.user.info, expected https://; nothing was sent and nothing was decoded; give "
                    "the registry a certificate and correct `registry` in defs.yaml, or take the login out of the file that "
                    "OFFSETLAKE_KAFKA_PROPERTIES names",
                    registry=self.url,
                )

    def read_latest(self, subject: str) -> Registered:
        """Return the latest version of a subject, as of now.

        Raises `UnknownSubject`, `UnusableSchema` and `RegistryUnavailable`.
        """
        found = self._ask(partial(self._client.get_version, subject, "latest"), _has_version)
        if found is None:
            raise UnknownSubject(
                f"registry {self.url} has no subject {subject}, expected the schema that records are read with; nothing was "
                "decoded; correct `subject` in defs.yaml, or register a schema",
                subject=subject,
            )
        assert found.schema_id is not None
        return self._registered(found.schema_id, found.schema)

    def read_schema(self, schema_id: int) -> Registered | None:
        """Return the schema of an id, or none if the registry has none.

        Raises `UnusableSchema` and `UnknownSubject` if what it refers to cannot be had, and `RegistryUnavailable`.
        """
        found = self._ask(partial(self._client.get_schema, schema_id), _has_schema)
        return None if found is None else self._registered(schema_id, found)

    def _registered(self, schema_id: int, schema: Schema) -> Registered:
        references: dict[str, str] = {}
        seen: set[tuple[str, int]] = set()
        for name, text in self._read_references(f"schema {schema_id} of registry {self.url}", schema, (), seen):
            if references.setdefault(name, text) != text:
                raise unusable_schema(
                    f"schema {schema_id} of registry {self.url}", f"what it refers to has two schemas called {name}"
                )
        return Registered(schema_id, schema.schema_type or "AVRO", schema.schema_str or "", references)

    def _read_references(
        self, what: str, schema: Schema, above: tuple[tuple[str, int], ...], seen: set[tuple[str, int]]
    ) -> Iterator[tuple[str, str]]:
        """Yield name and text of the schemas that one refers to, dependencies first; the client caches answers."""
        for reference in schema.references or ():
            subject, version = str(reference.subject), reference.version or 1
            if (subject, version) in above:
                raise unusable_schema(what, f"version {version} of subject {subject} refers to itself")
            # a reference means its version even if that was deleted since
            found = self._ask(partial(self._client.get_version, subject, version, deleted=True), _has_version)
            if found is None:
                raise UnknownSubject(
                    f"registry {self.url} has no version {version} of subject {subject}, to which {what} refers as "
                    f"{reference.name}; nothing was decoded; register it again",
                    subject=subject,
                )
            if (subject, version) not in seen:
                seen.add((subject, version))
                if len(seen) > MOST_REFERENCES or len(above) > MOST_LEVELS:
                    raise unusable_schema(what, f"it refers to more than {MOST_REFERENCES:,} others, or {MOST_LEVELS} deep")
                yield from self._read_references(what, found.schema, (*above, (subject, version)), seen)
            yield str(reference.name), found.schema.schema_str or ""

    def _ask(self, question: Callable[[], Result], is_whole: Callable[[Result], bool]) -> Result | None:
        """Ask the registry; return none if its own error code says that there is no such thing."""
        import httpx2
        from confluent_kafka.schema_registry import SchemaRegistryError

        if silence := self._outage.reason:
            raise self._unavailable(silence)
        wrong = "it has no schema"
        try:
            answer = ask_within(MOST_SECONDS, question)
            if is_whole(answer):
                return answer
        except SchemaRegistryError as error:
            if error.http_status_code == NOT_FOUND and error.error_code in NOT_FOUND_CODES:
                return None
            raise self._refused(error.http_status_code) from None  # it quotes the answer, which may quote our login
        except (httpx2.TransportError, OSError) as error:
            tries = f"{RETRIES + 1} tries of {TIMEOUT_SECONDS} seconds, {MOST_SECONDS} in all"
            reason = f"does not answer, within {tries}: {first_line(error)}"
            self._outage.note(reason)
            raise self._unavailable(reason) from error
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            wrong = str(error) if isinstance(error, TooLong) else f"{type(error).__name__} in reading it"
        self._client.clear_caches()  # type: ignore[no-untyped-call] # else the bad answer outlives the registry's repair
        raise self._unavailable(f"answers {self._answered}, {EXPECTED}: {wrong}")

    def _refused(self, status: int) -> RegistryUnavailable:
        if status in NOT_LET_IN:
            do = "name schema.registry.basic.auth.user.info in the file of OFFSETLAKE_KAFKA_PROPERTIES"
            return self._unavailable(f"does not let us in (it answers {self._answered})", do)
        do = "name the address that it sends to as `registry` in defs.yaml" if status in REDIRECTS else ADVICE
        return self._unavailable(f"answers {self._answered}, {EXPECTED}", do)

    def _unavailable(self, reason: str, do: str = ADVICE) -> RegistryUnavailable:
        return RegistryUnavailable(
            f"registry {self.url} {reason}; nothing was decoded; {do}, and decode again", registry=self.url
        )

    def _look(self, response: httpx2.Response) -> None:
        """Note where an answer comes from, its status and its content type; then read its body, which may be without end."""
        kind = response.headers.get("content-type", "").partition(";")[0] or "no content type"
        to = response.headers.get("location")
        asked = without_login(str(response.request.url))
        self._answered = f"{asked} with {response.status_code}, {kind}{f', to {without_login(to)}' if to else ''}"[:LONGEST]
        body = bytearray()
        for chunk in response.iter_bytes(1 << 16):
            body += chunk
            if len(body) > MOST_BYTES:
                raise TooLong(f"it is longer than {MOST_BYTES:,} bytes")
        response._content = bytes(body)  # noqa: SLF001 (as its own `read` does)


class TooLong(ValueError):
    """An answer of more than `MOST_BYTES`."""


def without_login(url: str) -> str:
    """Return an address as it may be shown: without user, password and query, in which a token may be."""
    found = urlsplit(url)
    return found._replace(netloc=found.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _has_version(answer: RegisteredSchema) -> bool:
    return isinstance(answer.schema_id, int) and _has_schema(answer.schema)


def _has_schema(answer: Schema) -> bool:
    return isinstance(answer.schema_str, str) and isinstance(answer.schema_type, str | None)
