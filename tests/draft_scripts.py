"""Random scripts that change a draft and a plain value in the same way, for `test_drafts`.

A script is a list of numbers; what they mean depends on the value that they meet. Everything is done twice, to the
draft's side and to the plain side of a pair, and must go well or fail alike.
"""

import bisect
import dataclasses
import heapq
from typing import Any


@dataclasses.dataclass
class Box:
    """A record, with or without nodes in it."""

    n: Any
    part: Any = None


def text(item):
    """What an item says, whatever order a set has its members in: equal sets need not have the same."""
    if isinstance(item, set | frozenset):
        return str(sorted(map(text, item)))
    if isinstance(item, list | tuple):
        return str([text(each) for each in item])
    if isinstance(item, dict):
        return str([(text(name), text(each)) for name, each in item.items()])
    return text([item.n, item.part]) if isinstance(item, Box) else str(item)


LIST = (
    lambda c, n, v: c.append(v),
    lambda c, n, v: c.extend([v, n]),
    lambda c, n, v: c.insert(n, v),
    lambda c, n, v: c.pop(),
    lambda c, n, v: c.pop(n % len(c)),
    lambda c, n, v: c.remove(n),
    lambda c, n, v: c.__delitem__(n % len(c)),
    lambda c, n, v: c.__setitem__(n % len(c), v),
    lambda c, n, v: c.__setitem__(slice(n % 3, n % 5), [v, n]),
    lambda c, n, v: c.__setitem__(slice(None, None, 2), [v] * len(c[::2])),
    lambda c, n, v: c.__delitem__(slice(n % 4, None, 2)),
    lambda c, n, v: c.sort(key=text),
    lambda c, n, v: c.sort(key=lambda item: (isinstance(item, list), text(item))),
    lambda c, n, v: c.reverse(),
    lambda c, n, v: c.__iadd__([v]),
    lambda c, n, v: c.__imul__(n % 3) if len(c) < 12 else None,
    lambda c, n, v: c.clear() if n % 3 == 0 else None,
    lambda c, n, v: c.__setitem__(slice(None), c[1:] + c[:1]),
    lambda c, n, v: c.append(c.pop(0)),
    lambda c, n, v: c.append(c[n % len(c)]),
    lambda c, n, v: list.append(c, v),
    lambda c, n, v: list.__setitem__(c, n % len(c), n),
    lambda c, n, v: heapq.heapify(c),
    lambda c, n, v: heapq.heappush(c, n),
    lambda c, n, v: heapq.heappop(c),
    lambda c, n, v: heapq.heappush(c, (n, {"n": n})),
    lambda c, n, v: _requeue(c, n),
    lambda c, n, v: bisect.insort(c, n),
    lambda c, n, v: [item.append(n) for item in c if isinstance(item, list)],
    lambda c, n, v: [item.update(n=n) for item in reversed(c) if isinstance(item, dict)],
)
DICT = (
    lambda c, n, v: c.__setitem__(key(n), v),
    lambda c, n, v: c.__setitem__(key(n), n),
    lambda c, n, v: c.__delitem__(key(n)),
    lambda c, n, v: c.pop(key(n)),
    lambda c, n, v: c.pop(key(n), None),
    lambda c, n, v: c.popitem(),
    lambda c, n, v: c.setdefault(key(n), v),
    lambda c, n, v: c.update({key(n): v, "z": n}),
    lambda c, n, v: c.__ior__({key(n): v}),
    lambda c, n, v: c.clear() if n % 3 == 0 else None,
    lambda c, n, v: c.__setitem__(key(n), c.pop(key(n))),
    lambda c, n, v: c.__setitem__(key(n + 1), c.pop(key(n))),
    lambda c, n, v: c.__setitem__(key(n + 1), c[key(n)]),
    lambda c, n, v: dict.__setitem__(c, key(n), v),
    lambda c, n, v: [value.append(n) for value in c.values() if isinstance(value, list)],
    lambda c, n, v: [value.add(n) for _, value in c.items() if isinstance(value, set)],
    lambda c, n, v: [value.clear() for value in {**c}.values() if isinstance(value, dict)],
)
SET = (
    lambda c, n, v: c.add(n % 7),
    lambda c, n, v: c.discard(n % 7),
    lambda c, n, v: c.update({n, 1, "x"}),
    lambda c, n, v: c.clear(),
)
BOX = (
    lambda c, n, v: setattr(c, "n", n),
    lambda c, n, v: setattr(c, "part", v),
    lambda c, n, v: setattr(c, "n", c.part),
    lambda c, n, v: c.part.append(v),
    lambda c, n, v: list.append(c.part, n),
    lambda c, n, v: c.part.update({key(n): v}),
    lambda c, n, v: setattr(c.part, "n", v),
)
CONTAINERS = (list, dict, set, bytearray, Box)
KEYS = ("a", "b", "c", 1, True, 1.5, ("t", 1), None, "long" * 12)


def key(n):
    return KEYS[n % len(KEYS)]


def _requeue(heap, n):
    """Take the least item out of a heap, change it, and put it back."""
    item = heapq.heappop(heap)
    if isinstance(item, tuple) and isinstance(item[-1], dict):
        item[-1]["seen"] = n
    if isinstance(item, list):
        list.append(item, n)
    heapq.heappush(heap, item)


def value(n):
    """A value that says which number it was made of."""
    kind, n = n % 19, n // 19
    if kind < 9:
        return (n, True, 0.0, -0.0, "text" * (n % 30), None, b"b", (1, 2), frozenset({n}))[kind]
    return (
        [n, {"k": n}],
        {"k": [n], "s": "words " * (n % 40)},
        {n, "s"},
        (n, {"in": [n]}),
        [[n, 1], [2], []],
        bytearray(b"x%d" % n),
        {"d": {"d": {"d": [n]}}},
        Box(n),
        Box(n, [n, {"k": n}]),
        Box(Box([n]), Box(n)),
    )[kind - 9]


class Pair:
    """A draft and a plain value, and pairs of what was taken from them."""

    def __init__(self, draft, plain):
        self.root = draft, plain
        self.kept = []

    def run(self, script):
        for where, what, n in script:
            pair = self._find(where)
            other = self._find(what // 8) if what % 8 == 7 else (value(n), value(n))
            if what % 8 == 6 and isinstance(other[1], CONTAINERS):  # ours: it may be changed after it was put in
                self.kept.append(other)
            if what % 8 == 5:
                self.kept.append(pair)
            self._do(pair, what // 8, n, other)

    def _find(self, where):
        """Follow a number to a container."""
        pair = self.root
        if where % 5 == 4 and self.kept:
            pair = self.kept[where % len(self.kept)]
        where //= 5
        for _ in range(4):
            where, turn = divmod(where, 6)
            draft, plain = pair
            if turn == 5 or not isinstance(plain, list | dict | tuple | Box) or plain in ([], {}, ()):
                break
            if isinstance(plain, Box):
                name = ("n", "part")[turn % 2]
                below = getattr(draft, name), getattr(plain, name)
            elif isinstance(plain, dict):
                name = list(plain)[turn % len(plain)]
                below = draft[name], plain[name]
            else:
                below = draft[turn % len(plain)], plain[turn % len(plain)]
            if not isinstance(below[1], list | dict | tuple | set | bytearray | Box):
                break
            pair = below
        return pair

    def _do(self, pair, what, n, values):
        plain = pair[1]
        deeds = (
            LIST
            if isinstance(plain, list)
            else DICT
            if isinstance(plain, dict)
            else BOX
            if isinstance(plain, Box)
            else SET
        )
        if isinstance(plain, bytearray):
            pair[0].append(n % 256)
            plain.append(n % 256)
            return
        if isinstance(plain, tuple):
            return
        done = [self._try(deeds[what % len(deeds)], side, n, v) for side, v in zip(pair, values, strict=True)]
        assert done[0] is done[1], done

    @staticmethod
    def _try(deed, side, n, v):
        try:
            deed(side, n, v)
        except Exception as error:  # noqa: BLE001 - whatever it is, both sides must meet it
            return type(error)

    def settled(self, plain):
        """Go on with a plain value without aliases: what was kept stands where it stands in the draft, or nowhere."""
        draft = self.root[0]
        places = dict(_places(draft, plain))
        self.root = draft, plain
        self.kept = [(ours, places[id(ours)]) for ours, _ in self.kept if id(ours) in places]


def _places(draft, plain):
    if isinstance(plain, CONTAINERS):
        yield id(draft), plain
    if isinstance(plain, dict):
        pairs = zip(dict.values(draft), plain.values(), strict=True)
    elif isinstance(plain, list):
        pairs = zip(list.__iter__(draft), plain, strict=True)
    else:
        pairs = zip(draft, plain, strict=True) if isinstance(plain, tuple) else ()
    if isinstance(plain, Box):
        pairs = [(draft.n, plain.n), (draft.part, plain.part)]
    for ours, theirs in pairs:
        yield from _places(ours, theirs)
