"""The conformance suite: what every store promises, as tests.

A backend's own test file is a few lines:

    class TestMyBackend(StoreConformance):
        @pytest.fixture
        def opener(self, tmp_path):
            return lambda **options: backtrail.open(f"mine:///{tmp_path}/store", **options)

`opener` opens the same store each time it is called, in which nothing is at first. Each part of the suite has one
subject; none of them knows which backend it runs on, and there are no exemptions.
"""

from __future__ import annotations

from tests.conformance.activity import Activity
from tests.conformance.adapters import Adapting
from tests.conformance.agent_checkpoints import AgentCheckpoints, Guarding, Scheduling
from tests.conformance.agents import AgentNames, Agents, AgentVersions
from tests.conformance.ancestry import Ancestry
from tests.conformance.backups import Backups
from tests.conformance.branches import Branching
from tests.conformance.changes import Changing, Roots
from tests.conformance.conversations import Conversations, ConversationSearch, Headers
from tests.conformance.decisions import Deciding
from tests.conformance.derived_values import Values
from tests.conformance.edits import Beside, Editing
from tests.conformance.erase import EraseConversations, EraseMirrors, EraseOthers
from tests.conformance.erasure import Erasing
from tests.conformance.expectations import Appending, Expecting, Lending
from tests.conformance.export_import import Exporting, Importing
from tests.conformance.find import Finding, Hits
from tests.conformance.groups import Groups
from tests.conformance.idle import Idling
from tests.conformance.in_doubt import Doubting, Replaying
from tests.conformance.index import Indexing
from tests.conformance.inspection import Looking
from tests.conformance.interrupted_runs import Interrupting
from tests.conformance.large import Large
from tests.conformance.leases import Leases, RunCheckpoints, RunListing
from tests.conformance.mirrors import Losing, Mirroring
from tests.conformance.names import BadInput, Listing, Names, Slips
from tests.conformance.options import AutoInterval, MaxCheckpoints, Others, TimeToLive
from tests.conformance.ownership import Keeping, Owning
from tests.conformance.plain_text import PlainText
from tests.conformance.policies import Policies
from tests.conformance.reads import Differences, History, Parts, Refs
from tests.conformance.redaction import Redacting
from tests.conformance.removal import Deleting, Ending, Pruning
from tests.conformance.repair import Repairing
from tests.conformance.restore import Restoring, Undoing
from tests.conformance.runs import Calling, Running
from tests.conformance.salvage import Salvaging
from tests.conformance.saves import Missing, Saving
from tests.conformance.search import Messages, Queries
from tests.conformance.time_travel import Forks, Rewinds
from tests.conformance.transactions import BulkWrites, Transactions
from tests.conformance.typed import Typed, Upcasting
from tests.conformance.upkeep import Collecting, Verifying
from tests.conformance.watch import Watching, WatchingAll


class StoreConformance(
    Saving,
    Missing,
    Changing,
    Editing,
    Deciding,
    Beside,
    Roots,
    History,
    Activity,
    Refs,
    Parts,
    Differences,
    Forks,
    Ancestry,
    Rewinds,
    Deleting,
    Pruning,
    Policies,
    Idling,
    Ending,
    Expecting,
    Appending,
    Lending,
    BulkWrites,
    Transactions,
    Groups,
    MaxCheckpoints,
    TimeToLive,
    AutoInterval,
    Others,
    Typed,
    Upcasting,
    Large,
    Names,
    PlainText,
    Listing,
    BadInput,
    Slips,
    Collecting,
    Verifying,
    Repairing,
    Salvaging,
    Interrupting,
    Watching,
    WatchingAll,
    Queries,
    Messages,
    Finding,
    Hits,
    Indexing,
    Agents,
    AgentVersions,
    AgentNames,
    Values,
    Conversations,
    Headers,
    ConversationSearch,
    Branching,
    AgentCheckpoints,
    Guarding,
    Scheduling,
    Restoring,
    Undoing,
    Looking,
    Owning,
    Keeping,
    Erasing,
    EraseConversations,
    EraseOthers,
    EraseMirrors,
    Redacting,
    Running,
    Calling,
    Doubting,
    Replaying,
    Leases,
    RunCheckpoints,
    RunListing,
    Adapting,
    Exporting,
    Importing,
    Mirroring,
    Losing,
    Backups,
):
    """All of the suite."""

    def test_no_part_of_the_suite_is_hidden_by_another(self) -> None:
        names = [name for part in type(self).__mro__ for name in vars(part) if name.startswith("test_")]
        assert sorted(names) == sorted(set(names))


__all__ = ["StoreConformance"]
