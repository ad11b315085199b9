"""Decoding again: another landed file, another decoder, attempts that stand still, columns that change.

By a decoder without Spark; what decides and commits is the protocol's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline_defs.adapters.decoding.spark_decoding import Decision
from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.spark.engine import scan_failed
from pipeline_defs.adapters.tables.decodings import Decodings
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.errors import EngineUnavailable
from pipeline_defs.core.tables.decoded_table import TREE
from pipeline_defs.core.tables.decoding import Decided, choose_outdated
from pipeline_defs.tables.vacuum import vacuum
from tests.support.redecoding import ArrowDecoder, Killed, LandedTopic, stop_at
from tests.support.strategies import EPOCH_MS, TOPIC
from tests.unit.test_lake_coverage import FIRST, SECOND, lake

__all__ = ["lake"]

MENDED = ArrowDecoder("id DOUBLE")
WHOLE = [b'{"id": %d}' % n for n in range(10)]
POISONED = [b'{"id": 1.5}' if n == 3 else b'{"id": %d}' % n for n in range(10)]
ALL = list(range(10))


@pytest.fixture
def topic(lake: Lake, tmp_path: Path) -> LandedTopic:
    """Is a topic with two planned ranges, of which nothing is landed."""
    return LandedTopic(tmp_path)


def test_a_replaced_range_with_the_same_decoded_rows_is_decoded_once(topic: LandedTopic) -> None:
    """[R-70] What is due is due until a document says that it was decoded from what is landed now."""
    topic.land(FIRST, [text[:-1] + b', "note": "x"}' for text in WHOLE])
    assert topic.outcome(FIRST) is Decided.DECODED
    topic.land(FIRST, [text[:-1] + b', "note": "other"}' for text in WHOLE], revision=1)
    assert topic.due == [FIRST], "the fault"
    assert topic.outcome(FIRST) is Decided.REPLACED
    assert (topic.due, topic.shown("decoded")) == ([], ALL)
    assert topic.outcome(FIRST, redo=True) is Decided.UNCHANGED, "the control: the same file, the same decoder"


def test_what_was_decoded_again_by_other_settings_is_outdated_no_more(topic: LandedTopic) -> None:
    """[R-70] With the same rows too: else a person who has the outdated ranges decoded again never comes to an end."""
    topic.land(FIRST, WHOLE)
    topic.outcome(FIRST)
    new = ArrowDecoder("id BIGINT NOT NULL")
    configured = Decode(value=Side(Format.JSON, new.schema)).fingerprint
    assert choose_outdated(topic.known, configured) == [FIRST], "the fault"
    assert topic.outcome(FIRST, new, redo=True) is Decided.REPLACED
    assert (choose_outdated(topic.known, configured), topic.shown("decoded")) == ([], ALL)


@pytest.mark.parametrize("step", ["verify_decoded", "place_decoded"])
def test_a_stale_attempt_does_not_bring_a_dead_letter_back(topic: LandedTopic, step: str) -> None:
    """[R-67] [R-69] Who stands still while a mended decoder decodes the range again finds it decoded, and leaves it."""
    topic.land(FIRST, POISONED)
    (verdict,) = topic.decode(FIRST, watch=stop_at(step, lambda: topic.outcome(FIRST, MENDED)))
    assert verdict.outcome is Decided.SUPERSEDED and verdict.decoding == topic.known[FIRST]
    assert (topic.shown("decoded"), topic.shown("dead_letters"), topic.due) == (ALL, [], [])
    assert topic.unnamed() == [], "its own files are gone"


def test_a_stale_attempt_does_not_bring_decoded_rows_back(topic: LandedTopic) -> None:
    """[R-67] [R-69] The mirror image, decoding again: what the next revision has as dead letters alone."""
    topic.land(FIRST, [b'{"id": 1.5}'] * 10)
    topic.outcome(FIRST, MENDED)
    meanwhile = stop_at("place_decoded", lambda: topic.outcome(FIRST, redo=True))
    (verdict,) = topic.decode(FIRST, by=replace(MENDED, shift=1), redo=True, watch=meanwhile)
    assert verdict.outcome is Decided.SUPERSEDED and topic.known[FIRST].revision == 1
    assert (topic.shown("decoded"), topic.shown("dead_letters"), topic.due) == ([], ALL, [])


def test_a_range_that_is_landed_anew_while_it_is_decoded_is_not_committed_as_it_was(topic: LandedTopic) -> None:
    """[R-70] Also where the later one was decoded first: an old row never takes the place of a new one."""
    topic.land(FIRST, WHOLE)

    def land_and_decode() -> None:
        topic.land(FIRST, [b'{"id": %d}' % (n + 50) for n in range(10)], revision=1)
        assert topic.outcome(FIRST) is Decided.DECODED

    (verdict,) = topic.decode(FIRST, watch=stop_at("place_decoded", land_and_decode))
    assert verdict.outcome is Decided.FAILED and "was landed anew while it was decoded" in verdict.violations[0]
    assert (topic.values(FIRST), topic.due) == (list(range(50, 60)), [])


def test_a_range_that_has_no_rows_any_more_has_none_in_the_table(topic: LandedTopic) -> None:
    """[R-70] And is not due again; its revision goes on counting when it has rows again."""
    topic.land(FIRST, WHOLE)
    topic.outcome(FIRST)
    topic.land(FIRST, [], revision=1)
    assert topic.due == [FIRST], "the fault"
    assert topic.outcome(FIRST) is Decided.REPLACED
    assert (topic.shown("decoded"), topic.due, topic.known[FIRST].revision) == ([], [], 1)
    topic.land(FIRST, WHOLE, revision=2)
    assert topic.outcome(FIRST) is Decided.REPLACED
    assert (topic.shown("decoded"), topic.known[FIRST].revision) == (ALL, 2)


@pytest.mark.parametrize("step", ["verify_decoded", "place_decoded"])
def test_an_attempt_that_dies_before_its_commit_has_changed_nothing(topic: LandedTopic, step: str) -> None:
    """[R-68] And one that dies after it has done all: the control."""
    topic.land(FIRST, POISONED)
    topic.outcome(FIRST)
    with pytest.raises(Killed):
        topic.decode(FIRST, by=MENDED, redo=True, watch=stop_at(step))
    assert (topic.shown("decoded"), topic.shown("dead_letters")) == ([n for n in ALL if n != 3], [3])
    with pytest.raises(Killed):
        topic.decode(FIRST, by=MENDED, redo=True, watch=stop_at("commit_decoded"))
    assert (topic.shown("decoded"), topic.shown("dead_letters"), topic.due) == (ALL, [], [])


@pytest.mark.parametrize("harm", ["delete", "change"])
def test_a_file_of_the_table_that_is_gone_or_changed_is_made_again(topic: LandedTopic, harm: str) -> None:
    """[R-68] By the same decoder the same rows come out, under another name."""
    topic.land(FIRST, WHOLE)
    topic.outcome(FIRST)
    assert topic.outcome(FIRST, redo=True) is Decided.UNCHANGED, "the control"
    path = topic.path(FIRST)
    content = path.read_bytes()
    path.unlink() if harm == "delete" else path.write_bytes(bytes(100) + content[100:])
    assert topic.outcome(FIRST, redo=True) is Decided.REPLACED
    assert (topic.values(FIRST), path.name in {each.name for each in topic.root.rglob("*.parquet")}) == (ALL, harm == "change")


def test_fields_that_are_added_and_types_that_are_widened_are_the_tables(topic: LandedTopic) -> None:
    """[R-66] Every reader sees all rows by the columns that hold them; what an older range has not is null."""
    topic.land(FIRST, WHOLE)
    topic.land(SECOND, WHOLE)
    topic.outcome(FIRST, ArrowDecoder("id INT"))
    topic.outcome(SECOND, ArrowDecoder("id BIGINT, more STRING"))
    shown = topic.table().to_pyarrow_dataset().to_table(columns=["offset", "value"]).sort_by("offset").to_pylist()
    assert [row["value"] for row in shown[:1] + shown[-1:]] == [{"id": 0, "more": None}, {"id": 9, "more": "x"}]
    assert len(shown) == 20
    topic.outcome(FIRST, ArrowDecoder("id BIGINT, more STRING"), redo=True)
    assert topic.table().version() == 2


def test_a_type_that_is_changed_waits_until_all_ranges_have_it(topic: LandedTopic) -> None:
    """[R-66] No columns hold both: the range fails by name, and goes in with the others when these are decoded again."""
    topic.land(FIRST, WHOLE)
    topic.land(SECOND, WHOLE)
    topic.outcome(FIRST)
    (verdict,) = topic.decode(SECOND, by=MENDED)
    assert verdict.outcome is Decided.FAILED
    assert "value.id is of type " in verdict.violations[0] and "--outdated" in verdict.violations[0]
    assert (topic.shown("decoded"), topic.due, topic.unnamed()) == (ALL, [SECOND], [])
    outcomes = [each.outcome for each in topic.decode(FIRST, SECOND, by=MENDED, redo=True)]
    assert sorted(outcomes) == [Decided.DECODED, Decided.REPLACED]
    assert len(topic.shown("decoded")) == 20 and topic.due == []


def test_what_does_not_fit_goes_in_once_the_last_batch_makes_room(topic: LandedTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-66] Of a history of many Spark jobs all ranges go in together, in one version."""
    topic.land(FIRST, WHOLE)
    topic.land(SECOND, WHOLE)
    topic.decode(FIRST, SECOND)
    monkeypatch.setattr("pipeline_defs.tables.decoding.RANGES_PER_JOB", 1)
    verdicts = topic.decode(FIRST, SECOND, by=MENDED, redo=True)
    assert [each.outcome for each in verdicts] == [Decided.REPLACED] * 2
    assert topic.table().version() == 1, "one commit"


def test_a_landed_file_that_goes_away_fails_its_range_alone(topic: LandedTopic) -> None:
    """It is said by name, and the others are decoded."""
    topic.land(SECOND, WHOLE)
    gone = topic.land(FIRST, WHOLE)
    assert gone.file is not None
    (path,) = (topic.root / "data").rglob(f"{FIRST.stem}.parquet")
    content = path.read_bytes()
    first, second = topic.decode(FIRST, SECOND, watch=stop_at("read_landed", path.unlink))
    assert (first.outcome, second.outcome) == (Decided.FAILED, Decided.DECODED)
    assert f"the landed file of range {FIRST.text(TOPIC)} is gone" in first.violations[0]
    path.write_bytes(content)
    assert topic.outcome(FIRST) is Decided.DECODED, "the control"


class OnFullDisk(ArrowDecoder):
    """A decoder whose every job ends as Java says; counts its jobs."""

    cause, jobs = "java.io.IOException: No space left on device", 0

    def stage_decoded(self, files: Sequence[Path], decision: Decision, folder: str) -> None:
        self.jobs += 1
        raise scan_failed(f"decode {len(files)} landed files", Exception(self.cause), "nothing became visible")


def test_a_full_disk_is_no_decoded_ranges_fault(topic: LandedTopic) -> None:
    """All ranges of the job fail with that error at once; another error is looked for in halves, the control."""
    topic.land(FIRST, WHOLE)
    topic.land(SECOND, WHOLE)
    full, other = OnFullDisk(), OnFullDisk()
    other.cause = "java.io.IOException: Connection reset"
    said = [violation for verdict in topic.decode(FIRST, SECOND, by=full) for violation in verdict.violations]
    assert full.jobs == 1 and len(said) == 2
    assert all("make room on that disk" in each for each in said)
    topic.decode(FIRST, SECOND, by=other)
    assert other.jobs == 3


class Dying(ArrowDecoder):
    """A decoder whose Spark is gone in the middle of so many jobs, after it has written something."""

    deaths = 0
    folders: Sequence[str] = ()

    def stage_decoded(self, files: Sequence[Path], decision: Decision, folder: str) -> None:
        self.folders = [*self.folders, folder]
        super().stage_decoded(files, decision, folder)
        if len(self.folders) <= self.deaths:
            raise EngineUnavailable("Spark went away")


@pytest.mark.parametrize(("deaths", "outcome"), [(2, Decided.DECODED), (3, Decided.FAILED)])
def test_decoding_goes_on_with_another_spark(topic: LandedTopic, deaths: int, outcome: Decided) -> None:
    """[R-77] In a folder of its own each time, and three times at most; no range is at fault, so none is tried alone."""
    topic.land(FIRST, WHOLE)
    topic.land(SECOND, WHOLE)
    dying = Dying()
    dying.deaths = deaths
    assert [verdict.outcome for verdict in topic.decode(FIRST, SECOND, by=dying)] == [outcome] * 2
    assert len(set(dying.folders)) == len(dying.folders) == 3
    assert topic.due == ([] if outcome is Decided.DECODED else [FIRST, SECOND])


def test_a_long_history_is_read_from_a_checkpoint(topic: LandedTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """By who begins now as by who has read it all along; what became of each range is in it, and so are the columns."""
    monkeypatch.setattr("pipeline_defs.landing.raw_table.CHECKPOINT_EVERY", 3)
    topic.land(FIRST, WHOLE)
    topic.outcome(FIRST)
    known = Decodings(topic.lake)
    for shift in range(1, 8):
        assert topic.outcome(FIRST, ArrowDecoder(f"id BIGINT, n{shift} INT", shift), redo=True) is Decided.REPLACED
        assert known.read(TOPIC) == topic.known
    for commit in (topic.root / TREE / TOPIC / "_delta_log").glob("*.json"):
        if int(commit.stem) < 6:
            commit.unlink()
    assert known.read(TOPIC) == topic.known
    assert (topic.known[FIRST].revision, topic.values(FIRST)) == (7, [n + 7 for n in range(10)])
    assert topic.outcome(FIRST, ArrowDecoder("id DOUBLE"), redo=True) is Decided.REPLACED, "it knows the columns"


def test_files_that_no_version_has_any_more_go_after_a_week(topic: LandedTopic) -> None:
    """[R-69] [R-84] And those of an attempt that died before its commit; what is in the table, and its columns, stay."""
    topic.land(FIRST, WHOLE)
    topic.outcome(FIRST)
    first = topic.path(FIRST).name
    topic.outcome(FIRST, ArrowDecoder("id INT"), redo=True)
    with pytest.raises(Killed):
        topic.decode(FIRST, by=MENDED, redo=True, watch=stop_at("place_decoded"))
    assert len(topic.unnamed()) == 2
    assert vacuum(topic.lake, EPOCH_MS) == ([], []), "a reader may be at the version before"
    assert vacuum(topic.lake, EPOCH_MS + 8 * 24 * 3_600_000) == ([f"{TREE}/{TOPIC}/_dead=false/{first}"], [])
    (left,) = topic.unnamed()
    assert vacuum(topic.lake, EPOCH_MS, older_than_seconds=-60) == ([f"{TREE}/{TOPIC}/_dead=false/{left}"], [])
    assert (topic.shown("decoded"), topic.outcome(FIRST, redo=True)) == (ALL, Decided.REPLACED)
    topic.path(FIRST).unlink()
    (error,) = vacuum(topic.lake, EPOCH_MS)[1]
    assert "nothing of the table was deleted; the check `decoded_completeness` says how" in str(error)
