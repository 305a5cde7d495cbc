"""Loads `module:name`, as the command line and longwatch.toml write it: the group that
workers run.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from longwatch.core.error_text import describe_error
from longwatch.core.masking import mask_text
from longwatch.core.suggest import did_you_mean
from longwatch.errors import LongwatchError, UsageError
from longwatch.host.service import Runnable
from longwatch.runtime.group import LoopGroup
from longwatch.workers.preflight import split_import_path

FLOW_WORK_VARIABLE = "LONGWATCH_FLOW_WORK"
"""The variable with the settings of `longwatch flow work`. It means that the target is a Flow."""
GROUP_EXAMPLE = "group = LoopGroup([...])"
FLOW_EXAMPLE = "flow = Flow(store, graphs=[...])"


def load_group(import_path: str) -> LoopGroup:
    """Import a group: a LoopGroup, a loop, a Flow, a list of loops and Flows, or a function without
    arguments that returns one.

    Modules are searched in the present directory first, as for `python app.py`.
    """
    settings = os.environ.pop(FLOW_WORK_VARIABLE, None)  # for this process, not for its children
    example = GROUP_EXAMPLE if settings is None else FLOW_EXAMPLE
    found = load_object(import_path, example=example)
    if callable(found) and not (isinstance(found, LoopGroup) or _is_loop(found)):
        found = found()
    if settings is not None:
        return _flow_group(
            require_flow(found, import_path, otherwise="; `longwatch worker` runs loops"),
            **json.loads(settings),
        )
    return _flow_group(found) if is_flow(found) else _as_group(found, import_path)


def load_object(import_path: str, *, example: str) -> Any:
    """Import the object that `module:name` names. Raises UsageError with the nearest name, else
    with the example of a definition, if there is none.
    """
    module_name, name = split_import_path(import_path)
    if os.getcwd() not in sys.path:  # noqa: PTH109 - as sys.path has it
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    return _resolve(_import_module(module_name, import_path), name, example)


def is_flow(found: Any) -> bool:
    """Whether the object is a Flow. Its module is loaded if so, hence it need not be
    imported here.
    """
    module = sys.modules.get("longwatch.flow.flow")
    return module is not None and isinstance(found, module.Flow)


def require_flow(found: Any, import_path: str, *, otherwise: str = "") -> Any:
    if not is_flow(found):
        kind = type(found).__name__
        raise UsageError(
            f"{import_path!r} is of type {kind}; it has to be a Flow, or a function that returns "
            f"one{otherwise}"
        )
    if found.closed:
        raise UsageError(
            f"{import_path!r} was closed while its module was imported; put that `with` under if "
            f'__name__ == "__main__":'
        )
    return found


@contextmanager
def user_code_errors(import_path: str) -> Iterator[None]:
    """Turn exceptions of user code into a UsageError with the import path, the error and its
    location.
    """
    try:
        yield
    except LongwatchError:
        raise
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        location = (
            ""
            if frame.filename.startswith(("<", __file__))
            else f" ({frame.filename}, line {frame.lineno})"
        )
        raise UsageError(
            f"{import_path!r} cannot be used: "
            f"{mask_text(' '.join(describe_error(error).split()))}{location}"
        ) from error


def _import_module(module_name: str, import_path: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise
        here = os.getcwd()  # noqa: PTH109
        raise UsageError(
            f"the module {missing!r} of {import_path!r} was not found, neither in {here} nor on "
            f"the Python path; check the name and the working directory"
        ) from None


def _resolve(module: Any, name: str, example: str) -> Any:
    found = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            known = [each for each in dir(found) if not each.startswith("_")]
            hint = did_you_mean(part, known, default=f"define it there, as in: {example}")
            raise UsageError(f"the module {module.__name__} has no {part!r}; {hint}") from None
    return found


def _flow_group(flow: Any, **settings: Any) -> LoopGroup:
    return LoopGroup([flow.worker(name="flow", **settings)])


def _as_group(found: Any, import_path: str) -> LoopGroup:
    if isinstance(found, LoopGroup):
        return found
    listed = list(found) if isinstance(found, list | tuple) else [found]
    loops = [each.worker() if is_flow(each) else each for each in listed]
    if loops and all(map(_is_loop, loops)):
        return LoopGroup(loops)
    kind = type(found).__name__
    raise UsageError(
        f"{import_path!r} is of type {kind};"
        " it has to be a LoopGroup, a loop, a list of loops, or a function that returns one, "
        "or a Flow"
    )


def _is_loop(found: Any) -> bool:
    """Whether the object is a loop, and not the class of one."""
    return isinstance(found, Runnable) and not isinstance(found, type)
