"""Arguments are checked when a DAG is parsed, and once more when templates are rendered.

Importing this module loads nothing of Airflow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from delta_orch.airflow.connection import secret_settings
from delta_orch.airflow.locations import checked_location, is_template
from delta_orch.arguments import checked_constructor, ensure_arguments
from delta_orch.errors import InvalidRequestError

_DEEPEST = 50


def _passes(templated: Collection[str], name: str, value: object) -> bool:
    """Whether an argument is known only when the task runs.

    Raises:
        InvalidRequestError: It is nested in a way that Airflow, which looks for templates in it, cannot follow.
    """
    if _is_deep(value, _DEEPEST):
        raise InvalidRequestError(f"{name} is nested too deep", cause="It may hold itself", argument=name)
    if isinstance(value, str) and value.isascii() and name in ("table_uri", "source", "target"):
        return True  # `checked_location` looks closer, and the type would be looked up in the sources of modules.
    is_container = isinstance(value, Mapping | list | tuple)
    return name in templated and not is_container and is_template(value)


def _is_deep(value: object, depth: int) -> bool:
    if not isinstance(value, Mapping | list | tuple):
        return False
    return not depth or any(
        _is_deep(one, depth - 1) for one in (value.values() if isinstance(value, Mapping) else value)
    )


def _is_lost(given: object, rendered: object) -> bool:
    """Whether a template anywhere in a value has become None."""
    if isinstance(given, Mapping) and isinstance(rendered, Mapping):
        return any(_is_lost(one, rendered.get(key, one)) for key, one in given.items())
    if isinstance(given, list | tuple) and isinstance(rendered, list | tuple):
        return any(map(_is_lost, given, rendered))
    return rendered is None and is_template(given)


class CheckedArguments:
    """Mixed into what a DAG file makes: arguments are checked against the signatures when it is parsed. Templates of
    templated fields pass, and so do the arguments of Airflow's own classes."""

    template_fields: Sequence[str] = ()

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        checked_constructor(cls, partial(_passes, (*cls.template_fields, "target")))


class CheckedOperator(CheckedArguments):
    """Mixed into operators: checked are also the arguments of `partial`, and what templates render to."""

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """As Airflow's: some arguments of a mapped task."""
        ensure_arguments(cls, kwargs)
        return super().partial(**kwargs)  # type: ignore[misc]

    def _mask_settings(self) -> None:
        """Tell Airflow's masker the secrets among the settings: it knows fewer names of them."""
        found = [text for name in ("spark_conf", "env_vars") for text in secret_settings(getattr(self, name, None))]
        if not found:
            return
        from airflow.sdk.log import mask_secret

        for text in found:
            mask_secret(text)

    # Airflow's hook for operators: mapped tasks pass only here, before what was rendered is kept.
    def _do_render_template_fields(self, *args: object, **kwargs: object) -> None:
        given = {name: getattr(self, name, None) for name in self.template_fields}
        super()._do_render_template_fields(*args, **kwargs)  # type: ignore[misc]
        self._mask_settings()
        for name in ("table_uri", "source"):
            found = getattr(self, name, None)
            for location in found.values() if isinstance(found, Mapping) else (found,):
                if isinstance(location, str):
                    checked_location(location)
        for name in given.keys() - {"op_args", "op_kwargs"}:
            rendered = getattr(self, name)
            if _is_lost(given[name], rendered) or (isinstance(rendered, str) and not rendered.strip()):
                raise InvalidRequestError(
                    f"Task {getattr(self, 'task_id', '')} has a template in {name} that renders to nothing",
                    cause="The task that it refers to was skipped, or returned nothing; left out, an argument may "
                    "stand for every row, or for the newest version",
                    remedy="Leave the argument out, or let the template have a value in each run",
                    argument=name,
                )
        ensure_arguments(type(self), {name: getattr(self, name) for name in self.template_fields})
