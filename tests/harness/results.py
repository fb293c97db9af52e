"""The types of what public methods return and take.

They have no public names. Tests that annotate take them from here, so a module that moves changes one line.
"""

from __future__ import annotations

from delta_orch.delta_table import TableSnapshot as Snapshot
from delta_orch.log.files.commit_reader import Commit
from delta_orch.log.write.commit_options import CommitResult
from delta_orch.log.write.transaction import Transaction
from delta_orch.scan.scan import Scan, ScanTask

__all__ = ["Commit", "CommitResult", "Scan", "ScanTask", "Snapshot", "Transaction"]
