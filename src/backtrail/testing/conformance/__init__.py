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

from backtrail.testing.conformance.adapting import Adapting
from backtrail.testing.conformance.agents import AgentNames, Agents, AgentVersions
from backtrail.testing.conformance.ancestry import Ancestry
from backtrail.testing.conformance.backing import Backups
from backtrail.testing.conformance.branching import Branching
from backtrail.testing.conformance.changing import Changing, Roots
from backtrail.testing.conformance.checkpointing import AgentCheckpoints, Guarding, Scheduling
from backtrail.testing.conformance.conversations import Conversations, ConversationSearch, Headers
from backtrail.testing.conformance.deciding import Deciding
from backtrail.testing.conformance.deriving import Values
from backtrail.testing.conformance.doubting import Doubting, Replaying
from backtrail.testing.conformance.editing import Beside, Editing
from backtrail.testing.conformance.erasing import Erasing
from backtrail.testing.conformance.expecting import Appending, Expecting, Lending
from backtrail.testing.conformance.finding import Finding, Hits
from backtrail.testing.conformance.grouping import Groups
from backtrail.testing.conformance.holding import Keeping, Owning
from backtrail.testing.conformance.idling import Idling
from backtrail.testing.conformance.indexing import Indexing
from backtrail.testing.conformance.interrupting import Interrupting, Resuming
from backtrail.testing.conformance.large import Large
from backtrail.testing.conformance.leasing import Leases, RunCheckpoints, RunListing
from backtrail.testing.conformance.looking import Looking
from backtrail.testing.conformance.mirroring import Losing, Mirroring
from backtrail.testing.conformance.moving import Exporting, Importing
from backtrail.testing.conformance.naming import BadInput, Listing, Names, Slips
from backtrail.testing.conformance.options import AutoInterval, MaxCheckpoints, Others, TimeToLive
from backtrail.testing.conformance.plain_text import PlainText
from backtrail.testing.conformance.policies import Policies
from backtrail.testing.conformance.reading import Differences, History, Parts, Refs
from backtrail.testing.conformance.removing import Deleting, Ending, Pruning
from backtrail.testing.conformance.repairing import Repairing
from backtrail.testing.conformance.restoring import Restoring, Undoing
from backtrail.testing.conformance.running import Calling, Running
from backtrail.testing.conformance.salvaging import Salvaging
from backtrail.testing.conformance.saving import Missing, Saving
from backtrail.testing.conformance.searching import Messages, Queries
from backtrail.testing.conformance.transacting import Transactions
from backtrail.testing.conformance.travelling import Forks, Rewinds
from backtrail.testing.conformance.typed import Typed, Upcasting
from backtrail.testing.conformance.upkeep import Collecting, Verifying
from backtrail.testing.conformance.watching import Watching, WatchingAll


class StoreConformance(
    Saving,
    Missing,
    Changing,
    Editing,
    Deciding,
    Beside,
    Roots,
    History,
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
    Resuming,
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
