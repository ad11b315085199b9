"""Put-if-absent has three answers, a lost one is settled by reading back; what is written before it is named, nobody shares."""

import errno
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import obstore
import pytest
import stamina
from obstore.exceptions import AlreadyExistsError, PermissionDeniedError

from pipeline_defs.adapters.store import disk
from pipeline_defs.adapters.store.disk import Disk
from pipeline_defs.adapters.store.object_store import open_store
from pipeline_defs.adapters.store.store import Answer, Store
from pipeline_defs.adapters.system.locks import Holder, find_holder, own_name, share
from pipeline_defs.adapters.system.processes import free_ports
from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.core.errors import LakeUnavailable, OutcomeUnknown, Refused
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.delivery import Delivery
from tests.support.interleaving import SmallWorld, beside
from tests.support.lakes import open_lake
from tests.support.registry import Answering, serving


def lose_answers(patch: pytest.MonkeyPatch, *, do: bool, number: int = errno.EIO) -> None:
    """Have the answer of each link be lost, after it was done or before, as a network file system may lose it."""
    beside(patch, os, "link", **{"after" if do else "before": Mock(side_effect=OSError(number, os.strerror(number)))})


def open_bucket() -> Store:
    """Give the store of a lake in a bucket in memory, with S3's conditional puts."""
    return open_lake("bucket", Path()).store


@pytest.fixture(params=["disk", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_lake(request.param, tmp_path / "lake").store


def test_below_a_file_there_is_no_object(tmp_path: Path) -> None:
    """What stands in the place of a folder fails who writes there, and nobody who looks."""
    store = open_store(str(tmp_path / "lake"))
    store.put_new("data/orders", b"no folder", "staging/a")
    assert store.size("data/orders/g0/p0000/0.parquet") is None
    assert store.size("data/orders") == len(b"no folder"), "the control"
    (tmp_path / "lake/plan/0.json").mkdir(parents=True)
    with pytest.raises(LakeUnavailable, match=r"cannot write .*plan/0.json: what stands there is no file; .*move it away"):
        store.put_new("plan/0.json", b"a folder in its place", "staging/a")
    assert store.list("staging") == {}


@pytest.mark.parametrize(("do", "answer"), [(True, Answer.COMMITTED), (False, Answer.CONFLICT)])
def test_a_lost_answer_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, do: bool, answer: Answer) -> None:
    """[R-47] It happened and is a commit, or another was first and it is a conflict."""
    store = open_store(str(tmp_path))
    if not do:
        store.put_new("plan/0.json", b"theirs", "staging/a")
    lose_answers(monkeypatch, do=do)
    assert store.put_new("plan/0.json", b"ours", "staging/b") is answer


@pytest.mark.parametrize(
    ("number", "kind", "says"),
    [
        (errno.EIO, OutcomeUnknown, "ended without an answer and reading it back finds nothing yet"),
        (errno.ENOSPC, LakeUnavailable, r"cannot write .*plan/0.json: .*No space left .* make room on that disk"),
        (errno.EDQUOT, LakeUnavailable, r"cannot write .*plan/0.json: .*quota .* make room on that disk"),
        (errno.EACCES, LakeUnavailable, r"cannot write .*plan/0.json: .*Permission denied.* let this user write there"),
        (errno.EROFS, LakeUnavailable, r"cannot write .*plan/0.json: .*Read-only file system.* mount that disk writable"),
        (errno.EFBIG, LakeUnavailable, r"cannot write .*plan/0.json: .*File too large.* raise the limit on a file's size"),
        (errno.EMFILE, LakeUnavailable, r"cannot write .*plan/0.json: .*Too many open files.* raise the limit on open files"),
    ],
)
def test_an_answer_that_reading_back_does_not_settle_is_unknown_but_for_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[LakeUnavailable], says: str
) -> None:
    """[R-47] A full disk tells for certain that nothing was written, and what to do; once it is done, the write goes on."""
    store = open_store(str(tmp_path))
    lose_answers(monkeypatch, do=False, number=number)
    with pytest.raises(kind, match=f"(?i){says}") as error:
        store.put_new("plan/0.json", b"ours", "staging/a")
    assert type(error.value) is kind
    monkeypatch.undo()
    assert kind is OutcomeUnknown or store.list("staging") == {}
    assert store.put_new("plan/0.json", b"ours", "staging/a") is Answer.COMMITTED


def test_what_a_link_leads_to_is_not_deleted(tmp_path: Path) -> None:
    """[R-58] Who may write below `staging/` could have a sweep delete any folder of the one who lands."""
    store, outside = open_store(str(tmp_path / "lake")), tmp_path / "outside"
    for folder in (outside, tmp_path / "lake" / "staging" / "dead"):
        folder.mkdir(parents=True)
        (folder / "file").write_text("kept")
    (tmp_path / "lake" / "staging" / "link").symlink_to(outside)
    (tmp_path / "lake" / "staging" / "dead" / "link").symlink_to(outside)
    for name in store.entries("staging"):
        store.delete(f"staging/{name}")
    assert [*(tmp_path / "lake" / "staging").iterdir()] == [], "the control"
    assert (outside / "file").read_text() == "kept"


def test_who_makes_room_on_a_full_disk_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-47] A sweep asks for the time first, and a full disk takes an empty file; the control is one that has something."""
    store, write = open_store(str(tmp_path)), Disk.write

    def refuse(own: Disk, path: str, data: bytes) -> None:
        if data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(own, path, data)

    monkeypatch.setattr(Disk, "write", refuse)
    assert store.clock_ms() > 0 and store.list("staging") == {}
    with pytest.raises(LakeUnavailable, match="No space left on device"):
        store.put_new("plan/0.json", b"ours", "staging/a")


def test_a_name_that_may_not_be_on_the_disk_yet_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-47] What is built on it might be there after a power cut, and it not; whoever puts the same later sees to it."""
    store, real = open_store(str(tmp_path)), disk._fsync

    def refuse_folders(path: Path) -> None:
        if path.is_dir():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(path)

    monkeypatch.setattr(disk, "_fsync", refuse_folders)
    for _ in range(2):
        with pytest.raises(LakeUnavailable, match=r"cannot write .*plan/0.json: .*Input/output error"):
            store.put_new("plan/0.json", b"ours", "staging/a")
        assert store.get("plan/0.json") == b"ours", "the fault: it has its name"
    monkeypatch.undo()
    beside(monkeypatch, disk, "_fsync", before=(synced := Mock()))
    assert store.put_new("plan/0.json", b"ours", "staging/a") is Answer.COMMITTED
    assert (tmp_path / "plan",) in [call.args for call in synced.call_args_list]


@pytest.mark.parametrize(("times", "is_settled"), [(2, True), (100, False)])
def test_a_put_that_meets_another_is_asked_again(monkeypatch: pytest.MonkeyPatch, times: int, *, is_settled: bool) -> None:
    """[R-47] S3 says that an object exists while nothing is there: asked again ours commits, if the other came to nothing.

    One that keeps meeting another is unknown, and no conflict: what would be read is not there, and may yet be the winner.
    """
    conflict = AlreadyExistsError("409 Conflict: ConditionalRequestConflict")
    put = Mock(wraps=obstore.put, side_effect=[conflict] * times + [DEFAULT])
    monkeypatch.setattr(obstore, "put", put)
    said = r"said to exist, and nothing is there .* do not delete anything there"
    unknown = nullcontext() if is_settled else pytest.raises(OutcomeUnknown, match=said)
    with stamina.set_testing(True, attempts=3), unknown:
        assert open_bucket().put_new("manifests/0.json", b"ours", "") is Answer.COMMITTED
    assert put.call_count == 3, "bounded"


@pytest.mark.parametrize("path", ["../out", "data/../../out", "/etc/out", "data/./x", "data//x", "", "data/\0"])
def test_a_path_that_leads_out_of_the_lake_is_refused(store: Store, tmp_path: Path, path: str) -> None:
    """Whatever a manifest or a name says: nothing outside is read, written or deleted."""
    store.put_new("staging/mine", b"mine", "staging/a")
    (tmp_path / "out").write_bytes(b"theirs")

    calls: list[Callable[[], object]] = [
        lambda: store.get(path),
        lambda: store.size(path),
        lambda: store.list(path),
        lambda: store.folders(path),
        lambda: store.entries(path),
        lambda: store.put_new(path, b"x", "staging/a"),
        lambda: store.publish(path, "data/x"),
        lambda: store.publish("staging/mine", path),
        lambda: store.exchange(path, "data/x", guard="data/y", is_due=lambda: True),
        lambda: store.exchange("staging/mine", path, guard="data/y", is_due=lambda: True),
        lambda: store.upload(tmp_path / "out", path),
        lambda: store.delete(path),
    ]
    if not store.is_remote:  # what a bucket has no use for
        calls += [
            lambda: store.put_new("data/x", b"x", path),
            lambda: store.exchange("staging/mine", "data/x", guard=path or "..", is_due=lambda: True),
            lambda: store.make_durable(path),
        ]
    for call in calls:
        with pytest.raises(Refused, match="no path inside the lake"):
            call()
    assert (tmp_path / "out").read_bytes() == b"theirs"
    assert store.get("staging/mine") == b"mine" and store.list("data") == {}


def test_a_folder_that_another_made_is_made_durable_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who made it may be about to sync it when the power goes: what is said to be committed has its whole path on the disk."""
    open_store(str(tmp_path)).put_new("manifests/orders/0.json", b"theirs", "staging/a")
    synced: list[Path] = []
    beside(monkeypatch, disk, "_fsync", synced.append)
    store = open_store(str(tmp_path))
    store.put_new("manifests/orders/1.json", b"ours", "staging/b")
    assert {tmp_path / "manifests" / "orders", tmp_path / "manifests", tmp_path} <= set(synced)
    synced.clear()
    store.put_new("manifests/orders/2.json", b"ours", "staging/b")
    assert tmp_path / "manifests" / "orders" in synced and tmp_path not in synced, "once each folder, no more"


@pytest.mark.parametrize("root", ["{0}/lake", "file://{0}/lake"])
def test_a_local_lake_may_be_a_path_or_a_file_url(tmp_path: Path, root: str) -> None:
    store = open_store(root.format(tmp_path))
    store.put_new("data/x", b"1", "staging/a")
    assert (tmp_path / "lake" / "data" / "x").read_bytes() == b"1"
    assert store.url("data/x") == f"{tmp_path}/lake/data/x"


@pytest.mark.parametrize("root", ["{0}/a-file/lake", "gopher://somewhere/lake"])
def test_a_lake_that_cannot_be_opened_says_what_to_check(tmp_path: Path, root: str) -> None:
    (tmp_path / "a-file").write_text("")
    with pytest.raises(LakeUnavailable, match="check that OFFSETLAKE_LAKE names a place"):
        open_store(root.format(tmp_path)).check_writable("staging/probe")


def test_a_store_that_gives_away_a_name_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ignores If-None-Match, or a proxy before it that drops the header; nothing of the probe stays."""
    store = open_bucket()
    store.check_writable("staging/probe")
    put = obstore.put
    monkeypatch.setattr(obstore, "put", lambda *given, **named: put(*given))
    with pytest.raises(LakeUnavailable, match="was written a second time"):
        store.check_writable("staging/probe")
    assert obstore.list(store.objects).collect() == []


def test_a_bucket_that_refuses_says_so_and_one_without_a_login_which_variables_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Amazon's own machines are asked next, whose address is not there."""
    monkeypatch.setattr(obstore, "put", Mock(side_effect=PermissionDeniedError("Access Denied")))
    with pytest.raises(LakeUnavailable, match="Access Denied; nothing is lost; let this user write there"):
        open_bucket().put_new("plan/0.json", b"ours", "")
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (port,) = free_ports(1)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(LakeUnavailable, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        open_store("s3://bucket/lake").get("topics/x")


def test_a_store_that_quotes_the_request_shows_no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy before it does; Dagster shows an error's cause too. What is told is its status, and its own code."""

    class Echo(Answering):
        def do_GET(self) -> None:  # noqa: N802 (as http.server names it)
            self.answer(400, f"\n<Code>Odd</Code>\n{self.headers['x-amz-security-token']}".encode())

    with serving(Echo) as port:
        login = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "SESSION_TOKEN": "hush-4711", "REGION": "us-east-1"}
        for name, value in {**login, "ENDPOINT_URL": f"http://127.0.0.1:{port}", "ALLOW_HTTP": "true"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        with pytest.raises(LakeUnavailable, match=r"status code: 400 Bad Request \(Odd\); nothing is lost") as caught:
            open_store("s3://bucket/lake").get("topics/x")
    assert "hush" not in "".join(traceback.format_exception(caught.value))


def linking(monkeypatch: pytest.MonkeyPatch, tree: str, meanwhile: Callable[[], None], *, is_linked: bool = False) -> None:
    """Have something happen before the first link into a tree, or once that is made."""
    done: list[str] = []

    def look(_: Disk, source: str, target: str) -> None:
        if target.startswith(f"{tree}/") and not done:
            done.append(target)
            meanwhile()

    beside(monkeypatch, Disk, "link", **{"after" if is_linked else "before": look})


@pytest.mark.parametrize("is_linked", [False, True])
def test_no_write_opens_a_file_that_a_name_leads_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_linked: bool) -> None:
    """[R-47] Two writers with one scratch name, as two runs have it that say the same earlier revision again."""
    store, answers = open_store(str(tmp_path)), []

    def write_too() -> None:
        answers.append(open_store(str(tmp_path)).put_new("manifests/0.json", b"theirs", "staging/same"))

    linking(monkeypatch, "manifests", write_too, is_linked=is_linked)
    answers.append(store.put_new("manifests/0.json", b"ours", "staging/same"))
    assert answers == ([Answer.CONFLICT, Answer.COMMITTED] if is_linked else [Answer.COMMITTED, Answer.CONFLICT])
    assert store.get("manifests/0.json") == (b"ours" if is_linked else b"theirs") and store.list("staging") == {}


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("delivery", Delivery)
def test_a_deleted_scratch_file_fails_its_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delivery: Delivery) -> None:
    """[R-47] Alone, whatever the policy; the run goes on, and the others land, but where their staged files went too."""
    world = SmallWorld(tmp_path, "disk", records=9, grid=3)
    swept: list[str] = []

    def sweep() -> None:
        for path in (tmp_path / "staging").rglob("*.json*"):
            swept.append(path.name)
            path.unlink()

    linking(monkeypatch, "manifests", sweep)
    verdicts = world.land(delivery=delivery)
    assert len(swept) == 1, "the fault"
    (failed,) = [verdict for verdict in verdicts if verdict.outcome is Outcome.FAILED]
    assert "was deleted while it was written" in failed.violations[0]
    assert [verdict.outcome for verdict in verdicts if verdict is not failed] == [Outcome.LANDED] * 2


@pytest.mark.usefixtures("watched")
def test_a_claim_that_fails_fails_its_own_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-50] What was claimed before it is read, and what comes after it too; the next run lands the one that is left."""
    world = SmallWorld(tmp_path, "disk", records=12, grid=3)
    world.delivery = Delivery.AT_MOST_ONCE
    claims: list[str] = []

    def fill(_: Disk, path: str, data: bytes) -> None:
        claims.extend([path] * ("claim-" in path))
        if "claim-" in path and len(claims) == 3:
            raise OSError(28, "No space left on device", path)

    beside(monkeypatch, Disk, "write", fill)
    verdicts = world.land()
    (failed,) = [verdict for verdict in verdicts if verdict.outcome is Outcome.FAILED]
    assert failed.offsets.start == 6 and "No space left" in failed.violations[0]
    assert len(verdicts) == 4 and world.shown() == dict.fromkeys([*range(6), *range(9, 12)], 1)
    world.land()
    assert world.shown() == dict.fromkeys(range(12), 1)


def test_the_name_in_a_lock_is_that_of_its_last_owner_alone(tmp_path: Path) -> None:
    """A longer one was there before: of whom nobody could tell, nobody would end what hangs."""
    for owner in ("process 1234567 on the other host", own_name()):
        os.close(share(tmp_path / "lock", owner))
    held = share(tmp_path / "lock")
    assert find_holder(tmp_path / "lock") == Holder(os.getpid(), socket.gethostname())
    os.close(held)


OWNER = """
import sys
from pipeline_defs.adapters.system.locks import scratch
(scratch() / "copy.parquet").write_bytes(b"rows")
print(scratch(), flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Give a process that has a temporary file below a folder, and the folder of its own."""
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def test_temporary_files_of_a_process_that_was_killed_go_with_the_next_one(tmp_path: Path) -> None:
    """Those of a lake in a bucket are as large as its files; who works keeps its own, and who ends deletes them."""
    with owner(tmp_path) as (works, kept):
        with owner(tmp_path) as (dies, left):
            dies.send_signal(signal.SIGKILL)
            dies.wait()
            assert (left / "copy.parquet").exists(), "the fault: nobody has deleted it"
        with owner(tmp_path) as (_, own):
            assert sorted(tmp_path.iterdir()) == sorted([kept, own])
            assert (kept / "copy.parquet").exists() and works.poll() is None
        assert [*tmp_path.iterdir()] == [kept]
    assert [*tmp_path.iterdir()] == []
