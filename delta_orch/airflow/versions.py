"""The installed Airflow: names that moved between releases, and features of newer releases.

Everything here is about the releases that `pyproject.toml` admits. No other module of this package asks for a version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow import __version__

from delta_orch.errors import InvalidRequestError

RELEASE: tuple[int, int] = tuple(int(part) for part in __version__.split(".")[:2])  # type: ignore[assignment]

if RELEASE >= (3, 2):
    from airflow.sdk import conf
    from airflow.sdk.bases.decorator import determine_kwargs
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
    )
else:
    from airflow.configuration import conf  # type: ignore[no-redef]
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
    )
    from airflow.utils.operator_helpers import determine_kwargs
if RELEASE >= (3, 1):
    from airflow.sdk import BaseHook
else:
    from airflow.hooks.base import BaseHook

if TYPE_CHECKING:
    from airflow.sdk import Connection, Context

__all__ = [
    "RELEASE",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "BaseHook",
    "amask_secret",
    "asset_extra",
    "conf",
    "connection_in_loop",
    "determine_kwargs",
    "keeps_state",
    "mask_secret",
    "needs_newer",
]


def keeps_state() -> bool:
    """Whether tasks, and the triggers of assets, can note in Airflow what later ones shall know: since 3.3. Shared
    streams of triggers, partitions that a task adds to its outlets and policies of retries came with it."""
    return RELEASE >= (3, 3)


def needs_newer(what: str, cause: str, remedy: str) -> InvalidRequestError:
    """The error for what came with 3.3."""
    return InvalidRequestError(
        f"{what} needs Airflow 3.3 or newer, and {__version__} is installed", cause=cause, remedy=remedy
    )


def mask_secret(secret: str) -> None:
    """Tell Airflow's masker a secret."""
    if RELEASE >= (3, 1):
        from airflow.sdk.log import mask_secret
    else:
        from airflow.sdk.execution_time.secrets_masker import mask_secret
    mask_secret(secret)


async def amask_secret(secret: str) -> None:
    """As `mask_secret`, in the event loop of a triggerer."""
    try:
        from airflow.sdk.log import amask_secret
    except ImportError:  # Since 3.3.2. The other one waits for the triggerer, whose loop must go on meanwhile.
        from asgiref.sync import sync_to_async

        await sync_to_async(mask_secret)(secret)
    else:
        await amask_secret(secret)


async def connection_in_loop(hook: BaseHook, conn_id: str) -> Connection:
    """A connection, in the event loop of a triggerer."""
    if keeps_state():
        return await hook.aget_connection(conn_id)
    # What 3.1 and 3.2 have masks the connection's secrets by a call that blocks the loop.
    from asgiref.sync import sync_to_async

    return await sync_to_async(hook.get_connection)(conn_id)


def asset_extra(context: Context, reference: object) -> dict[str, Any]:
    """The extra of a declared asset; empty in 3.0, which does not tell it to tasks.

    Raises:
        AirflowRuntimeError: There is no such asset.
    """
    resolved = context["outlet_events"]._resolve_asset_ref(reference)
    return resolved[1] if RELEASE >= (3, 1) else {}
