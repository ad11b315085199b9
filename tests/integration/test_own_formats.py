"""A format of a user's own, installed as packages are, on real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pydantic import ValidationError

from pipeline_defs.adapters.decoding.own_formats import GROUP, own_formats
from pipeline_defs.adapters.tables.columns_of_table import DECODED, text_of
from pipeline_defs.component import KafkaTopic
from pipeline_defs.core.decode.decoders import Format, Side
from pipeline_defs.core.errors import BadSetting, UnusableSchema
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

def exits(raw):
    raise SystemExit(3)
"""
NAMED = ["hexadecimal", "fails", "nothing", "missing", "exits"]


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
    """[R-67] What its function leaves out is a dead letter."""
    outcomes = decode(engine, [b"6162", b"zz", None, b""], Side("hexadecimal"))
    assert outcomes.values == ["ab", None, None, ""]
    assert outcomes.classes == [None, "hexadecimal_malformed", None, None]
    assert outcomes.errors[1] == "my_formats:hexadecimal returned null for these bytes"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fails", "it fails: LookupError: no such table"),
        ("nothing", "returns a Spark column, found int"),
        ("missing", "it fails: AttributeError"),
        ("exits", "it fails: SystemExit: 3"),
    ],
)
def test_a_function_that_cannot_be_used_is_named(engine: Engine, name: str, said: str) -> None:
    with pytest.raises(BadSetting, match=f"my_formats:{name}, cannot be used: .*{said}"):
        decode(engine, [b"1"], Side(name))


def test_columns_that_no_table_has_are_one_clear_error() -> None:
    """As two that differ in case alone."""
    twins = pa.struct([("a", pa.string()), ("A", pa.int32())])
    schema = pa.schema([(name, twins if name == "value" else pa.string()) for name in DECODED])
    with pytest.raises(UnusableSchema, match=r"no Delta table has such columns: .*case-insensitive"):
        text_of(schema)


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")  # Dagster's own
def test_a_format_is_named_in_defs_yaml_as_its_entry_point_is(installed: Path) -> None:
    def load(name: str) -> object:
        return KafkaTopic.resolve_from_yaml(f"topic: orders\ndecode: {{value: {{format: {name}}}}}\n").as_topic()

    found = load("hexadecimal").decode
    assert (found.value.format, found.value.package) == ("hexadecimal", "my-formats 1.2")
    metadata = installed / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.2", "1.3"))
    own_formats.cache_clear()
    assert load("hexadecimal").decode.fingerprint != found.fingerprint, "another version is another decoder"
    with pytest.raises(ValidationError, match="did you mean `hexadecimal`"):
        load("hexadecimel")


def test_a_name_that_two_packages_have_is_refused_where_it_is_used(engine: Engine, installed: Path) -> None:
    """Nothing else is; and one of a format of ours is ours."""
    other = installed.with_name("other-1.dist-info")
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (other / "entry_points.txt").write_text(f"[{GROUP}]\nfails = other:decode\n{Format.STRING} = other:decode\n")
    with pytest.raises(BadSetting, match=r"format fails is to be one entry point of .*, found .*my_formats:fails"):
        decode(engine, [b"1"], Side("fails"))
    assert decode(engine, [b"6162"], Side("hexadecimal")).values == ["ab"]
    assert decode(engine, [b"6162"], Side(Format.STRING)).values == ["6162"]
