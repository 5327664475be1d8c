"""Several frameworks in one store: neither sees the other's things, and their agent restores all of them together."""

import asyncio

from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelRequest, UserPromptPart

import backtrail
from backtrail import AgentState, Message
from backtrail.adapters.langgraph import BacktrailStore
from backtrail.adapters.openai import BacktrailSession
from backtrail.adapters.pydantic_ai import BacktrailConversationStore


def test_an_agent_restores_the_conversations_of_all_frameworks(tmp_path):
    async def counts(session, pydantic, store):
        return (
            len(await session.get_items()),
            len((await pydantic.load("chat")).messages),
            len(store.conversations.load("own").messages),
        )

    async def turn(session, pydantic, store, text):
        await session.add_items([{"role": "user", "content": text}])
        conversation = await pydantic.load("chat") or Conversation(conversation_id="chat")
        conversation.messages.append(ModelRequest(parts=[UserPromptPart(text)]))
        await pydantic.save(conversation)
        store.conversations.append("own", Message.user(text), agent_id="planner")

    async def main(store):
        session = BacktrailSession("session", store, agent="planner")
        pydantic = BacktrailConversationStore(store, agent="planner")
        memory = BacktrailStore(store, agent="planner")
        memory.put(("notes",), "n", {"text": "ferry"})
        everything = session, pydantic, store
        await turn(*everything, "ferry one")
        checkpoint = store.agents.checkpoint("planner", "before")
        await turn(*everything, "ferry two")
        assert await counts(*everything) == (2, 2, 2)
        assert len(store.search("ferry")) == 6
        assert [record.conversation_id for record in await pydantic.list_conversations()] == ["chat"]

        store.agents.restore(checkpoint)
        assert await counts(*everything) == (1, 1, 1)
        await turn(*everything, "ferry three")  # each framework goes on from there
        assert await counts(*everything) == (2, 2, 2)
        assert memory.get(("notes",), "n").value == {"text": "ferry"}

        store.agents.restore(checkpoint)
        store.agents.undo("planner")
        assert await counts(*everything) == (2, 2, 2)

    with backtrail.open(tmp_path / "s.db", durability="relaxed") as store:
        store.agents.save(AgentState("planner", "Planner", "chat"))
        asyncio.run(main(store))
        assert store.verify().ok
