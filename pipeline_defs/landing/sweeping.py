"""Sweeping: what attempts that died left in staging goes, once no run can still be at work on it and no manifest needs it.

Invariant: only `staging/` is touched, and never a file that a manifest names and that is not published.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from ..adapters.lake.lake import Lake
from ..adapters.store.store import Entry
from ..core.log.settling import LONGEST_RUN_SECONDS

SWEEP_AFTER_SECONDS = LONGEST_RUN_SECONDS


def find_orphans(lake: Lake, now_ms: int, older_than_seconds: float) -> dict[str, Entry]:
    """Find what attempts left that have written nothing for so long, by their names, unless a manifest needs a file of it."""
    latest_ms = now_ms - older_than_seconds * 1000
    old = {name: entry for name, entry in lake.store.entries("staging").items() if entry.changed_at_ms < latest_ms}
    needed = _needed(lake, old.keys()) if old else set()
    return {name: entry for name, entry in sorted(old.items()) if name not in needed}


def sweep_orphans(
    lake: Lake,
    now_ms: int,
    older_than_seconds: float = SWEEP_AFTER_SECONDS,
    on_swept: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Entry]:
    """Delete the orphans and return them; any number of sweepers may be at it; `on_swept` is told done, and of how many.

    Were an attempt alive after all, it would fail to publish, and its ranges would be landed again: nothing is lost.
    """
    orphans = find_orphans(lake, now_ms, older_than_seconds)
    for done, orphan in enumerate(orphans, 1):
        lake.store.delete_folder(f"staging/{orphan}")
        on_swept(done, len(orphans))
    return orphans


def _needed(lake: Lake, names: AbstractSet[str]) -> set[str]:
    """Return those that hold a file which a manifest, of whatever topic, has decided on and is not published."""
    needed: set[str] = set()
    for topic in lake.landed_topics():
        for manifest in lake.read_manifests(topic).values():
            name = manifest.file.path.split("/")[1] if manifest.file else ""
            if name in names - needed and not lake.is_published(manifest):
                needed.add(name)
    return needed
