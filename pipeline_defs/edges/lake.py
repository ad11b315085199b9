"""The lake: where plan steps, manifests and data files lie, and how they are read back.

    data/<topic>/g0/p0003/<start20>-<end20>.parquet           published; a plain glob is always right
    manifests/<topic>/g0/p0003/<start20>-<end20>.<rev>.json   the facts of each landed range
    plan/<topic>/<seq20>.json                                 the plan log
    accepted/<topic>/g0/p0003/<start20>-<end20>.json          losses that a person accepted
    claims/<topic>/g0/p0003/<start20>-<end20>.json            who may read a range, where it is read at most once
    retired/<topic>/g0/p0003/<start20>-<end20>.<rev>.parquet  originals that a sealed file stands for (originals.py)
    swept/<topic>/g0/p0003/<start20>-<end20>.<rev>.json       that of these only the sealed file is left
    staging/<attempt>/...                                     visible to nobody

Under `at_least_once` data files are `<start20>-<end20>.<attempt>.parquet`. Every object is immutable, so what was read
once is kept; only an explicit replace exchanges a data file, in one step, after a new revision of its manifest.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ..core.coverage import Coverage
from ..core.delivery import Claim, Delivery
from ..core.errors import BrokenManifest, LakeUnavailable
from ..core.losses import Acceptance
from ..core.manifest import Manifest, StagedFile
from ..core.offsets import OFFSET_DIGITS, OffsetRange
from ..core.planlog import PlanLog, PlanStep, Tail
from .layout import data_path, find_retired, manifest_path, range_of, range_path, retired_path, swept_path
from .store import Answer, Store


class Lake:
    """Reads and writes one lake; holds no state but what it has read of immutable objects."""

    def __init__(self, root: str) -> None:
        self.store = Store(root)
        self._steps: dict[str, PlanStep] = {}
        self._logs: dict[str, PlanLog] = {}
        self._manifests: dict[str, Manifest] = {}
        self._claims: dict[str, Claim] = {}
        self._coverages: dict[str, tuple[tuple[object, ...], Coverage]] = {}

    # ---- the plan log

    def read_plan_log(self, topic: str) -> PlanLog:
        """Reads and checks the whole log; raises `BrokenPlanLog` where it does not tile."""
        paths = list(self.store.list(f"plan/{topic}"))
        cached = self._logs.get(topic)
        if cached is None or len(cached.steps) != len(paths):
            cached = PlanLog(topic, tuple(self._read_step(path) for path in paths))
            self._logs[topic] = cached
        return cached

    def read_tail(self, topic: str) -> Tail:
        """Reads what planning goes on from."""
        paths = list(self.store.list(f"plan/{topic}"))
        return self._read_step(paths[-1]).tail if paths else Tail()

    def commit_step(self, step: PlanStep) -> bool:
        """Adds a step to the log; false where another planner was there first: read the tail and plan again."""
        path = f"plan/{step.topic}/{step.seq:0{OFFSET_DIGITS}d}.json"
        return self.store.put_new(path, step.to_json(), f"staging/plan-{uuid.uuid4().hex}") is Answer.COMMITTED

    def _read_step(self, path: str) -> PlanStep:
        if path not in self._steps:
            self._steps[path] = PlanStep.from_json(self.store.get(path) or b"", self.store.url(path))
        return self._steps[path]

    # ---- manifests

    def read_topics(self) -> tuple[str, ...]:
        """Reads the topics that anything was ever landed of, whether a defs.yaml names them or not."""
        return self.store.folders("manifests")

    def read_manifests(self, topic: str) -> dict[OffsetRange, Manifest]:
        """Reads the newest revision of every manifest of a topic."""
        newest: dict[str, str] = {}
        for path in self.store.list(f"manifests/{topic}"):
            newest[path.rsplit(".", 2)[0]] = path  # listed in order, so the last revision stays
        manifests = {}
        for path in newest.values():
            manifest = self._read_manifest(path)
            manifests[manifest.offsets] = manifest
        return manifests

    def commit_manifest(self, manifest: Manifest) -> Manifest:
        """Decides that the range is landed; returns the manifest that stands, ours or the one that was there first."""
        path = manifest_path(manifest.topic, manifest.offsets, manifest.revision)
        scratch = f"staging/{manifest.provenance.attempt}/{manifest.offsets.key}.json"
        if self.store.put_new(path, manifest.to_json(), scratch) is Answer.COMMITTED:
            self._manifests[path] = manifest
            return manifest
        return self._read_manifest(path)

    def _read_manifest(self, path: str) -> Manifest:
        if path not in self._manifests:
            url = self.store.url(path)
            manifest = Manifest.from_json(self.store.get(path) or b"", url)
            expected = manifest_path(manifest.topic, manifest.offsets, manifest.revision)
            if path != expected:
                raise BrokenManifest(
                    f"manifest {url} is of {manifest.offsets.text(manifest.topic)}: gap or overlap there"
                )
            self._manifests[path] = manifest
        return self._manifests[path]

    # ---- accepted losses

    def read_accepted(self, topic: str) -> dict[OffsetRange, Acceptance]:
        """Reads every acceptance of a topic, by the range or link that it is of."""
        accepted = {}
        for path in self.store.list(f"accepted/{topic}"):
            acceptance = Acceptance.from_json(self.store.get(path) or b"", self.store.url(path))
            accepted[acceptance.offsets] = acceptance
        return accepted

    def commit_acceptance(self, acceptance: Acceptance) -> bool:
        """Records that a loss is accepted; false where somebody did before."""
        path = f"{range_path('accepted', acceptance.topic, acceptance.offsets)}.json"
        scratch = f"staging/accept-{uuid.uuid4().hex}"
        return self.store.put_new(path, acceptance.to_json(), scratch) is Answer.COMMITTED

    # ---- claims

    def read_claims(self, topic: str) -> dict[OffsetRange, Claim]:
        """Reads every claim of a topic."""
        claims = (self._read_claim(path) for path in self.store.list(f"claims/{topic}"))
        return {claim.offsets: claim for claim in claims}

    def commit_claim(self, claim: Claim) -> Claim:
        """Claims a range for an attempt; returns the claim that stands, ours or the one that was there first."""
        path = f"{range_path('claims', claim.topic, claim.offsets)}.json"
        scratch = f"staging/{claim.attempt}/claim-{claim.offsets.key}.json"
        if self.store.put_new(path, claim.to_json(), scratch) is Answer.COMMITTED:
            return claim
        return self._read_claim(path)

    def _read_claim(self, path: str) -> Claim:
        if path not in self._claims:
            self._claims[path] = Claim.from_json(self.store.get(path) or b"", self.store.url(path))
        return self._claims[path]

    # ---- data

    def is_published(self, manifest: Manifest) -> bool:
        """Says whether the manifest's file, where it has one, stands under its final name, or was retired from there."""
        size = self.store.size(published_path(manifest))
        if manifest.revision:  # a file stands there in any case: is it this revision's?
            is_there = size == (manifest.file.bytes if manifest.file else None) and not self._is_staged(manifest)
        else:
            is_there = manifest.file is None or size is not None
        return is_there or self.is_retired(manifest)

    def is_retired(self, manifest: Manifest) -> bool:
        """Says whether the manifest's file was retired, be it restored or swept since or not."""
        return self.store.exists(retired_path(manifest)) or self.store.exists(swept_path(manifest))

    def own_path(self, manifest: Manifest) -> str | None:
        """Is where the manifest's file is to be read now: published, or retired from there; none where it was swept."""
        paths = published_path(manifest), retired_path(manifest)
        there = next((path for path in paths if self.store.exists(path)), None)
        return there or (None if self.store.exists(swept_path(manifest)) else paths[0])

    def give_up(self, manifest: Manifest, word: bytes) -> None:
        """Says for good that the retired file of a manifest is given up; once it has been said, nothing is written."""
        self.store.put_new(swept_path(manifest), word, f"staging/sweep-{uuid.uuid4().hex}")

    def publish(self, manifest: Manifest) -> Manifest | None:
        """Publishes the staged file that the manifest names; none where that file is gone.

        A file that already stands there was put there for the same manifest, or for a later revision: a name is never
        free again, but where the file was retired from it, and then it stays free. A revision exchanges the file of the
        one before, unless a later one stands by then. Returns the manifest that stands afterwards, this one or a later.
        """
        try:
            if manifest.file is not None and manifest.revision:
                self._exchange(manifest, manifest.file)
            elif manifest.file is not None:
                self._publish_new(manifest, manifest.file)
        except FileNotFoundError:
            return None
        return self.read_manifests(manifest.topic)[manifest.offsets] if self.is_replaced(manifest) else manifest

    def is_replaced(self, manifest: Manifest) -> bool:
        """Says whether there is a later revision of the manifest."""
        return self.store.exists(manifest_path(manifest.topic, manifest.offsets, manifest.revision + 1))

    def _is_due(self, manifest: Manifest) -> bool:
        return not (self.is_replaced(manifest) or self.is_retired(manifest))

    def _publish_new(self, manifest: Manifest, file: StagedFile) -> None:
        path, guard = published_path(manifest), manifest_path(manifest.topic, manifest.offsets, 0)
        answer = self.store.publish(file.path, path, guard=guard, is_due=partial(self._is_due, manifest))
        if answer is Answer.CONFLICT and self._is_due(manifest) and not self.store.exists(path):
            raise LakeUnavailable(
                f"cannot publish {self.store.url(path)}: what stands there is no file; nothing is lost; move it away, and the "
                "next run publishes the range",
                path=path,
            )

    def _exchange(self, manifest: Manifest, file: StagedFile) -> None:
        path, guard = published_path(manifest), manifest_path(manifest.topic, manifest.offsets, 0)
        try:
            self.store.exchange(file.path, path, guard=guard, is_due=partial(self._is_due, manifest))
        except FileNotFoundError:
            if self.store.size(path) != file.bytes and not self.is_retired(manifest):  # else another finished it
                raise

    @contextmanager
    def local_copy(self, path: str) -> Iterator[Path]:
        """Gives a path on this machine to read an object from: its own on a local lake, else a copy for a while."""
        if self.store.local_root is not None:
            yield self.store.local_root / path
            return
        with tempfile.NamedTemporaryFile(suffix=".parquet") as copy:
            copy.write(self.store.get(path) or b"")
            copy.flush()
            yield Path(copy.name)

    def coverage(self, topic: str) -> Coverage:
        """Reads the log, the manifests and the published files of a topic.

        In this order backwards: what is published had its manifest before, what has a manifest was planned before. What went
        from `data/` is retired before, and what went from `retired/` said to be swept before, so it is found there.
        """
        files, kept, words = (self.store.list(f"{tree}/{topic}") for tree in ("data", "retired", "swept"))
        manifests = self.read_manifests(topic)
        others = self.read_plan_log(topic), manifests, self.read_accepted(topic), self.read_claims(topic)
        found = (*others, files, kept, words)
        seen, coverage = self._coverages.get(topic, (None, None))
        if coverage is not None and not coverage.unfinished and seen == found:
            return coverage  # objects never change, so nothing has: of a topic that is idle only the lists are read
        coverage = self._coverage(topic, *found)
        self._coverages[topic] = (found, coverage)
        return coverage

    def _coverage(
        self,
        topic: str,
        log: PlanLog,
        manifests: Mapping[OffsetRange, Manifest],
        accepted: Mapping[OffsetRange, Acceptance],
        claims: Mapping[OffsetRange, Claim],
        files: Mapping[str, int],
        kept: Mapping[str, int],
        words: Mapping[str, int],
    ) -> Coverage:
        owners = {published_path(manifest): offsets for offsets, manifest in manifests.items()}
        published: dict[OffsetRange, int] = {}
        doubles, strays = [], []
        for path, size in files.items():
            owner = owners.get(path)
            offsets, attempt = (owner, "") if owner is not None else range_of("data", topic, path)
            if offsets is None:
                strays.append(path)
            elif attempt:
                doubles.append(path)
            else:
                published[offsets] = size
        newest = find_retired(topic, kept, words, published)
        retired = {offsets: revision for offsets, (revision, _) in newest.items()}
        for offsets, (_, kept_bytes) in newest.items():
            file = manifests[offsets].file if offsets in manifests else None
            published[offsets] = (file.bytes if file else 0) if kept_bytes is None else kept_bytes
        return Coverage(
            log,
            manifests,
            published,
            tuple(strays),
            accepted,
            claims,
            tuple(doubles),
            frozenset(
                offsets
                for path, offsets in owners.items()
                if (manifests[offsets].revision or path not in files)
                and retired.get(offsets) != manifests[offsets].revision
                and self._is_staged(manifests[offsets])
            ),
            retired,
            frozenset(offsets for offsets, (_, size) in newest.items() if size is None),
        )

    def _is_staged(self, manifest: Manifest) -> bool:
        # publishing leaves the staged file, an exchange takes it away
        return manifest.file is not None and self.store.exists(manifest.file.path)


def published_path(manifest: Manifest) -> str:
    """Is where a manifest's file is published, below the lake's root; under `at_least_once` a name of the attempt's own."""
    path = data_path(manifest.topic, manifest.offsets)
    if manifest.delivery is Delivery.AT_LEAST_ONCE:
        return f"{path.removesuffix('.parquet')}.{manifest.provenance.attempt}.parquet"
    return path
