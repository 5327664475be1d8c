"""Figures: the result of a measurement, with its gate and its goal.

A gate must be reached; a goal should be reached. Both are None for a figure that is only reported.
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
        """Return what is reached: the goal, only the gate, or neither. Equality counts as reached."""
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
    """The results of a group."""

    figures: list[Figure] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
