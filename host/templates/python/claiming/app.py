"""Free partitions to the subscriber with the fewest, then single moves until counts are even.

An interface of the contract is a class of its name, a function of it a method; names are in snake_case, and
`list<u8>` is `bytes`. To answer with an `error`, raise it:
`raise Err(lifecycle.Error_InvalidInput("owner is out of range"))`. Any other exception ends the instance.

Invariant: `plan` is a pure function of the cycle. Time is `cycle.now_ms`, chance is `cycle.seed`; `print`, `time` and
`random` are not there.
"""

import json

from wit_world import exports
from wit_world.exports import claiming, lifecycle

FREE, EVEN = 0, 1
REASONS = ["was free", "evens the counts"]


class Lifecycle(exports.Lifecycle):
    def describe(self):
        return lifecycle.Description(
            name="{{name}}",
            version="0.1.0",
            summary="Free partitions to the member with the fewest, then single moves until counts are even.",
            config_schema=json.dumps({"type": "object", "additionalProperties": False}),
        )

    def configure(self, config):
        pass


class Claiming(exports.Claiming):
    def plan(self, cycle):
        claims = []
        counts = [0] * len(cycle.members)
        for owner in cycle.owner:
            if owner >= 0:
                counts[owner] += 1
        budget = cycle.movement_budget
        subscribers = [
            [row for row, member in enumerate(cycle.members) if topic in member.topics]
            for topic in range(len(cycle.topics))
        ]

        # Free partitions first: they need no hand-over.
        for reason in (FREE, EVEN):
            for partition, owner in enumerate(cycle.owner):
                if (owner < 0) != (reason == FREE) or cycle.moving[partition]:
                    continue
                rows = subscribers[cycle.topic[partition]]
                if not rows:
                    continue
                # Of equal counts the first row wins.
                member = min(rows, key=counts.__getitem__)
                if reason == EVEN:
                    # An owner that no longer subscribes gives up in any case.
                    is_even = owner in rows and counts[member] + 1 >= counts[owner]
                    if is_even or budget == 0:
                        continue
                    budget = None if budget is None else budget - 1
                    counts[owner] -= 1
                counts[member] += 1
                claims.append((partition, member, reason))

        return claiming.Changes(
            partition=[partition for partition, _, _ in claims],
            member=[member for _, member, _ in claims],
            reason=bytes(reason for _, _, reason in claims),
            reasons=REASONS,
            releases=[],
            next_cycle_ms=None,
        )
