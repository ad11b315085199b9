"""Durability of a topic: what its settings on the broker mean for records that a producer had acknowledged.

Pure, and no judgement: one replica may be right. Invariant: each sentence names the setting, its value and the consequence.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Durability:
    """Settings of a topic that decide what the loss of a broker takes; `replicas` are those of its least Kafka partition."""

    replicas: int
    min_insync_replicas: int
    unclean_leader_election: bool

    @property
    def risks(self) -> tuple[str, ...]:
        """Ways in which acknowledged records may be lost before they are read, or producers be stopped; none is best."""
        found = []
        if self.replicas == 1:
            found.append("replication.factor is 1: a broker's disk that fails takes acknowledged records with it")
        elif self.min_insync_replicas == 1:
            found.append(
                "min.insync.replicas is 1: while the other replicas are behind, acks=all is acknowledged by the leader alone, "
                "and its loss takes those records with it"
            )
        elif self.min_insync_replicas >= self.replicas:
            found.append(
                f"min.insync.replicas is {self.min_insync_replicas} of {self.replicas} replicas: nothing is lost, but one "
                "broker that is down stops producers with acks=all"
            )
        if self.unclean_leader_election:
            found.append(
                "unclean.leader.election.enable is true: a replica that is behind may become leader, and what it lacks is "
                "lost; what of it is landed stays, and the rest of the log is landed again as a new generation"
            )
        return tuple(found)

    @property
    def promise(self) -> str:
        """What holds where there is no risk."""
        return (
            f"{self.replicas} replicas, min.insync.replicas {self.min_insync_replicas}: what acks=all acknowledged survives "
            f"the loss of {self.min_insync_replicas - 1} of them"
        )


def read_durability(replicas: int, config: dict[str, str]) -> Durability:
    """Read the settings from a topic's configuration, as a broker tells it, defaults included."""
    return Durability(
        replicas,
        int(config.get("min.insync.replicas", 1)),
        config.get("unclean.leader.election.enable", "false").lower() == "true",
    )
