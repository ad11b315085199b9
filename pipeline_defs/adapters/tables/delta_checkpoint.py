"""What delta-rs does for a log in a process of its own: it takes 110 MB there, and could end the process.

Run with the table's URL. It deletes commits that are older than a week and than the newest checkpoint, then writes a
checkpoint of what the table has now. Credentials of an object store are in the environment.
"""

import sys

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

if __name__ == "__main__":
    try:
        table = DeltaTable(sys.argv[1])
        table.cleanup_metadata()
        table.create_checkpoint()
    except (DeltaError, OSError, ValueError) as error:
        sys.exit(str(error))
