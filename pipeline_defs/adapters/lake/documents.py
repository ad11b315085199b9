"""The documents of a lake that are read and committed one by one: plan steps, manifests, accepted losses, claims.

Each is put if absent and is immutable, so it is read once and kept in memory. Invariant: what is kept is what was last seen
in the lake: somebody may delete an object, and another one of the same size be written in its place.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from ...core.errors import BrokenManifest, LakeUnavailable
from ...core.log.delivery import Acceptance, Claim
from ...core.log.manifest import Manifest, StagedFile
from ...core.log.plan_step import PlanStep
from ...core.offsets import OffsetRange
from ..store.object_store import open_store
from ..store.store import Answer
from .lake_memory import LakeMemory
from .layout import given_up_paths, manifest_path, published_path, range_path, serial_of, step_path

T = TypeVar("T")


class Kept(Generic[T]):
    """Documents of one kind by their paths, each kept until another object, or none, is seen there.

    They are kept by folder: the first two names of a path, a tree and a topic.
    """

    def __init__(self, read: Callable[[str], T]) -> None:
        self._read = read
        self._seen: dict[str, Mapping[str, str]] = {}
        self._kept: dict[str, dict[str, tuple[str, T]]] = defaultdict(dict)
        self.reads = 0  # while it stays the same, so does each document

    def see(self, folder: str, seen: Mapping[str, str]) -> None:
        """Forget what differs from what is `seen` now: path and version of each object that matters, as of `Store.versions`."""
        self._seen[folder] = seen
        kept = self._kept[folder]
        for path in [each for each, (version, _) in list(kept.items()) if version != seen.get(each)]:
            kept.pop(path, None)

    def get(self, path: str) -> T:
        """Return a document; read it if it is not kept."""
        folder = _folder(path)
        found = self._kept[folder].get(path)
        if found is None:
            self.reads += 1
            found = self._seen.get(folder, {}).get(path, "?"), self._read(path)
            self._kept[folder][path] = found
        return found[1]

    def read_seen(self, folder: str, seen: Mapping[str, str]) -> list[T]:
        """Return the documents that are `seen` now in a folder, in that order; read those that are new or have changed."""
        self.see(folder, seen)
        return [self.get(path) for path in seen]

    def read_anew(self, path: str) -> T:
        """Read a document as it is now, kept or not."""
        self._kept[_folder(path)].pop(path, None)
        return self.get(path)


def _folder(path: str) -> str:
    tree, topic, _ = path.split("/", 2)
    return f"{tree}/{topic}"


class Documents:
    """Documents of one lake, to be read and committed; what was read of immutable objects, and their lists, is kept."""

    def __init__(self, root: str, memory: LakeMemory | None = None) -> None:
        self.store = open_store(root)
        self._memory = memory
        self._steps = Kept(lambda path: PlanStep.from_json(*self._read(path)))
        self._manifests = Kept(self._read_manifest)
        self._acceptances = Kept(lambda path: Acceptance.from_json(*self._read(path)))
        self._claims = Kept(lambda path: Claim.from_json(*self._read(path)))
        self._newest: dict[str, tuple[Mapping[str, str], int, Mapping[OffsetRange, Manifest]]] = {}

    def _read(self, path: str) -> tuple[bytes, str]:
        """Read an object that was there a moment ago; return it with its URL."""
        data, url = self.store.get(path), self.store.url(path)
        if data is None:
            raise LakeUnavailable(
                f"cannot read {url}: it was there a moment ago and is not now: somebody deletes objects of "
                "the lake; nothing was written; the next run reads it again",
                path=path,
            )
        return data, url

    def remember(self, topic: str) -> None:
        """Have Dagster's home know a topic of which the lake has something: a lake without it is then not a new one."""
        if self._memory:
            self._memory.remember(topic)

    def planned_topics(self) -> tuple[str, ...]:
        """Return the topics that have a plan log, whether a defs.yaml names them or not."""
        return self.store.folders("plan")

    def put_step(self, step: PlanStep) -> bool:
        """Put a step if there is none of its number yet; return whether it was put."""
        answer = self.store.put_new(step_path(step.topic, step.seq), step.to_json(), "staging/plan")
        self.remember(step.topic)
        return answer is Answer.COMMITTED

    def has_step(self, step: PlanStep) -> bool:
        """Return whether a step that was read still is in the log now: neither gone nor replaced."""
        path = step_path(step.topic, step.seq)
        data = self.store.get(path)
        return data is not None and PlanStep.from_json(data, self.store.url(path)) == step

    def landed_topics(self) -> tuple[str, ...]:
        """Read the topics of which anything was ever landed, whether a defs.yaml names them or not."""
        return self.store.folders("manifests")

    def read_manifests(self, topic: str) -> Mapping[OffsetRange, Manifest]:
        """Read the newest manifest of every range of a topic."""
        paths, newest = self.store.versions(f"manifests/{topic}"), dict[OffsetRange, int]()
        listed, reads, known = self._newest.get(topic, ({}, -1, {}))
        if paths == listed and reads == self._manifests.reads:
            return known  # of a topic that is idle only the list is read
        for path in paths:
            found = serial_of(topic, path)
            if found is None:
                raise BrokenManifest(f"{self.store.url(path)} is no manifest's name: move it away; nothing was read of it")
            newest[found[0]] = max(found[1], newest.get(found[0], 0))
        self._manifests.see(f"manifests/{topic}", paths)
        known = {each: self._manifests.get(manifest_path(topic, each, serial)) for each, serial in newest.items()}
        self._newest[topic] = paths, self._manifests.reads, known
        return known

    def newest(self, manifest: Manifest) -> Manifest:
        """Read the newest manifest of a manifest's range: itself if it was neither replaced nor dropped."""
        while following := self._following(manifest):
            manifest = following
        return manifest

    def _following(self, manifest: Manifest) -> Manifest | None:
        path = manifest_path(manifest.topic, manifest.offsets, manifest.serial + 1)
        return self._manifests.get(path) if self.store.exists(path) else None

    def earlier(self, manifest: Manifest) -> Iterator[Manifest]:
        """Yield the manifests of a range before one, the newest first; skip one that somebody deleted."""
        for serial in reversed(range(manifest.serial)):
            path = manifest_path(manifest.topic, manifest.offsets, serial)
            if self.store.exists(path):
                yield self._manifests.get(path)

    def commit_manifest(self, manifest: Manifest) -> Manifest:
        """Decide that a range is landed, or dropped; return the manifest that stands, ours or the one that was there first."""
        path = manifest_path(manifest.topic, manifest.offsets, manifest.serial)
        scratch = "drop" if manifest.is_dropped else f"{manifest.provenance.attempt}/{manifest.offsets.key}.json"
        answer = self.store.put_new(path, manifest.to_json(), f"staging/{scratch}")
        self.remember(manifest.topic)
        return manifest if answer is Answer.COMMITTED else self._manifests.read_anew(path)

    def _read_manifest(self, path: str) -> Manifest:
        data, url = self._read(path)
        manifest = Manifest.from_json(data, url)
        if path != manifest_path(manifest.topic, manifest.offsets, manifest.serial):
            raise BrokenManifest(
                f"manifest {url} says that it is of {manifest.offsets.text(manifest.topic)}, revision {manifest.revision}, "
                "expected what its name says: somebody has copied or renamed it; nothing was read of it; restore it from a "
                "backup of the lake"
            )
        return manifest

    def read_accepted(self, topic: str) -> dict[OffsetRange, Acceptance]:
        """Read every acceptance of a topic, by the range or link that it is of."""
        folder = f"accepted/{topic}"
        return {each.offsets: each for each in self._acceptances.read_seen(folder, self.store.versions(folder))}

    def commit_acceptance(self, acceptance: Acceptance) -> bool:
        """Record that a loss is accepted; return false if somebody did before."""
        path = f"{range_path('accepted', acceptance.topic, acceptance.offsets)}.json"
        return self.store.put_new(path, acceptance.to_json(), "staging/accept") is Answer.COMMITTED

    def read_claims(self, topic: str) -> dict[OffsetRange, Claim]:
        """Read every claim of a topic."""
        folder = f"claims/{topic}"
        return {each.offsets: each for each in self._claims.read_seen(folder, self.store.versions(folder))}

    def commit_claim(self, claim: Claim) -> Claim:
        """Claim a range for an attempt; return the claim that stands, ours or the one that was there first."""
        path = f"{range_path('claims', claim.topic, claim.offsets)}.json"
        scratch = f"staging/{claim.attempt}/claim-{claim.offsets.key}.json"
        if self.store.put_new(path, claim.to_json(), scratch) is Answer.COMMITTED:
            return claim
        return self._claims.read_anew(path)

    def is_published(self, manifest: Manifest) -> bool:
        """Return whether the file under the final name is the manifest's, by its size, or was dropped from there.

        The file of an earlier revision may have the same size; until that is exchanged, the manifest's staged file exists.
        """
        if manifest.file is None:
            return True
        is_there = self.store.size(published_path(manifest)) == manifest.file.bytes
        return (is_there and not (manifest.revision and self._is_staged(manifest))) or self.is_dropped(manifest)

    def is_dropped(self, manifest: Manifest) -> bool:
        """Return whether the manifest's file was dropped, gone already or not."""
        following = None if manifest.is_dropped else self._following(manifest)
        return manifest.is_dropped or (following is not None and following.is_dropped)

    def own_path(self, manifest: Manifest) -> str | None:
        """Return where the manifest's file is published; none if it was dropped, and the raw table has its rows."""
        path = published_path(manifest)
        return path if self.store.exists(path) or not self.is_dropped(manifest) else None

    def publish(self, manifest: Manifest, staged: str | None = None, *, mend: bool = False) -> Manifest | None:
        """Publish the manifest's file under its final name; return the manifest whose file is there afterwards.

        That is this one or a later revision; none if nothing could be published, since the staged file is gone. `staged`
        is where the bytes are staged, if not where the manifest says. The first revision takes a free name by put-if-absent;
        else the file there is exchanged in one step if it is another revision's, of another size or, to `mend` it, of another
        digest. A file that was dropped and is gone is not brought back.
        """
        self.delete_given_up(manifest)
        if manifest.file is not None and not manifest.is_dropped:
            self._show(manifest, manifest.file, staged or manifest.file.path, mend=mend)
        newest = self.newest(manifest)
        if newest != manifest:
            self.delete_given_up(newest)  # what was published here may have been dropped meanwhile, or before
        return newest if self.is_published(newest) else None

    def _show(self, manifest: Manifest, file: StagedFile, staged: str, *, mend: bool) -> None:
        """Give a staged file its final name, unless the manifest's file has that already."""
        path, guard = published_path(manifest), manifest_path(manifest.topic, manifest.offsets, 0)
        is_first, is_due = manifest.revision == 0, partial(self._is_due, manifest)
        with suppress(FileNotFoundError):  # another has published it, or it is gone: the file there tells which
            if is_first and not mend:
                answer = self.store.publish(staged, path, guard=guard, is_due=is_due)
                if answer is Answer.COMMITTED or self.store.size(path) == file.bytes:
                    return
            self.store.exchange(staged, path, guard=guard, is_due=is_due)
            if not is_first and staged != file.path and not self.is_replaced(manifest):
                self.store.delete(file.path)  # torn, else it would have been published; needed no more

    def delete_given_up(self, manifest: Manifest) -> None:
        """Delete files under names that drops have given up, and what was staged for them, so that nobody publishes it late.

        That is safe at any time: no manifest publishes anything there again.
        """
        if manifest.is_dropped and manifest.file is not None:
            self.store.delete(manifest.file.path)
        for path in given_up_paths(manifest):
            self.store.delete(path)

    def is_replaced(self, manifest: Manifest) -> bool:
        """Return whether there is a later revision of the manifest."""
        return self.newest(manifest).revision != manifest.revision

    def _is_due(self, manifest: Manifest) -> bool:
        return self.own_path(manifest) is not None and not self.is_replaced(manifest)

    def _is_staged(self, manifest: Manifest) -> bool:
        # publishing leaves the staged file, an exchange takes it away
        return manifest.file is not None and self.store.exists(manifest.file.path)
