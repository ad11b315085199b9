"""Metrics as a table: of each name its values, by those of its labels."""

from collections.abc import Iterable, Mapping

from pipeline_defs.adapters.telemetry.prometheus import Metric


def samples_of(metrics: Iterable[Metric]) -> Mapping[str, Mapping[tuple[str, ...], float]]:
    return {each.name: {tuple(sample.labels.values()): sample.value for sample in each.samples} for each in metrics}
