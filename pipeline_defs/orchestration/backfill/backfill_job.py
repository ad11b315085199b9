"""The job of a topic that launches a backfill of what people mean: the last hour's, a time, what is missing or failed.

Dagster's own dialog knows keys only. Nothing is chosen here: `choosing.py` does, as for the command.
"""

from typing import Any

import dagster as dg

from ...resources import Edges
from ...topics import TOPIC_TAG, Topic
from ..assets.raw_asset import ON_CHANGE
from .backfilling import BackfillRequest, launch_backfill, preview_rows, preview_table, preview_totals
from .choosing import Choice, select_ranges

DEFAULT_MINUTES = 60
SHOWN = 100  # ranges in the table; the backfill's page has them all

_BETWEEN = {
    "from_time": dg.Field(str, description="This time or later, ISO 8601 with its zone: 2026-11-17T10:00+01:00"),
    "to_time": dg.Field(str, description="And before this time."),
    "time_zone": dg.Field(str, is_required=False, description="Of times without one, such as Europe/Zurich."),
}
_RANGES = dg.Selector(  # type: ignore[no-untyped-call]
    {
        "last_minutes": dg.Field(int, description="Ranges with records of the last so many minutes."),
        "between": dg.Field(_BETWEEN, description="Ranges with records of a time."),
        "missing": dg.Field(bool, description="true: what is planned and not landed."),
        "failed": dg.Field(bool, description="true: what is not landed and whose last run failed."),
        "offsets": dg.Field([str], description='Ranges with these offsets, P:S-E: ["3:300000-400000"].'),
    }
)
_ON_CHANGE = dg.Enum("OnChange", [dg.EnumValue("keep"), dg.EnumValue("replace")])


def build_backfill(topic: Topic) -> dg.Definitions:
    """Build the job that launches a backfill of the topic; its config says of what, by default the last hour's."""
    description = (
        f"Lands ranges of `{topic.name}` (again), chosen as people speak of them; by default those with records of the last "
        f"{DEFAULT_MINUTES} minutes: open **Launchpad** and click **Launch Run**. For others change the config before: one of "
        "`last_minutes`, `between` (two times), `missing`, `failed`, `offsets`. The run ends at once; its output leads to the "
        "backfill that it has launched. A landed range is read again from Kafka and compared; its file stays, unless "
        "`on_change` says `replace`."
    )

    @dg.op(
        name=f"launch_{topic.backfill_job}",
        description=description,
        config_schema={
            "ranges": dg.Field(
                _RANGES, default_value={"last_minutes": DEFAULT_MINUTES}, description="Which ranges; exactly one of these."
            ),
            "on_change": dg.Field(_ON_CHANGE, default_value="keep", description=ON_CHANGE),
        },
    )
    def launch(context: dg.OpExecutionContext, edges: dg.ResourceParam[Edges]) -> None:
        edges.check_lake(topic.name)
        coverage = edges.lake.coverage(topic.name)
        choice = _choice(context.op_config["ranges"])
        selection = select_ranges(choice, topic, coverage, edges, context.instance)
        title = f"{topic.backfill_job} by {choice.way}"
        request = BackfillRequest(selection.ranges, choice.is_redo, context.op_config["on_change"], title)
        backfill = launch_backfill(topic, request, edges, context.instance)
        rows = preview_rows(coverage, selection.ranges)
        context.log.info("launched backfill %s of %s ranges of %s", backfill, len(rows), topic.name)
        totals = preview_totals(rows)
        states = totals.pop("ranges_by_state")
        metadata: dict[str, Any] = {
            "backfill": dg.MetadataValue.url(f"/runs/b/{backfill}"),
            "ranges": ", ".join(f"{count:,} {state}" for state, count in states.items()),
            **totals,
            "left_out": len(selection.left_out),  # meant too, but lost or abandoned
            "preview": dg.MetadataValue.md(preview_table(rows, SHOWN)),
        }
        context.add_output_metadata(metadata)

    @dg.job(name=topic.backfill_job, description=description, tags={TOPIC_TAG: topic.name})
    def backfill() -> None:
        launch()

    return dg.Definitions(jobs=[backfill])


def _choice(ranges: dict[str, Any]) -> Choice:
    """Return what the config says; Dagster has seen to it that it is one way."""
    said = dict(ranges.get("between", ranges))
    return Choice(**said | {"offsets": tuple(said.get("offsets", ()))}, said_in="config")
