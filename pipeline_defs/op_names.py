"""Names of the ops behind a topic's assets and checks.

Dagster derives them from asset keys with `-` and `.` made into `_`, so the ops of topics `a-b` and `a_b` would share one name
and the code location would not load. Invariant: no two topics share a name of any kind.
"""

from __future__ import annotations

from typing import TypeVar, cast

import dagster as dg

from .topics import op_name

Defined = TypeVar("Defined", bound=dg.AssetsDefinition)


def with_own_op_name(definition: Defined) -> Defined:
    """Return the asset, or the check, with an op whose name no other topic has."""
    if definition.keys:
        name = op_name(definition.key)
    else:
        (check,) = definition.check_keys
        name = f"{op_name(check.asset_key)}_{check.name}"
    renamed = definition.op.with_replaced_properties(name=name)
    attributes = {**definition.get_attributes_dict(), "node_def": renamed}
    return cast("Defined", definition.__class__.dagster_internal_init(**attributes))
