"""LangGraph's checkpoints in a backtrail store: `graph = builder.compile(checkpointer=BacktrailSaver("agents.db"))`.

Each thread of a graph, and each of its namespaces, is an ordinary backtrail thread whose state is the values of its
channels. docs/langgraph.md is the guide.

    places      which backtrail thread a config means, and what a config asks for
    classes     the classes that channels may hold
    consent     which classes of users, and of their graphs, they may hold
    books       what a checkpoint is beside its values: in the metadata of its row
    pending     the writes of tasks, in a thread that stands aside
    values      channel values that are loaded when they are looked at
    keeper      everything that a saver does, synchronously
    saver       `BacktrailSaver`: LangGraph's interface, in both colours
    decoding    values as LangGraph's own savers keep them
    importing   threads of LangGraph's SqliteSaver, taken over
"""

from backtrail.adapters.opening import missing

try:
    import langgraph.checkpoint.base as _  # noqa: F401 - only to say what is missing
    import langgraph.types as __  # noqa: F401
except ImportError as error:
    raise missing("langgraph", error) from error

from backtrail.adapters.langgraph.importing import DatabaseReport, Skipped, import_database
from backtrail.adapters.langgraph.saver import BacktrailSaver

__all__ = ["BacktrailSaver", "DatabaseReport", "Skipped", "import_database"]
