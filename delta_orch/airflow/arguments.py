"""Checks of operators' arguments: when the DAG is parsed, and after the templates are rendered.

They fail on mistakes that Python would accept silently. Mapped tasks get the same checks for each listed value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.definitions.mappedoperator import OperatorPartial

from delta_orch.airflow.hook import secret_settings
from delta_orch.airflow.locations import checked_location, is_template
from delta_orch.airflow.run_context import mapped_name
from delta_orch.airflow.versions import mask_secret
from delta_orch.errors import DeltaError, InvalidRequestError
from delta_orch.expressions.parse import parse_expression
from delta_orch.pipeline.write_settings import OLD_ARGUMENTS, ensure_choice, refuse_old_names
from delta_orch.protocol.table_properties import ensure_settable, property_texts
from delta_orch.redaction import kept

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions._internal.expandinput import ExpandInput
    from airflow.sdk.definitions.mappedoperator import MappedOperator


_LOCATED = ("table_uri", "source", "target", "tables", "reference", "staged", "respect_consumers", "quarantine")
"""Arguments that name tables."""
_LISTS = ("merge_keys", "zorder_by")
"""Templated arguments that are lists of columns."""


def ensure_switches(**switches: object) -> None:
    """Raises InvalidRequestError: One is neither True nor False. Python takes the text "no" for true."""
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise InvalidRequestError(f"{name} must be True or False, not {value!r:.60}", argument=name)


def ensure_write(write: object, allowed: Sequence[object]) -> None:
    """Raises InvalidRequestError: `write` is not among the allowed ones, or is from an earlier release."""
    refuse_old_names([write])
    ensure_choice("write", write, allowed)


def ensure_list(name: str, values: object, *, may_repeat: bool = False) -> None:
    """Check a list of columns, or of tables. None and templates pass.

    Raises:
        InvalidRequestError: It is a single text, which Python takes for a list of characters; or it is empty, or
            repeats itself.
    """
    if values is None or is_template(values):
        return
    texts = [str(value).strip().lower() for value in values] if isinstance(values, list | tuple) else []
    if not texts or not all(texts) or (len(set(texts)) < len(texts) and not may_repeat):
        raise InvalidRequestError(
            f"{name} must be a list without repetitions, not {values!r:.100}",
            remedy=f"Write {name}=[{values!r}]" if isinstance(values, str) else None,
            argument=name,
        )


def ensure_predicate(text: str | None) -> None:
    """Raises InvalidExpressionError: It is not a predicate in Spark SQL. Templates pass."""
    if text is not None and not is_template(text):
        parse_expression(text)


def ensure_properties(properties: Mapping[str, str] | None) -> None:
    """Raises InvalidPropertyError: No table takes such a property. Templates pass."""
    if properties is not None and not is_template(properties):
        if not isinstance(properties, Mapping):
            raise InvalidRequestError("properties must be a mapping of names to texts", argument="properties")

        ensure_settable(property_texts(properties), on_new_table=True)


def ensure_locations(arguments: Mapping[str, object]) -> None:
    """Check the tables that arguments name. Templates pass.

    Raises:
        InvalidRequestError: One cannot be a table's location, or it carries a login, which Airflow would keep and show.
    """
    for name in _LOCATED:
        value = arguments.get(name)
        # The reference of a staged write is not a location.
        for location in () if name == "staged" and isinstance(value, str) else _locations(value):
            checked_location(location)


def _locations(value: object) -> Iterator[str]:
    """The locations in an argument: one, several by name, or references with their `table_uri`."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _locations(value["table_uri"] if "table_uri" in value else [*value.values()])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _locations(part)


class RenderedArguments:
    """Mixed into operators: what their templates render to is checked before the task runs."""

    template_fields: Sequence[str] = ()

    # Airflow's hook for operators: mapped tasks pass only here, before what was rendered is kept.
    def _do_render_template_fields(self, *args: object, **kwargs: object) -> None:
        try:
            before = {name: getattr(self, name, None) for name in self.template_fields}
            super()._do_render_template_fields(*args, **kwargs)  # type: ignore[misc]
            self._mask_secrets()
            self._ensure_rendered(before)
            return
        except DeltaError as error:
            refused = error
        # Without the frames below: a log that shows their variables, as in Airflow 3.0, would show what was rendered.
        raise refused.with_traceback(None) from None

    def _mask_secrets(self) -> None:
        """Tell Airflow's masker the secrets among settings and options: it knows fewer names of them."""
        settings = [getattr(self, name, None) for name in ("spark_conf", "env_vars", "properties")]
        options = _secret_options(getattr(self, "application_args", None) or ())
        for secret in [text for values in settings for text in secret_settings(values)] + list(options):
            mask_secret(secret)

    def _ensure_rendered(self, before: Mapping[str, object]) -> None:
        rendered: dict[str, Any] = {name: getattr(self, name, None) for name in before}
        for name in ("table_uri", "source"):
            value = rendered.get(name)
            if isinstance(value, Mapping) and {"table_uri", "version"} <= value.keys():
                raise InvalidRequestError(
                    f"{name} is the XCom of a task, which pins a version, and not a location",
                    remedy=f"Write {name}=\"{{{{ ti.xcom_pull('…')['table_uri'] }}}}\"",
                    argument=name,
                )
        ensure_locations(rendered)
        for name in rendered.keys() - {"op_args", "op_kwargs"}:
            value = rendered[name]
            if _is_lost(before[name], value) or (isinstance(value, str) and not value.strip()):
                raise InvalidRequestError(
                    f"Task {getattr(self, 'task_id', '')} has an empty {name}",
                    cause="Its template has no value in this run: the task that it refers to was skipped, or returned "
                    "nothing. Left out, an argument may stand for every row, or for the newest version",
                    remedy="Leave the argument out, or let the template have a value in each run",
                    argument=name,
                )
        for name in _LISTS:
            ensure_list(name, rendered.get(name))


def _is_lost(before: object, rendered: object) -> bool:
    """Whether a template anywhere in a value has become None."""
    if isinstance(before, Mapping) and isinstance(rendered, Mapping):
        return any(_is_lost(part, rendered.get(key, part)) for key, part in before.items())
    if isinstance(before, list | tuple) and isinstance(rendered, list | tuple):
        return any(map(_is_lost, before, rendered))
    return rendered is None and is_template(before)


def _secret_options(arguments: Sequence[object]) -> Iterator[str]:
    """The secrets among the arguments of a program: `--password=value`, `--password value`."""
    for option, following in pairwise([*map(str, arguments), ""]):
        name, equals, value = option.partition("=")
        value = value if equals else following
        setting = f"{name.replace('.', '_')}={value}"
        if name.startswith("-") and value and kept(setting) != setting:
            yield value


class CheckedPartial(OperatorPartial):  # type: ignore[misc]
    """As Airflow's; what a task is mapped over is checked when the DAG is parsed."""

    def _expand(self, expand_input: ExpandInput, *, strict: bool) -> MappedOperator:
        self._expand_called = True  # Else Airflow warns of a task that was refused: it was never mapped.
        ensure_mapped(self.operator_class, self.kwargs, expand_input.value)
        return super()._expand(expand_input, strict=strict)


class MappedArguments:
    """Mixed into operators: `partial` gives a `CheckedPartial`."""

    @classmethod
    def partial(cls, **kwargs: Any) -> CheckedPartial:
        """As Airflow's: some arguments of a mapped task."""
        made = super().partial(**kwargs)  # type: ignore[misc]
        made._expand_called = True
        return CheckedPartial(operator_class=made.operator_class, kwargs=made.kwargs, params=made.params)


def ensure_mapped(kind: type, common: Mapping[str, Any], over: object) -> None:
    """Check the arguments of a mapped task, as far as the DAG lists them.

    Args:
        kind: The operator.
        common: The arguments that all instances have.
        over: What the task is mapped over.

    Raises:
        InvalidRequestError: An argument has its old name. A location is wrong or carries a login. Or the operator
            writes units, and two instances have the same arguments, or one has arguments that are not JSON values, so
            that nothing names it.
    """
    listed = list(_listed(over))
    for arguments in (common, *listed):
        if not issubclass(kind, BaseSensorOperator):  # A sensor's mode is Airflow's.
            refuse_old_names(arguments, OLD_ARGUMENTS)
        ensure_locations(arguments)
    is_named = any(arguments.get("identity") is not None for arguments in (common, *listed))
    is_named |= isinstance(over, Mapping) and "identity" in over
    if is_named or not getattr(kind, "has_units", False) or common.get("exactly_once") is False:
        return
    task_id = str(common.get("task_id"))
    names: set[str] = set()
    for arguments in listed:
        if is_template(arguments):
            continue
        name = mapped_name(arguments)
        if name is None:
            raise unnamed_instance(task_id, arguments)
        if name in names:
            raise InvalidRequestError(
                f"Task {task_id} is mapped over the same value twice: {name:.100}",
                cause="Each mapped instance is a unit, named by its mapped arguments; the second would replace the "
                "rows of the first",
                remedy="Take the duplicate out of the list, or name each instance: identity='{{ … }}'",
            )
        names.add(name)


def unnamed_instance(task_id: str, arguments: Mapping[str, object]) -> InvalidRequestError:
    """The error for mapped arguments that name nothing."""
    kinds = ", ".join(sorted({type(value).__name__ for value in arguments.values()}))
    return InvalidRequestError(
        f"Task {task_id} is mapped over values that are not JSON ({kinds}), and has no identity",
        cause="A mapped instance is named by its arguments, as its index changes when the list does",
        remedy="Name what each instance writes: identity='{{ task.op_kwargs[\"region\"] }}'",
    )


def mapped_arguments(context: Context) -> Mapping[str, Any]:
    """The arguments that tell this instance of a mapped task, or of a mapped task group, from others.

    Raises:
        InvalidRequestError: The task is no longer mapped. Airflow runs the instances that a run has, all the same.
    """
    dag: Any = context["dag"]
    task = dag.task_dict[context["ti"].task_id]
    # 3.0 and 3.1 call the task of a mapped group no mapped one, either.
    if hasattr(task, "_get_specified_expand_input"):
        over = task._get_specified_expand_input()
    elif groups := list(task.iter_mapped_task_groups()):
        over = groups[0]._expand_input
    else:
        raise InvalidRequestError(
            f"Task {task.task_id} is not mapped any more, and Airflow runs map index {context['ti'].map_index} of it",
            cause="Each instance that the run had before would write all rows",
            remedy="Delete the run, and trigger it again with its logical date",
        )
    resolved: tuple[Mapping[str, Any], set[int]] = over.resolve(context)
    return resolved[0]


def _listed(over: object) -> Iterator[Mapping[str, Any]]:
    """Yield the mapped arguments that the DAG file lists: each set of arguments, or each value of an argument. A value
    that is listed twice for an argument is yielded twice."""
    if isinstance(over, Mapping):
        for name, values in over.items():
            yield from ({name: value} for value in (values if isinstance(values, list | tuple) else ()))
    elif isinstance(over, list | tuple):
        yield from (arguments for arguments in over if isinstance(arguments, Mapping))
