"""The parts of the pages that are made from the code: parameters, errors, properties, commands, functions, options.

A page has a line such as `::: parameters delta_orch.dagster.delta_asset`, and the site the text that the code has for
it. So a fact stands once, in the code. The module is a hook of mkdocs, and prints a page as the site has it:

    python scripts/site_reference.py docs/errors.md
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
_DIRECTIVE = re.compile(r"^::: (\w+)(?: (.+))?$", re.MULTILINE)
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields|Example|Examples): *(.*)$", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\**\w[\w*, ]*(?:,\n {5,}[\w*, ]+)*): (.*(?:\n(?: {5,}.*| *$))*)", re.MULTILINE)
_PAGE = re.compile(r"`?docs/([\w-]+)\.md`?")
_DAY_MS = 86_400_000
# GitHub wants a pipe in the code of a table with a backslash before it, and mkdocs shows that backslash.
_TABLE_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_CODE = re.compile(r"`[^`]+`")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return _TABLE_ROW.sub(lambda row: _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), expanded(markdown))


def expanded(markdown: str) -> str:
    """A page with the text of the code in the place of its directives. Lines of mkdocstrings stay as they are."""

    def made(match: re.Match[str]) -> str:
        return "\n".join(_DIRECTIVES[match[1]](*(match[2] or "").split())) if match[1] in _DIRECTIVES else match[0]

    return _DIRECTIVE.sub(made, markdown)


def named(path: str) -> Any:
    """What `delta_orch.dagster.delta_asset` or `delta_orch.dagster.PipesDeltaSparkClient.run` names."""
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found: Any = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise LookupError(path)


def table(*headings: str, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """A table in Markdown."""
    yield f"| {' | '.join(headings)} |"
    yield "|" + " --- |" * len(headings)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def linked(text: str) -> str:
    """A text of the code for a page: names of pages are links."""
    return _PAGE.sub(r"[\1](\1.md)", text)


def sections(entry: Any) -> dict[str, str]:
    """The parts of a docstring by their headings; what comes first has none."""
    text = inspect.cleandoc(entry.__doc__ or "")
    places = [*_SECTION.finditer(text)]
    found = {"": text[: places[0].start()] if places else text}
    for place, after in zip_longest(places, places[1:]):
        found[place[1]] = f"{place[2]}{text[place.end() : after.start() if after else len(text)]}"
    return {heading: body.strip("\n") for heading, body in found.items()}


def entries(section: str) -> dict[str, str]:
    """The entries of a section: names, separated by commas, and what is said of them."""
    return {" ".join(names.split()): " ".join(text.split()) for names, text in _ENTRY.findall(section)}


def described(entry: Any) -> dict[str, str]:
    """What the code says of each parameter, in its order. One entry may stand for several parameters."""
    said = sections(entry)
    texts = entries(said.get("Args", "")) | entries(said.get("Attributes", ""))
    if inspect.isclass(entry) and not said.get("Args"):
        texts |= entries(sections(entry.__init__).get("Args", ""))
    names = {name.strip("* ") for key in texts for name in key.split(",")}
    for name, field in getattr(entry, "model_fields", {}).items():
        resolvers = [note.description for note in field.metadata if getattr(note, "description", None)]
        if name not in names and (text := field.description or next(iter(resolvers), None)):
            texts[name] = text
    return texts


def defaults(entry: Any) -> dict[str, str]:
    """The default of each parameter, as it is written."""
    defaults: dict[str, Any] = {}
    if hasattr(entry, "model_fields"):
        defaults = {
            name: inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
            for name, field in entry.model_fields.items()
        }
    else:
        owners = [vars(kind).get("__init__") for kind in entry.__mro__] if inspect.isclass(entry) else [entry]
        for owner in reversed([owner for owner in owners if owner is not None]):
            parameters = inspect.signature(owner).parameters.values()
            defaults |= {p.name: p.default for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    return {name: _default(value) for name, value in defaults.items()}


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    if value is None or value == "" or value in ((), [], {}) or repr(value) == "<factory>":
        return ""
    if dataclasses.is_dataclass(value):
        return f"`{type(value).__name__}()`"
    return f"`{json.dumps(value) if isinstance(value, str) else getattr(value, 'name', value)}`"


def parameters(path: str, *only: str) -> Iterator[str]:
    """The docstring of a class or function, and its parameters as a table. `only` leaves the docstring out."""
    entry = named(path)
    if "table" not in only:
        yield linked(sections(entry)[""])
        yield ""
    known = defaults(entry)
    rows = []
    for names, text in described(entry).items():
        spelled = [name.strip() for name in names.split(",")]
        values = {known.get(name.strip("*"), "") for name in spelled}
        shown = next(iter(values)) if len(values) == 1 and not spelled[0].startswith("*") else ""
        rows.append((", ".join(f"`{name}`" for name in spelled), shown, linked(text)))
    if rows:
        yield from table("parameter", "default", "meaning", rows=rows)
    if "table" not in only and (raised := entries(sections(entry).get("Raises", ""))):
        yield ""
        yield from (f"- Raises `{name}`: {text}" for name, text in raised.items())


def members(path: str, *names: str) -> Iterator[str]:
    """Methods and attributes of a class, and what its docstrings say of them."""
    owner = named(path)
    texts = entries(sections(owner).get("Attributes", ""))
    rows = []
    for name in names:
        member = inspect.getattr_static(owner, name, None)
        text = texts.get(name) or " ".join(sections(member)[""].split())
        rows.append((f"`{name}()`" if inspect.isfunction(member) else f"`{name}`", linked(text)))
    yield from table("member", "what it is", rows=rows)


def functions(path: str) -> Iterator[str]:
    """The public functions of a module, each with its parameters and what it is for."""
    module = named(path)
    rows = []
    for name, function in vars(module).items():
        if inspect.isfunction(function) and function.__module__ == path and name[0] != "_" and "build" not in name:
            arguments = ", ".join(inspect.signature(function).parameters)
            rows.append((f"`{path.rpartition('.')[2]}.{name}({arguments})`", " ".join(sections(function)[""].split())))
    yield from table("function", "what it does", rows=rows)


def metadata(place: str) -> Iterator[str]:
    """The keys of the metadata of an `asset`, or of an `input`."""
    from delta_orch.dagster import settings

    rows = []
    for names, meaning in settings.MEANINGS.items():
        keys = names.split(", ")
        if keys[0] in (settings.DEFINED_KEYS if place == "asset" else settings.INPUT_KEYS):
            on_output = ("yes" if keys[0] in settings.WRITTEN_KEYS else "no",) if place == "asset" else ()
            rows.append((", ".join(f"`{key}`" for key in keys), *on_output, linked(meaning)))
    yield from table("key", *(("also on an output",) if place == "asset" else ()), "meaning", rows=rows)


def errors() -> Iterator[str]:
    """Every error: its code, what it means, what helps, and whether running again may."""
    from delta_orch import errors as module

    for name, kind in vars(module).items():
        if inspect.isclass(kind) and issubclass(kind, module.DeltaError):
            means, _, remedy = inspect.cleandoc(kind.__doc__ or "").partition("Remedy: ")
            again = "yes" if kind.retryable else "some" if "etryable if" in means else "no"
            base = "" if name == "DeltaError" else f", a kind of `{kind.__mro__[1].__name__}`"
            yield f"### `{name}`\n"
            yield f"`{kind.code}`{base}; retried: {again}\n"
            yield f"{linked(' '.join(means.split()))}\n"
            yield f"**What to do:** {linked(' '.join(remedy.partition('Args:')[0].split()))}\n"


def properties(group: str = "set") -> Iterator[str]:
    """Table properties: those that users `set`, that the `table` sets, that are `kept` without effect, or that are
    `asked` of the protocol."""
    from delta_orch.protocol import table_properties as module
    from delta_orch.table.protocol_upgrade import is_protocol_request

    known = {field.metadata["key"]: field for field in dataclasses.fields(module.TableProperties) if field.metadata}
    internal = {key for key in module.PROPERTY_NAMES if key.lower() in module.INTERNAL_PROPERTIES}
    if group == "set":
        rows = [
            (f"`{key}`", _property_default(field.default, key), linked(field.metadata["meaning"]))
            for key, field in sorted(known.items(), key=lambda item: item[0].lower())
            if key not in internal
        ]
        yield from table("property", "default", "what it decides", rows=rows)
        return
    asked = {key for key in module.PROPERTY_NAMES if is_protocol_request(key)}
    chosen = {"table": internal, "asked": asked, "kept": set(module.PROPERTY_NAMES) - set(known) - internal - asked}
    yield ", ".join(f"`{key}`" for key in sorted(chosen[group]))


def _property_default(value: object, key: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if key.endswith("Duration"):
        return f"`interval {int(str(value)) // _DAY_MS} days`"
    return f"`{value}`"


def commands(*names: str) -> Iterator[str]:
    """Commands of `delta-orch`: how each is called, and its options."""
    import click

    import delta_orch.cli.main  # noqa: F401 (it adds the commands)
    from delta_orch.cli.app import PROGRAM, app

    for name in names:
        command = app.commands[name]
        # A command keeps the help option that it makes here, so it must be the group's.
        context = click.Context(command, info_name=f"{PROGRAM} {name}", **app.context_settings)
        yield f"### `{name}`\n"
        yield f"```text\n{' '.join([PROGRAM, name, *command.collect_usage_pieces(context)])}\n```\n"
        yield f"{inspect.cleandoc(command.help or '')}\n"
        rows = [
            (
                ", ".join(f"`{part}`" for part in record[0].replace("|", " | ").split(", ")),
                record[1].replace("  [required]", " Required."),
            )
            for option in command.params
            if isinstance(option, click.Option) and option.name not in ("storage_options", "as_json")
            if (record := option.get_help_record(context)) is not None
        ]
        if rows:
            yield from table("option", "meaning", rows=rows)
        yield ""


def expressions() -> Iterator[str]:
    """The functions that rules of a table may call, by kind."""
    from delta_orch.expressions.allowed_functions import FUNCTIONS_BY_KIND

    for kind, names in FUNCTIONS_BY_KIND.items():
        yield f"- {kind}: {', '.join(f'`{name}`' for name in sorted(names))}"


def figures(name: str) -> Iterator[str]:
    """The figures of a plot, and the most memory in MB."""
    from benchmarks import plots

    plot = plots.plots()[name]
    groups = dict(plots.bars(plot, plots.recorded()))
    shown = {bar[0] for group in groups.values() for bar in group}
    names = [name for name in dict.fromkeys(plot.contestants.values()) if name in shown]
    yield '??? note "The figures"\n'
    rows = [
        (heading, *(next((_figure(bar) for bar in group if bar[0] == name), "") for name in names))
        for heading, group in groups.items()
    ]
    yield from (f"    {line}" for line in table("", *names, rows=rows))


def _figure(bar: tuple[str, float, int]) -> str:
    _, value, peak_bytes = bar
    return f"{value:.3g} ({peak_bytes / 1e6:.0f})" if peak_bytes else f"{value:.3g}"


_DIRECTIVES: Mapping[str, Callable[..., Iterator[str]]] = {
    function.__name__: function
    for function in (
        parameters,
        members,
        functions,
        metadata,
        errors,
        properties,
        commands,
        expressions,
        figures,
    )
}


if __name__ == "__main__":
    for page in sys.argv[1:]:
        print(expanded(Path(page).read_text(encoding="utf-8")))
