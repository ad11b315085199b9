"""A project without topics, for commands that read one."""

from __future__ import annotations

import dagster as dg

from pipeline_defs.orchestration.topic_set import TopicFiles

NO_TOPICS = TopicFiles(dg.ComponentTree.for_test(), {})
