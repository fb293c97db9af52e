"""For the tests of code that uses tables: build a table, and let its store fail.

from delta_orch.testing import FailingStore, Moment, build_table, open_table

table = build_table("memory://orders", pa.table({"id": [1, 2]}))
store = FailingStore(table.store)
store.fail_at(Moment.COMMIT_PUT)
with pytest.raises(StorageError):
    open_table(store).append(pa.table({"id": [3]}))
assert table.version() == 1

docs/testing.md has more examples.
"""

from __future__ import annotations

from delta_orch.testing.failing_store import FailingStore, Moment, StoreCall
from delta_orch.testing.tables import build_table, open_table

__all__ = ["FailingStore", "Moment", "StoreCall", "build_table", "open_table"]
