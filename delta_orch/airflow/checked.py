"""Arguments are checked when a DAG is parsed, and once more when templates are rendered.

Importing this module loads nothing of Airflow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from delta_orch.airflow.connection import secret_settings
from delta_orch.airflow.locations import checked_location, is_template
from delta_orch.arguments import checked_constructor, ensure_arguments
from delta_orch.errors import DeltaError, InvalidRequestError
from delta_orch.redaction import kept

_DEEPEST = 50
_PREDICATES = ("where", "replace_where", "on")
_LOCATED = ("table_uri", "source", "tables", "reference", "respect_consumers")


def _passes(templated: Collection[str], choices: Mapping[str, Sequence[object]], name: str, value: object) -> bool:
    """Whether an argument is known only when the task runs.

    Raises:
        InvalidRequestError: It is nested in a way that Airflow, which looks for templates in it, cannot follow; it is
            none of the possible ones; or it is Spark SQL, or properties, that no table takes.
    """
    if _is_deep(value, _DEEPEST):
        raise InvalidRequestError(f"{name} is nested too deep", cause="It may hold itself", argument=name)
    if isinstance(value, str):
        ensure_choice(name, value, choices.get(name))
        if name in _PREDICATES:
            ensure_predicate(value)
    elif isinstance(value, Mapping) and name == "properties" and not is_template(value):
        from delta_orch.protocol.table_properties import ensure_settable, property_texts

        ensure_settable(property_texts(value), on_new_table=True)
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


def _secret_options(operator: object) -> Iterator[str]:
    """The secrets among the arguments of a program: `--password=value`, `--password value`."""
    said = [str(argument) for argument in getattr(operator, "application_args", None) or ()]
    for option, following in pairwise([*said, ""]):
        name, told, value = option.partition("=")
        value = value if told else following
        setting = f"{name.replace('.', '_')}={value}"
        if name.startswith("-") and value and kept(setting) != setting:
            yield value


def _locations(value: object) -> Iterator[str]:
    """The locations in an argument: one, several by name, or references with their `table_uri`."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _locations(value["table_uri"] if "table_uri" in value else [*value.values()])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _locations(part)


def _is_lost(given: object, rendered: object) -> bool:
    """Whether a template anywhere in a value has become None."""
    if isinstance(given, Mapping) and isinstance(rendered, Mapping):
        return any(_is_lost(one, rendered.get(key, one)) for key, one in given.items())
    if isinstance(given, list | tuple) and isinstance(rendered, list | tuple):
        return any(map(_is_lost, given, rendered))
    return rendered is None and is_template(given)


def ensure_predicate(text: str | None) -> None:
    """Refuse, when a DAG is parsed, what no table could read; templates pass.

    Raises:
        InvalidExpressionError: It is not a predicate in Spark SQL.
    """
    if isinstance(text, str) and text.strip() and not is_template(text):
        from delta_orch.expressions.parse import parse_expression

        parse_expression(text)


def ensure_choice(name: str, value: str, allowed: Sequence[object] | None) -> None:
    """Refuse a value that is not among the allowed ones."""
    if allowed is not None and value not in allowed:
        named = ", ".join(str(choice) for choice in allowed if choice is not None)
        raise InvalidRequestError(
            f"{name}={value[:60]!r} is not possible", cause=f"Possible are {named}", remedy="Choose one", argument=name
        )


OLD_NAMES = {
    "mode": "write",
    "partition_overwrite_mode": "write='overwrite_partitions'",
    "keys": "merge_keys",
    "table_properties": "properties",
    "checks": "audit",
    "idempotency": "on_redo='keep' for what 'partition' was, and exactly_once=False for what 'off' was",
    "adds": "write='append' or write='overwrite'",
}
"""Old name of an argument → what takes its place."""


def ensure_names(arguments: Mapping[str, object]) -> None:
    """Raises InvalidRequestError: An argument has its old name."""
    for name in OLD_NAMES.keys() & arguments.keys():
        raise InvalidRequestError(
            f"Task {arguments.get('task_id', '')} has the argument {name}".replace("  ", " "),
            cause="It has another name now",
            remedy=f"Write {OLD_NAMES[name]}",
            argument=name,
        )


class CheckedArguments:
    """Mixed into what a DAG file makes: arguments are checked against the signatures when it is parsed. Templates of
    templated fields pass, and so do the arguments of Airflow's own classes."""

    template_fields: Sequence[str] = ()
    choices: Mapping[str, Sequence[object]] = MappingProxyType({})
    """Arguments of few possible values."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        checked_constructor(cls, partial(_passes, (*cls.template_fields, "target"), cls.choices))


class CheckedOperator(CheckedArguments):
    """Mixed into operators: checked are also the arguments of `partial`, and what templates render to."""

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """As Airflow's: some arguments of a mapped task."""
        from delta_orch.airflow.expansion import checked_partial

        cls.ensure_known(kwargs)
        return checked_partial(super().partial(**kwargs))  # type: ignore[misc]

    @classmethod
    def ensure_known(cls, arguments: Mapping[str, Any]) -> None:
        """Refuse, when a DAG is parsed, some arguments of a mapped task that no run could make right."""
        ensure_names(arguments)
        ensure_arguments(cls, {**arguments})
        for name in ("target", *_LOCATED):
            for location in _locations(arguments.get(name)):
                checked_location(location)

    def _mask_settings(self) -> None:
        """Tell Airflow's masker the secrets among the settings and options: it knows fewer names of them."""
        settings = [getattr(self, name, None) for name in ("spark_conf", "env_vars", "properties")]
        found = [text for given in settings for text in secret_settings(given)] + list(_secret_options(self))
        if not found:
            return
        from delta_orch.airflow.versions import mask_secret

        for text in found:
            mask_secret(text)

    # Airflow's hook for operators: mapped tasks pass only here, before what was rendered is kept.
    def _do_render_template_fields(self, *args: object, **kwargs: object) -> None:
        try:
            self._render_checked(*args, **kwargs)
            return
        except DeltaError as error:
            refused = error
        # Without the frames below: a log that shows their variables, as in Airflow 3.0, would show what was rendered.
        raise refused.with_traceback(None) from None

    def _render_checked(self, *args: object, **kwargs: object) -> None:
        given = {name: getattr(self, name, None) for name in self.template_fields}
        super()._do_render_template_fields(*args, **kwargs)  # type: ignore[misc]
        self._mask_settings()
        for name in ("table_uri", "source"):
            found = getattr(self, name, None)
            if isinstance(found, Mapping) and {"table_uri", "version"} <= found.keys():
                raise InvalidRequestError(
                    f"{name} is the XCom of a task, which pins a version, and not a location",
                    remedy=f"Write {name}=\"{{{{ ti.xcom_pull('…')['table_uri'] }}}}\"",
                    argument=name,
                )
        for name in (*_LOCATED, "staged"):
            found = getattr(self, name, None)
            # The reference of a staged write is not a location.
            for location in () if name == "staged" and isinstance(found, str) else _locations(found):
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
