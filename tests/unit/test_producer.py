"""What a producer may ask of the broker at once, and what it must not."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline_defs.core.errors import BadSetting
from pipeline_defs.edges.producer import Guarantees


@pytest.mark.parametrize(
    ("asked", "config"),
    [
        ({}, ("all", True, None)),
        ({"acks": "1"}, (1, False, None)),
        ({"acks": "0"}, (0, False, None)),
        ({"enable_idempotence": False}, ("all", False, None)),
        ({"transactional_id": "t", "records_per_transaction": 5}, ("all", True, "t")),
    ],
)
def test_what_is_asked_for_is_what_kafka_python_is_told(asked: dict[str, Any], config: tuple[Any, ...]) -> None:
    told = Guarantees(**asked).config()
    assert (told["acks"], told["enable_idempotence"], told["transactional_id"]) == config


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"acks": "1", "enable_idempotence": True}, ["idempotence needs acks=all, found acks=1"]),
        ({"acks": "0", "enable_idempotence": True}, ["idempotence needs acks=all, found acks=0"]),
        ({"acks": "1", "transactional_id": "t"}, ["a transactional id needs acks=all, found acks=1"]),
        ({"enable_idempotence": False, "transactional_id": "t"}, ["a transactional id needs idempotence"]),
        ({"records_per_transaction": 5}, ["records per transaction need a transactional id"]),
        (
            {"acks": "0", "enable_idempotence": False, "transactional_id": "t"},
            ["a transactional id needs acks=all, found acks=0", "a transactional id needs idempotence"],
        ),
    ],
)
def test_contradictions_are_refused_all_at_once(asked: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(BadSetting, match="these producer options contradict each other") as caught:
        Guarantees(**asked)
    assert all(each in str(caught.value) for each in words)
