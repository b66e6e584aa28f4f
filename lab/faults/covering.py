"""A covering array: few combinations in which each allowed pair of values occurs.

Input: the dimensions with their values, and a predicate for possible combinations. Output:
rows, deterministically. Greedy: each row starts with a missing pair and takes, for each
other dimension, the value that adds most missing pairs.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations, product

Row = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]


def pairs(row: Mapping[str, str]) -> set[Pair]:
    """The pairs of values of a row."""
    return set(combinations(row.items(), 2))


def all_pairs(dimensions: Mapping[str, list[str]], allowed: Callable[[Row], bool]) -> set[Pair]:
    """The pairs of values that occur in at least one allowed row."""
    found: set[Pair] = set()
    for row in _rows(dimensions):
        if allowed(row):
            found |= pairs(row)
    return found


def covering_array(dimensions: Mapping[str, list[str]], allowed: Callable[[Row], bool]) -> list[Row]:
    """Returns rows that contain every possible pair."""
    possible = [row for row in _rows(dimensions) if allowed(row)]
    missing = all_pairs(dimensions, allowed)
    rows = []
    while missing:
        # The first of the best ones, in the order of the values: deterministic.
        best = max(possible, key=lambda row: len(pairs(row) & missing))
        rows.append(best)
        missing -= pairs(best)
    return sorted(rows, key=lambda row: [dimensions[name].index(row[name]) for name in reversed(dimensions)])


def _rows(dimensions: Mapping[str, list[str]]) -> Iterable[Row]:
    return (dict(zip(dimensions, values, strict=True)) for values in product(*dimensions.values()))
