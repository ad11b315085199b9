"""What documents say is so: links lead somewhere, tables are what the code says, errors and requirements have theirs."""

import ast
import importlib
import pkgutil
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

import pipeline_defs
from pipeline_defs.adapters.system.project_folder import DOCS, PROJECT
from pipeline_defs.cli.commands import SECTIONS, cli
from pipeline_defs.cli.home.doctor import find_text
from pipeline_defs.component import KafkaTopic
from pipeline_defs.core.errors import BadKey, OffsetlakeError, Refused
from pipeline_defs.core.raw_columns import RAW_COLUMNS
from pipeline_defs.core.setting_values import VARIABLES
from pipeline_defs.operate.metrics import HELP
from pipeline_defs.orchestration.assets.derived_config import BudgetConfig, DaysConfig, DecodeConfig, LatestConfig, SideConfig
from tests.support.markdown import documents, is_shown, read_table, without_blocks
from tests.support.reference import PAGE, made, texts

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_LAYERS = "core|adapters|landing|tables|orchestration|operate|cli|lab"
_FILE = re.compile(rf"`((?:pipeline_defs|assets|tests|docs)/[\w./-]*|(?:{_LAYERS})/[\w./-]*\.py)`")
_ROOMS = ("", "pipeline_defs/")  # the map of the code names files as they lie in the package


def anchors(document: Path) -> set[str]:
    """Return the anchors that the headings of a document have, as code hosts derive them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> list[str]:
    broken = []
    for link in _LINK.findall(without_blocks(document.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("document", documents(), ids=[str(path.relative_to(PROJECT)) for path in documents()])
def test_every_relative_link_leads_somewhere_and_every_file_that_a_document_names_exists(document: Path) -> None:
    """A file that was moved or renamed would be looked for in vain; `assets/orders/` is the README's own example."""
    assert broken_links(document) == []
    named = {path for path in _FILE.findall(document.read_text()) if not path.startswith("assets/orders/")}
    assert [path for path in sorted(named) if not any((PROJECT / room / path).exists() for room in _ROOMS)] == []


def test_every_folder_of_the_code_says_what_is_in_it() -> None:
    """And docs/architecture.md names each of the layers that they are in."""
    text, package = (PROJECT / "docs" / "architecture.md").read_text(), PROJECT / "pipeline_defs"
    folders = {path.parent for path in package.rglob("*.py")} - {package / "offsetlake"}
    assert all((folder / "__init__.py").read_text().startswith('"""') for folder in folders)
    assert [path.name for path in package.iterdir() if path in folders and f"\n{path.name} " not in text] == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    """Control: a file or a heading that is not there, beside ones that are; links in blocks are examples."""
    (tmp_path / "there.md").write_text("# A heading: one\n")
    document = tmp_path / "document.md"
    document.write_text(
        "[a](there.md) [b](there.md#a-heading-one) [c](gone.md) [d](there.md#gone) [e](https://example.org/x)\n"
        "```text\n[f](gone.md)\n```\n"
    )
    assert broken_links(document) == ["gone.md", "there.md#gone"]


METRICS, KEEPING_UP = ((PROJECT / "docs" / f"{name}.md").read_text() for name in ("metrics", "keeping-up"))
README = (PROJECT / "README.md").read_text()
ROW = re.compile(r"^\| ([\d,]+) s \| ([\d,]+)/s \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)


def test_each_metric_is_once_in_the_table_and_alerts_and_queries_name_no_other() -> None:
    """Except for kafka_exporter, which is a program."""
    rows = re.findall(r"^\| .+ \| (`.+`) \|$", METRICS, re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`((?:kafka|offsetlake)_\w+)`", row)) == sorted(HELP)
    named = {name.removesuffix("_bucket") for name in re.findall(r"\b(?:kafka|offsetlake)_\w+", METRICS)}
    assert named - {"kafka_exporter"} == set(HELP)


def constant(name: str) -> float:
    """Return what the table of constants says of a name."""
    (found,) = re.findall(rf"^\| `{name}` \| ([\d.]+) \|", KEEPING_UP, re.MULTILINE)
    return float(found)


def topics(cores: int, records: int, max_age: int) -> int:
    """Return how many topics of two Kafka partitions the formula gives."""
    ranges = 2 / max_age  # a second, of each topic
    by_cores = (cores / 2 - constant("base")) / (ranges * constant("range") + records * constant("record"))
    return int(min(by_cores, (max_age - constant("run")) / (2 * constant("turn"))))


def test_the_sizing_table_is_what_the_constants_give() -> None:
    rows = [[int(number.replace(",", "")) for number in row] for row in ROW.findall(KEEPING_UP)]
    assert len(rows) == 4
    for max_age, records, *found in rows:
        assert found == [topics(cores, records, max_age) for cores in (2, 8, 32)], (max_age, records)


def test_the_reference_is_what_the_code_says_with_each_key_and_command() -> None:
    """Control: keys of the component and below one of its keys; each command or its group, with arguments and options."""
    page = made()
    assert PAGE.read_text() == page, "write it anew: python -m tests.support.reference"
    for key in ("max_age_seconds", "inline_schema", "sequence"):
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{key}` |"))
        assert len(row.split("|")[3].split()) > 3
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", page.partition("## Commands")[2], re.MULTILINE))
    assert {usage.split()[0] for usage in rows} == {name for section in SECTIONS.values() for name in section}
    assert min(len(what.partition("(`")[0].split()) for what in rows.values()) > 3
    assert "`--key KEY`" in rows["land TOPIC"] and "broker stop" in rows


def test_every_make_target_that_a_document_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    texts = [README, (PROJECT / "CONTRIBUTING.md").read_text()]
    named = {name for text in texts for name in re.findall(r"(?:`|^\$ )make ([a-z-]+)", text, re.MULTILINE)}
    assert {"demo", "test"} <= named <= targets


@pytest.mark.parametrize(("name", "most"), [("README.md", 120), ("docs/architecture.md", 100)])
def test_what_is_read_first_is_short(name: str, most: int) -> None:
    assert len((PROJECT / name).read_text().splitlines()) <= most


def test_the_readme_names_the_columns_of_a_landed_row() -> None:
    columns = ", ".join(f"`{column.name}`" for column in RAW_COLUMNS)
    assert f"A row is a record as it was: {columns}." in README


def test_the_table_of_variables_is_the_one_that_the_settings_know() -> None:
    """Every variable, in the settings' own order, with its default and its meaning."""
    rows = read_table((PROJECT / "docs" / "settings.md").read_text(), "| variable | default |")
    assert tuple(name for name, *_ in rows) == VARIABLES
    assert all(default and meaning for _, default, meaning in rows)


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("a\n", "a  \n", True),
        ("a ... c\n", "a b c\n", True),
        ("a ... c\n", "a b\nc\n", False),
        ("...\nb\n", "b\n", True),
        ("...\nb\n", "x\ny\nb\n", True),
        ("a\n...\n", "a\n", True),
        ("a.c\n", "abc\n", False),
        ("", "a\n", False),
        ("a\n", "a\nb\n", False),
    ],
)
def test_what_counts_as_shown(shown: str, printed: str, expected: bool) -> None:
    """The control of the documents that are typed: what is not shown, or shown otherwise, is noticed."""
    assert is_shown(shown, printed) is expected


TEXT = (DOCS / "runbook.md").read_text()
LACKED = re.compile(r"\b(?:assets|docs)/|[a-z] runbook")
KEY_IN_DEFS = re.compile(r"`(?:\w+\.)*(\w+)`(?: of `\w+`)? in defs\.yaml")
MODELS = (KafkaTopic, DecodeConfig, SideConfig, BudgetConfig, DaysConfig, LatestConfig)
FIELDS = {name for model in MODELS for name in model.model_fields}


def kinds() -> set[str]:
    for module in pkgutil.walk_packages(pipeline_defs.__path__, "pipeline_defs."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return {error.kind for error in _errors(OffsetlakeError)}


def _errors(kind: type[OffsetlakeError]) -> Iterator[type[OffsetlakeError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _errors(each)


def test_every_kind_has_its_paragraph_and_no_other_has() -> None:
    assert set(re.findall(r"^### `(\w+)`$", TEXT, re.MULTILINE)) == kinds()
    assert {"bad_key", "demo_stuck"} <= kinds(), "the control: both rooms are seen"


def test_explain_lists_every_kind_and_prints_its_paragraph(capfd: pytest.CaptureFixture[str]) -> None:
    """What it prints names no document by a path, for a user's project has none."""
    listed = CliRunner().invoke(cli, ["explain"]).output + capfd.readouterr().out
    assert kinds() <= set(re.findall(r"\w+", listed))
    for kind in kinds():
        text = find_text(kind)
        assert len(text.split()) > 6 and kind in text, kind
        assert not re.search(r"\]\((?!https?:)", text) and "docs/" not in text, kind
    with pytest.raises(Refused, match="did you mean `broker_unavailable`"):
        find_text("broker_unavaliable")


def test_explain_prints_a_document_whose_links_are_commands() -> None:
    for name in (path.stem for path in DOCS.glob("*.md")):
        assert not re.search(r"\]\((?!\w+:)", without_blocks(find_text(name))), name
    assert "`[a, b) are gone`" in find_text("ranges_failed"), "a bracket that begins no link stays"


def test_a_traceback_names_the_command() -> None:
    """As Dagster shows an error of a run."""
    assert "offsetlake explain bad_key" in "".join(traceback.format_exception_only(BadKey("key 1-2 is no key")))


def test_no_text_of_a_program_names_a_file_that_a_user_lacks() -> None:
    """A user's project has `<package>/defs/<topic>/defs.yaml` and no `docs/` and `assets/`."""
    assert [(where, text) for where, text in texts() if LACKED.search(text)] == []
    assert LACKED.search("see docs/runbook.md") and LACKED.search("in assets/*/defs.yaml"), "the control"


def test_keys_of_defs_yaml_that_a_message_names_exist() -> None:
    """A message that says `schema` in defs.yaml sends its reader to a key that is refused."""
    named = {(where, key) for where, text in texts() for key in KEY_IN_DEFS.findall(text)}
    assert len(named) > 5, "the control: such messages are found"
    assert {(where, key) for where, key in named if key not in FIELDS} == set()


LAST = 100  # the newest requirement
PROTOCOL = (PROJECT / "docs" / "protocol.md").read_text()
_DEFINED = re.compile(r"^\*\*\[(R-\d+)\]\*\* \S", re.MULTILINE)
_NAMED = re.compile(r"\[(R-\d+)\]")
_CITED = re.compile(r"\bR-\d+\b")


def read_tests() -> dict[str, str]:
    """Return the text of each Python file below `tests`, by its path; this folder, which reads them, is left out."""
    here = Path(__file__).parent
    paths = [path for path in sorted((PROJECT / "tests").rglob("*.py")) if not path.is_relative_to(here)]
    return {str(path.relative_to(PROJECT)): path.read_text() for path in paths}


def named_by_tests(source: str) -> Iterator[str]:
    """Yield the ids that the test functions of a file name, in their docstrings or bodies."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            assert node.end_lineno is not None
            yield from _NAMED.findall("\n".join(lines[node.lineno - 1 : node.end_lineno]))


def find_untested(document: str, tests: Iterable[str]) -> list[str]:
    """Return the requirements of a document that no test names."""
    named = {number for source in tests for number in named_by_tests(source)}
    return [number for number in _DEFINED.findall(document) if number not in named]


def find_undefined(document: str, texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the ids that texts cite and the document does not define, by the path of the text."""
    defined = set(_DEFINED.findall(document))
    cited = {path: set(_CITED.findall(text)) - defined for path, text in texts.items()}
    return {path: strays for path, strays in cited.items() if strays}


def test_requirements_are_numbered_without_a_gap_and_each_has_a_test_that_names_it() -> None:
    assert _DEFINED.findall(PROTOCOL) == [f"R-{number}" for number in range(1, LAST + 1)]
    assert find_untested(PROTOCOL, read_tests().values()) == []


def test_each_requirement_that_is_cited_is_defined() -> None:
    paths = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md"), *(PROJECT / "pipeline_defs").rglob("*.py")]
    assert find_undefined(PROTOCOL, read_tests() | {str(path): path.read_text() for path in paths}) == {}


def test_a_requirement_without_a_test_and_an_unknown_id_are_seen() -> None:
    """Control: see a requirement that only a helper names, and ids that nothing defines."""
    document = "# x\n\n**[R-1]** One.\n\n**[R-2]** Two, as R-1.\n\n## Next\n\nNo **[R-3]** here.\n"
    source = 'def test_a():\n    """[R-1] It."""\n\ndef helper():\n    """[R-2]"""\n\ndef test_b():\n    x = "[R-9]"\n'
    assert find_untested(document, [source]) == ["R-2"]
    assert find_untested(document, [source, "def test_c():\n    x = 1  # [R-2]\n"]) == []
    assert find_undefined(document, {"protocol.md": document}) == {"protocol.md": {"R-3"}}
    cited = {"x.py": source, "a.md": "see [R-1, R-8](protocol.md), R-2"}
    assert find_undefined(document, cited) == {"x.py": {"R-9"}, "a.md": {"R-8"}}
