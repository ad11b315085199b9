"""Retiring originals: landed files that a sealed file stands for leave `data/`, and come back byte for byte when asked.

Each is given a second name below `retired/` before it loses its first, and keeps that name for good: it is in one of the
trees at every moment, in both for a while, and whoever lists `data/` first finds it. Invariant: no byte is ever deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .core.errors import Refused
from .core.manifest import Manifest
from .core.offsets import parse_key
from .core.originals import Move, MoveVerdict, Retirement, plan_restoring, plan_retiring
from .core.sealing import choose_seals
from .edges import parquet
from .edges.lake import Lake, manifest_path, published_path
from .edges.layout import retired_path
from .edges.seals import Seals, sealed_path
from .steps import StepWatcher, no_step


def plan_retirement(topic: str, lake: Lake, now_ms: int, older_than_seconds: float) -> list[Retirement]:
    """Plans which originals to retire now, by sealed file; writes nothing. Refuses an object store."""
    if lake.store.local_root is None:
        raise Refused(
            f"originals of topic {topic} cannot be retired: {lake.store.root} is an object store, which cannot give a file "
            "another name in one step; nothing was moved; retire originals in a lake on a local path, or keep them"
        )
    coverage = lake.coverage(topic)
    used = choose_seals(coverage, Seals(lake).read_published(topic))
    return plan_retiring(coverage, used, now_ms - int(older_than_seconds * 1000))


def retire_originals(lake: Lake, plans: Sequence[Retirement], on_step: StepWatcher = no_step) -> Iterator[MoveVerdict]:
    """Retires what was planned, each original by itself; yields what became of each. Whoever dies at it is followed by any."""
    for plan in plans:
        with lake.local_copy(sealed_path(plan.seal)) as path:
            reason = _differs(parquet.digest(path) if path.exists() else None, plan.seal.file.sha256, "sealed file")
        for manifest in plan.manifests:
            kept = reason or _retire(lake, manifest, on_step)
            yield MoveVerdict(manifest.offsets, Move.KEPT if kept else Move.RETIRED, kept)


def plan_restoration(topic: str, lake: Lake, keys: Sequence[str] = ()) -> list[Manifest]:
    """Plans which originals to restore: those of some keys, or all. Refuses a key of which no original is retired."""
    found = plan_restoring(lake.coverage(topic), {parse_key(key) for key in keys} if keys else None)
    missing = [key for key in keys if key not in {manifest.offsets.key for manifest in found}]
    if missing:
        raise Refused(
            f"no original of topic {topic} is retired of {', '.join(missing)}; nothing was moved; "
            "the column `file` of the view `ranges` (`offsetlake sql`) says where each lies"
        )
    return found


def restore_originals(
    lake: Lake, manifests: Sequence[Manifest], on_step: StepWatcher = no_step
) -> Iterator[MoveVerdict]:
    """Restores what was planned, each original by itself, under the very name that it had; yields what became of each."""
    for manifest in manifests:
        kept = _restore(lake, manifest, on_step)
        yield MoveVerdict(manifest.offsets, Move.KEPT if kept else Move.RESTORED, kept)


def _retire(lake: Lake, manifest: Manifest, on_step: StepWatcher) -> str | None:
    """Gives an original its name below `retired/`, then takes the other away; returns why not."""
    here, there, key = published_path(manifest), retired_path(manifest), manifest.offsets.key
    with lake.store.locked(manifest_path(manifest.topic, manifest.offsets, 0)):
        if lake.is_replaced(manifest):
            return "it was replaced meanwhile"
        if not lake.store.exists(here):
            return None if lake.store.exists(there) else "its file is not there"
        if reason := _differs(_digest(lake, here), manifest.digest, "published file"):
            return reason
        lake.store.publish(here, there)
        on_step("original_kept", key=key)
        if reason := _differs(_digest(lake, there), manifest.digest, "retired file"):
            return reason
        lake.store.delete_folder(here)
    on_step("original_retired", key=key)
    return None


def _restore(lake: Lake, manifest: Manifest, on_step: StepWatcher) -> str | None:
    """Gives an original the name in `data/` again; returns why not."""
    with lake.store.locked(manifest_path(manifest.topic, manifest.offsets, 0)):
        if lake.is_replaced(manifest):
            return "it was replaced meanwhile"
        if reason := _differs(_digest(lake, retired_path(manifest)), manifest.digest, "retired file"):
            return reason
        lake.store.publish(retired_path(manifest), published_path(manifest))
    on_step("original_restored", key=manifest.offsets.key)
    return None


def _digest(lake: Lake, path: str) -> str:
    with lake.local_copy(path) as file:
        return parquet.digest(file)


def _differs(found: str | None, expected: str, what: str) -> str | None:
    return None if found == expected else f"the {what} has sha256 {found}, expected {expected}"
