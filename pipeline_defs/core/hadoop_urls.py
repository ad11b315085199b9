"""Under which URL Hadoop's file systems, and so Spark's executors, know a lake that obstore knows under another one."""

from __future__ import annotations

from urllib.parse import urlsplit

from .errors import BadSetting

SAME = ("gs", "abfs", "abfss")
S3 = ("s3", "s3a")


def hadoop_url(root: str) -> str:
    """Return the URL of a lake for Spark; raise `BadSetting` for one that does not say all that Spark needs.

    | lake | Spark |
    |---|---|
    | `s3://bucket/lake` | `s3a://bucket/lake` |
    | `gs://bucket/lake`, `abfss://container@account.dfs.core.windows.net/lake` | the same |
    | `az://container/lake` | refused: Spark needs the account too |
    """
    scheme = urlsplit(root).scheme
    if scheme in S3:
        return f"s3a://{root.partition('://')[2]}"
    if scheme in SAME:
        return root
    raise BadSetting(
        f"OFFSETLAKE_LAKE is {root}, which the executors of OFFSETLAKE_SPARK_REMOTE do not know, expected such as s3://, "
        "gs:// or abfss://container@account.dfs.core.windows.net/lake; nothing was read or written; write it so"
    )
