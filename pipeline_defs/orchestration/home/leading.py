"""Leadership among daemons over one Postgres: the one works whose connection holds a lock in the database.

Dagster supports one daemon and only warns of a second; here a second one waits, on whatever host. The lock ends with the
connection, and so with its process or host. No row depends on it: two that work at once cost double ticks, no double rows.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, Literal

import dagster as dg
from dagster._utils.interrupts import check_captured_interrupt
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from ...adapters.system.processes import end_this_process
from ...core.errors import BadSetting

ASKS_EVERY_SECONDS = 1.0  # a daemon that waits
LOOKS_EVERY_SECONDS = 5.0  # a daemon that leads, whether it still does
# after about 25 s without an answer Postgres gives up the connection of a host that has lost its power or its network
_KEEPALIVE = {"tcp_keepalives_idle": 10, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 3}
# one per schema: several instances of Dagster may share a database
_TAKE = "SELECT pg_try_advisory_lock(hashtext('offsetlake.daemon'), hashtext(coalesce(current_schema(), '')))"

# Dagster's times have no zone: in Postgres they are of the session's zone, and Dagster reads them as UTC
_HOURS_OFF = (
    "SELECT max(abs(extract(timezone FROM day))) / 3600 FROM unnest(ARRAY['2026-01-01', '2026-07-01']::timestamptz[]) AS day"
)

Leadership = Literal["leads", "waits", "unreachable"]
_log = logging.getLogger("dagster.daemon.offsetlake")


class DaemonLock:
    """Lock of the daemon in Dagster's Postgres; `connect` opens a connection as Dagster itself does."""

    def __init__(self, connect: Callable[[], AbstractContextManager[Connection]]) -> None:
        self._connect = connect
        self._open = ExitStack()
        self._connection: Connection | None = None

    def take(self) -> Leadership:
        """Take the lock, or find that this process still holds it; a lost connection has lost it, and is opened anew."""
        from dagster_postgres.utils import DagsterPostgresException

        try:
            if self._connection is not None:
                self._connection.execute(text("SELECT 1"))
                return "leads"
        except SQLAlchemyError:
            self.give_back()
        try:
            connection = self._open.enter_context(self._connect())
            for name, value in _KEEPALIVE.items():
                connection.execute(text(f"SET {name} = {value}"))
            if connection.execute(text(_TAKE)).scalar():
                self._connection = connection
                return "leads"
        except (SQLAlchemyError, DagsterPostgresException):
            self.give_back()
            return "unreachable"
        self.give_back()
        return "waits"

    def give_back(self) -> None:
        """Close the connection, and with it the lock."""
        self._connection = None
        with suppress(SQLAlchemyError):  # a broken one holds no lock either
            self._open.close()


_leads: list[DaemonLock] = []  # of this process: at most one, held until its end


def await_leadership(instance: dg.DagsterInstance) -> None:
    """Return once this process is the daemon that works; at once where Dagster's storage is not in Postgres.

    Raise `KeyboardInterrupt` where SIGINT or SIGTERM ends the waiting, and `BadSetting` where times in the database would be
    wrong. A daemon that loses the lock to another one ends itself.
    """
    storage: Any = instance.run_storage
    if _leads or not type(storage).__module__.startswith("dagster_postgres"):
        return
    check_time_zone(storage.connect)
    lock, told = DaemonLock(storage.connect), ""
    while (leadership := lock.take()) != "leads":
        if leadership != told:
            _log.warning(_WHY_IT_WAITS[leadership])
            told = leadership
        if check_captured_interrupt():
            raise KeyboardInterrupt
        time.sleep(ASKS_EVERY_SECONDS)
    _log.info("this daemon works: it holds the daemon's lock of the Postgres database")
    _leads.append(lock)
    threading.Thread(target=_watch, args=(lock,), name="offsetlake-daemon-lock", daemon=True).start()


def check_time_zone(connect: Callable[[], AbstractContextManager[Connection]]) -> None:
    """Refuse a database whose sessions are not in UTC: a run that is being created would look hours old, and be ended."""
    with connect() as connection:
        hours = connection.execute(text(_HOURS_OFF)).scalar()
        zone = connection.execute(text("SELECT current_setting('TimeZone')")).scalar()
    if hours:
        raise BadSetting(
            f"time zone {zone} of Dagster's Postgres database, expected UTC: Dagster's times would be off by up to {hours:.0f} "
            'hours; nothing was started; give `params: {options: "-c timezone=UTC"}` in the storage of dagster.yaml, or set '
            "the time zone of the database"
        )


_WHY_IT_WAITS = {
    "waits": "another daemon works on this Postgres database: this one does nothing, and takes over when that one ends",
    "unreachable": "the Postgres database does not answer: this daemon does nothing until it does",
}


def _watch(lock: DaemonLock) -> None:
    """Watch a lock until another daemon has it; then end this process, which its supervisor restarts, to wait."""
    while lock.take() != "waits":
        time.sleep(LOOKS_EVERY_SECONDS)
    _log.error(
        "the connection that held the daemon's lock was lost, and another daemon works on this Postgres database now: "
        "this one ends; runs that are under way go on"
    )
    end_this_process()
