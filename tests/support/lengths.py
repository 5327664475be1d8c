"""How long tests are: short for every day, long for `make torture`."""

import pytest
from hypothesis import settings


def lengths(short, long):
    """Return the value, or tuple of values, for a normal run or for `make torture`."""
    given = [each if isinstance(each, tuple) else (each,) for each in (short, long)]
    return [pytest.param(*given[0], id="short"), pytest.param(*given[1], id="long", marks=pytest.mark.torture)]


def fewer(divisor):
    """For tests whose examples are large: a part of the number of examples that the profile asks for."""
    return settings(max_examples=max(settings.default.max_examples // divisor, 10))


QUARTERS = pytest.mark.parametrize("quarter", range(4))
"""For a test that does all examples of the profile: in parts, so that in the long run it takes turns with others."""


def parts(divisor):
    """Return the number of parts of which each quarter does one: four in `make torture`, more in `make test`."""
    return 4 if settings.default.max_examples > 1000 else 4 * divisor
