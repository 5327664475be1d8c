"""LangGraph's checkpoints in a backtrail store: `graph = builder.compile(checkpointer=BacktrailSaver("agents.db"))`.

Each namespace of a graph's thread is an ordinary backtrail thread, whose state is the channel values. docs/langgraph.md
is the guide.

    saver            `BacktrailSaver`: LangGraph's interface, synchronous and asynchronous
    store            `BacktrailStore`: LangGraph's long-term memory
    store_calls      calls of coroutines that are done together
    store_items      the items of that memory: filters, vectors, the threads of namespaces
    config           the namespace, checkpoint and read that a LangGraph config names
    graph_threads    the checkpoints of a graph's threads, found by id and in history
    headers          a checkpoint without its channel values: the metadata of a row
    task_writes      the writes of tasks, in a second thread
    delta_channels   what delta channels are computed from
    channel_values   channel values that load on first use
    thread_upkeep    deleting, copying and pruning threads
    framework_types  the classes of LangChain, LangGraph, numpy and Python that channels may hold
    allowed_types    the user's classes that channels may hold
    saver_import     the threads of a database of LangGraph's SqliteSaver or PostgresSaver
    saver_databases  reading such a database
    decoder          values in the encoding of LangGraph's own savers
"""

from backtrail.adapters.adapter_store import missing_extra

try:
    import langgraph.checkpoint.base as _  # noqa: F401 - only to name the missing package
    import langgraph.types as __  # noqa: F401
except ImportError as error:
    raise missing_extra("langgraph", error) from error

from backtrail.adapters.imports import Skipped
from backtrail.adapters.langgraph.saver import BacktrailSaver
from backtrail.adapters.langgraph.saver_import import DatabaseReport, check_database, import_database
from backtrail.adapters.langgraph.store import BacktrailStore, ItemVersion

__all__ = [
    "BacktrailSaver",
    "BacktrailStore",
    "DatabaseReport",
    "ItemVersion",
    "Skipped",
    "check_database",
    "import_database",
]
