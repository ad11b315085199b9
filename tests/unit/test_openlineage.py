"""A receiver of lineage that is down: the topics of a run wait for it once, not one after the other."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from pipeline_defs.adapters.system import outage
from pipeline_defs.adapters.system.outage import Outage
from pipeline_defs.adapters.telemetry import openlineage
from pipeline_defs.adapters.telemetry.openlineage import Sender


def test_a_receiver_that_has_failed_is_asked_again_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-31] The control is a run that knows of no failure."""
    emit, clock = Mock(side_effect=OSError("refused")), [0.0]
    monkeypatch.setattr(openlineage, "table_events", lambda _: ["an event"])
    monkeypatch.setattr("openlineage.client.OpenLineageClient", lambda: Mock(emit=emit))
    monkeypatch.setattr(outage, "time", Mock(monotonic=lambda: clock[0]))

    def told_to(receiver: Outage) -> tuple[int, str]:
        sender = Sender(receiver)
        some: Any = "a table"
        sender.tell(some)
        unsent = sender.finish()
        assert unsent is not None and unsent[0] == 1
        return emit.call_count, unsent[1]

    down = Outage()
    assert [told_to(down) for _ in range(3)] == [(1, "OSError: refused")] * 3
    assert told_to(Outage())[0] == 2, "the control"
    clock[0] += outage.OUTAGE_SECONDS
    assert told_to(down)[0] == 3
    assert Sender(down).finish() is None, "who has nothing to tell"
