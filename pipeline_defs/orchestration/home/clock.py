"""The clock of a daemon's host, which may be set back: Dagster then waits until it is as late again, for hours or years.

What Dagster has stored of a time ahead is brought back to now as a daemon starts. Its daemons wait in memory too, so one whose
clock is set back ends itself, and whoever started it starts it anew. Imports no Spark.
"""

import logging
import threading
import time
from typing import Any

import dagster as dg
from dagster._core.definitions.run_request import InstigatorType

from ...adapters.system.processes import end_this_process

LOOKS_EVERY_SECONDS = 5.0
MOST_WAIT_SECONDS = 60.0  # a clock that is set back by less is waited for
_TIMES = ("start_timestamp", "last_iteration_timestamp", "last_tick_timestamp", "last_tick_start_timestamp")
_log = logging.getLogger("dagster.daemon.offsetlake")
_is_followed = threading.Lock()  # held from the first instance of this process on


def follow_clock(instance: dg.DagsterInstance) -> None:
    """Have Dagster wait for no time ahead of the clock, as long as this process, a daemon, runs; at once after the first."""
    if _is_followed.acquire(blocking=False):
        wake(instance, time.time())
        threading.Thread(target=end_if_set_back, name="offsetlake-clock", daemon=True).start()


def wake(instance: dg.DagsterInstance, now_seconds: float) -> None:
    """Set back to now what sensors and schedules, and ticks of these, have of a time ahead (seconds since 1970)."""
    for state in instance.all_instigator_state():
        data: Any = state.instigator_data
        ahead = {name: now_seconds for name in _TIMES if (getattr(data, name, None) or 0.0) > now_seconds}
        if ahead:
            instance.update_instigator_state(state.with_data(data._replace(**ahead)))
        if state.instigator_type is InstigatorType.SCHEDULE:  # which goes on after its newest tick
            for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id, after=now_seconds):
                instance.update_tick(tick._replace(tick_data=tick.tick_data._replace(timestamp=now_seconds)))


def end_if_set_back() -> None:
    """End this process once its clock is set back by more than `MOST_WAIT_SECONDS`."""
    latest = ahead = time.time() - time.monotonic()
    while latest - ahead <= MOST_WAIT_SECONDS:
        time.sleep(LOOKS_EVERY_SECONDS)
        ahead = time.time() - time.monotonic()
        latest = max(latest, ahead)
    _log.error(
        "the clock was set back by %.0f seconds, as long as Dagster would wait with all that is due: this daemon ends, to be "
        "started anew; runs that are under way go on",
        latest - ahead,
    )
    end_this_process()
