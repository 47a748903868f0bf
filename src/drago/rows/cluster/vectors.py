"""Vectors of the rows that are not computed until somebody wants a sum: then all in one round.

A vector is a recipe, an operation on other vectors, until a round needs it. From then on its
entries are on the workers. Each vector also has the entries of a few rows on the driver, the
*witnesses*: they tell about where a threshold is before any worker is asked.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

from drago.oracles.atoms import AtomResponse
from drago.rows.base import Evaluation
from drago.rows.cluster.programs import (
    Attribute,
    Input,
    Instruction,
    Local,
    PerPart,
    Program,
    Slot,
    rebuilt,
)
from drago.rows.parts import PartVector

_SERIALS = itertools.count()
# Recipes that a round makes anew one after the other, at most.
_DEEPEST = 4


class Group:
    """The results of a round, one handle for each bundle of parts."""

    __slots__ = ("__weakref__", "handles")

    def __init__(self, handles: Sequence[Any]) -> None:
        self.handles = list(handles)


class Call:
    """A recipe: an operation, and the vectors it makes.

    A *light* one is made anew by every round that needs it, which costs less than to keep it. Its
    depth says how many light ones it is made of, one after the other.
    """

    __slots__ = ("arguments", "depth", "is_light", "is_tuple", "nodes", "operation", "settings")

    def __init__(
        self,
        operation: Any,
        arguments: Sequence[Any],
        settings: dict[str, Any],
        is_tuple: bool = False,
        is_light: bool = False,
    ) -> None:
        self.operation, self.arguments, self.settings = operation, tuple(arguments), settings
        self.is_tuple = is_tuple
        calls = [each.call for each in self.arguments if isinstance(each, Node)]
        below = [call.depth for call in calls if call is not None and call.is_light]
        self.depth: int = 1 + max(below, default=0)
        self.is_light: bool = is_light and self.depth <= _DEEPEST
        self.nodes: list[weakref.ref[Node]] = []


class Node(PartVector):
    """A vector of the rows, or a selection of them.

    Attributes
    ----------
    shadow : array or None
        Its entries at the witnesses, where they are known.
    kin : dict
        Vectors that were made with it, by what they are to it, as long as these are there.
    """

    __slots__ = ("__weakref__", "_kin", "call", "group", "index", "name", "serial", "shadow")

    def __init__(self, shadow: Any = None) -> None:
        super().__init__(())
        self.serial = next(_SERIALS)
        self.call: Call | None = None
        self.group: Group | None = None
        self.index = -1
        self.name = ""  # of a vector of the parts themselves
        self.shadow = shadow
        self._kin: dict[str, Any] = {}

    def relate(self, **others: Any) -> None:
        """Remember vectors without keeping them, and other things as they are."""
        for name, other in others.items():
            self._kin[name] = weakref.ref(other) if isinstance(other, Node) else other

    def kin(self, name: str) -> Any:
        """What was remembered under a name; None where it is gone."""
        found = self._kin.get(name)
        return found() if isinstance(found, weakref.ref) else found


def attribute(name: str, shadow: Any = None) -> Node:
    """A vector that the parts hold themselves."""
    node = Node(shadow)
    node.name = name
    return node


def nodes_of(call: Call, shadows: Sequence[Any]) -> tuple[Node, ...]:
    """The vectors that an operation makes."""
    nodes = tuple(Node(shadow) for shadow in shadows)
    for node in nodes:
        node.call = call
    call.nodes = [weakref.ref(node) for node in nodes]
    return nodes


class Round:
    """A program in the making: sums that are wanted, and all vectors that they need."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.groups: list[Group] = []
        self.locals: list[PerPart] = []
        self._slots = itertools.count()
        self._made: dict[int, int] = {}  # serial of a vector -> its slot
        self._calls: list[tuple[Call, tuple[int, ...]]] = []
        self.told: list[int] = []

    def want(self, operation: Any, arguments: Sequence[Any], settings: dict[str, Any]) -> None:
        """Have something told to the driver."""
        self.told.append(self._add(operation, arguments, settings, 1, False)[0])

    def need(self, node: Node) -> None:
        """Have a vector made."""
        self._encoded(node)

    def _add(
        self, operation: Any, arguments: Any, settings: Any, count: int, is_tuple: bool
    ) -> tuple[int, ...]:
        given = tuple(self._encoded(value) for value in arguments)
        more = {name: self._encoded(value) for name, value in settings.items()}
        slots = tuple(next(self._slots) for _ in range(count))
        self.instructions.append(Instruction(operation, given, more, slots, is_tuple))
        return slots

    def _encoded(self, value: Any) -> Any:
        if isinstance(value, PerPart):
            self.locals.append(value)
            return Local(len(self.locals) - 1)
        if isinstance(value, (Evaluation, AtomResponse)):
            return rebuilt(value, self._encoded)
        if not isinstance(value, Node):
            return value
        if value.name:
            return Attribute(value.name)
        if value.group is not None:
            if value.group not in self.groups:
                self.groups.append(value.group)
            return Input(self.groups.index(value.group), value.index)
        if value.serial not in self._made:
            call = value.call
            if call is None:
                raise RuntimeError("a vector of rows whose losses were not finite is gone.")
            slots = self._add(
                call.operation, call.arguments, call.settings, len(call.nodes), call.is_tuple
            )
            self._calls.append((call, slots))
            for node, slot in zip(call.nodes, slots):
                there = node()
                if there is not None:
                    self._made[there.serial] = slot
        return Slot(self._made[value.serial])

    def finish(self) -> tuple[Program, list[tuple[Node, int]]]:
        """The program, and the vectors that stay with their place among those.

        Their recipes are forgotten: a vector that nobody holds but recipes need not stay.
        """
        heavy = [(call, slots) for call, slots in self._calls if not call.is_light]
        self._calls = []
        for call, _ in heavy:
            call.arguments, call.settings = (), {}
        kept: list[int] = []
        staying = []
        for call, slots in heavy:
            for node, slot in zip(call.nodes, slots):
                there = node()
                if there is not None:
                    staying.append((there, len(kept)))
                    kept.append(slot)
                    there.call = None
        return Program(self.instructions, kept, self.told), staying
