"""One case: one verb, one of its calls, one fault; and what must hold afterwards."""

from __future__ import annotations

import errno
import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from delta_orch.delta_table import DeltaTable
from delta_orch.errors import CommitOutcomeUnknownError, DeltaError, StorageError, StorageOutcomeUnknownError
from delta_orch.storage.base import FileMeta, StagedFile
from delta_orch.testing import open_table
from tests.harness.fault_matrix.tables import Files, Template, described, forget, new_uri, put_files, take_files
from tests.harness.fault_matrix.verbs import VERBS, Verb
from tests.harness.fault_store import FaultStore, Instead, StoreCall

CHANGING = frozenset({"put_if_absent", "stage", "put", "delete", "data_create", "data_write", "data_close"})
LISTING = frozenset({"list_from", "list_recursive"})
_HANG_S = 0.001
_CHILD_S = 60


class Fault(Enum):
    """What happens to a call."""

    BEFORE = "fails before"
    AFTER = "fails after taking effect"
    HANG = "hangs, then fails"
    KILL_BEFORE = "killed before"
    KILL_AFTER = "killed after"
    STALE = "stale listing"

    @property
    def kills(self) -> bool:
        return self in (Fault.KILL_BEFORE, Fault.KILL_AFTER)


@dataclass(frozen=True)
class Case:
    """The fault comes at the n-th call of a method, from 0."""

    verb: Verb
    method: str
    nth: int
    path: str
    fault: Fault

    def __str__(self) -> str:
        return f"{self.verb.name}: {self.method} no. {self.nth} ({self.path}) {self.fault.value}"


class MatrixFailure(AssertionError):
    """What must hold does not."""


@dataclass(frozen=True)
class Rehearsal:
    """A verb as it goes when nothing fails.

    Attributes:
        calls: Of the store, in order.
        before, after: The table (`described`).
        answer: Of a verb that reads; `past_answer` is what it said a while ago, None where there was no table.
    """

    calls: tuple[StoreCall, ...]
    before: Any
    after: Any
    answer: Any
    past_answer: Any


def rehearse(verb: Verb, template: Template) -> Rehearsal:
    """Run a verb without faults."""
    uri = new_uri()
    table, store = _table_before(uri, verb, template)
    before = described(DeltaTable(uri), expects_gone_files=verb.mends)
    answer = verb.act(table)
    after = described(DeltaTable(uri))
    calls = tuple(store.calls)
    past_answer = None
    if verb.is_read and template.past:
        put_files(uri, template.past)
        past_answer = verb.act(DeltaTable(uri))
    forget(uri)
    return Rehearsal(calls, before, after, answer, past_answer)


def cases_of(verb: Verb, template: Template, rehearsal: Rehearsal, *, kill_at_reads: bool) -> list[Case]:
    """Every call with every fault it can have.

    Args:
        kill_at_reads: Also kill at calls that change nothing: that is as good as killing at the change before. Of a
            verb that changes nothing, the first call is there anyway.
    """
    found: list[Case] = []
    seen: dict[str, int] = {}
    changes = any(call.method in CHANGING for call in rehearsal.calls)
    for call in rehearsal.calls:
        nth = seen[call.method] = seen.get(call.method, -1) + 1
        faults = [Fault.BEFORE, Fault.HANG]
        if call.method in CHANGING:
            faults += [Fault.AFTER, Fault.KILL_BEFORE, Fault.KILL_AFTER]
        elif kill_at_reads or (not changes and call.number == 0):
            faults.append(Fault.KILL_BEFORE)
        if call.method in LISTING and template.now.keys() != template.past.keys():
            faults.append(Fault.STALE)
        found += [Case(verb, call.method, nth, call.path, fault) for fault in faults]
    return found


def run_case(case: Case, template: Template, rehearsal: Rehearsal, scratch: Path) -> bool:
    """Try it, and judge what is left. Whether the fault came about: the calls of threads have no fixed order.

    Raises:
        MatrixFailure: Something is lost, doubled, half there, unreadable, or was refused in words that are not ours.
    """
    uri = str(scratch) if case.fault.kills else new_uri()
    try:
        if case.fault.kills:
            _run_until_killed(case, uri, template)
            judge_table(case.verb, DeltaTable(uri), uri, template, rehearsal)
            return True
        return _run_in_process(case, uri, template, rehearsal)
    except MatrixFailure as e:
        raise MatrixFailure(f"{case}: {e}") from e
    finally:
        if not case.fault.kills:
            forget(uri)


def _table_before(uri: str, verb: Verb, template: Template) -> tuple[DeltaTable, FaultStore]:
    """A table whose store counts, and has counted nothing yet."""
    store = FaultStore(DeltaTable(uri).store, watch_data=True)
    table = open_table(store)
    if verb.holds:
        put_files(uri, template.past)
        table.snapshot()
        store.forget_calls()
    put_files(uri, template.now)
    return table, store


# What happens to the call


def _fail(call: StoreCall, act: Callable[[], Any]) -> Any:
    raise _error(call, errno.EIO)


def _fail_after(call: StoreCall, act: Callable[[], Any]) -> Any:
    act()
    raise _error(call, errno.EIO, is_unknown=True)


def _hang(late: list[Callable[[], Any]]) -> Instead:
    """Nobody answers, and what was asked for is done when nobody waits any more."""

    def hang(call: StoreCall, act: Callable[[], Any]) -> Any:
        time.sleep(_HANG_S)
        if call.method in ("put_if_absent", "put", "delete"):
            late.append(act)
        raise _error(call, errno.ETIMEDOUT, is_unknown=True)

    return hang


def _error(call: StoreCall, code: int, *, is_unknown: bool = False) -> OSError:
    """In the words of whoever is called: ours, or the operating system's as Arrow passes them on."""
    if call.method.startswith("data_"):
        return OSError(code, "Injected failure", call.path)
    if is_unknown and call.method in ("put_if_absent", "put", "delete"):
        return StorageOutcomeUnknownError(f"Injected loss of the answer to {call.method}", path=call.path)
    return StorageError(f"Injected failure of {call.method}", path=call.path)


def _listing_of(past: Files) -> Instead:
    def list_past(call: StoreCall, act: Callable[[], Any]) -> Any:
        return iter(_listed(past, call))

    return list_past


def _listed(files: Files, call: StoreCall) -> list[FileMeta]:
    prefix = f"{call.path}/" if call.path else ""
    names = (path.removeprefix(prefix) for path in sorted(files) if path.startswith(prefix))
    chosen = (n for n in names if call.method == "list_recursive" or ("/" not in n and n >= call.start_name))
    return [FileMeta(prefix + n, len(files[prefix + n].data), files[prefix + n].modification_time_ms) for n in chosen]


# Faults that a process survives


def _run_in_process(case: Case, uri: str, template: Template, rehearsal: Rehearsal) -> bool:
    table, store = _table_before(uri, case.verb, template)
    late: list[Callable[[], Any]] = []
    instead: Instead
    match case.fault:
        case Fault.BEFORE:
            instead = _fail
        case Fault.AFTER:
            instead = _fail_after
        case Fault.HANG:
            instead = _hang(late)
            store.keeps_staged = True
        case _:
            instead = _listing_of(template.past)
    store.instead((case.method, case.nth), instead)
    answer, error = None, None
    try:
        answer = case.verb.act(table)
    except DeltaError as e:
        error = e
    except Exception as e:
        raise MatrixFailure(f"{e!r} is no DeltaError") from e
    came_about = store.is_obeyed
    for act in late:
        _deliver(act)
    store.keeps_staged = False
    store.discard_kept()
    if case.verb.is_read:
        _judge_answer(case, rehearsal, answer, error)
        if (again := case.verb.act(table)) != rehearsal.answer:
            raise MatrixFailure(f"asked again, it says {again}, not {rehearsal.answer}")
    is_done = error is None and not case.verb.is_read
    judge_table(case.verb, table, uri, template, rehearsal, is_done=is_done, error=error)
    return came_about


def _deliver(act: Callable[[], Any]) -> None:
    try:
        answer = act()
        if isinstance(answer, StagedFile):
            # Nobody waits for it any more.
            answer.discard()
    except StorageError:
        # A late request that finds the name taken has nobody to tell.
        return


def _judge_answer(case: Case, rehearsal: Rehearsal, answer: Any, error: DeltaError | None) -> None:
    allowed = [rehearsal.answer] + ([rehearsal.past_answer] if case.fault is Fault.STALE else [])
    if error is None and answer not in allowed:
        raise MatrixFailure(f"it says {answer}, not {rehearsal.answer}")


def _seen(state: Any, verb: Verb) -> Any:
    """What must be as before or as after."""
    return {key: value for key, value in state.items() if key != "files"} if verb.moves and state else state


def _but_properties(state: dict[str, Any] | None) -> dict[str, Any]:
    return {} if state is None else {key: value for key, value in state.items() if key != "properties"}


def judge_table(
    verb: Verb,
    table: DeltaTable,
    uri: str,
    template: Template,
    rehearsal: Rehearsal,
    *,
    is_done: bool = False,
    error: DeltaError | None = None,
) -> None:
    """What must hold after a fault, and after running the verb again.

    Args:
        table: Runs it again: the very object that saw the fault, where its process lives.
        is_done: It was acknowledged.
        error: What was raised instead.
    """
    before, after = _seen(rehearsal.before, verb), _seen(rehearsal.after, verb)
    state = before if _is_untouched(uri, template) else _seen(_read_sound_state(uri, verb), verb)
    is_prepared = verb.prepares and _but_properties(state) == _but_properties(before)
    if state not in (before, after) and not is_prepared:
        raise MatrixFailure(f"the table is neither as before nor as after, but {state}")
    is_in = state == after and after != before
    if is_done and state != after:
        raise MatrixFailure("it was acknowledged, and is not there")
    if verb.commits and is_in and error is not None and not isinstance(error, CommitOutcomeUnknownError):
        raise MatrixFailure(f"it was committed, and said {error!r}")
    if verb.is_read or (is_in and not verb.has_txn):
        return
    try:
        result = verb.act(table)
    except DeltaError as e:
        raise MatrixFailure(f"running it again fails: {e!r}") from e
    if verb.has_txn and result.skipped != is_in:
        raise MatrixFailure(f"running it again says skipped={result.skipped}")
    if (again := _seen(_read_state(uri, verb), verb)) != after:
        raise MatrixFailure(f"run again, it leaves {again}, not {after}")


def _is_untouched(uri: str, template: Template) -> bool:
    """Whether the table is, byte for byte, the one the rehearsal has read: more there is only outside the log."""
    files = take_files(uri)
    # A disk has the time of a file as it was set, in another unit.
    is_kept = all(path in files and files[path].data == file.data for path, file in template.now.items())
    return is_kept and not any(path.startswith("_delta_log/") for path in files.keys() - template.now.keys())


def _read_state(uri: str, verb: Verb) -> Any:
    """By a reader who knows nothing yet."""
    try:
        return described(DeltaTable(uri), expects_gone_files=verb.mends)
    except DeltaError as e:
        raise MatrixFailure(f"the table cannot be read: {e!r}") from e


def _read_sound_state(uri: str, verb: Verb) -> Any:
    state = _read_state(uri, verb)
    if state is None or (verb.mends and state["rows"] is None):
        return state
    try:
        problems = [p for p in DeltaTable(uri).fsck(check_files=True).problems if p.severity == "error"]
    except DeltaError as e:
        raise MatrixFailure(f"the table cannot be checked: {e!r}") from e
    if problems:
        raise MatrixFailure(f"fsck finds {problems}")
    return state


# Death


_PROCESSES = multiprocessing.get_context("forkserver")
"""Not forked from here: a thread of this process may hold a lock of Arrow's memory, and no child gets it back."""
_PROCESSES.set_forkserver_preload([__name__])


def _run_until_killed(case: Case, uri: str, template: Template) -> None:
    is_before = case.fault is Fault.KILL_BEFORE
    arguments = (case.verb.name, (case.method, case.nth), _kill_before if is_before else _kill_after, uri, template)
    child = _PROCESSES.Process(target=_act_until_killed, args=arguments)
    child.start()
    child.join(_CHILD_S)
    status = child.exitcode
    child.kill()
    child.join()
    if status != -signal.SIGKILL:
        raise MatrixFailure(f"the process was not killed, but ended with status {status}")


def _act_until_killed(name: str, call: tuple[str, int], instead: Instead, uri: str, template: Template) -> None:
    # By its name: what a verb does is no importable function.
    (verb,) = (verb for verb in VERBS if verb.name == name)
    table, store = _table_before(uri, verb, template)
    store.instead(call, instead)
    verb.act(table)


def _kill_before(call: StoreCall, act: Callable[[], Any]) -> Any:
    FaultStore.kill(call)


def _kill_after(call: StoreCall, act: Callable[[], Any]) -> Any:
    try:
        act()
    finally:
        # Also where it was refused: a name that is taken, a directory that must be made first.
        FaultStore.kill(call)
