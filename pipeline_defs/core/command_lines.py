"""Command lines of Offsetlake that messages tell people to type.

Invariant: what is told works as it stands, for each name that Kafka allows: of its signs only a leading dash means something
to a command or a shell.
"""


def command(verb: str, topic: str, *rest: str) -> str:
    """Return a command for a topic; options stand in `rest` before other words, each beginning with dashes.

    | topic | line |
    |---|---|
    | `orders` | `offsetlake land orders --pending` |
    | `-dash` | `offsetlake land --pending -- -dash` |
    """
    if not topic.startswith("-"):
        return " ".join(["offsetlake", verb, topic, *rest])
    is_option = bool(rest) and rest[0].startswith("-")
    options, words = (rest, ()) if is_option else ((), rest)
    return " ".join(["offsetlake", verb, *options, "--", topic, *words])


def replace_command(topic: str, key: str) -> str:
    """Return the command that puts what Kafka has now in the place of what is landed of the range with this partition key."""
    return command("land", topic, "--key", key, "--on-change replace")
