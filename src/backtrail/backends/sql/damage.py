"""The messages of `check` for orphans, by the name of the statement that selects them.

A repair removes orphans in this order, because removing rows makes their tags orphans.
"""

from __future__ import annotations

from typing import Final

from backtrail.backends.port import REMOVED

WITHOUT_OWNER: Final = {
    "rows_without_thread": f"rows belong to no thread{REMOVED}",
    "rows_without_place": f"rows have no place in their thread{REMOVED}",
    "threads_without_row": f"threads have no row{REMOVED}",
    "tags_without_row": "tags belong to no checkpoint",
}
INDEX_WITHOUT_OWNER: Final = {
    "messages_without_thread": "messages of the index belong to no thread",
    "lists_without_thread": "lists of the index belong to no thread",
    "messages_without_list": "messages of the index belong to no list",
}
