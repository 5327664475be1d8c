"""What `import backtrail` gives: the names in `__all__`, in order, and nothing else."""

import ast
import subprocess
import sys
import types
from pathlib import Path

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
    assert {name for name in dir(backtrail) if name in backtrail.__all__} == set(backtrail.__all__)
    [getattr(backtrail, name) for name in backtrail.__all__]  # they are loaded when they are first used
    there = {name: value for name, value in vars(backtrail).items() if not name.startswith("_")}
    others = {name for name, value in there.items() if not isinstance(value, types.ModuleType)}
    assert others - {"TYPE_CHECKING", "Any"} == set(backtrail.__all__)


def test_every_name_is_loaded_from_where_type_checkers_see_it():
    tree = ast.parse(Path(backtrail.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {name.name: node.module for node in block.body for name in node.names if node.module != "backtrail"}
    homes = {name: f"backtrail.{home}" for home, names in backtrail._HOMES.items() for name in names.split()}
    assert homes == seen
    assert set(homes) == set(backtrail.__all__)


def test_importing_reads_none_of_the_library():
    code = "import sys, backtrail; print(*[name for name in sys.modules if name.startswith('backtrail.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_modules_beside_the_names_are_parts_of_the_package():
    modules = [value for value in vars(backtrail).values() if isinstance(value, types.ModuleType)]
    assert not [module.__name__ for module in modules if not module.__name__.startswith("backtrail.")]


def test_every_error_of_the_tree_is_public():
    """But for those of adapters, which are errors of their frameworks, too."""
    tree, todo = set(), [backtrail.Error]
    while todo:
        cls = todo.pop()
        tree.add(cls.__name__)
        ours = [below for below in cls.__subclasses__() if below.__module__.startswith("backtrail.")]
        todo += [below for below in ours if not below.__module__.startswith("backtrail.adapters.")]
    assert tree <= set(backtrail.__all__)


def test_importing_loads_no_driver_no_terminal_and_no_framework():
    code = "import sys; from backtrail import *; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"apsw", "click", "rich", "pydantic", "msgspec", "asyncio"} & set(done.stdout.split())
