"""The published files of a lake: how one gets its final name, is exchanged, and goes.

Invariant: a name shows nothing, or one whole file; which one, the newest manifest says.
"""

from contextlib import suppress
from functools import partial

from ...core.log.manifest import Manifest, StagedFile
from ..store.store import Answer
from .documents import Documents
from .layout import given_up_paths, manifest_path, published_path


class DataFiles(Documents):
    """Publishes the files that manifests name, beside these documents."""

    def is_published(self, manifest: Manifest) -> bool:
        """Return whether the file under the final name is the manifest's, as far as its size says, or was dropped from there.

        The file of an earlier revision may have the same size; until it is exchanged the staged one is there.
        """
        if manifest.file is None:
            return True
        is_there = self.store.size(published_path(manifest)) == manifest.file.bytes
        return (is_there and not (manifest.revision and self._is_staged(manifest))) or self.is_dropped(manifest)

    def is_dropped(self, manifest: Manifest) -> bool:
        """Return whether the manifest's file was dropped, be it gone already or not."""
        following = None if manifest.is_dropped else self._following(manifest)
        return manifest.is_dropped or (following is not None and following.is_dropped)

    def own_path(self, manifest: Manifest) -> str | None:
        """Return where the manifest's file is published; none where it was dropped, and the raw table has its rows."""
        path = published_path(manifest)
        return path if self.store.exists(path) or not self.is_dropped(manifest) else None

    def publish(self, manifest: Manifest, staged: str | None = None, *, mend: bool = False) -> Manifest | None:
        """Make the manifest's file stand under its final name; return the manifest whose file stands there then.

        That is this one, or a later revision; none where nothing could be published, since the staged file is gone. `staged`
        is where the bytes are staged, if not where the manifest says. A free name is taken by the first revision with
        put-if-absent; else the file is exchanged in one step: for another revision's, for one of another size, or, to `mend`
        it, of another digest. What was dropped and has gone is not brought back.
        """
        self.delete_given_up(manifest)
        if manifest.file is not None and not manifest.is_dropped:
            self._show(manifest, manifest.file, staged or manifest.file.path, mend=mend)
        newest = self.newest(manifest)
        if newest != manifest:
            self.delete_given_up(newest)  # what was published here may have been dropped meanwhile, or before
        return newest if self.is_published(newest) else None

    def _show(self, manifest: Manifest, file: StagedFile, staged: str, *, mend: bool) -> None:
        """Give a staged file its final name, where that is free, or has not the manifest's file."""
        path, guard = published_path(manifest), manifest_path(manifest.topic, manifest.offsets, 0)
        is_first, is_due = manifest.revision == 0, partial(self._is_due, manifest)
        with suppress(FileNotFoundError):  # another has published it, or it is gone: what stands there says which
            if is_first and not mend:
                answer = self.store.publish(staged, path, guard=guard, is_due=is_due)
                if answer is Answer.COMMITTED or self.store.size(path) == file.bytes:
                    return
            self.store.exchange(staged, path, guard=guard, is_due=is_due)
            if not is_first and staged != file.path and not self.is_replaced(manifest):
                self.store.delete_folder(file.path)  # torn, or it would have been published: it is not owed any more

    def delete_given_up(self, manifest: Manifest) -> None:
        """Delete what is under names that drops have given up, and what was staged for them, so that nobody publishes it late.

        Anybody may, at any time: no manifest publishes anything there again.
        """
        if manifest.is_dropped and manifest.file is not None:
            self.store.delete_folder(manifest.file.path)
        for path in given_up_paths(manifest):
            self.store.delete_folder(path)

    def is_replaced(self, manifest: Manifest) -> bool:
        """Return whether there is a later revision of the manifest."""
        return self.newest(manifest).revision != manifest.revision

    def _is_due(self, manifest: Manifest) -> bool:
        return self.own_path(manifest) is not None and not self.is_replaced(manifest)

    def _is_staged(self, manifest: Manifest) -> bool:
        # publishing leaves the staged file, an exchange takes it away
        return manifest.file is not None and self.store.exists(manifest.file.path)
