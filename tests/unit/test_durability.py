"""What the settings of a topic mean for acknowledged records, as `doctor` says it (U10)."""

from __future__ import annotations

import pytest

from pipeline_defs.core.durability import Durability, read_durability

TRUE, FALSE = {"unclean.leader.election.enable": "true"}, {"unclean.leader.election.enable": "false"}


@pytest.mark.parametrize(
    ("replicas", "in_sync", "unclean", "said"),
    [
        (1, 1, FALSE, ["replication.factor is 1: "]),
        (
            3,
            1,
            FALSE,
            ["min.insync.replicas is 1: while the other replicas are behind, acks=all is acknowledged by the leader"],
        ),
        (3, 2, FALSE, []),
        (3, 3, FALSE, ["min.insync.replicas is 3 of 3 replicas: nothing is lost, but one broker that is down stops"]),
        (3, 2, TRUE, ["unclean.leader.election.enable is true: a replica that is behind may become leader"]),
        (3, 1, TRUE, ["min.insync.replicas is 1: ", "unclean.leader.election.enable is true: "]),
    ],
)
def test_each_setting_that_may_lose_acknowledged_records_is_named(
    replicas: int, in_sync: int, unclean: dict[str, str], said: list[str]
) -> None:
    """U10: with its value and what follows; and nothing where all is well."""
    found = read_durability(replicas, {"min.insync.replicas": str(in_sync), **unclean})
    assert len(found.risks) == len(said)
    assert all(risk.startswith(start) for risk, start in zip(found.risks, said, strict=True))


def test_what_holds_is_said_too() -> None:
    assert (
        "what acks=all acknowledged survives the loss of 1 of them" in Durability(3, 2, unclean_leader_election=False).promise
    )
