"""Swept originals: retired files that are given up, since a sealed file has their rows, and that are made again from it.

A word in `swept/` comes before the file goes, and stays. From then on a sealed file is where the range's rows are read, and
the last one that has them is never deleted. Invariant: no row is deleted that stands nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .core.errors import SealedFileGone
from .core.manifest import Manifest
from .core.originals import Move, MoveVerdict, SealedOriginals, Sweep, plan_sweeping
from .core.seal import Seal
from .edges import parquet
from .edges.footer import canonicalize
from .edges.lake import Lake
from .edges.layout import manifest_path, published_path, retired_path
from .edges.seals import Seals, deletion_guard, sealed_path
from .edges.spark_files import SparkFiles
from .originals import Found, read_used, why_differs
from .settings import code_version
from .standing import Digests, scratch_folder
from .steps import StepWatcher, no_step

if TYPE_CHECKING:
    from pyarrow import Table


def plan_sweep(topic: str, lake: Lake, now_ms: int, older_than_seconds: float) -> list[SealedOriginals]:
    """Plans which retired originals to give up now, by sealed file; writes nothing."""
    coverage = lake.coverage(topic)
    return plan_sweeping(coverage, read_used(coverage, lake), now_ms - int(older_than_seconds * 1000))


def sweep_originals(
    lake: Lake, plans: Sequence[SealedOriginals], now_ms: int, on_step: StepWatcher = no_step
) -> Iterator[MoveVerdict]:
    """Gives up the retired originals that were planned; yields what became of each. Whoever dies at it is followed by any.

    Before, the sealed file has the digest of its seal, and the very rows of each original. The word comes first, then it is
    asked once more whether readers use that sealed file, then the retired files go, both while no sealing can delete it.
    """
    for plan in plans:
        said = list(_say_all(lake, plan, now_ms))
        on_step("sweep_said", key=plan.seal.offsets.key)
        topic = plan.seal.topic
        with lake.store.locked(deletion_guard(topic)):
            is_used = plan.seal in read_used(lake.coverage(topic), lake)
            for manifest, why_not in said:
                kept = why_not or (_sweep(lake, manifest) if is_used else "its sealed file was superseded meanwhile")
                if kept is None:
                    on_step("original_swept", key=manifest.offsets.key)
                yield MoveVerdict(manifest.offsets, Move.KEPT if kept else Move.SWEPT, kept)


def find_originals(lake: Lake, manifests: Sequence[Manifest], files: SparkFiles) -> Iterator[Found]:
    """Yields each retired original with where it lies, or why it is nowhere; those that were swept last, made again."""
    swept = []
    for manifest in manifests:
        if lake.own_path(manifest) is None:
            swept.append(manifest)
        else:
            yield manifest, retired_path(manifest)
    yield from _make_again(lake, swept, files)


def _make_again(lake: Lake, originals: Sequence[Manifest], files: SparkFiles) -> Iterator[Found]:
    """Has Spark make swept originals again; yields each with where it lies, for as long as nobody asks for the next.

    Of another Spark the bytes may be others: whoever takes one holds it against its digest.
    """
    digests, by_sealed_file = Digests(lake), dict[str, list[Manifest]]()
    for manifest in originals:
        try:
            by_sealed_file.setdefault(sealed_path(digests.holder(manifest)), []).append(manifest)
        except SealedFileGone as error:
            yield manifest, error
    for path, manifests in by_sealed_file.items():
        with scratch_folder(lake, "restore") as folder, lake.local_copy(path) as sealed:
            made = files.cut(path, sealed, [manifest.offsets for manifest in manifests], folder / "cut")
            for manifest in manifests:
                canonicalize(made[manifest.offsets])
                yield manifest, f"staging/{folder.name}/{made[manifest.offsets].relative_to(folder).as_posix()}"


def _say_all(lake: Lake, plan: SealedOriginals, now_ms: int) -> Iterator[tuple[Manifest, str | None]]:
    """Says of each original of a sealed file that it is given up, in one reading of that file; yields why not, where not."""
    by_range = {manifest.offsets: manifest for manifest in plan.manifests}
    if reason := Seals(lake).why_changed(plan.seal):
        yield from ((manifest, reason) for manifest in plan.manifests)
        return
    with lake.local_copy(sealed_path(plan.seal)) as sealed:
        for offsets, rows in parquet.read_ranges(sealed, sorted(by_range)):
            yield by_range[offsets], _say(lake, plan.seal, by_range[offsets], rows, now_ms)


def _say(lake: Lake, seal: Seal, manifest: Manifest, rows: Table, now_ms: int) -> str | None:
    """Says that a retired original is given up, once the sealed file is seen to have its rows; returns why not."""
    try:
        with lake.local_copy(retired_path(manifest)) as file:
            if reason := why_differs(parquet.digest(file), manifest.digest, "retired file"):
                return reason
            if difference := parquet.differing_from(file, rows):
                return f"the sealed file has other rows: {difference}"
    except FileNotFoundError:
        return None if lake.own_path(manifest) is None else "its file is not there"
    word = Sweep(
        manifest.topic,
        manifest.offsets.key,
        manifest.revision,
        manifest.digest,
        sealed_path(seal),
        seal.file.sha256,
        code_version(),
        now_ms,
    )
    lake.give_up(manifest, word.to_json())
    return None


def _sweep(lake: Lake, manifest: Manifest) -> str | None:
    """Takes a retired original away of which it was said before; returns why not. One that is replaced by now may go, too."""
    with lake.store.locked(manifest_path(manifest.topic, manifest.offsets, 0)):
        if lake.store.exists(published_path(manifest)):
            return "it was restored meanwhile"
        lake.store.delete_folder(retired_path(manifest))
    return None
