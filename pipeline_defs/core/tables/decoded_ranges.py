"""The decoded ranges of a topic at one version of its table: one by one, and summed up.

Ranges with files of their own are known one by one. Of those in a compacted file there are sums, and its document is read
only where one of its ranges may be asked for. So the cost of a run does not grow with history.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Self

from ..log.coverage import Coverage
from ..log.frontier import CONTENTS, content_of
from ..offsets import OffsetRange, find_clash
from .decoded_sums import DecodedSums, sum_up
from .decoded_table import TREE, Contents, Packed, is_of_dead_letters, is_packed, read_contents, read_packed
from .decoding import Decoding, find_due, of_nothing
from .delta import File, Snapshot


class DecodedRanges:
    """The decoded ranges of a topic at one version of its table; `read` returns the contents of a file.

    `packed` has the log's entry of each compacted file by path, `loaded` the contents of the files read so far.
    What `before`, an earlier version, has is not read again.
    """

    def __init__(self, topic: str, table: Snapshot, read: Callable[[File], Contents], before: Self | None = None) -> None:
        self.topic = topic
        self.table = table
        self._read = read
        known: Mapping[str, Contents] = before.loaded if before is not None else {}
        packed: Mapping[str, Packed] = before.packed if before is not None else {}
        self.packed: dict[str, Packed] = {
            path: packed.get(path) or read_packed(file) for path, file in table.files.items() if is_packed(file)
        }
        self.loaded: dict[str, Contents] = {path: each for path, each in known.items() if path in table.files}
        for path, file in table.files.items():
            if path not in self.packed and path not in known:
                self.loaded[path] = read_contents(file)
        is_same = before is not None and before.packed.keys() == self.packed.keys()
        self.packed_sums: DecodedSums = (
            before.packed_sums
            if before is not None and is_same
            else sum((each.sums for each in self.packed.values()), DecodedSums())
        )

    @cached_property
    def recent(self) -> Mapping[OffsetRange, Decoding]:
        """The decodings of the ranges that have files of their own, sorted."""
        return _by_range(self.loaded[path] for path in self.table.files if path not in self.packed)

    @cached_property
    def sums(self) -> DecodedSums:
        """The sums of all ranges."""
        return self.packed_sums + sum_up(self.recent.values())

    @property
    def has_rows(self) -> bool:
        """Whether any record is decoded: without one no columns are known."""
        return bool(self.sums.rows)

    @property
    def known(self) -> Mapping[OffsetRange, Decoding]:
        """The decodings of all ranges, sorted; reads all documents."""
        if not self._is_all_read:  # read here: while a cached property is computed, Python 3.11 locks it for every topic
            for path in self.table.files:
                self.contents_of(path)
        return self._known

    @cached_property
    def _known(self) -> Mapping[OffsetRange, Decoding]:
        return _by_range(map(self.contents_of, self.table.files))

    def get(self, offsets: OffsetRange) -> Decoding | None:
        """Return the decoding of a range; none where the table has neither rows nor dead letters of it."""
        if self._is_all_read:
            return self.known.get(offsets)
        found = self.recent.get(offsets)
        for path in self._paths_with(offsets) if found is None else ():
            if (found := self.contents_of(path).get(offsets)) is not None:
                break
        return found

    def file_of(self, offsets: OffsetRange, *, is_dead: bool = False) -> File | None:
        """Return the file that has the decoded rows of a range, or its dead letters; none where it has none."""
        path = (self._every if self._is_all_read else self._own).get((offsets, is_dead))
        for packed in self._paths_with(offsets) if path is None and not self._is_all_read else ():
            if is_of_dead_letters(self.table.files[packed]) == is_dead and self.contents_of(packed).has(offsets):
                path = packed
                break
        return None if path is None else self.table.files[path]

    def path_of(self, offsets: OffsetRange, *, is_dead: bool = False) -> str:
        """Return the path below the lake's root of a range's decoded rows, or dead letters; raise `KeyError` without any."""
        file = self.file_of(offsets, is_dead=is_dead)
        if file is None:
            raise KeyError(offsets.key)
        return f"{TREE}/{self.topic}/{file.path}"

    def contents_of(self, path: str) -> Contents:
        """Return the contents of a file; for a compacted one its document is read."""
        if path not in self.loaded:
            self.loaded[path] = self._read(self.table.files[path])
        return self.loaded[path]

    def among(self, is_wanted: Callable[[DecodedSums], bool]) -> Iterator[Decoding]:
        """Yield, sorted, the decodings of compacted files whose sums are wanted, and of all ranges with files of their own."""
        paths = [path for path, each in self.packed.items() if is_wanted(each.sums)]
        found = chain(self.recent.values(), *(self.contents_of(path).decodings for path in paths))
        yield from sorted(found, key=lambda each: each.offsets)

    @property
    def _is_all_read(self) -> bool:
        return "_known" in vars(self)

    @cached_property
    def _own(self) -> Mapping[tuple[OffsetRange, bool], str]:
        return self._paths(self.table.files.keys() - self.packed.keys())

    @cached_property
    def _every(self) -> Mapping[tuple[OffsetRange, bool], str]:
        return self._paths(self.table.files)

    def _paths(self, paths: Iterable[str]) -> dict[tuple[OffsetRange, bool], str]:
        return {
            (offsets, is_of_dead_letters(self.table.files[path])): path
            for path in paths
            for offsets in self.contents_of(path).ranges
        }

    def _paths_with(self, offsets: OffsetRange) -> list[str]:
        return [path for path, each in self.packed.items() if each.may_have(offsets)]

    def find_due(self, coverage: Coverage) -> list[OffsetRange]:
        """Find the landed ranges of a coverage that are not decoded from their current landed file, in log order."""
        return find_due(coverage, self._getter(coverage))

    def is_all_decoded(self, coverage: Coverage) -> bool:
        """Return whether the ranges that a frontier document sums up are all decoded from their current landed files."""
        if coverage.log.base is None:
            return True
        own = (self.get(offsets) for offsets in coverage.log.ranges)
        newer = sum(content_of(each.offsets, each.source) for each in own if each is not None and each.rows + each.dead)
        landed = sum(sums.contents for sums in coverage.log.summed.values())
        return (self.sums.contents - newer - landed) % CONTENTS == 0

    def of(self, coverage: Coverage) -> Mapping[OffsetRange, Decoding]:
        """Return the decoding of each range of a coverage, also of landed ones without rows, which the table does not have."""
        look_up, found = self._getter(coverage), dict[OffsetRange, Decoding]()
        for offsets in coverage.log.ranges:
            manifest, decoding = coverage.manifests.get(offsets), look_up(offsets)
            if decoding is None and manifest is not None and not manifest.rows and coverage.is_landed(offsets):
                decoding = of_nothing(manifest)
            if decoding is not None:
                found[offsets] = decoding
        return found

    def _getter(self, coverage: Coverage) -> Callable[[OffsetRange], Decoding | None]:
        return self.known.get if coverage.log.base is None else self.get

    def find_clash(self, offsets: OffsetRange) -> OffsetRange | None:
        """Return another range of the table that overlaps this one."""
        lanes = ((path, each.lanes.get(offsets.place)) for path, each in self.packed.items())
        touched = (path for path, lane in lanes if lane and lane.start < offsets.end and offsets.start < lane.end)
        ranges = chain([self._sorted], (sorted(self.contents_of(path).ranges) for path in touched))
        return next((found for each in ranges if (found := find_clash(offsets, each)) is not None), None)

    @cached_property
    def _sorted(self) -> list[OffsetRange]:
        return sorted(self.recent)

    def find_left(self, ranges: Iterable[OffsetRange]) -> dict[str, Contents]:
        """Return by path what is left in each file that has some of these ranges, once they are removed from it."""
        gone = set(ranges)
        files = (self.file_of(offsets, is_dead=is_dead) for offsets in gone for is_dead in (False, True))
        paths = sorted({file.path for file in files if file is not None})
        return {path: self.contents_of(path).without(gone) for path in paths}

    def columns_beside(self, left: Mapping[str, Contents]) -> set[str]:
        """Return the digests of all columns, taking of the files in `left`, by path, only what is left of them."""
        beside = (self.loaded[path].decodings for path in self.table.files.keys() - self.packed.keys() - left.keys())
        single = chain(*beside, *(each.decodings for each in left.values()))
        packed = (each.sums.columns for path, each in self.packed.items() if path not in left)
        return {each.columns for each in single if each.columns}.union(*packed)


def _by_range(contents: Iterable[Contents]) -> dict[OffsetRange, Decoding]:
    found = {each.offsets: each for content in contents for each in content.decodings}
    return dict(sorted(found.items()))
