"""JSON in Spark: bytes to columns of a stated schema or of a JSON Schema, and what is wrong with those that do not fit it.

Spark's own parser does the work; what it would pass over in silence is an error here. With a JSON Schema, each document is
checked against the schema it was written with, and has the columns of the reader's.
"""

import json
import secrets

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, MapType, StringType, StructField, StructType

from ...core.decode.decoders import Side
from ...core.errors import LONGEST_REASON, BadSetting
from ...core.login.client_properties import ANYBODY, RegistryLogin
from ..kafka.schema_registry import connect
from ..spark.spark_errors import STACK
from .decoded import Decoded, SideOutcome, decoded_where_read, failed, in_python, is_plain, no_id
from .json_batches import batch_checker, batch_explainer
from .json_checks import Checked, check_schema, read_columns
from .spark_json_values import TIMESTAMP_FORMAT, find_wrong, is_null, read_type, settle
from .spark_wire import HEAD, Wire, choose_by_id, read_wire, schema_id, usable

CORRUPT = "c"
STRICT = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "timestampFormat": TIMESTAMP_FORMAT,
}
# the limits are those of Spark's parser
NO_VALUE = (
    "the text is not one JSON value, or one beyond what is read: 998 levels, 1,000 digits of a number, 50,000 characters of a "
    "name, 20,000,000 of a text"
)
# an escaped backslash, or both halves of a pair: any `\ud800` left then stands alone, and Spark would make a ? of it
WHOLE_ESCAPES = r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]"
BACKSLASH = r"\\"
HALF_A_PAIR = r"\\u[dD][89a-fA-F]"
KIND = "JSON"


def parse_schema(ddl: str) -> DataType:
    """Read a schema in Spark's DDL, in a job of the engine; raise `BadSetting` if Spark does not take it."""
    try:
        return DataType.fromDDL(ddl)
    except AnalysisException as error:  # not of a server that went away, which is the engine's to say
        reason = " ".join(str(error).partition(STACK)[0].split())[:LONGEST_REASON]
        raise BadSetting(
            f"the schema of a json decoder is not Spark's DDL, expected such as `id BIGINT, at TIMESTAMP`: {reason}; nothing "
            "was decoded; correct `inline_schema`, or the file that `schema_file` names, in defs.yaml"
        ) from error


def decode_json(source: Column, ddl: str) -> Decoded:
    """Decode JSON of a schema in Spark's DDL.

    | the record | what becomes of it |
    |---|---|
    | null | null: a tombstone |
    | not UTF-8, no JSON, more than one value, `null`, half of a surrogate pair | error |
    | another type than the schema's, of a field or of the whole | error |
    | a value that its type cannot hold, see `spark_json_values` | error |
    | a field that is null or missing | null; an error if the schema says `NOT NULL` |
    | a field that the schema does not name | left out: it is in the landed range |
    """
    schema = parse_schema(ddl)
    text = source.cast("string")
    # Spark reads the first value of a text and passes over what comes after it. So each text is read as the first of two
    # members of a map, whose every member is counted. A text that closes the map itself, or opens another one, would have to
    # know these names
    box, begin, end = (secrets.token_hex(8) for _ in range(3))
    boxed = f.concat(f.lit(f'{{"{box}":{{"{begin}":'), text, f.lit(f',"{end}":null}}}}'))
    wrapped = StructType([StructField(box, MapType(StringType(), read_type(schema))), StructField(CORRUPT, StringType())])
    is_bare = is_plain(text, BACKSLASH)  # as most are
    # several fields use these two, in each row: what is used twice without condition Spark works out once
    parsed = f.from_json(boxed, wrapped, STRICT)
    is_one = (f.size(parsed[box]) == 2) & (f.get(f.map_keys(parsed[box]), 1) == end)
    read = f.struct(
        f.get(f.map_values(parsed[box]), 0).alias("value"),
        parsed.isNull().alias("is_null"),
        f.coalesce(parsed[CORRUPT].isNull() & is_one, f.lit(False)).alias("is_one"),  # noqa: FBT003
        (is_bare | f.is_valid_utf8(text)).alias("is_utf8"),
        (~is_bare & text.contains("\\u") & f.regexp_replace(text, WHOLE_ESCAPES, " ").rlike(HALF_A_PAIR)).alias("is_halved"),
    )

    def judge(read: Column) -> SideOutcome:
        value = read["value"]
        is_read = read["is_one"] & read["is_utf8"] & ~read["is_halved"]
        settled = settle(value, schema)
        wrong = find_wrong(value, settled, schema)
        inside = f.try_variant_get(f.try_parse_json(boxed), f"$.{box}", "map<string,variant>")
        is_json = f.coalesce((f.size(inside) == 2) & f.map_contains_key(inside, end), f.lit(False))  # noqa: FBT003
        # which field is not of its type; run only for what is set aside, which need not be UTF-8
        why = in_python(batch_explainer(schema), StringType(), text.cast("binary"))
        failure = (
            f.when(~read["is_utf8"], failed("not_utf8", f.lit("the bytes are not UTF-8")))
            .when(read["is_halved"], failed("json_malformed", f.lit("the text has half of a surrogate pair, no character")))
            .when(~(is_read | is_json), failed("json_malformed", f.lit(NO_VALUE)))
            .otherwise(failed("json_mismatch", f.coalesce(f.when(is_read, wrong), why)))
        )
        is_right = read["is_null"] | (is_read & ~is_null(value, schema) & wrong.isNull())
        return SideOutcome(settled, is_right, failure, no_id())

    return Decoded(read, judge)


def decode_json_schema(rows: DataFrame, column: str, side: Side, login: RegistryLogin = ANYBODY) -> Decoded:
    """Decode JSON of a JSON Schema: of Confluent's wire format if `side` has a registry, else plain.

    Raises `UnusableSchema`, `UnknownSubject` and `RegistryUnavailable`, before anything is decoded.
    """
    if side.registry:
        return _decode_registered(column, side, read_wire(rows, column, connect(side.registry, login)))
    raw = f.col(column)
    reader, columns = read_columns(side.schema or "", {}, f"the JSON schema of the {column}")
    violation = in_python(batch_checker({0: reader}), StringType(), f.when(raw.isNotNull(), 0), raw)
    return _join(decode_json(raw, columns), violation)


def _decode_registered(column: str, side: Side, wire: Wire) -> Decoded:
    raw = f.col(column)
    given = wire.read_reader(side, KIND)
    reader, columns = read_columns(given.text, given.references, given.what)
    checked, failures = usable(
        wire.writers, KIND, lambda schema: check_schema(schema.text, schema.references, f"schema {schema.id}")
    )
    known = choose_by_id(raw, {each: f.lit(each) for each in checked}, f.lit(None).cast("int"))
    body = f.when(known.isNotNull(), f.substring(raw, HEAD + 1, 2**31 - 1))
    violation = in_python(batch_checker(checked), StringType(), known, body)
    schemas = {str(each): _text(schema) for each, schema in checked.items()}
    schemas |= {} if side.schema else {"reader": _text(reader)}
    read, is_unread = _join(decode_json(body, columns), violation), raw.isNotNull() & body.isNull()
    return decoded_where_read(read, is_unread, wire.explain(raw, failures), schema_id(raw), schemas)


def _join(document: Decoded, violation: Column) -> Decoded:
    """Return what is read as JSON together with what its schema forbids; a text that is no JSON keeps its own failure."""
    read = f.struct(document.read.alias("document"), violation.alias("violation"))

    def judge(read: Column) -> SideOutcome:
        inner, found = document.judge(read["document"]), read["violation"]
        is_json = inner.is_right | (inner.failure["error_class"] == "json_mismatch")
        failure = f.when(found.isNotNull() & is_json, failed("schema_violated", found)).otherwise(inner.failure)
        return SideOutcome(inner.value, found.isNull() & inner.is_right, failure, no_id())

    return Decoded(read, judge)


def _text(schema: Checked) -> str:
    """Return the schema with what it refers to, as one text to compare it by."""
    text, references = schema
    return json.dumps({"schema": json.loads(text), "references": {name: json.loads(of) for name, of in references}})
