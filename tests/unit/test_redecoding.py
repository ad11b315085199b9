"""Decoding again: another landed file, another decoder, attempts that stand still, and staging that is gone.

By a decoder without Spark; what decides, commits and publishes is the protocol's own.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline_defs.core.decoders import Decode, Format, Side
from pipeline_defs.core.decoding import Decided, choose_outdated
from pipeline_defs.core.errors import EngineUnavailable
from pipeline_defs.core.planning import Policy
from pipeline_defs.decoded_checks import read_dead_letters
from pipeline_defs.edges.decodings import Decodings, decoded_path
from pipeline_defs.edges.engine import scan_failed
from pipeline_defs.edges.lake import Lake
from pipeline_defs.edges.spark_decoding import Decision
from pipeline_defs.topics import Topic
from tests.support.redecoding import ArrowDecoder, Killed, LandedTopic, stop_at
from tests.support.strategies import TOPIC
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


def lose_staging(topic: LandedTopic) -> None:
    shutil.rmtree(topic.root / "staging")


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


@pytest.mark.parametrize("step", ["commit_decoded", "file_published"])
def test_a_stale_attempt_does_not_bring_a_dead_letter_back(topic: LandedTopic, step: str) -> None:
    """[R-67] [R-69] Who stands still while a mended decoder makes the next revision publishes nothing that it took away."""
    topic.land(FIRST, POISONED)
    (verdict,) = topic.decode(FIRST, watch=stop_at(step, lambda: topic.outcome(FIRST, MENDED, redo=True)))
    assert verdict.decoding is not None and verdict.decoding.dead == 1, "the fault: a dead letter was to be published"
    assert topic.known[FIRST].revision == 1
    assert (topic.shown("decoded"), topic.shown("dead_letters"), topic.due) == (ALL, [], [])


def test_a_stale_attempt_does_not_bring_decoded_rows_back(topic: LandedTopic) -> None:
    """[R-67] [R-69] The mirror image: what the next revision has as dead letters alone."""
    topic.land(FIRST, [b'{"id": 1.5}'] * 10)
    meanwhile = stop_at("commit_decoded", lambda: topic.outcome(FIRST, redo=True))
    (verdict,) = topic.decode(FIRST, by=MENDED, watch=meanwhile)
    assert verdict.decoding is not None and verdict.decoding.rows == 10, "the fault"
    assert (topic.shown("decoded"), topic.shown("dead_letters"), topic.due) == ([], ALL, [])


def test_a_stale_attempt_between_the_next_document_and_its_files_changes_nothing(topic: LandedTopic) -> None:
    """[R-69] Also where the mended attempt was killed before anything of it could be seen: the next run publishes it."""
    topic.land(FIRST, POISONED)

    def mend_and_die() -> None:
        with pytest.raises(Killed):
            topic.decode(FIRST, by=MENDED, redo=True, watch=stop_at("commit_decoded"))

    topic.decode(FIRST, watch=stop_at("commit_decoded", mend_and_die))
    assert topic.due == [FIRST], "the fault"
    assert topic.outcome(FIRST, MENDED) is Decided.ROLLED_FORWARD
    assert (topic.shown("decoded"), topic.shown("dead_letters"), topic.due) == (ALL, [], [])


def test_a_mended_range_whose_staging_is_lost_between_its_files_loses_its_dead_letter_still(topic: LandedTopic) -> None:
    """[R-68] Its document says that there is none any more; the file without rows that was staged for it is gone."""
    topic.land(FIRST, POISONED)
    topic.outcome(FIRST)
    with pytest.raises(Killed):
        topic.decode(FIRST, by=MENDED, redo=True, watch=stop_at("file_published"))
    lose_staging(topic)
    assert (topic.due, topic.shown("dead_letters")) == ([FIRST], [3]), "the fault"
    assert topic.outcome(FIRST, MENDED) is Decided.REPLACED
    assert (topic.due, topic.shown("decoded"), topic.shown("dead_letters")) == ([], ALL, [])


def test_a_decoder_that_is_put_back_after_staging_was_lost_is_published(topic: LandedTopic) -> None:
    """[R-68] A document of another decoder stands, whose files are gone; what can be seen is of the one before."""
    topic.land(FIRST, WHOLE)
    topic.outcome(FIRST)
    with pytest.raises(Killed):
        topic.decode(FIRST, by=MENDED, redo=True, watch=stop_at("commit_decoded"))
    lose_staging(topic)
    assert topic.due == [FIRST], "the fault"
    assert topic.outcome(FIRST) is Decided.REPLACED
    assert (topic.due, topic.known[FIRST].schema["value"]) == ([], "struct<id: int64>")


def test_a_first_decoding_whose_staging_is_lost_is_made_again(topic: LandedTopic) -> None:
    """[R-68] By the same decoder the same bytes come out: then the document that stands is published, and stays."""
    topic.land(FIRST, POISONED)
    with pytest.raises(Killed):
        topic.decode(FIRST, watch=stop_at("commit_decoded"))
    lose_staging(topic)
    assert (topic.due, topic.shown("decoded")) == ([FIRST], []), "the fault"
    assert topic.outcome(FIRST) is Decided.UNCHANGED
    assert (topic.due, topic.shown("dead_letters"), topic.known[FIRST].revision) == ([], [3], 0)


def test_a_file_as_large_as_that_of_the_revision_before_is_told_from_it(topic: LandedTopic) -> None:
    """[R-68] With its staging lost only the bytes tell which revision can be seen."""
    first, second = ArrowDecoder(compression="none"), ArrowDecoder(shift=100, compression="none")
    topic.land(FIRST, WHOLE)
    topic.outcome(FIRST, first)
    before = topic.known[FIRST].decoded
    with pytest.raises(Killed):
        topic.decode(FIRST, by=replace(second, schema="id  BIGINT"), redo=True, watch=stop_at("commit_decoded"))
    after = topic.known[FIRST].decoded
    lose_staging(topic)
    assert before is not None and after is not None
    assert before.bytes == after.bytes and before.sha256 != after.sha256, "the fault"
    assert topic.due == [FIRST]
    assert topic.outcome(FIRST, replace(second, schema="id  BIGINT")) is Decided.UNCHANGED
    path = topic.root / decoded_path(TOPIC, FIRST)
    assert (topic.due, pq.read_table(path)["value"].to_pylist()[0]) == ([], {"id": 100})


def test_the_thousandth_revision_is_later_than_the_one_before(topic: LandedTopic) -> None:
    """As text 1000 comes before 999."""
    topic.land(FIRST, WHOLE)
    topic.outcome(FIRST)
    decodings = Decodings(topic.lake)
    for revision in (999, 1000):
        decodings.commit(replace(topic.known[FIRST], revision=revision))
    assert topic.known[FIRST].revision == 1000


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


def test_dead_letters_are_shown_while_others_wait_to_be_published(topic: LandedTopic) -> None:
    """A document is there before its files: those of other ranges are shown all the same."""
    for offsets in (FIRST, SECOND):
        topic.land(offsets, POISONED)
    topic.outcome(FIRST)
    with pytest.raises(Killed):
        topic.decode(SECOND, watch=stop_at("commit_decoded"))
    assert topic.known[SECOND].dead == 1 and topic.due == [SECOND], "the fault"
    total, columns, rows = read_dead_letters(Topic(TOPIC, Policy()), None, 10, topic.edges)
    assert (total, [row[columns.index("offset")] for row in rows]) == (1, [3])
    topic.outcome(SECOND)
    assert read_dead_letters(Topic(TOPIC, Policy()), [SECOND], 10, topic.edges)[0] == 1


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
