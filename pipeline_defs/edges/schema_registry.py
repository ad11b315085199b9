"""A Schema Registry, through confluent-kafka's own client: schemas by id and by subject, with what they refer to.

Only reads. Invariant: what has an id never changes, so it is asked for once; a subject's latest version is asked for anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from ..core.client_properties import ANYBODY, RegistryLogin
from ..core.errors import BadSetting, RegistryUnavailable, UnknownSubject

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema

Answer = TypeVar("Answer")

NOT_FOUND = 404
NOT_LET_IN = {401, 403}
TIMEOUT_SECONDS = 10
DO = "see whether it runs and `registry` in defs.yaml names it"
RETRIES, RETRY_WAIT_MS = 2, 300


@dataclass(frozen=True, slots=True)
class Registered:
    """Is a schema as the registry has it; `kind` is AVRO, PROTOBUF or JSON.

    `references` are the texts that it refers to, by the name that it calls them, what they refer to before them.
    """

    id: int
    kind: str
    text: str
    references: Mapping[str, str]


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@cache
def connect(url: str, login: RegistryLogin = ANYBODY) -> Registry:
    """Is the registry at `url`; one for the life of the process, with all that was read of it. Raises `BadSetting`."""
    return Registry(url, login)


class Registry:
    """Is one registry."""

    def __init__(self, url: str, login: RegistryLogin = ANYBODY) -> None:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        self.url = url
        self._refuse_open_login(login)
        settings = {"timeout": TIMEOUT_SECONDS, "max.retries": RETRIES, "retries.wait.ms": RETRY_WAIT_MS}
        entry = {"basic.auth.user.info": login.user, "ssl.ca.location": login.authority}
        try:
            self._client = SchemaRegistryClient({"url": url, **settings, **{k: v for k, v in entry.items() if v}})
        except OSError as error:
            raise BadSetting(
                f"schema.registry.ssl.ca.location {login.authority} cannot be used: {error.strerror or error}, expected a file "
                "of certificates in PEM; nothing was decoded; correct the file that OFFSETLAKE_KAFKA_PROPERTIES names"
            ) from None
        except ValueError as error:
            raise BadSetting(
                f"registry {url!r} is no address of a Schema Registry, expected such as http://localhost:8081: {error}; "
                "nothing was decoded; correct `registry` in defs.yaml"
            ) from error

    def _refuse_open_login(self, login: RegistryLogin) -> None:
        """Refuse to send a login in the clear to another machine; Basic is but another spelling of it."""
        for each in self.url.split(",") if login.user else ():
            address = urlsplit(each.strip())
            if address.scheme.lower() != "https" and not _is_this_machine(address.hostname or ""):
                raise BadSetting(
                    f"registry {self.url} is asked over plain http, where everybody on the way reads the login of "
                    "schema.registry.basic.auth.user.info, expected https://; nothing was sent and nothing was decoded; give "
                    "the registry a certificate and correct `registry` in defs.yaml, or take the login out of the file that "
                    "OFFSETLAKE_KAFKA_PROPERTIES names",
                    registry=self.url,
                )

    def read_latest(self, subject: str) -> Registered:
        """Is the latest version of a subject, as of now. Raises `UnknownSubject` and `RegistryUnavailable`."""
        found = self._ask(partial(self._client.get_version, subject, "latest"))
        if found is None or found.schema_id is None:
            raise UnknownSubject(
                f"registry {self.url} has no subject {subject}, expected the schema that records are read with; nothing was "
                "decoded; correct `subject` in defs.yaml, or register a schema",
                subject=subject,
            )
        return self._registered(found.schema_id, found.schema)

    def read_schema(self, schema_id: int) -> Registered | None:
        """Is the schema of an id, or none where the registry has none. Raises `RegistryUnavailable`."""
        found = self._ask(partial(self._client.get_schema, schema_id))
        return None if found is None else self._registered(schema_id, found)

    def _registered(self, schema_id: int, schema: Schema) -> Registered:
        references = dict(self._read_references(schema))
        return Registered(schema_id, schema.schema_type or "AVRO", schema.schema_str or "", references)

    def _read_references(self, schema: Schema) -> Iterator[tuple[str, str]]:
        for reference in schema.references or ():
            subject, version = str(reference.subject), reference.version or 1
            # whoever refers to a version means it, also where it was deleted since
            found = self._ask(partial(self._client.get_version, subject, version, deleted=True))
            if found is None:
                raise UnknownSubject(
                    f"registry {self.url} has no version {version} of subject {subject}, to which another schema refers as "
                    f"{reference.name}; nothing was decoded; register it again",
                    subject=subject,
                )
            yield from self._read_references(found.schema)
            yield str(reference.name), found.schema.schema_str or ""

    def _ask(self, question: Callable[[], Answer]) -> Answer | None:
        """Asks the registry; none where it says that there is no such thing."""
        import httpx2
        from confluent_kafka.schema_registry import SchemaRegistryError

        try:
            return question()
        except SchemaRegistryError as error:
            if error.http_status_code == NOT_FOUND:
                return None
            if error.http_status_code in NOT_LET_IN:
                do = "name schema.registry.basic.auth.user.info in the file of OFFSETLAKE_KAFKA_PROPERTIES"
                raise self._unavailable(f"does not let us in ({error})", do) from error
            raise self._unavailable(f"answers {error}") from error
        except (httpx2.TransportError, OSError) as error:
            reason = f"does not answer, within {RETRIES + 1} tries of {TIMEOUT_SECONDS} seconds: {error}"
            raise self._unavailable(reason) from error

    def _unavailable(self, reason: str, do: str = DO) -> RegistryUnavailable:
        return RegistryUnavailable(
            f"registry {self.url} {reason}; nothing was decoded; {do}, and decode again",
            registry=self.url,
        )
