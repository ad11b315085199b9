"""Dagster's daemons, by their heartbeats: whether one was there lately. Nothing here starts or stops one."""

from __future__ import annotations

from typing import Literal

import dagster as dg

HEARTBEAT_SECONDS = 30.0  # how often Dagster's daemons say that they are there
SILENT_AFTER_SECONDS = 3 * HEARTBEAT_SECONDS

Daemon = Literal["SENSOR", "BACKFILL", "QUEUED_RUN_COORDINATOR"]  # as Dagster names them


def read_silence(instance: dg.DagsterInstance, daemon: Daemon, now_seconds: float) -> float | None:
    """Reads for how many seconds a daemon has said nothing; none where it never has."""
    heartbeat = instance.get_daemon_heartbeats().get(daemon)
    return now_seconds - heartbeat.timestamp if heartbeat else None


def is_silent(silent_seconds: float | None) -> bool:
    """Says whether a daemon that has said nothing for so long is taken not to be there."""
    return silent_seconds is None or silent_seconds > SILENT_AFTER_SECONDS
