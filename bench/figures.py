"""Figures: what a measurement gives, and the gate and the goal it is held against.

A gate has to be reached; a goal is where it should go. Both are None for what is only told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["goal", "gate", "missed", "told", "not measured"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `cpu` is the same ratio in CPU time, `samples` how many measurements `value` stands for."""

    name: str
    value: float | None
    """None if it could not be measured; `note` says why."""
    cpu: float | None = None
    gate: float | None = None
    goal: float | None = None
    better: Literal["lower", "higher"] = "lower"
    unit: str = "x"
    """x is a ratio."""
    samples: int | None = None
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """What is reached: the goal, the gate only, or neither; just being at one of them counts."""
        if self.value is None:
            return "not measured"
        if self.gate is None and self.goal is None:
            return "told"
        if self._reaches(self.goal):
            return "goal"
        return "gate" if self._reaches(self.gate) else "missed"

    def _reaches(self, mark: float | None) -> bool:
        if mark is None or self.value is None:
            return False
        return self.value <= mark if self.better == "lower" else self.value >= mark


@dataclass(frozen=True, slots=True)
class Point:
    """What one save costs at one length of the history: a point of the plots."""

    series: str
    length: int
    ms: float
    bytes: float
    samples: int


@dataclass(frozen=True, slots=True)
class Result:
    """What a group has measured."""

    figures: list[Figure] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
