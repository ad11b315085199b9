"""Retiring originals: landed files that a sealed file stands for leave `data/`, and come back byte for byte when asked.

Each is given a second name below `retired/` before it loses its first, and keeps that name until it is swept (swept.py): it
is in one of the trees at every moment, in both for a while, and whoever lists `data/` first finds it. Invariant: no byte is
ever deleted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .core.coverage import Coverage
from .core.errors import Refused, SealedFileGone
from .core.manifest import Manifest
from .core.offsets import parse_key
from .core.originals import Move, MoveVerdict, SealedOriginals, plan_restoring, plan_retiring
from .core.seal import Seal
from .core.sealing import choose_seals
from .edges import parquet
from .edges.lake import Lake
from .edges.layout import manifest_path, published_path, retired_path
from .edges.seals import Seals
from .steps import StepWatcher, no_step

Found = tuple[Manifest, str | SealedFileGone]  # an original, and where it lies below the lake's root, or why nowhere


def plan_retirement(topic: str, lake: Lake, now_ms: int, older_than_seconds: float) -> list[SealedOriginals]:
    """Plans which originals to retire now, by sealed file; writes nothing. Refuses an object store."""
    if lake.store.local_root is None:
        raise Refused(
            f"originals of topic {topic} cannot be retired: {lake.store.root} is an object store, which cannot give a file "
            "another name in one step; nothing was moved; retire originals in a lake on a local path, or keep them"
        )
    coverage = lake.coverage(topic)
    return plan_retiring(coverage, read_used(coverage, lake), now_ms - int(older_than_seconds * 1000))


def read_used(coverage: Coverage, lake: Lake) -> tuple[Seal, ...]:
    """Reads which sealed files readers use, where a topic's ranges stand so."""
    return choose_seals(coverage, Seals(lake).read_published(coverage.log.topic))


def retire_originals(
    lake: Lake, plans: Sequence[SealedOriginals], on_step: StepWatcher = no_step
) -> Iterator[MoveVerdict]:
    """Retires what was planned, each original by itself; yields what became of each. Whoever dies at it is followed by any."""
    for plan in plans:
        reason = Seals(lake).why_changed(plan.seal)
        for manifest in plan.manifests:
            kept = reason or _retire(lake, manifest, on_step)
            yield MoveVerdict(manifest.offsets, Move.KEPT if kept else Move.RETIRED, kept)


def plan_restoration(topic: str, lake: Lake, keys: Sequence[str] = ()) -> list[Manifest]:
    """Plans which originals to restore: those of some keys, or all. Refuses a key of which no original is retired."""
    found = plan_restoring(lake.coverage(topic), {parse_key(key) for key in keys} if keys else None)
    missing = [key for key in keys if key not in {manifest.offsets.key for manifest in found}]
    if missing:
        raise Refused(
            f"no original of topic {topic} is retired or swept of {', '.join(missing)}; nothing was moved; "
            "the column `file` of the view `ranges` (`offsetlake sql`) says where each lies"
        )
    return found


def restore_originals(lake: Lake, sources: Iterable[Found], on_step: StepWatcher = no_step) -> Iterator[MoveVerdict]:
    """Restores what was planned, each original by itself, under the very name that it had; yields what became of each.

    `sources` say where each lies, as `swept.find_originals` does.
    """
    for manifest, source in sources:
        kept = _restore(lake, manifest, source, on_step) if isinstance(source, str) else str(source)
        yield MoveVerdict(manifest.offsets, Move.KEPT if kept else Move.RESTORED, kept)


def _retire(lake: Lake, manifest: Manifest, on_step: StepWatcher) -> str | None:
    """Gives an original its name below `retired/`, then takes the other away; returns why not."""
    here, there, key = published_path(manifest), retired_path(manifest), manifest.offsets.key
    with lake.store.locked(manifest_path(manifest.topic, manifest.offsets, 0)):
        if lake.is_replaced(manifest):
            return "it was replaced meanwhile"
        if not lake.store.exists(here):
            return None if lake.store.exists(there) else "its file is not there"
        if reason := why_differs(_digest(lake, here), manifest.digest, "published file"):
            return reason
        lake.store.publish(here, there)
        on_step("original_kept", key=key)
        if reason := why_differs(_digest(lake, there), manifest.digest, "retired file"):
            return reason
        lake.store.delete_folder(here)
    on_step("original_retired", key=key)
    return None


def _restore(lake: Lake, manifest: Manifest, source: str, on_step: StepWatcher) -> str | None:
    """Gives an original the name in `data/` again; returns why not."""
    with lake.store.locked(manifest_path(manifest.topic, manifest.offsets, 0)):
        if lake.is_replaced(manifest):
            return "it was replaced meanwhile"
        if lake.store.exists(published_path(manifest)):
            return None  # somebody else has restored it
        what = "retired file" if source == retired_path(manifest) else "file that was made again"
        if reason := why_differs(_digest(lake, source), manifest.digest, what):
            return reason
        lake.store.publish(source, published_path(manifest))
    on_step("original_restored", key=manifest.offsets.key)
    return None


def _digest(lake: Lake, path: str) -> str:
    with lake.local_copy(path) as file:
        return parquet.digest(file)


def why_differs(found: str | None, expected: str, what: str) -> str | None:
    """Says why a file is not kept to its word; none where it has the digest that was expected."""
    return None if found == expected else f"the {what} has sha256 {found}, expected {expected}"
