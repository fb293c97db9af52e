"""When assets that read Delta tables run."""

from __future__ import annotations

import dagster as dg

Condition = dg.AutomationCondition[dg.AssetKey | dg.AssetCheckKey]


class DeltaAutomation:
    """Automation conditions that go by the data versions of tables."""

    @staticmethod
    def on_new_data() -> Condition:
        """When the data version of an upstream asset has changed.

        As `dg.AutomationCondition.eager()`, but an upstream run that found nothing new starts nothing: a `@delta_asset`
        without news, a run that recovered its commit, an observation of an unchanged table. So the upstream asset is
        never executed in the same run as this one: its data version is known only when it has ended.

        The upstream must report data versions: the assets of a `DeltaLakeIOManager`, `@delta_asset`s, and tables of
        `build_delta_observations` do. For time partitions, only the latest one is considered. Of a partitioned upstream
        at least one of the partitions that belong to the target must be there; `eager()` waits for all of them.
        """
        condition = dg.AutomationCondition
        new_data = condition.any_deps_match(
            condition.data_version_changed() & ~condition.executed_with_root_target()
        ).with_label("any_deps_have_new_data")
        return (
            condition.in_latest_time_window()
            & (condition.newly_missing() | new_data).since_last_handled()
            & condition.all_deps_match(~condition.missing()).with_label("all_deps_exist")
            & ~condition.any_deps_in_progress()
            & ~condition.in_progress()
        ).with_label("on_new_data")
