"""What `import backtrail` gives: the names in `__all__`, in order, and nothing else."""

import subprocess
import sys
import types

import backtrail


def test_the_names_are_in_order():
    # constants, then classes, then functions, each by name: the order that the linter keeps
    def rank(name):
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    assert backtrail.__all__ == sorted(backtrail.__all__, key=rank)


def test_no_name_comes_twice():
    assert len(set(backtrail.__all__)) == len(backtrail.__all__)


def test_every_name_can_be_imported():
    assert not [name for name in backtrail.__all__ if not hasattr(backtrail, name)]


def test_nothing_else_is_public():
    there = {name: value for name, value in vars(backtrail).items() if not name.startswith("_")}
    others = {name for name, value in there.items() if not isinstance(value, types.ModuleType)}
    assert others - {"TYPE_CHECKING", "Any"} == set(backtrail.__all__)


def test_modules_beside_the_names_are_parts_of_the_package():
    modules = [value for value in vars(backtrail).values() if isinstance(value, types.ModuleType)]
    assert not [module.__name__ for module in modules if not module.__name__.startswith("backtrail.")]


def test_every_error_of_the_tree_is_public():
    tree, todo = set(), [backtrail.Error]
    while todo:
        cls = todo.pop()
        tree.add(cls.__name__)
        todo += [below for below in cls.__subclasses__() if below.__module__.startswith("backtrail.")]
    assert tree <= set(backtrail.__all__)


def test_importing_loads_no_driver_no_terminal_and_no_framework():
    code = "import sys, backtrail; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"apsw", "click", "rich", "pydantic", "msgspec", "asyncio"} & set(done.stdout.split())
