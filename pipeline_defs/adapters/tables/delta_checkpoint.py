"""What delta-rs does for a log, in a process of its own: it takes 110 MB, could hang, and could end the process.

Run with `create`, which writes a checkpoint and prints its version, or `delete`, which deletes commits that are older than a
week and than the newest checkpoint; then the table's URL. Credentials of an object store are in the environment.
"""

import sys

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

if __name__ == "__main__":
    what, url = sys.argv[1:]
    try:
        table = DeltaTable(url)
        if what == "create":
            table.create_checkpoint()
            sys.stdout.write(str(table.version()))
        else:
            table.cleanup_metadata()
    except (DeltaError, OSError, ValueError) as error:
        sys.exit(str(error))
