"""What a Dagster home remembers: of which topics something was planned or landed, and in which lake.

A lake that is gone (its folder deleted, its mount missing, its path mistyped) looks like one that is new; this tells them
apart. Invariant: a topic is remembered after it is in the lake, so that no crash makes a new lake look lost.
"""

import uuid
from pathlib import Path

from ...core.errors import LakeUnavailable
from ..store.disk import Disk

FOLDER = "known_topics"  # in Dagster's home: deleting that deletes the history, too, that a new lake would contradict


class LakeMemory:
    """Topics that a Dagster home knows, one file for each; `lake` is where they are expected now."""

    def __init__(self, home: Path, lake: str) -> None:
        self._disk, self._lake = Disk(home), lake
        self._remembered: set[str] = set()

    def remember(self, topic: str) -> None:
        """Remember for good that the lake has something of a topic; raise `LakeUnavailable` if that cannot be written."""
        if topic in self._remembered:
            return
        path = f"{FOLDER}/{topic}"
        try:
            if self._read(topic) != self._lake:
                scratch = f".{FOLDER}-{uuid.uuid4().hex}"  # another process may remember it too, or read what is remembered
                self._disk.write(scratch, self._lake.encode())
                self._disk.rename(scratch, path)
        except OSError as error:
            raise LakeUnavailable(
                f"cannot write {self._disk.root / path}, by which a lake that goes missing is told from a new one: "
                f"{(error.strerror or type(error).__name__).lower()}; what was committed stands; let this user write in "
                "DAGSTER_HOME, or make room there, and the next run goes on",
                path=path,
            ) from error
        self._remembered.add(topic)

    def topics(self) -> tuple[str, ...]:
        """Return the topics that are remembered, sorted; skip other files, such as a file browser leaves."""
        folder = self._disk.root / FOLDER
        names = sorted(each.name for each in folder.iterdir() if each.is_file()) if folder.is_dir() else ()
        return tuple(name for name in names if self._read(name))

    def refuse_missing(self, topic: str) -> None:
        """Refuse a lake that has nothing of a topic if the topic is remembered: it is not a new lake."""
        before = self._read(topic)
        if not before:
            self._remembered.discard(topic)  # a person has deleted it, to begin anew
            return
        where = "there" if before == self._lake else f"in {before}"
        raise LakeUnavailable(
            f"the lake {self._lake} has nothing of topic {topic}, and something of it was planned or landed {where} before: "
            "the folder was deleted, its mount is missing, or OFFSETLAKE_LAKE is wrong; nothing was written, or all of the "
            "topic would be landed again; bring the lake back, or correct OFFSETLAKE_LAKE; to begin an empty lake instead, "
            f"delete {self._disk.root / FOLDER / topic}",
            path=topic,
        )

    def _read(self, topic: str) -> str | None:
        """Return the lake that a topic was last in, none if it is not remembered; a file that is no text is somebody else's."""
        try:
            return (self._disk.root / FOLDER / topic).read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError):
            return None
