"""The function of an incremental asset, and its description for Dagster."""

# No postponed annotations in this file: Dagster reads them as they are.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, Signature, isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from typing import Any, get_type_hints

import dagster as dg
from pydantic import Field, create_model

from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.incremental import ChangeBatch, FileBatch

CONFIG = "config"


class IncrementalConfig(dg.Config):
    """The config of one run of an incremental asset, in the launchpad or in `run_config`."""

    full_refresh: bool = Field(
        default=False,
        description="Start anew: read the source as it is, and replace all rows that this asset wrote. The table stays "
        "the same table for those who read it.",
    )


@dataclass(slots=True)
class Returned:
    """The result of a function: rows, metadata, tags and check results."""

    rows: object = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] | None = None
    check_results: Sequence[dg.AssetCheckResult] = ()


class BatchFunction:
    """A function that takes a batch, and the arguments of a `dg.asset` beside it.

    Raises:
        InvalidRequestError: The function is a generator or a coroutine, or takes no batch.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        name = getattr(function, "__name__", repr(function))
        if isgeneratorfunction(function) or isasyncgenfunction(function) or iscoroutinefunction(function):
            raise InvalidRequestError(
                f"The function {name} of an incremental asset is a generator or a coroutine",
                cause="Its rows are one value, committed together with the cursor",
                remedy="Return the rows; a RecordBatchReader gives them batch by batch",
            )
        self._function = function
        self._name = name
        self._parameters = _resolved_parameters(function)
        self._takes_context = bool(self._parameters) and self._parameters[0].name in ("context", "_context", "_")
        self._batch = self._find_batch()

    def _find_batch(self) -> str:
        others = self._parameters[1:] if self._takes_context else self._parameters
        for parameter in others:
            if parameter.annotation in (ChangeBatch, FileBatch) or parameter.name in ("batch", "batches"):
                return parameter.name
        if len(others) == 1 and others[0].annotation is Parameter.empty:
            return others[0].name
        raise InvalidRequestError(
            f"The function {self._name} of an incremental asset takes no batch",
            remedy="Name a parameter 'batch', or annotate one as ChangeBatch, or FileBatch",
        )

    def describe(self, compute: Callable[..., object], *, has_schema: bool = False) -> None:
        """Give the function that Dagster calls the name and the parameters of this one, without the batch, and a config
        with `full_refresh`.

        Args:
            has_schema: The config is given by a schema, which names `full_refresh` itself, or has none.
        """
        kept = [parameter for parameter in self._parameters if parameter.name != self._batch]
        if self._takes_context:
            kept = kept[1:]
        if not has_schema:
            kept = [p for p in kept if p.name != CONFIG] + [
                Parameter(CONFIG, Parameter.KEYWORD_ONLY, annotation=self._config_type())
            ]
        context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=dg.AssetExecutionContext)
        compute.__name__ = self._name
        compute.__signature__ = Signature([context, *kept])  # type: ignore[attr-defined]
        # Dagster looks at the annotations themselves, not at their text.
        compute.__annotations__ = {
            p.name: p.annotation for p in (context, *kept) if p.annotation is not Parameter.empty
        } | {"return": dg.MaterializeResult}

    def _config_type(self) -> type[dg.Config]:
        own = next((p.annotation for p in self._parameters if p.name == CONFIG), IncrementalConfig)
        if not isinstance(own, type) or not issubclass(own, dg.Config) or "full_refresh" in own.model_fields:
            return own  # Dagster says what is wrong with it.
        field_info = IncrementalConfig.model_fields["full_refresh"]
        made: type[dg.Config] = create_model(own.__name__, __base__=own, full_refresh=(bool, field_info))
        return made

    def full_refresh(
        self, context: dg.AssetExecutionContext, arguments: Mapping[str, object]
    ) -> tuple[bool, dict[str, object]]:
        """Whether the config of the run asks for a full refresh, and the arguments that the function takes."""
        config = arguments.get(CONFIG)
        takes = any(parameter.name == CONFIG for parameter in self._parameters)
        kept = {name: value for name, value in arguments.items() if takes or name != CONFIG}
        if config is None:
            schema: object = context.op_execution_context.op_config
            return isinstance(schema, Mapping) and schema.get("full_refresh") is True, kept
        return getattr(config, "full_refresh", False) is True, kept

    def __call__(self, context: dg.AssetExecutionContext, batch: object, arguments: Mapping[str, object]) -> Returned:
        """Call the function with a batch."""
        first = [context] if self._takes_context else []
        value = self._function(*first, **{self._batch: batch}, **arguments)
        if isinstance(value, dg.Output):
            return Returned(value.value, value.metadata, value.tags)
        if isinstance(value, dg.MaterializeResult):
            # Without a value its rows are missing, as they are in None.
            rows = value.value if _has_value(value) else None
            return Returned(rows, value.metadata or {}, value.tags, value.check_results or ())
        return Returned(value)


def _has_value(result: "dg.MaterializeResult[Any]") -> bool:
    return type(getattr(result, "value", None)).__name__ not in ("type", "NoneType", "NoValueSentinel")


def _resolved_parameters(function: Callable[..., object]) -> list[Parameter]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError:
        hints = {}
    return [
        parameter.replace(annotation=hints.get(parameter.name, parameter.annotation))
        for parameter in signature(function).parameters.values()
    ]
