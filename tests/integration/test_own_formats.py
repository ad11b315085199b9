"""A format of a user's own, installed as packages are, on real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from pipeline_defs.adapters.formats.own_formats import GROUP, own_formats
from pipeline_defs.component import KafkaTopic
from pipeline_defs.core.decode.decoders import Format, Side
from pipeline_defs.core.errors import BadSetting
from tests.support.outcomes import decode

if TYPE_CHECKING:
    from pipeline_defs.adapters.spark.engine import Engine

FORMATS = """
from pyspark.sql import functions as f

def hexadecimal(raw):
    return f.unhex(raw.cast("string")).cast("string")

def fails(raw):
    raise LookupError("no such table")

def nothing(raw):
    return 7
"""
NAMED = ["hexadecimal", "fails", "nothing", "missing"]


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with formats; own formats are looked for anew."""
    (tmp_path / "my_formats.py").write_text(FORMATS)
    info = tmp_path / "my_formats-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-formats\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "".join(f"{name} = my_formats:{name}\n" for name in NAMED))
    monkeypatch.syspath_prepend(str(tmp_path))
    own_formats.cache_clear()
    yield info
    own_formats.cache_clear()


def test_a_format_of_a_users_own_decodes(engine: Engine) -> None:
    """[R-67] What its function leaves out is a dead letter; which package decided is recorded."""
    outcomes = decode(engine, [b"6162", b"zz", None, b""], Side("hexadecimal"))
    assert outcomes.values == ["ab", None, None, ""]
    assert outcomes.classes == [None, "hexadecimal_malformed", None, None]
    assert outcomes.errors[1] == "my_formats:hexadecimal returned null for these bytes"
    assert outcomes.schemas == {"package": "my-formats 1.2"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fails", "it fails: LookupError: no such table"),
        ("nothing", "returns a Spark column, found int"),
        ("missing", "it fails: AttributeError"),
    ],
)
def test_a_function_that_cannot_be_used_is_named(engine: Engine, name: str, said: str) -> None:
    with pytest.raises(BadSetting, match=f"my_formats:{name}, cannot be used: .*{said}"):
        decode(engine, [b"1"], Side(name))


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")  # Dagster's own
def test_a_format_is_named_in_defs_yaml_as_its_entry_point_is() -> None:
    def load(name: str) -> object:
        return KafkaTopic.resolve_from_yaml(f"topic: orders\ndecode: {{value: {{format: {name}}}}}\n").as_topic()

    assert load("hexadecimal").decode.value.format == "hexadecimal"
    with pytest.raises(ValidationError, match="did you mean `hexadecimal`"):
        load("hexadecimel")


@pytest.mark.parametrize("name", [Format.AVRO, "twice"])
def test_a_name_that_is_taken_is_refused(installed: Path, name: str) -> None:
    """By a format of ours, or by another package."""
    with (installed / "entry_points.txt").open("a") as file:
        file.write(f"{name} = my_formats:hexadecimal\n")
    other = installed.with_name("other-1.dist-info")
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (other / "entry_points.txt").write_text(f"[{GROUP}]\ntwice = other:decode\n")
    with pytest.raises(BadSetting, match=f"{name} = .* has the name of another format"):
        own_formats()
