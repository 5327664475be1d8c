"""Histories of lists that several processes append to and read, and a checker that finds impossible histories.

A history is a list of operations. Each is one atomic thing that somebody did: appends of values to lists, all
different, and reads of whole lists, in order, with the time at which it began and at which its end was known, by a
clock that all processes share. Its status is `OK`, `FAILED` (told that nothing of it happened) or `UNKNOWN` (nobody was
told).

A list shows the order of its appends, so what depends on what is known and not guessed (Kingsbury and Alvaro, "Elle",
2020): who appended what comes next in a list (ww), who read what another appended last (wr), who read a list before the
next value came (rw), and who began when another had ended (rt). Some serial order must agree with all of these, so a
cycle of them is an anomaly. What can be told without a cycle is told by its name.

A stack is a list from which values are also taken. The states that its thread had, one after the other, show the order
of its pushes and pops, so `unstacked` makes an append-only list of it: v for a push of v, -v for a pop. A client that
found a stack in a certain state, and so decided to change nothing, has read it: some state like that must have been
there between the beginning and the end of its call.
"""

import bisect
import itertools
from collections import defaultdict
from typing import NamedTuple

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"
APPEND, READ = "append", "read"
POP, TAKEN, SAW = "pop", "taken", "saw"
FOREVER = float("inf")


class Operation(NamedTuple):
    """The operations of a client: (APPEND, list, value) and (READ, list, values).

    Of stacks also (POP, stack, n), which was begun; (TAKEN, stack, values), how it ended; (SAW, stack, values).
    """

    name: str
    parts: tuple
    began: float
    ended: float
    status: str = OK

    def appended(self, key):
        return [value for what, where, value in self.parts if what == APPEND and where == key]


class Anomaly(NamedTuple):
    kind: str
    story: str


def check(history, final):
    """Return the anomalies of a history after which the lists were as `final` says."""
    return Checker(history, final).anomalies()


# ---- stacks ---------------------------------------------------------------------------------------------------------


def unstacked(history, versions):
    """Return a history without pops, its stacks as append-only lists, and the anomalies that this shows.

    `versions` are the states that each stack had, in their order.
    """
    return Stacks(history, versions).translated()


class Stacks:
    def __init__(self, history, versions):
        self._history = history
        self._versions = versions
        self._found = []
        self._logs, self._ends = {}, {}
        for key, states in versions.items():
            self._logs[key], self._ends[key] = _log(states)
        self._takers = self._taken()
        self._writers = {
            (key, value): each for each in history for what, key, value in each.parts if what == APPEND
        } | {(key, -value): each for (key, value), each in self._takers.items()}

    def translated(self):
        changed = [each._replace(parts=tuple(self._parts(each))) for each in self._history]
        return changed + self._unattributed(), self._logs, self._found

    def _tell(self, kind, operation, story):
        self._found.append(Anomaly(kind, f"{operation}: {story}"))

    def _taken(self):
        """Return the pop that took each value; if none is certain, the first pop with an unknown outcome."""
        takers = {}
        for operation in sorted(self._history, key=lambda each: each.status != OK):
            for what, key, values in operation.parts if operation.status != FAILED else ():
                for value in values if what == TAKEN else ():
                    first = takers.setdefault((key, value), operation)
                    if first is not operation and operation.status == OK:
                        self._tell("taken twice", operation, f"{value} of stack {key}, also by {first}")
        return takers

    def _unattributed(self):
        """Return the possible pops of clients that were killed before they got their values."""
        made = []
        for key, log in self._logs.items():
            begun = sum(n for each in self._history for what, where, n in each.parts if (what, where) == (POP, key))
            lost = [value for value in log if value < 0 and (key, value) not in self._writers]
            if len(lost) > begun:
                self._tell("invented", f"stack {key}", f"{lost} were taken, at most {begun} by killed clients")
            made += [Operation("killed pop", ((APPEND, key, value),), 0, FOREVER, UNKNOWN) for value in lost]
        return made

    def _parts(self, operation):
        for what, key, value in operation.parts:
            if what == SAW or (what == TAKEN and not value):
                if operation.status == OK:
                    yield from self._read(operation, key, list(value))
            elif what == TAKEN:
                if all(self._takers.get((key, each)) is operation for each in value):
                    yield from ((APPEND, key, -each) for each in reversed(value))
            elif what != POP:
                yield what, key, value

    def _read(self, operation, key, values):
        """Return the read on which a decision is based, if its state is unambiguous."""
        places = [at for at, state in enumerate(self._versions[key]) if state == values]
        possible = [at for at in places if self._was_there(key, at, operation)]
        own = {value for what, where, value in operation.parts if (what, where) == (APPEND, key)}
        if own:  # it wrote on top of what it saw
            possible = [at for at in places if set(self._entries(key, at + 1)) & own]
        if not possible:
            self._tell("stale decision", operation, f"stack {key} was not {values} when it decided so")
        elif len(possible) == 1:
            yield READ, key, self._logs[key][: self._ends[key][possible[0]]]

    def _entries(self, key, at):
        """Return the pushes and pops that made a version of a stack."""
        ends = self._ends[key]
        return self._logs[key][ends[at - 1] : ends[at]] if 0 < at < len(ends) else []

    def _was_there(self, key, at, operation):
        """Tell whether a version of a stack can have been the newest while an operation went on."""
        made = [self._writers.get((key, value)) for value in self._entries(key, at)]
        over = [self._writers.get((key, value)) for value in self._entries(key, at + 1)]
        begun = all(each is None or each.began <= operation.ended for each in made)
        return begun and all(each is None or each.status != OK or each.ended >= operation.began for each in over)


def _log(states):
    """Return the pushes and pops between states, and how many there were up to each state."""
    log, ends = [], [0]
    for old, new in itertools.pairwise(states):
        same = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        log += [-value for value in reversed(old[same:])] + new[same:]
        ends.append(len(log))
    return log, ends


# ---- lists ----------------------------------------------------------------------------------------------------------


class Checker:
    def __init__(self, history, final):
        self._final = final
        self._places = {(key, value): at for key, values in final.items() for at, value in enumerate(values)}
        self._writers = {
            (key, value): operation for operation in history for what, key, value in operation.parts if what == APPEND
        }
        self._known = [each for each in history if each.status == OK]
        self._happened = [each for each in history if each.status == OK or self._is_seen(each)]
        self._found = []

    def anomalies(self):
        self._look_at_lists()
        for operation in self._happened:
            self._look_at_appends(operation)
        for operation in self._known:
            self._look_at_reads(operation)
        self._look_for_stale_reads()
        if not self._found:  # else the order of the lists tells nothing
            self._found += cycles(self._happened, self._edges())
        return self._found

    def _tell(self, kind, operation, story):
        self._found.append(Anomaly(kind, f"{operation}: {story}"))

    def _is_seen(self, operation):
        return any(what == APPEND and (key, value) in self._places for what, key, value in operation.parts)

    # ---- one operation ----------------------------------------------------------------------------------------------

    def _look_at_lists(self):
        for key, values in self._final.items():
            if len(set(values)) < len(values):
                self._tell("duplicate", f"list {key}", [value for value in set(values) if values.count(value) > 1])
            for value in values:
                writer = self._writers.get((key, value))
                if writer is None:
                    self._tell("invented", f"list {key}", f"nobody appended {value}")
                elif writer.status == FAILED:
                    self._tell("aborted read", writer, f"it was told that it failed, and {value} is in list {key}")

    def _look_at_appends(self, operation):
        """All of what happened is there, together, once."""
        for key in {key for what, key, _ in operation.parts if what == APPEND}:
            values = operation.appended(key)
            places = [self._places.get((key, value)) for value in values]
            if None in places:
                kind = "lost append" if operation.status == OK else "torn"
                self._tell(kind, operation, f"{values} in list {key}")
            elif places != list(range(places[0], places[0] + len(places))):
                self._tell("torn", operation, f"{values} stand apart in list {key}")

    def _look_at_reads(self, operation):
        own = defaultdict(list)
        for what, key, value in operation.parts:
            if what == APPEND:
                own[key].append(value)
                continue
            before = value[: len(value) - len(own[key])]
            if value != before + own[key]:
                self._tell("internal", operation, f"it did not see its own appends to list {key}")
            elif before != self._final[key][: len(before)]:
                self._tell("no prefix", operation, f"it read {value} of list {key}, which ended as {self._final[key]}")
            elif before:
                writer = self._writers.get((key, before[-1]))
                if writer is not None and writer.appended(key)[-1] != before[-1]:
                    self._tell("intermediate read", operation, f"it saw a part of {writer}")

    def _look_for_stale_reads(self):
        """A read that began when an append was acknowledged must have it."""
        acknowledged = defaultdict(list)
        for operation in self._known:
            for what, key, value in operation.parts:
                if what == APPEND and (key, value) in self._places:
                    acknowledged[key].append((operation.ended, self._places[key, value]))
        least = {}
        for key, ends in acknowledged.items():
            ends.sort()
            highest, times, lengths = 0, [], []
            for ended, place in ends:
                highest = max(highest, place + 1)
                times.append(ended)
                lengths.append(highest)
            least[key] = times, lengths
        for operation in self._known:
            for what, key, value in operation.parts:
                if what == READ and key in least:
                    times, lengths = least[key]
                    at = bisect.bisect_left(times, operation.began) - 1
                    if at >= 0 and len(value) < lengths[at]:
                        self._tell("stale read", operation, f"{lengths[at]} values were acknowledged in list {key}")

    # ---- several ----------------------------------------------------------------------------------------------------

    def _edges(self):
        """Return (from, to, kind) over the places of operations in `_happened`; moments are nodes below zero."""
        number = {id(operation): at for at, operation in enumerate(self._happened)}
        writers = {key: [number[id(self._writers[key, value])] for value in self._final[key]] for key in self._final}
        edges = [(one, next_, "ww") for each in writers.values() for one, next_ in itertools.pairwise(each)]
        for operation in self._known:
            me, own = number[id(operation)], defaultdict(int)
            for what, key, value in operation.parts:
                if what == APPEND:
                    own[key] += 1
                    continue
                length = len(value) - own[key]
                if length:
                    edges.append((writers[key][length - 1], me, "wr"))
                if length < len(writers[key]):
                    edges.append((me, writers[key][length], "rw"))
        return [edge for edge in edges if edge[0] != edge[1]] + self._in_time()

    def _in_time(self):
        """Edges from each operation to those that began after its end, through a chain of end times."""
        ends = sorted({operation.ended for operation in self._known})
        edges = [(-at - 1, -at - 2, "rt") for at in range(len(ends) - 1)]
        for at, operation in enumerate(self._happened):
            if operation.status == OK:
                edges.append((at, -bisect.bisect_left(ends, operation.ended) - 1, "rt"))
            before = bisect.bisect_left(ends, operation.began)
            if before:
                edges.append((-before, at, "rt"))
        return edges


# ---- cycles ---------------------------------------------------------------------------------------------------------


def cycles(operations, edges):
    """Return one anomaly for each group of operations that come before each other, by the least that shows it.

    G0: writes only. G1c: also reads of what was written. G-single: one read that came before a write; G2: more of them.
    """
    found = []
    for component in components(edges):
        inside = [edge for edge in edges if edge[0] in component and edge[1] in component]
        kind, cycle = named(inside)
        story = " ".join(f"{operations[one]} -{how}->" for one, _, how in cycle if one >= 0)
        found.append(Anomaly(kind, story))
    return found


def named(edges):
    """Return the name of the worst cycle of these edges, and that cycle."""
    for suffix, extra in (("", set()), (" in real time", {"rt"})):
        for kind, kinds in (("G0", {"ww"}), ("G1c", {"ww", "wr"})):
            allowed = [edge for edge in edges if edge[2] in kinds | extra]
            for component in components(allowed):
                start = next(edge for edge in allowed if edge[0] in component and edge[1] in component)
                return kind + suffix, [start, *way(allowed, start[1], start[0])]
        allowed = [edge for edge in edges if edge[2] in {"ww", "wr"} | extra]
        for edge in edges:
            if edge[2] == "rw" and (back := way(allowed, edge[1], edge[0])) is not None:
                return "G-single" + suffix, [edge, *back]
        allowed = [edge for edge in edges if edge[2] in {"ww", "wr", "rw"} | extra]
        for component in components(allowed):
            start = next(each for each in allowed if each[2] == "rw" and each[0] in component and each[1] in component)
            return "G2" + suffix, [start, *way(allowed, start[1], start[0])]
    raise AssertionError("there is no cycle")


def way(edges, start, end):
    """Return the shortest way from one node to another; None if there is none."""
    out = defaultdict(list)
    for edge in edges:
        out[edge[0]].append(edge)
    came, todo = {start: None}, [start]
    for node in todo:
        for edge in out[node]:
            if edge[1] not in came:
                came[edge[1]] = edge
                todo.append(edge[1])
    if end not in came:
        return None
    back = []
    while came[end] is not None:
        back.append(came[end])
        end = came[end][0]
    return back[::-1]


def components(edges):  # noqa: C901 - one loop instead of a recursion
    """Return the strongly connected components that have more than one node (Tarjan 1972, without recursion)."""
    out = defaultdict(list)
    for one, other, _ in edges:
        out[one].append(other)
    index, low, held, stack, found = {}, {}, set(), [], []
    for root in list(out):
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        held.add(root)
        path = [(root, iter(out[root]))]
        while path:
            node, following = path[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    held.add(other)
                    path.append((other, iter(out.get(other, ()))))
                    break
                if other in held:
                    low[node] = min(low[node], index[other])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    component = set()
                    while node not in component:
                        component.add(stack.pop())
                    held -= component
                    if len(component) > 1:
                        found.append(component)
    return found
