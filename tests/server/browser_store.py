"""A store with something on every page: an agent that answers customers, its conversations, runs and threads."""

from __future__ import annotations

import base64
import struct
import zlib

import backtrail
from backtrail import AgentState, Conversation, Message, ToolCall

HOSTILE = "<script>alert(1)</script> \x1b[31mred\u202eevil"
"""Text that a page must show as text."""


class Killed(BaseException):
    """Ends a worker in the middle of a call."""


def picture(width=160, height=90):
    """Return a small PNG: a parcel with a tear, as far as stripes can show it."""
    rows = b"".join(
        b"\0" + bytes(v for x in range(width) for v in ((214, 178, 130) if (x + y) % 37 > 3 else (120, 84, 48)))
        for y in range(height)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    made = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + made


def fill(store, *, hostile=True):
    """Fill an empty store; `hostile`: also with text that a page must show as text."""
    agent = AgentState(
        "support",
        name="Customer support",
        agent_type="gpt-5.1",
        system_prompt="You answer customers of a mail-order shop. Look up orders before you promise anything. "
        "Refunds above 100 euros need the approval of a person.",
        capabilities=["orders", "refunds", "shipping"],
        config={"temperature": 0.2, "max_tokens": 800},
        custom_state={"policy": {"refund_limit": 100, "currency": "EUR"}, "open_cases": 3, "language": "en"},
    )
    store.agents.save(agent)
    _conversations(store)
    store.agents.checkpoint("support", "before the new policy", description="refund limit of 100 euros")
    store.agents.save(store.agents.load("support").set_state("policy", {"refund_limit": 250, "currency": "EUR"}))
    store.conversations.append("order-4711", Message.user("Thank you. When will the money arrive?"))
    store.conversations.append(
        "order-4711", Message.assistant("Within three working days, on the card that you paid with.", tokens=42)
    )
    _runs(store)
    _threads(store)
    if hostile:
        store.thread("notes").set("title", HOSTILE, label="a label with <b>markup</b>")
        store.conversations.save(
            Conversation("support", id=f"odd {HOSTILE}", title=HOSTILE, messages=[Message.user(HOSTILE)])
        )


def _conversations(store):
    photo = base64.b64encode(picture()).decode()
    lookup = ToolCall("lookup_order", {"order_id": "4711", "fields": ["items", "shipping", "payment"]}, id="call-1")
    refund = ToolCall("refund", {"order_id": "4711", "amount": 59.9, "currency": "EUR"}, id="call-2")
    store.conversations.save(
        Conversation(
            "support",
            id="order-4711",
            title="Parcel arrived damaged",
            tags=["refund", "urgent"],
            messages=[Message.system("You answer customers of a mail-order shop.")],
        )
    )
    store.conversations.append(
        "order-4711",
        Message.user(
            "My parcel arrived with a hole in it, and one cup is broken. I attach a photo.",
            attachments=[
                backtrail.Attachment(attachment_type="image", name="parcel.png", mime_type="image/png", content=photo)
            ],
        ),
    )
    store.conversations.append("order-4711", Message.assistant("Let me look at your order.", tool_calls=[lookup]))
    store.conversations.append(
        "order-4711",
        Message.tool_result(
            "call-1",
            '{"order_id": "4711", "items": [{"sku": "CUP-BLUE", "count": 4, "price": 59.9}], '
            '"shipping": {"carrier": "DHL", "delivered": "2026-11-16"}, "payment": "card"}',
        ),
    )
    store.conversations.append(
        "order-4711",
        Message.assistant(
            "I am sorry about the cup. I refund the set; you need not send it back.", tool_calls=[refund]
        ),
    )
    store.conversations.append("order-4711", Message.tool_result("call-2", '{"refund_id": "rf_8812", "status": "ok"}'))
    store.conversations.append(
        "order-4711",
        Message.assistant("Done: 59.90 euros go back to your card.\n\n- refund rf_8812\n- order 4711, cup set, blue"),
    )
    store.conversations.fork("order-4711", new_id="order-4711-replacement")
    store.conversations.append("order-4711-replacement", Message.user("Could I have a new set instead of the money?"))
    thread = store.conversations.thread("order-4711")
    thread.tag("@~2", "reviewed")
    for number, (title, text) in enumerate(
        [
            ("Where is my invoice?", "I need the invoice of order 4698 for my tax return."),
            ("Change of address", "Please send order 4720 to my office instead."),
            ("Voucher does not work", "The voucher AUTUMN25 is refused at the checkout."),
        ]
    ):
        store.conversations.save(
            Conversation("support", id=f"case-{number + 1}", title=title, messages=[Message.user(text)])
        )


def _runs(store):
    with store.run("refund-4690", agent="support", messages=[Message.user("Refund order 4690")]) as run:
        for number in run.iterations():
            if number == 1:
                run.tool("lookup_order", lambda order_id: {"order_id": order_id, "total": 24.5}, order_id="4690")
                run.llm("decide", lambda: "refund in full")
            elif number == 2:
                run.tool(
                    "refund", lambda order_id, amount: f"rf_{order_id}", order_id="4690", amount=24.5, irreversible=True
                )
                run.tool("send_mail", lambda to: "queued", to="kim@example.org", irreversible=True)
                run.state = {"refunded": 24.5, "mail": "queued"}
            else:
                break
    with store.run("approve-4702", agent="support", messages=[Message.user("Refund order 4702")]) as run:
        for number in run.iterations():
            if number == 1:
                run.tool("lookup_order", lambda order_id: {"order_id": order_id, "total": 180.0}, order_id="4702")
            else:
                run.halt("180 euros are above the limit: waiting for approval")
    try:
        with store.run("refund-4711", agent="support", messages=[Message.user("Refund order 4711")]) as run:
            for _ in run.iterations():
                run.tool("lookup_order", lambda order_id: {"order_id": order_id, "total": 59.9}, order_id="4711")
                run.tool("refund", _dies, order_id="4711", amount=59.9, irreversible=True)
    except Killed:
        pass


def _dies(order_id, amount):
    raise Killed


def _threads(store):
    plan = store.thread("trip-planner", agent="support")
    plan.save({"goal": "three days in Porto", "steps": [], "budget": 400}, label="start")
    for step in ("find flights", "compare hotels", "book the hotel"):
        plan.append("steps", {"do": step, "done": False})
    plan.set("steps[0].done", True, label="flights found")
    plan.rewind("@~2")
    plan.append("steps", {"do": "ask about the train instead", "done": False})
    plan.set("budget", 250, label="cheaper")
    plan.rewind("@~1")
    plan.append("steps", {"do": "night train to Lisbon", "done": False})
    plan.set("goal", "three days in Lisbon", label="new goal")
    plan.tag("@", "agreed")
    plan.fork("trip-planner-porto", "@~2")
    notes = store.thread("notes")
    notes.save(
        {"text": "A note with a long text. " * 400, "numbers": list(range(1000)), "nested": {"a": {"b": [1, 2]}}}
    )


if __name__ == "__main__":
    import sys

    with backtrail.open(sys.argv[1]) as opened:
        fill(opened)
