"""What landing says and what stands: replaces onto free names, lost and damaged files, policies that change, slow writers.

On a disk and in a bucket with S3's conditional puts; each law is one that a user could see broken.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from obstore.exceptions import PreconditionError

from pipeline_defs.adapters.lake.layout import manifest_path, published_path
from pipeline_defs.adapters.store import object_store, store
from pipeline_defs.core.errors import LakeUnavailable
from pipeline_defs.core.landing.tiling import tiling_violations
from pipeline_defs.core.landing.verdicts import Outcome, Verdict
from pipeline_defs.core.log.coverage import State
from pipeline_defs.core.log.delivery import Acceptance, Delivery
from pipeline_defs.core.log.holes import SpanKind
from pipeline_defs.core.log.losses import find_losses
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.offsets import OffsetRange, TopicRange
from pipeline_defs.core.tables.compaction import CompactionOutcome
from pipeline_defs.core.tables.decoding import Decided
from pipeline_defs.landing import landing
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.landing.auditing import check_published
from pipeline_defs.landing.staging import Matched, match_parts
from pipeline_defs.landing.staging_places import Staging, staging_here
from pipeline_defs.tables.deleting import SWEEP_AFTER_SECONDS, sweep_orphans
from tests.support.fake_log import TOPIC
from tests.support.interleaving import DEADLINE_SECONDS, SmallWorld, Writer, assert_all_is_in_order, beside
from tests.support.redecoding import OffsetDecoder, decode_by, stop_at
from tests.support.strategies import EPOCH_MS

pytestmark = pytest.mark.usefixtures("watched")


def outcomes(verdicts: list[Verdict]) -> list[Outcome]:
    return [verdict.outcome for verdict in verdicts]


def land_and_spoil(world: SmallWorld, change: Callable[[bytes], bytes]) -> None:
    """Land all, and put other bytes in the place of the first file, as a failing disk or a careless person would."""
    world.land()
    path = published_path(world.first)
    data = world.files()[path]
    world.lake.store.delete(path)
    assert world.lake.store.put_new(path, change(data), "staging/careless")


def assert_all_is_shown_once(world: SmallWorld) -> None:
    assert_all_is_in_order(world.lake)
    assert world.shown() == dict.fromkeys(world.in_kafka(), 1)


def test_a_range_that_had_no_record_is_replaced_and_shown(world: SmallWorld) -> None:
    """[R-48] Read committed it has only aborted records; read again as it is now, it has some: they are shown, or it is red."""
    log = world.kafka.now.partitions[0]
    log.append([SpanKind.ABORTED] * 3, "late", EPOCH_MS)
    world.plan()
    world.land()
    aborted = world.coverage.log.links[-1].offsets
    assert world.coverage.manifests[aborted].file is None, "the control: it was landed without a file"
    for offset in range(aborted.start, aborted.end):  # as an isolation level that was changed shows them
        log.appended[offset] = replace(log.appended[offset], kind=SpanKind.DATA)
    assert outcomes(world.land("replace")) == [Outcome.UNCHANGED, Outcome.UNCHANGED, Outcome.REPLACED]
    assert_all_is_shown_once(world)


def test_a_lost_file_is_landed_again_and_shown(world: SmallWorld) -> None:
    """[R-24] By the next run where Kafka has the same; a redo says so too, and so does a replace."""
    for mode in ("land", "redo", "replace"):
        world.land()
        world.lake.store.delete(published_path(world.first))
        assert world.shown().keys() < world.in_kafka(), "the fault"
        digest = world.first.digest
        assert world.land(mode)[0].outcome is Outcome.LANDED
        assert world.first.digest == digest
        assert_all_is_shown_once(world)


def test_a_lost_file_of_which_kafka_has_less_is_replaced_and_shown(world: SmallWorld) -> None:
    """[R-48] Its name is free, and on a disk its folder gone: what was read now is shown, as the next revision."""
    world.land()
    for path in world.files():
        world.lake.store.delete(path)
    world.lake.store.delete("data")
    world.kafka.compact(100)
    assert len(world.in_kafka()) < 6
    assert outcomes(world.land("replace")) == [Outcome.LANDED, Outcome.LANDED]
    assert_all_is_shown_once(world)
    assert world.land("replace") and set(outcomes(world.land("redo"))) == {Outcome.UNCHANGED}


@pytest.mark.parametrize("before", Delivery)
@pytest.mark.parametrize("after", Delivery)
def test_a_replace_under_any_policy_shows_each_row_once(world: SmallWorld, before: Delivery, after: Delivery) -> None:
    """[R-48] [R-49] Landed under one policy, read again and replaced under another or the same: nothing is doubled."""
    world.land(delivery=before)
    world.kafka.compact(100)
    assert Outcome.REPLACED in outcomes(world.land("replace", delivery=after))
    assert_all_is_shown_once(world)


def double_it(world: SmallWorld, delivery: Delivery) -> None:
    """Have an attempt under at_least_once be overtaken by one under another policy, and publish after it."""
    overtake = partial(world.land, lake=world.open(Writer()), delivery=delivery)
    world.land(on_step=stop_at("verify", overtake), delivery=Delivery.AT_LEAST_ONCE)
    world.lake = world.open(Writer())
    assert 2 in world.shown().values(), "the fault: published under its own name before the commit"


@pytest.mark.parametrize("policy", [Delivery.EFFECTIVELY_ONCE, Delivery.AT_LEAST_ONCE])
def test_a_double_that_no_policy_allows_is_named_and_deleted_by_a_replace(world: SmallWorld, policy: Delivery) -> None:
    """[R-37] [R-49] What a stale attempt doubles under at_least_once stays, unnamed; under another policy tiling names it.

    Until a replace says which rows there are.
    """
    world.delivery = policy
    double_it(world, policy)
    assert set(world.shown()) == world.in_kafka()
    said = tiling_violations(world.coverage)
    if policy is Delivery.AT_LEAST_ONCE:
        assert said == [], "the control"
    else:
        assert "may show its rows a second time" in said[0] and "--on-change replace" in said[0]
    world.land("replace")
    assert_all_is_shown_once(world)


def test_at_most_once_lands_by_the_attempt_that_claimed_and_by_no_other(world: SmallWorld) -> None:
    """[R-50] A is paused after its claim, B is refused, A goes on and lands."""
    world.delivery = Delivery.AT_MOST_ONCE
    refused = list[Verdict]()
    world.land(on_step=stop_at("stage", lambda: refused.extend(world.land("redo", world.open(Writer())))))
    assert set(outcomes(refused)) == {Outcome.FAILED}
    assert find_losses(world.coverage) == []
    assert_all_is_shown_once(world)


def sweep(world: SmallWorld, *, later: bool = True) -> int:
    """Sweep by the clock, or as if nothing that is in staging now could be of a living run; return of how many attempts."""
    return len(sweep_orphans(world.lake, time.time_ns() // 1_000_000 + later * int(SWEEP_AFTER_SECONDS * 1000 + 60_000)))


@pytest.mark.parametrize("world", ["disk"], indirect=True)  # in a bucket nothing is staged before it is verified
def test_what_a_killed_attempt_staged_is_swept_and_nothing_else(world: SmallWorld) -> None:
    """[R-58] Not while a run may be at work on it, and never a published file; the range lands as ever."""
    world.land()
    world.grow(3)
    world.die("stage")
    before = world.files(), world.lake.store.list("manifests")
    assert world.lake.store.entries("staging") and sweep(world, later=False) == 0, "the control: it may be alive"
    assert sweep(world) == 1 and not world.lake.store.entries("staging")
    assert (world.files(), world.lake.store.list("manifests")) == before
    world.land()
    assert_all_is_shown_once(world)


@pytest.mark.parametrize("mode", ["land", "replace"])
def test_what_is_committed_and_not_published_stays_until_it_is(world: SmallWorld, mode: str) -> None:
    """[R-58] However old: its manifest has decided, and the staged file is what will be published, or exchanged."""
    if mode == "replace":
        world.land()
        world.kafka.compact(50)
    before = world.files()
    world.die("commit", mode)
    assert world.files() == before and world.lake.store.entries("staging") and sweep(world) == 0, "the fault"
    assert world.land()[0].outcome is Outcome.ROLLED_FORWARD
    sweep(world)
    assert not world.lake.store.entries("staging"), "the control: now nobody needs it"
    world.land("replace")
    assert_all_is_shown_once(world)


@pytest.mark.parametrize("mode", ["land", "replace"])
@pytest.mark.parametrize("then", ["nothing", "compacted", "expired"])
def test_a_manifest_whose_staged_file_was_swept_does_not_stick(world: SmallWorld, mode: str, then: str) -> None:
    """[R-23] [R-24] A writer sleeps before it commits, a sweep deletes what it staged, Kafka goes on: the range is finished."""
    if mode == "replace":
        world.land()
        world.kafka.compact(50)
    verdicts = world.land(mode, on_step=stop_at("commit", world.drop_staging))
    assert Outcome.FAILED in outcomes(verdicts), "the fault: committed, and the staged file is gone"
    if then == "compacted":
        world.kafka.compact(100)
    if then == "expired":
        world.kafka.expire(0, 40)
    world.land(on_loss="record")
    assert_all_is_in_order(world.lake)
    assert max(world.shown().values()) == 1
    assert world.in_kafka() <= set(world.shown())


def test_a_person_can_accept_what_was_committed_and_never_published(world: SmallWorld) -> None:
    """[R-42] Its staged file is gone and Kafka has deleted it: after a person's word it is finished, and named as lost."""
    world.die("commit")
    world.drop_staging()
    world.kafka.expire(0, 50)
    (failed, *_) = world.land()
    assert failed.outcome is Outcome.FAILED and "accept-loss" in failed.violations[0]
    offsets = failed.offsets
    world.lake.commit_acceptance(Acceptance(TOPIC, offsets, (offsets.start, offsets.end), "ann", EPOCH_MS))
    world.land()
    assert world.coverage.pending() == [] and tiling_violations(world.coverage) == []
    assert set(world.shown()) == world.in_kafka()


def test_a_commit_whose_staged_file_was_torn_is_landed_again_with_the_same_digest(world: SmallWorld) -> None:
    """[R-24] What is no longer what was committed is never shown: the range is read again, as the next revision."""
    world.die("commit")
    before = world.first
    assert before.file is not None
    data = world.lake.store.get(before.file.path)
    assert data is not None and not world.shown(), "the fault: committed, and not published"
    world.drop_staging()
    assert world.lake.store.put_new(before.file.path, data[:-100] + bytes(100), "staging/careless")
    verdict = world.land()[0]
    assert (verdict.outcome, verdict.manifest) == (Outcome.LANDED, world.first)
    assert (world.first.revision, world.first.digest) == (before.revision + 1, before.digest)
    assert_all_is_shown_once(world)


@pytest.mark.parametrize("at", ["commit", "verify"])
@pytest.mark.parametrize("delivery", [Delivery.EFFECTIVELY_ONCE, Delivery.AT_MOST_ONCE])
def test_a_committed_range_of_a_recreated_topic_is_published(world: SmallWorld, delivery: Delivery, at: str) -> None:
    """[R-60] What is decided is finished, and not called lost; the control is what was not committed."""
    world.delivery = delivery
    world.die(at)
    committed = [*world.coverage.manifests]  # of both ranges, or of one: its death may come before the other's thread begins
    assert bool(committed) == (at == "commit") and not world.shown(), "the fault"
    world.kafka.recreate(1)
    world.plan()
    world.land()
    assert world.shown() == {offset: 1 for each in committed for offset in range(each.start, each.end)}
    assert len(find_losses(world.coverage)) == 2 - len(committed)


def test_what_a_run_has_shown_is_not_taken_by_one_that_read_less(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-17] Committed, never published, its staged file gone: of two who read it again at once, one decides what is shown."""
    world.die("commit")
    world.drop_staging()
    has_read, has_compared = threading.Event(), threading.Event()
    shown: list[Mapping[int, int]] = []

    def read_before_the_compaction() -> None:
        def wait(step: str, **_: object) -> None:
            if step == "verify" and not has_read.is_set():
                has_read.set()
                assert has_compared.wait(DEADLINE_SECONDS)

        world.land(lake=world.open(Writer()), on_step=wait)
        shown.append(world.shown())

    other = threading.Thread(target=read_before_the_compaction)
    other.start()
    assert has_read.wait(DEADLINE_SECONDS)
    world.kafka.compact(100)
    lake = world.open(Writer())

    def wait_for_the_other(_: Manifest) -> None:
        has_compared.set()
        other.join(DEADLINE_SECONDS)

    beside(monkeypatch, lake, "commit_manifest", wait_for_the_other)
    world.land(lake=lake)
    assert shown[0].keys() > world.in_kafka(), "the fault: the other has read what is gone now"
    assert world.shown() == shown[0]
    assert world.coverage.pending() == []


@pytest.mark.parametrize("step", ["stage", "verify"])
def test_a_replace_that_was_overtaken_brings_nothing_back(world: SmallWorld, step: str) -> None:
    """[R-60] It has read before another replaced the range: which is the newer reading is not known, so it writes nothing."""
    world.land()
    world.kafka.compact(40)

    def overtake() -> None:
        world.kafka.compact(100)
        world.land("replace", world.open(Writer()))
        assert world.shown() == dict.fromkeys(world.in_kafka(), 1)

    verdicts = world.land("replace", on_step=stop_at(step, overtake))
    refused = [each for each in verdicts if each.outcome is Outcome.FAILED]
    assert refused, "the fault"
    assert all("since this run began" in each.violations[-1] for each in refused)
    assert world.shown() == dict.fromkeys(world.in_kafka(), 1)
    assert set(outcomes(world.land("replace"))) == {Outcome.UNCHANGED}


def test_a_file_that_was_cut_short_is_not_landed_and_mended_by_the_next_run(world: SmallWorld) -> None:
    """[R-16] Its size is not the manifest's: tiling says so, the range is pending, and Kafka still has the same rows."""
    land_and_spoil(world, lambda data: data[:-10])
    coverage = world.coverage
    assert [*coverage.states().values()] == [State.PENDING, State.LANDED]
    assert "bytes, its manifest says" in tiling_violations(coverage)[0]
    assert outcomes(world.land()) == [Outcome.ROLLED_FORWARD]
    assert_all_is_shown_once(world)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_file_that_rotted_is_found_by_a_redo_and_mended_by_a_replace(world: SmallWorld, is_compacted: bool) -> None:
    """[R-21] [R-39] As many bytes, not the same: audit and redo name the file, a replace puts what Kafka has in its place."""
    land_and_spoil(world, lambda sound: sound[:8] + bytes([sound[8] ^ 1]) + sound[9:])
    if is_compacted:
        world.kafka.compact(100)
    assert world.coverage.pending() == [], "a tick reads no file"
    (violation,) = check_published(TOPIC, world.lake).violations
    assert world.first.offsets.text(TOPIC) in violation
    found = world.land("redo")[0]
    assert found.outcome is Outcome.FAILED
    assert "was changed after it was landed" in found.violations[0]
    assert "--on-change replace" in found.violations[0]
    assert world.land("replace")[0].outcome is Outcome.REPLACED
    assert_all_is_shown_once(world)
    assert set(outcomes(world.land("redo"))) == {Outcome.UNCHANGED}


def test_of_a_file_that_was_cut_nobody_is_told_to_accept_a_loss(world: SmallWorld) -> None:
    """[R-15] Kafka has deleted its records since: a backup of the lake has them."""
    land_and_spoil(world, lambda data: data[:-1])
    world.kafka.expire(0, 50)
    (failed, *_) = world.land()
    assert failed.outcome is Outcome.FAILED and "restore that from a backup" in failed.violations[0]
    assert "accept-loss" not in failed.violations[0]


def land_and_lose_a_manifest(world: SmallWorld) -> OffsetRange:
    """Have the manifest of the first landed range deleted; return the range."""
    world.land()
    offsets = world.first.offsets
    world.lake.store.delete(manifest_path(TOPIC, offsets, 0))
    world.lake = world.open(Writer())
    return offsets


def test_a_deleted_manifest_does_not_accept_whatever_file_stands(world: SmallWorld) -> None:
    """[R-16] Landed, compacted, its manifest deleted: fewer rows than the file shows are not said to be landed.

    The control: where the file that stands is what Kafka has, it is landed as it is.
    """
    land_and_lose_a_manifest(world)
    before = world.files()
    assert outcomes(world.land()) == [Outcome.LANDED] and world.files() == before
    assert_all_is_shown_once(world)
    land_and_lose_a_manifest(world)
    assert "its manifest is gone" in tiling_violations(world.coverage)[0]
    world.kafka.compact(100)
    (refused,) = world.land()
    assert refused.outcome is Outcome.FAILED
    assert "its manifest is gone" in refused.violations[0]
    assert world.shown()[0] == 1, "what stands stays"
    world.land("replace")
    assert_all_is_shown_once(world)


def test_a_file_without_a_manifest_is_kept_where_kafka_has_nothing_else(world: SmallWorld) -> None:
    """[R-16] Retention has taken the records, and their loss may be recorded: even a replace takes no row away."""
    offsets = land_and_lose_a_manifest(world)
    before = world.files()
    world.kafka.expire(0, 100)
    for mode in ("land", "replace"):
        (said,) = (each for each in world.land(mode, on_loss="record") if each.offsets == offsets)
        assert said.outcome is Outcome.FAILED
        assert "restore the manifest from a backup" in said.violations[0]
    assert world.files() == before


@pytest.mark.parametrize("how", ["torn before it is verified", "torn", "gone"])
def test_a_torn_or_gone_staged_file_fails_no_other_range(world: SmallWorld, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """[R-15] Before it is matched nobody can tell whose it was: a range that has none is not one without records."""

    def spoil(ranges: Sequence[TopicRange], folder: PurePath, staging: Staging) -> Matched:
        path, *_ = listed = sorted(Path(folder).glob("*.parquet"))
        matched = match_parts(ranges, folder, staging) if "verified" in how else None
        if how == "gone":
            monkeypatch.setattr(staging, "files", lambda folder: listed)
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-10])
        return matched or match_parts(ranges, folder, staging)

    with monkeypatch.context() as spoilt:
        spoilt.setattr(landing, "match_parts", spoil)
        said = world.land()
    assert sorted(outcomes(said)) == [Outcome.FAILED, Outcome.LANDED]
    if "verified" in how:
        (failed,) = (each for each in said if each.outcome is Outcome.FAILED)
        assert "is not a Parquet file" in failed.violations[0]
    world.land()
    assert_all_is_shown_once(world)


def test_a_topic_that_lost_its_partition_while_it_was_verified_fails_the_range_by_name(world: SmallWorld) -> None:
    """[R-53] A compacted topic is recreated with fewer partitions while the reasons of its holes are looked up."""
    world.kafka.compact(100)
    read_spans = world.kafka.read_spans

    def recreate(*asked: Any) -> Any:
        spans = list(read_spans(*asked))
        world.kafka.recreate(0)
        return spans

    world.kafka.read_spans = recreate  # type: ignore[method-assign]
    said = world.land()
    assert Outcome.FAILED in outcomes(said)
    assert "recreated" in said[0].violations[0], said[0].violations


def test_a_store_that_deletes_nothing_stops_no_run(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-15] What is landed, decoded or compacted is; a sweep deletes what is left of it later."""
    steps: list[str] = []

    def watch(step: str, **_: object) -> None:
        steps.append(step)

    monkeypatch.setattr(world.lake.store, "delete", Mock(side_effect=LakeUnavailable("cannot delete it")))
    world.has_raw_table = True
    assert outcomes(world.land(on_step=watch)) == [Outcome.LANDED] * 2
    assert "sweep_failed" in steps and steps[-1] == "report"
    assert outcomes(world.land_more(2)) == [Outcome.LANDED], "a name in begun/ of the step before stays"
    assert [each.outcome for each in world.compact()] == [CompactionOutcome.COMPACTED]
    steps.clear()
    decoded = decode_by(OffsetDecoder("id BIGINT"), world.lake, world.coverage.log.ranges, watch=watch)
    assert [each.outcome for each in decoded] == [Decided.DECODED] * 3 and "sweep_failed" in steps
    with pytest.raises(KeyError, match="of its own"), staging_here("a", world.lake):
        raise KeyError("of its own")
    assert_all_is_shown_once(world)


def test_a_replace_that_slept_takes_back_what_a_later_one_gave_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-60] S3's e_tag is a digest: to its put nothing has happened, though others published its revision and the next one."""
    for module in (object_store, store):
        monkeypatch.setattr(module, "obstore", digesting(module.obstore))
    world, stood = SmallWorld(tmp_path, "bucket", records=0, grid=4), list[int]()
    world.kafka.now.partitions[0].append([SpanKind.DATA, SpanKind.ABORTED, SpanKind.DATA, SpanKind.CONTROL], "v", EPOCH_MS)
    world.plan()

    def replace_as(isolation_level: str, writer: Writer) -> Outcome:
        tools = replace(world.tools(world.open(writer)), isolation_level=isolation_level)
        world.attempts += 1
        attempt = Attempt(f"replace-{world.attempts}", "run", "test", redo=True, on_change="replace")
        (verdict,) = landing.land(TOPIC, [world.first.offsets.key], attempt, tools)
        return verdict.outcome

    def stand(number: int) -> None:
        if writer.calls[-1] == "put" and not stood and world.first.revision == 3:
            stood.append(number)
            world.land(lake=world.open(Writer()))
            assert set(world.shown()) == {0, 1, 2}, "the fault: published by another"
            assert replace_as("read_committed", Writer()) is Outcome.REPLACED

    world.land()
    for level in ("read_uncommitted", "read_committed"):
        assert replace_as(level, Writer()) is Outcome.REPLACED
    writer = Writer(before=stand)
    replace_as("read_uncommitted", writer)
    assert stood and set(world.shown()) == {0, 2}
    world.land(lake=world.open(Writer()))
    assert set(world.shown()) == {0, 2} and world.open(Writer()).read_manifests(TOPIC)[world.first.offsets].revision == 4
    assert_all_is_in_order(world.lake)


def digesting(watched: Any) -> Any:
    """Give a store whose e_tags are digests of what objects have, as those of S3."""

    def head(objects: Any, path: str) -> Any:
        return {**watched.head(objects, path), "e_tag": sha256(watched.get(objects, path).bytes()).hexdigest(), "version": None}

    def put(objects: Any, path: str, data: bytes, **given: Any) -> Any:
        mode = given.get("mode")
        if isinstance(mode, dict) and mode["e_tag"] != head(objects, path)["e_tag"]:
            raise PreconditionError("412 Precondition Failed")
        watched.put(objects, path, data, mode="overwrite" if isinstance(mode, dict) else mode or "overwrite")
        return head(objects, path)

    return SimpleNamespace(**{**vars(watched), "head": head, "put": put})


@pytest.mark.parametrize("kind", ["disk", "bucket"])
def test_a_redo_that_is_overtaken_says_what_stands_and_raises_no_alarm(tmp_path: Path, kind: str) -> None:
    """[R-25] Another replaces the range at any call of the store: what was looked at may be no more, and nothing is damaged."""
    said = set[Outcome]()
    for number in count():
        world = SmallWorld(tmp_path / str(number), kind, records=3, grid=3)
        world.land()
        world.lose_a_row(0)

        def overtake(call: int, number: int = number, world: SmallWorld = world) -> None:
            if call == number:
                world.land("replace", world.open(Writer()))

        writer = Writer(before=overtake)
        (verdict,) = world.land("redo", world.open(writer))
        if len(writer.calls) <= number:
            break
        said.add(verdict.outcome)
        newest = world.open(Writer()).read_manifests(TOPIC)[verdict.offsets]
        assert newest.revision == 1, "the fault"
        assert verdict.outcome is Outcome.CHANGED or verdict.manifest == newest
    assert said == {Outcome.UNCHANGED, Outcome.CHANGED}, "the second where the replace comes once all was looked at"


def test_the_revision_after_999_is_the_newest(world: SmallWorld) -> None:
    """[R-48] Revisions are numbers: the thousandth is later than the one before it, whatever its name sorts after."""
    world.land()
    manifest = world.first
    for revision in (998, 999, 1000):
        world.lake.commit_manifest(replace(manifest, revision=revision))
    assert world.open(Writer()).read_manifests(TOPIC)[manifest.offsets].revision == 1000
