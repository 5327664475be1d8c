"""Functions that are journaled wherever a run is: `tool` and `llm` as decorators.

Inside of the block of a run, calling such a function is `run.tool(name, function, ...)`. Inside of another call it is a
part of that call, and a plain one.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from backtrail.errors import Invalid
from backtrail.runs.calls import Options, current, inside

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.engine.journal import Call

F = TypeVar("F", bound="Callable[..., Any]")


class Decorator(Protocol):
    """Makes a function one that is journaled."""

    def __call__(self, fn: F, /) -> F:
        """Return the function."""


@overload
def tool(fn: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    policy: str = "ask",
    verify: Callable[[Call], Any] | None = None,
    irreversible: bool = False,
    key: str | None = None,
    retry: bool = False,
) -> Decorator: ...
def tool(fn: Any = None, /, **options: Any) -> Any:
    """Make a function a tool: inside of the block of a run, each call of it is made through `run.tool`.

    The options are those of `run.tool`; `name` is the function's own unless it is given.
    """
    return _decorated("tool", fn, **options)


@overload
def llm(fn: F, /) -> F: ...
@overload
def llm(
    *,
    name: str | None = None,
    policy: str = "ask",
    verify: Callable[[Call], Any] | None = None,
    irreversible: bool = False,
    key: str | None = None,
    retry: bool = False,
) -> Decorator: ...
def llm(fn: Any = None, /, **options: Any) -> Any:
    """Make a function one that asks a model, as `tool` does: its calls are made through `run.llm`."""
    return _decorated("llm", fn, **options)


def _decorated(
    kind: str,
    fn: Any,
    *,
    name: str | None = None,
    policy: str = "ask",
    verify: Callable[[Call], Any] | None = None,
    irreversible: bool = False,
    key: str | None = None,
    retry: bool = False,
) -> Any:
    def decorate(fn: Any) -> Any:
        if not callable(fn):
            raise Invalid(f"@backtrail.{kind} is put on a function, not on {fn!r:.100}", code="invalid.argument")
        called = str(name or getattr(fn, "__name__", type(fn).__name__))
        options = Options(kind, called, policy, verify, irreversible, key, retry, None)
        options.check(fn)

        @functools.wraps(fn)
        def journaled(*args: Any, **kwargs: Any) -> Any:
            reference, around = current.get(), inside.get()
            run = None if reference is None else reference()
            if around is not None and around[0] is getattr(run, "_sync", run):
                return fn(*args, **kwargs)
            if run is None:
                raise Invalid(
                    f"{called} is journaled by a run, and there is none here: call it inside of `with store.run(...)`, "
                    "in a thread of your own by contextvars.copy_context().run(...). "
                    f"{called}.__wrapped__ is the plain function",
                    code="invalid.run",
                )
            if run is not getattr(run, "_sync", run) and not _in_a_loop():
                raise Invalid(
                    f"{called} is journaled by a run of backtrail.aio: await it in its event loop", code="invalid.run"
                )
            return run._called(options, fn, args, kwargs)  # noqa: SLF001 - a part of it

        return journaled

    return decorate if fn is None else decorate(fn)


def _in_a_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio is not None and asyncio.get_running_loop() is not None
    except RuntimeError:
        return False
