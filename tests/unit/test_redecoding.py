"""A decoded table without Spark: ranges decoded again, by other decoders and onto compacted files, and a table made anew.

By a decoder and a merge in pyarrow; what decides and commits is the protocol's own.
"""

import errno
import json
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pipeline_defs.adapters.formats.spark_decoding import Decision
from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.spark.engine import scan_failed
from pipeline_defs.adapters.tables.decodings import Decodings, decoded_table_log
from pipeline_defs.adapters.tables.delta_log import DeltaLog, raw_table_log
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.adapters.tables.latest_table import LatestTable
from pipeline_defs.core import errors
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.errors import BrokenTable, DamagedFile, LakeUnavailable, OutcomeUnknown
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.compaction import CompactionOutcome
from pipeline_defs.core.tables.decoded_table import TREE, Contents, DecodedGroup, document_path, is_of_dead_letters
from pipeline_defs.core.tables.decoding import Decided, choose_outdated
from pipeline_defs.core.tables.delta import Commit, File
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.landing import auditing
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.landing.auditing import MOST_NIGHTS
from pipeline_defs.operate import reader
from pipeline_defs.orchestration.assets.decoded_checks import check_decoded, check_decoded_files, read_dead_letters
from pipeline_defs.tables import compaction, decoding
from pipeline_defs.tables.deleting import may_have_leftovers, vacuum
from pipeline_defs.tables.latest import LatestTools, Updated, find_stretches, place, update
from tests.support.commands import commands_of
from tests.support.decoded import DecodedTopic, numbered
from tests.support.interleaving import beside
from tests.support.lakes import damage, planned_lake
from tests.support.redecoding import ArrowDecoder, Killed, LandedTopic, compact_decoded, stop_at
from tests.support.strategies import EPOCH_MS, TOPIC

PATIENCE_SECONDS = 30
FIRST, SECOND = OffsetRange(0, 0, 0, 10), OffsetRange(0, 0, 10, 20)
MENDED = ArrowDecoder("id DOUBLE")
WHOLE = [b'{"id": %d}' % n for n in range(10)]
POISONED = [b'{"id": 1.5}' if n == 3 else b'{"id": %d}' % n for n in range(10)]
ALL = list(range(10))


@pytest.fixture
def topic(tmp_path: Path) -> LandedTopic:
    """A topic with two planned ranges, of which nothing is landed."""
    planned_lake(tmp_path, 20)
    return LandedTopic(tmp_path)


def land_both(topic: LandedTopic) -> None:
    topic.land(FIRST, WHOLE)
    topic.land(SECOND, WHOLE)


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


def test_fields_that_are_added_and_types_that_are_widened_are_the_tables(topic: LandedTopic) -> None:
    """[R-66] Every reader sees all rows by the columns that hold them; what an older range has not is null."""
    land_both(topic)
    topic.outcome(FIRST, ArrowDecoder("id INT"))
    topic.outcome(SECOND, ArrowDecoder("id BIGINT, more STRING"))
    shown = topic.table().to_pyarrow_dataset().to_table(columns=["offset", "value"]).sort_by("offset").to_pylist()
    assert [row["value"] for row in shown[:1] + shown[-1:]] == [{"id": 0, "more": None}, {"id": 9, "more": "x"}]
    assert len(shown) == 20
    topic.outcome(FIRST, ArrowDecoder("id BIGINT, more STRING"), redo=True)
    assert topic.table().version() == 2


def test_a_type_that_is_changed_waits_until_all_ranges_have_it(topic: LandedTopic) -> None:
    """[R-66] No columns hold both: the range fails by name, and goes in with the others when these are decoded again."""
    land_both(topic)
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
    land_both(topic)
    topic.decode(FIRST, SECOND)
    monkeypatch.setattr("pipeline_defs.tables.decoding.RANGES_PER_JOB", 1)
    assert [each.outcome for each in topic.decode(FIRST, SECOND, by=MENDED, redo=True)] == [Decided.REPLACED] * 2
    assert topic.table().version() == 1, "one commit"


def test_a_landed_file_that_goes_away_fails_its_range_alone(topic: LandedTopic) -> None:
    """It is said by name, and the others are decoded."""
    land_both(topic)
    (path,) = (topic.root / "data").rglob(f"{FIRST.stem}.parquet")
    content = path.read_bytes()
    first, second = topic.decode(FIRST, SECOND, watch=stop_at("read_landed", path.unlink))
    assert (first.outcome, second.outcome) == (Decided.FAILED, Decided.DECODED)
    assert f"the landed file of range {FIRST.text(TOPIC)} is gone" in first.violations[0]
    path.write_bytes(content)
    assert topic.outcome(FIRST) is Decided.DECODED, "the control"


@pytest.mark.parametrize(
    ("cause", "jobs", "step"),
    [
        ("No space left on device", 1, "make room on the disk of"),
        ("Too many open files", 3, "raise the limit on open files"),  # fewer files have fewer open
        ("Connection reset", 3, ""),
    ],
)
def test_a_full_disk_fails_all(topic: LandedTopic, monkeypatch: pytest.MonkeyPatch, cause: str, jobs: int, step: str) -> None:
    """All ranges of the job fail with that error at once; another error is looked for in halves, the control."""
    land_both(topic)
    error = scan_failed("decode 2 landed files", Exception(f"java.io.IOException: {cause}"), "nothing became visible")
    monkeypatch.setattr(ArrowDecoder, "stage_decoded", failing := Mock(side_effect=error))
    said = [violation for verdict in topic.decode(FIRST, SECOND) for violation in verdict.violations]
    assert failing.call_count == jobs
    assert len(said) == 2 and all(step in each for each in said)


@pytest.mark.parametrize(("deaths", "outcome"), [(2, Decided.DECODED), (3, Decided.FAILED)])
def test_decoding_outlives_a_spark(topic: LandedTopic, monkeypatch: pytest.MonkeyPatch, deaths: int, outcome: Decided) -> None:
    """[R-77] In a folder of its own each time, and three times at most; no range is at fault, so none is tried alone."""
    land_both(topic)
    folders = list[str]()

    def die(*given: Any) -> None:
        folders.append(given[3])
        if len(folders) <= deaths:
            raise errors.EngineUnavailable("Spark went away")

    beside(monkeypatch, ArrowDecoder, "stage_decoded", after=die)
    assert [verdict.outcome for verdict in topic.decode(FIRST, SECOND)] == [outcome] * 2
    assert len(set(folders)) == len(folders) == 3
    assert topic.due == ([] if outcome is Decided.DECODED else [FIRST, SECOND])


def test_what_a_job_had_finished_before_it_was_stopped_is_decoded(topic: LandedTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-67] It was stuck at the others, which fail; and no other job of this run tries them."""
    land_both(topic)
    real, jobs = ArrowDecoder.stage_decoded, list[int]()

    def finish_one(self: ArrowDecoder, files: Sequence[Path], decision: Decision, folder: str, most_rows: int) -> None:
        jobs.append(most_rows)
        real(self, files[:1], decision, folder)
        raise errors.JobStuck("it finished no file")

    with monkeypatch.context() as patch:
        patch.setattr(ArrowDecoder, "stage_decoded", finish_one)
        found = {verdict.offsets: verdict for verdict in topic.decode(FIRST, SECOND)}
    assert [found[each].outcome for each in (FIRST, SECOND)] == [Decided.DECODED, Decided.FAILED]
    assert found[SECOND].violations == ("job_stuck: it finished no file",)
    assert jobs == [10] and topic.due == [SECOND]
    assert topic.outcome(SECOND) is Decided.DECODED


def test_a_long_history_is_read_from_a_checkpoint(topic: LandedTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """By who begins now as by who has read it all along; what became of each range is in it, and so are the columns."""
    monkeypatch.setattr("pipeline_defs.landing.appending.CHECKPOINT_EVERY", 3)
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
    assert [may_have_leftovers(topic.lake, EPOCH_MS + days * 86_400_000) for days in (0, 8)] == [False, True]
    assert vacuum(topic.lake, EPOCH_MS + 8 * 24 * 3_600_000) == ([f"{TREE}/{TOPIC}/_dead=false/{first}"], [])
    (left,) = topic.unnamed()
    assert vacuum(topic.lake, EPOCH_MS, older_than_seconds=-60) == ([f"{TREE}/{TOPIC}/_dead=false/{left}"], [])
    assert (topic.shown("decoded"), topic.outcome(FIRST, redo=True)) == (ALL, Decided.REPLACED)
    topic.path(FIRST).unlink()
    (error,) = vacuum(topic.lake, EPOCH_MS)[1]
    assert "nothing of the table was deleted; the check `decoded_completeness` says how" in str(error)


INT, SAME = ArrowDecoder("id INT"), ArrowDecoder("id INT NOT NULL")  # of other settings, with the same outcome
BOTH = [*ALL, *range(10, 20)]


@pytest.fixture
def compacted(topic: LandedTopic) -> LandedTopic:
    """Return a topic of two landed ranges, which are decoded, each with one dead letter, and compacted."""
    for offsets in (FIRST, SECOND):
        topic.land(offsets, POISONED)
        topic.outcome(offsets, INT)
    assert [each.outcome for each in compact_decoded(topic.lake, TOPIC)] == [CompactionOutcome.COMPACTED] * 2
    assert len(decoded_table_log(TOPIC, topic.lake).read().files) == 2
    assert compact_decoded(topic.lake, TOPIC) == [], "once"
    return topic


def test_a_document_that_is_read_for_long_holds_no_other_table_up(compacted: LandedTopic) -> None:
    """As of a store that does not answer: threads look at many topics, and Python 3.11 locks a cached property of all."""
    slow, other = (Decodings(compacted.lake).read_ranges(TOPIC) for _ in range(2))
    begun, goes_on, read = threading.Event(), threading.Event(), slow._read

    def stand_still(file: File) -> Contents:
        begun.set()
        goes_on.wait()
        return read(file)

    slow._read = stand_still
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(lambda: slow.known)
        begun.wait()
        try:
            assert {*pool.submit(lambda: other.known).result(PATIENCE_SECONDS)} == {FIRST, SECOND}
            assert not waiting.done(), "the control"
        finally:
            goes_on.set()
        assert waiting.result() == other.known


def test_dead_letters_of_one_range_are_shown_out_of_a_file_of_many(compacted: LandedTopic) -> None:
    """[R-91] `offsetlake dead-letters --key` shows its own, and no other range's, with their bytes as they were landed."""
    for chosen, expected in (([SECOND], [13]), (None, [3, 13])):
        total, names, rows = read_dead_letters(compacted.topic, chosen, 10, compacted.adapters)
        assert (total, [row[names.index("offset")] for row in rows]) == (len(expected), expected)
        assert {bytes(row[names.index("value")]) for row in rows} == {b'{"id": 1.5}'}


@pytest.mark.parametrize(("by", "how"), [(INT, "--key"), (ArrowDecoder("id INT, more STRING"), "--outdated")])
def test_columns_that_are_gone_are_named_and_made_again_as_said(compacted: LandedTopic, by: ArrowDecoder, how: str) -> None:
    """[R-91] Also where defs.yaml has changed since: then no file needs them any more."""
    (kept,) = (compacted.root / TREE / TOPIC / "_schemas").iterdir()
    kept.unlink()
    (said,) = check_decoded_files(compacted.topic, compacted.adapters).violations
    assert f"{kept}, which says what it was decoded to, is gone" in said and how in said
    compacted.decode(*([SECOND] if how == "--key" else [FIRST, SECOND]), by=by, redo=True)
    assert check_decoded_files(compacted.topic, compacted.adapters).violations == ()


def test_trace_says_that_a_record_is_a_dead_letter(compacted: LandedTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """In lines, without Python's or JSON's braces but of the record itself; the control is the record beside it."""
    run = commands_of("work.read", compacted, monkeypatch)
    shown = [run("trace", TOPIC, "0", str(offset)).stdout for offset in (12, 13)]
    assert ["decoded.dead_letter.error_class  json_mismatch" in text for text in shown] == [False, True]
    assert ["decoded.dead_letter  -\n" in text for text in shown] == [True, False]
    for text, record in zip(shown, ['{"id": 2}', '{"id": 1.5}'], strict=True):
        assert f"         row.value  {record}" in text and "{" not in text.replace(record, "")
        assert "decoded.is_outdated  true" in text and "decoded.decoded_at  2" in text and "_ms" not in text
    ours = replace(compacted.topic, decode=Decode(value=Side(Format.JSON, INT.schema)))
    monkeypatch.setattr(type(compacted), "topic", ours)
    told = run("trace", TOPIC, "0", "12").stdout
    assert "decoded.is_outdated  false" in told, "as `status` and `decode --outdated` say: it is of these settings"
    assert "decoded.is_of_replaced_file  false" in told


def test_dead_letters_are_shortened_in_a_table_and_whole_in_json(topic: LandedTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    value = json.dumps({"id": 1.5, "more": "x" * 1500}).encode()
    topic.land(FIRST, [value] * len(FIRST))
    topic.outcome(FIRST)
    run = commands_of("work.decode", topic, monkeypatch)
    table, whole = (run("dead_letters", TOPIC, *more).stdout for more in ([], ["--json"]))
    assert json.loads(whole)["shown"][0]["value"] == value.decode()
    assert f"({len(value):,} bytes in all)" in re.sub(r"[│\s]+", " ", table) and table.count("x" * 5) < 1500
    assert "error_cl" in table and "headers" not in table and "headers" in whole, "a column that has nothing takes no room"


def test_dead_letters_say_what_is_not_decoded_yet(topic: LandedTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else "0 dead letters" would be said of what nobody has tried; the control is a range that is decoded."""
    run = commands_of("work.decode", topic, monkeypatch)
    land_both(topic)
    topic.outcome(FIRST)
    for keys, waiting in (([], 1), (["--key", FIRST.key], 0)):
        ways = ([*keys, *more] for more in ([], ["--json"]))
        said, document = (run("dead_letters", TOPIC, *way).stdout for way in ways)
        assert (f"1 range is landed and not decoded yet: offsetlake decode {TOPIC} --due" in said) == bool(waiting)
        assert json.loads(document)["waiting_ranges"] == waiting


@pytest.mark.parametrize("of", [["rows"], ["dead letters"], ["rows", "dead letters"]])
@pytest.mark.parametrize("harm", [Path.unlink, damage])
def test_a_damaged_compacted_file_is_made_again(compacted: LandedTopic, harm: Callable[[Path], None], of: list[str]) -> None:
    """[R-68] [R-91] By whoever decodes one of its ranges again: its rows are not copied, the others are due, and come back."""
    decoded = Decodings(compacted.lake).read_ranges(TOPIC)
    paths = [compacted.root / decoded.path_of(FIRST, is_dead=each == "dead letters") for each in of]
    for path in paths:
        harm(path)
    lacking = [path.rpartition("/")[2] for _, path in Decodings(compacted.lake).find_lacking(decoded)]
    assert sorted(lacking) == (sorted(path.name for path in paths) if harm is Path.unlink else [])
    check = check_decoded if harm is Path.unlink else check_decoded_files
    told = check(compacted.topic, compacted.adapters).violations
    again = "`offsetlake decode orders --key 0-0-10`"
    assert [any(path.name in said and again in said for said in told) for path in paths] == [True] * len(told)
    assert compacted.outcome(FIRST, INT, redo=True) is Decided.REPLACED
    assert compacted.due == [SECOND], "the fault"
    assert compacted.shown("decoded") == [n for n in ALL if n != 3] and compacted.shown("dead_letters") == [3]
    assert compacted.outcome(SECOND, INT) is Decided.DECODED
    assert compacted.due == [] and compacted.shown("decoded") == [n for n in BOTH if n % 10 != 3]
    assert compacted.shown("dead_letters") == [3, 13], "each once"
    assert check(compacted.topic, compacted.adapters).violations == ()


@pytest.mark.parametrize("end", [KeyboardInterrupt(), OutcomeUnknown("no answer")], ids=["interrupted", "unknown"])
def test_a_lost_answer_loses_no_file(compacted: LandedTopic, monkeypatch: pytest.MonkeyPatch, end: BaseException) -> None:
    """[R-68] It has decided, and whoever made it does not know: what it names stays, documents of what was cut as well."""
    beside(monkeypatch, Decodings, "commit", after=Mock(side_effect=end))
    with suppress(KeyboardInterrupt):
        (verdict,) = compacted.decode(FIRST, by=MENDED, redo=True)
        assert verdict.outcome is Decided.FAILED
    monkeypatch.undo()
    assert compacted.due == [] and check_decoded(compacted.topic, compacted.adapters).violations == ()
    assert compacted.outcome(SECOND, MENDED, redo=True) is Decided.REPLACED
    assert compacted.shown("decoded") == BOTH and compacted.shown("dead_letters") == []


def test_the_vacuum_deletes_nothing_of_a_table_that_lacks_a_document(compacted: LandedTopic) -> None:
    """[R-100] It is named, with what makes the table anew."""
    document = compacted.root / TREE / TOPIC / document_path(min(decoded_table_log(TOPIC, compacted.lake).read().files))
    content = document.read_bytes()
    document.unlink()
    deleted, (error,) = vacuum(compacted.lake, EPOCH_MS, older_than_seconds=-1)
    assert deleted == [] and document.name in str(error) and "decoded again" in str(error)
    document.write_bytes(content)
    deleted, said = vacuum(compacted.lake, EPOCH_MS, older_than_seconds=-1)
    assert len(deleted) == 4 and said == [], "the control"


@pytest.mark.parametrize(("old", "outcome"), [(1, CompactionOutcome.COMPACTED), (2, CompactionOutcome.FAILED)])
def test_the_vacuum_leaves_the_document_of_a_file_that_a_run_is_about_to_name(
    topic: LandedTopic, monkeypatch: pytest.MonkeyPatch, old: int, outcome: CompactionOutcome
) -> None:
    """[R-84] Of one that stood still for a week; the sweep of its staging folder has renewed the file's date alone.

    The control is both of the two old: they go, and the run names neither.
    """
    land_both(topic)
    topic.decode(FIRST, SECOND, by=INT)
    lake, ages, deleted = topic.lake, dict[str, int](), list[str]()
    linked_at_ms = lake.store.linked_at_ms
    monkeypatch.setattr(lake.store, "linked_at_ms", lambda path: ages.get(path, linked_at_ms(path)))

    def let_a_week_pass(log: DeltaLog, commit: Commit, *_: object) -> None:
        (file,) = commit.adds
        ages.update({f"{log.folder}/{path}": 0 for path in (document_path(file.path), file.path)[:old]})
        deleted.extend(vacuum(lake, EPOCH_MS)[0])

    beside(monkeypatch, DeltaLog, "commit", let_a_week_pass)
    assert [each.outcome for each in compact_decoded(topic.lake, TOPIC)] == [outcome]
    assert {*deleted} == ({*ages} if old == 2 else set()) and {*topic.known} == {FIRST, SECOND}


@pytest.mark.parametrize(
    ("said", "step"),
    [
        ("Generic LocalFileSystem error\n ↳ No space left (os error 28)", "make room on"),
        ("Connection reset", "the next update"),
    ],
)
def test_an_update_on_a_full_disk_asks_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, step: str) -> None:
    monkeypatch.setattr(DeltaTable, "create", Mock(side_effect=DeltaError(f"Failed to parse parquet: External: {said}")))
    with pytest.raises(LakeUnavailable, match=f"{re.escape(said.replace(chr(10) + ' ↳', ':'))}; .* nothing is lost; {step}"):
        LatestTable(Lake(str(tmp_path)), TOPIC).start(pa.schema([("key", pa.binary())]), anew=False)


def test_a_login_in_what_a_store_says_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Generic S3 error\n ↳ error sending request for url (http://user:hush@proxy:1/b)"
    monkeypatch.setattr(DeltaTable, "create", Mock(side_effect=DeltaError(said)))
    monkeypatch.setattr(DeltaLog, "_run", Mock(side_effect=OSError(said)))
    lake = Lake(str(tmp_path))
    table, columns = LatestTable(lake, TOPIC), pa.schema([("key", pa.binary())])
    for failing in (lambda: table.start(columns, anew=False), raw_table_log(TOPIC, lake.store).write_checkpoint):
        with pytest.raises(LakeUnavailable, match=r"error: error sending request for url \(http://proxy:1/b\)") as told:
            failing()
        assert "hush" not in f"{told.value}{told.value.__cause__}"


def test_a_latest_table_whose_version_was_vacuumed_is_made_anew(tmp_path: Path) -> None:
    """[R-87] It stood still for more than a week: the log has the version still, and its documents are gone."""
    lake = Lake(str(tmp_path))
    topic = DecodedTopic(lake, TOPIC, pa.binary())
    ranges = [OffsetRange(0, 0, at, at + 3) for at in range(0, 15, 3)]

    def put(*chosen: OffsetRange) -> None:
        for offsets in chosen:
            topic.put(offsets, numbered(offsets, [b"a", b"b", b"c"]))

    def bring() -> Updated:
        tools = LatestTools(Decodings(lake), lambda: EPOCH_MS)
        return update(TOPIC, Latest(), Attempt("update", "run", "test"), tools)

    put(*ranges[:2])
    compact_decoded(lake, TOPIC)
    bring()
    put(*ranges[2:4])
    compact_decoded(lake, TOPIC)
    assert vacuum(lake, EPOCH_MS + 8 * 86_400_000)[0], "the fault"
    put(ranges[4])
    assert "no version" in bring().rebuilt
    assert topic.shown() == topic.recomputed()
    put(OffsetRange(0, 0, 15, 18))
    assert (done := bring()).ranges == 1 and not done.rebuilt, "the control: it goes on from there"


def test_the_vacuum_of_a_latest_table_leaves_what_is_not_the_tables(tmp_path: Path) -> None:
    """[R-84] A person's note, and what a link leads to outside of the lake; the control is a file that was replaced."""
    lake = Lake(str(tmp_path / "lake"))
    topic = DecodedTopic(lake, TOPIC, pa.binary())
    for offsets in (OffsetRange(0, 0, 0, 1), OffsetRange(0, 0, 1, 2)):
        topic.put(offsets, numbered(offsets, [b"a"]))
        update(TOPIC, Latest(), Attempt("update", "run", "test"), LatestTools(Decodings(lake), lambda: EPOCH_MS))
    folder, elsewhere = tmp_path / "lake" / "tables" / "latest" / TOPIC, tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "link").symlink_to(elsewhere)
    foreign = [folder / "notes.md", folder / "mine.parquet", elsewhere / "part-1.parquet"]
    for each in foreign:
        each.write_text("kept")
    deleted, errors = vacuum(lake, EPOCH_MS, older_than_seconds=0)
    assert [path for path in deleted if path.startswith("tables/latest")] and errors == []
    assert all(each.read_text() == "kept" for each in foreign)


def test_a_file_that_is_gone_is_named_by_whoever_needs_it_with_what_makes_it_again(compacted: LandedTopic) -> None:
    """[R-68] `offsetlake sql` leaves out that view alone; the audit and an update of the latest table say what to do."""
    lake = compacted.lake
    decoded = Decodings(lake).read_ranges(TOPIC)
    gone = compacted.root / decoded.path_of(FIRST)
    gone.unlink()
    duck = Duck(lake, [TOPIC])
    assert duck.query(f"SELECT count(*) FROM {TOPIC}")[1] == [(20,)], "the control: what is landed is there"
    with pytest.raises(BrokenTable, match=r"a file of the decoded table of topic orders cannot be read: .*offsetlake audit"):
        duck.query(f"SELECT * FROM decoded.{TOPIC}")
    (said,) = check_decoded(compacted.topic, compacted.adapters).violations
    assert gone.name in said and "offsetlake decode orders --key 0-0-10" in said
    placed = place(decoded, lambda offsets: 0)
    with pytest.raises(BrokenTable, match=r"is gone; .*decode orders --key 0-0-10"):
        find_stretches(placed, placed, lake)
    gone.write_bytes(b"PAR1")
    with pytest.raises(BrokenTable, match="a file of the decoded table of topic orders cannot be read: "):
        Duck(lake, [TOPIC]).query(f"SELECT * FROM decoded.{TOPIC}")
    with pytest.raises(DamagedFile, match=r"a file of the lake cannot be read: .*offsetlake audit"):
        reader.read(TOPIC, table="decoded", lake=compacted.root)


@pytest.mark.parametrize(
    ("number", "step"),
    [(errno.EMFILE, "raise the limit on open files"), (errno.EIO, "nothing was written; the next run tries")],
)
def test_a_file_unreadable_once_stays(compacted: LandedTopic, number: int, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-91] Nothing leaves the table; who decodes is told, and the next run is right."""
    path, failed = compacted.path(FIRST), list[Path]()

    def refuse_once(opened: Path, *_: Any, **__: Any) -> None:
        if opened == path and not failed:
            failed.append(opened)
            raise OSError(number, "for a moment")

    with monkeypatch.context() as patch:
        beside(patch, Path, "open", refuse_once)
        (verdict,) = compacted.decode(FIRST, by=MENDED, redo=True)
    assert failed and verdict.outcome is Decided.FAILED
    assert "for a moment; " in verdict.violations[0] and step in verdict.violations[0]
    assert compacted.due == [] and compacted.shown("decoded") == [n for n in BOTH if n % 10 != 3]
    assert compacted.outcome(FIRST, MENDED, redo=True) is Decided.REPLACED


def test_what_is_said_of_a_range_and_in_no_file_is_named(compacted: LandedTopic) -> None:
    """[R-67] `decoded + dead letters = landed` is held against the files that the log names, not against words alone."""
    assert check_decoded(compacted.topic, compacted.adapters).violations == (), "the control"
    log = decoded_table_log(TOPIC, compacted.lake)
    table = log.read()
    (dead,) = [file for file in table.files.values() if is_of_dead_letters(file)]
    assert log.commit(Commit(removes={dead.path: EPOCH_MS}), table, EPOCH_MS)
    first, second = check_decoded(compacted.topic, compacted.adapters).violations
    assert "no file of the table has its 1 dead letters" in first and "0-10-20" in second


def test_each_night_reads_a_part_of_a_large_table(compacted: LandedTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-39] All of it within so many nights, each file once; a file that was found changed, each night."""
    of = compacted.topic, compacted.adapters
    damage(compacted.path(SECOND))
    (said,) = check_decoded_files(*of).violations
    monkeypatch.setattr(auditing, "NIGHTLY_BYTES", 1)
    nights = [check_decoded_files(*of, night=night).violations for night in range(MOST_NIGHTS)]
    assert [*chain(*nights)] == [said], "the control"
    nights = [check_decoded_files(*of, night=night, doubted=[FIRST.key]).violations for night in range(MOST_NIGHTS)]
    assert [*chain(*nights)] == [said] * MOST_NIGHTS, "what the last night named, each night looks at"


def test_a_damaged_file_is_not_compacted(compacted: LandedTopic) -> None:
    """[R-91] Nothing that rotted gets a fresh digest; the other files of the table are."""
    compacted.outcome(FIRST, SAME, redo=True)  # a file of its own, and dead letters, beside the compacted ones
    path = compacted.path(SECOND)
    content = path.read_bytes()
    damage(path)
    failed, done = compact_decoded(compacted.lake, TOPIC)
    assert failed.outcome is CompactionOutcome.FAILED and done.outcome is CompactionOutcome.COMPACTED
    assert "has sha256" in failed.violations[0] and "offsetlake decode orders --key 0-10-20" in failed.violations[0]
    path.write_bytes(content)
    (verdict,) = compact_decoded(compacted.lake, TOPIC)
    assert verdict.outcome is CompactionOutcome.COMPACTED, "the control"


def test_a_fault_that_nobody_foresaw_fails_one_group_and_one_range(topic: LandedTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-91] It is told by its type alone; the other group is compacted, the other range decoded."""

    def fail(_: object, found: DecodedGroup | Manifest, *__: object) -> None:
        if found.is_dead if isinstance(found, DecodedGroup) else found.offsets == FIRST:
            raise KeyError("a record has hush-4711")

    topic.land(FIRST, POISONED)
    topic.land(SECOND, POISONED)
    with monkeypatch.context() as failing:
        beside(failing, decoding, "describe", fail)
        first, second = topic.decode(FIRST, SECOND, by=INT)
    assert (first.outcome, second.outcome) == (Decided.FAILED, Decided.DECODED)
    assert topic.outcome(FIRST, INT) is Decided.DECODED
    with monkeypatch.context() as failing:
        beside(failing, compaction, "_compact", fail)
        done, failed = compact_decoded(topic.lake, TOPIC)
    assert (done.outcome, failed.outcome) == (CompactionOutcome.COMPACTED, CompactionOutcome.FAILED)
    for (said,) in (first.violations, failed.violations):
        assert "KeyError was raised at" in said and "hush" not in said
    assert [each.outcome for each in compact_decoded(topic.lake, TOPIC)] == [CompactionOutcome.COMPACTED], "the control"


def test_a_range_is_decoded_again_onto_a_file_that_was_compacted_meanwhile(compacted: LandedTopic) -> None:
    """[R-91] Who decodes looks again, and cuts what is there by then: the other range stays as it is in what is left."""
    compacted.outcome(FIRST, SAME, redo=True)
    other = compacted.known[SECOND]
    meanwhile = stop_at("place_decoded", lambda: compact_decoded(compacted.lake, TOPIC))
    (verdict,) = compacted.decode(FIRST, by=MENDED, redo=True, watch=meanwhile)
    assert verdict.outcome is Decided.REPLACED
    assert compacted.shown("decoded") == [n for n in BOTH if n != 13] and compacted.shown("dead_letters") == [13]
    assert compacted.known[SECOND] == other and compacted.known[FIRST].revision == 2
    assert compacted.outcome(SECOND, INT, redo=True) is Decided.UNCHANGED, "the same rows are found in the file"
    named = {file.path for file in decoded_table_log(TOPIC, compacted.lake).read().files.values()}
    assert {path.removeprefix(f"{TREE}/{TOPIC}/") for path in compacted.lake.store.list(f"{TREE}/{TOPIC}")} >= named


def test_what_is_cut_has_the_columns_of_its_ranges_and_no_more(topic: LandedTopic) -> None:
    """[R-91] A range that widened a column takes that along: else one of the narrow type could never be read again."""
    land_both(topic)
    topic.outcome(FIRST, ArrowDecoder("id INT"))
    topic.outcome(SECOND, ArrowDecoder("id BIGINT, more STRING"))
    compact_decoded(topic.lake, TOPIC)
    kind = pq.read_schema(topic.path(FIRST)).field("value").type
    assert kind == pa.struct([("id", pa.int64()), ("more", pa.string())]), "the control: the file holds both"
    assert topic.outcome(SECOND, ArrowDecoder("id INT"), redo=True) is Decided.REPLACED
    assert pq.read_schema(topic.path(FIRST)).field("value").type == pa.struct([("id", pa.int32())])
    rows = topic.table().to_pyarrow_dataset().to_table(columns=["offset", "value"]).sort_by("offset").to_pylist()
    assert [(row["offset"], row["value"]["id"]) for row in rows] == [*zip(BOTH, [*ALL, *ALL], strict=True)]
    assert pa.schema(topic.table().schema().to_arrow()).field("value").type == pa.struct([("id", pa.int32())])


@pytest.fixture
def decoded(tmp_path: Path) -> DecodedTopic:
    """A topic of which a range is decoded, and nothing is landed."""
    topic = DecodedTopic(Lake(str(tmp_path)), TOPIC, pa.string())
    topic.put(FIRST, numbered(FIRST, "abc"))
    return topic


def folder(topic: DecodedTopic) -> Path:
    return Path(topic.lake.store.url(f"{TREE}/{topic.name}"))


def test_who_has_read_a_table_reads_only_what_is_newer_and_sees_that_it_was_made_anew(decoded: DecodedTopic) -> None:
    """A process that lives long: the folder is moved away, and the next table comes to the same version."""
    decodings = Decodings(decoded.lake)
    assert decodings.read_ranges(TOPIC) is decodings.read_ranges(TOPIC), "nothing is newer"
    decoded.put(SECOND, numbered(SECOND, "abc"))
    assert set(decodings.read(TOPIC)) == {FIRST, SECOND}
    shutil.move(folder(decoded), folder(decoded).with_name("away"))
    assert decodings.read(TOPIC) == {}
    shutil.move(folder(decoded).with_name("away"), folder(decoded))
    assert set(decodings.read(TOPIC)) == {FIRST, SECOND}, "the control"
    shutil.rmtree(folder(decoded))
    for offsets in (SECOND, OffsetRange(0, 1, 0, 10)):
        decoded.put(offsets, numbered(offsets, "xyz"))
    assert set(decodings.read(TOPIC)) == {SECOND, OffsetRange(0, 1, 0, 10)}


def test_a_file_that_is_gone_before_the_commit_is_not_committed(decoded: DecodedTopic) -> None:
    """[R-68] A version never names what is not there."""
    decodings = Decodings(decoded.lake)
    lost = decoded.put(FIRST, numbered(FIRST, "abc"), revision=1)
    assert lost.decoded is not None
    (folder(decoded) / lost.decoded.path).unlink()
    never = replace(lost, decoded=replace(lost.decoded, path="never.parquet"))
    with pytest.raises(LakeUnavailable, match=r"it is not there any more, .* the table stays as it was"):
        decodings.commit([never], decodings.read_ranges(TOPIC), EPOCH_MS)
    ((_, path),) = decodings.find_lacking(decodings.read_ranges(TOPIC))
    assert path.endswith(lost.decoded.path), "and what goes later is named"


def test_columns_that_are_gone_and_a_log_of_nonsense_are_one_clear_error_each(decoded: DecodedTopic) -> None:
    shutil.rmtree(folder(decoded) / "_schemas")
    decoded.value_type = pa.struct([("m", pa.int64())])
    with pytest.raises(DamagedFile, match=r"_schemas/\w{16}\.json, the columns of decoded files, is gone or was changed"):
        decoded.put(SECOND, {10: ("k", {"m": 1})})
    assert set(Decodings(decoded.lake).read(TOPIC)) == {FIRST}
    (commit,) = (folder(decoded) / "_delta_log").glob("*.json")
    as_read = re.sub(r',"sha256":"\w{64}"', "", commit.read_text(), count=1)  # else its lines are not as they were written
    commit.write_text(as_read.replace('\\"decoder\\":', '\\"reader\\":'))
    with pytest.raises(BrokenTable, match=r"it has reader, which nobody writes.*move the table's folder away"):
        Decodings(decoded.lake).read(TOPIC)


@pytest.mark.parametrize("how", ["gone", "torn", "changed"])
def test_columns_that_are_not_as_they_were_are_named_and_made_again(topic: LandedTopic, how: str) -> None:
    """[R-68] All that is decoded waits for them: the audit says by which command they come back, and they do."""
    topic.land(FIRST, WHOLE)
    topic.outcome(FIRST)
    assert check_decoded_files(topic.topic, topic.adapters).passed, "the control"
    (kept,) = (topic.root / TREE / TOPIC / "_schemas").iterdir()
    written = kept.read_bytes()
    kept.unlink()
    if how != "gone":
        kept.write_bytes(written[:9] if how == "torn" else written.replace(b"id", b"ie"))
    topic.land(SECOND, WHOLE)
    (verdict,) = topic.decode(SECOND, by=MENDED)
    assert "the columns of decoded files, is gone or was changed" in verdict.violations[0], "the fault"
    (named,) = check_decoded_files(topic.topic, topic.adapters).violations
    assert (
        f"{kept.name}, which says what it was decoded to, is gone or changed; `offsetlake decode orders --key 0-0-10`" in named
    )
    assert topic.outcome(FIRST, redo=True) is Decided.UNCHANGED
    assert kept.read_bytes() == written and check_decoded_files(topic.topic, topic.adapters).passed


def test_columns_are_kept_beside_each_table_and_again_where_it_is_made_anew(decoded: DecodedTopic) -> None:
    """[R-68] By one process, which has kept them for another table, or in the folder that somebody moved away meanwhile."""
    decodings = Decodings(decoded.lake)
    assert {decodings.keep(name, "columns") for name in ("payments", "trades")} == {decodings.keep("trades", "columns")}
    assert [len([*(folder(decoded).with_name(name) / "_schemas").iterdir()]) for name in ("payments", "trades")] == [1, 1]
    ours = Decodings(decoded.lake).read(TOPIC)[FIRST]
    (kept,) = (folder(decoded) / "_schemas").iterdir()
    assert decodings.keep(TOPIC, json.loads(kept.read_text())) == ours.columns
    shutil.move(folder(decoded), folder(decoded).with_name("away"))
    assert ours.decoded is not None
    shutil.copytree(folder(decoded).with_name("away"), folder(decoded), ignore=shutil.ignore_patterns("_delta_log", "_schemas"))
    assert not kept.exists(), "the fault"
    assert decodings.commit([ours], decodings.read_ranges(TOPIC), EPOCH_MS)
    assert kept.exists() and decodings.find_lacking_texts(decodings.read_ranges(TOPIC)) == []
