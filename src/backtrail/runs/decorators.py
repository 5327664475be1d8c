"""The decorators `tool` and `llm`: functions whose calls the current run records.

Inside of the block of a run, calling a decorated function means `run.tool(name, function, ...)` or `run.llm(...)`.
Inside of another recorded call, it is a plain function call.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from backtrail.errors import Invalid
from backtrail.runs.calls import CallOptions, current, inside

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.engine.journal import Call

F = TypeVar("F", bound="Callable[..., Any]")


class Decorator(Protocol):
    """A decorator that makes a run record the calls of a function."""

    def __call__(self, fn: F, /) -> F:
        """Return the decorated function."""


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
    """Make a function a tool: inside of the block of a run, each call goes through `run.tool`.

    The options are those of `run.tool`; `name` defaults to the function's name.
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
    """Decorate a function that calls a model: inside of `with store.run(...)`, `run.llm` records each call.

    The options are those of `run.llm`; `name` defaults to the function's name.
    """
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
        options = CallOptions(kind, called, policy, verify, irreversible, key, retry, None)
        options.check(fn)

        @functools.wraps(fn)
        def journaled(*args: Any, **kwargs: Any) -> Any:
            run, around = current.get(), inside.get()
            if around is not None and run is not None and around[0] is run.calls():
                return fn(*args, **kwargs)
            make = None if run is None else run.make()
            if run is None or make is None:
                raise Invalid(
                    f"{called} is journaled by a run, and there is none here: call it inside of `with store.run(...)`, "
                    "in a thread of your own by contextvars.copy_context().run(...). "
                    f"{called}.__wrapped__ is the plain function",
                    code="invalid.run",
                )
            if run.is_async and not _in_a_loop():
                raise Invalid(
                    f"{called} is journaled by a run of backtrail.aio: await it in its event loop", code="invalid.run"
                )
            return make(options, fn, args, kwargs)

        return journaled

    return decorate if fn is None else decorate(fn)


def _in_a_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio is not None and asyncio.get_running_loop() is not None
    except RuntimeError:
        return False
