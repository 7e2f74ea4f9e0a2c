"""Fewest sessions for its capacity; an instance outside one zone costs extra.

An interface of the contract is a class of its name, a function of it a method; names are in snake_case, and
`list<u8>` is `bytes`. To answer with an `error`, raise it:
`raise Err(lifecycle.Error_InvalidConfig("zone must be a text"))`. Any other exception ends the instance.

Invariant: `pending` holds what the host said plus every row of `committed` since, and nothing else is remembered
between two calls. Time is `request.now_ms`, chance is `request.seed`: nothing else may vary, and `print`, `time` and
`random` are not there.
"""

import json

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports import lifecycle, scoring

DRAINING = 2
DEAD = 4
U32_MAX = 4294967295

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "zone": {
            "description": "Zone to prefer; empty for none.",
            "type": "string",
            "pattern": "^[A-Za-z0-9._-]*$",
            "default": "",
        },
        "farCost": {
            "description": "Cost of an instance outside it. Unit: sessions per capacity.",
            "type": "number",
            "minimum": 0,
            "maximum": 1000000,
            "default": 10,
        },
    },
}


class Policy:
    """What the instance keeps between calls."""

    def __init__(self):
        self.zone = ""
        self.far_cost = 10.0
        self.capacities = []
        self.fars = []
        self.loads = None
        self.pending = []

    def take_in(self, committed):
        """The law of `committed`: what was given out meanwhile is pending from now on."""
        for row in committed:
            self.pending[row] = min(self.pending[row] + 1, U32_MAX)

    def choosable(self, request):
        avoid = set(request.avoid)
        flags = self.loads.flags
        return [row for row in range(len(flags)) if not flags[row] & (DRAINING | DEAD) and row not in avoid]

    def near(self, row):
        return divided(float(self.loads.sessions[row] + self.pending[row]), self.capacities[row])


def divided(amount, by):
    """Division as in every other language: Python's own raises where the result is too large."""
    try:
        return amount / by
    except OverflowError:
        return float("inf")


POLICY = Policy()


class Lifecycle(exports.Lifecycle):
    def describe(self):
        return lifecycle.Description(
            name="near-first",
            version="0.1.0",
            summary="Fewest sessions for its capacity, one zone preferred.",
            config_schema=json.dumps(SCHEMA),
        )

    def configure(self, config):
        # The host has checked it against the schema; fields that are absent keep their defaults.
        fields = json.loads(config)
        POLICY.zone = fields.get("zone", "")
        POLICY.far_cost = float(fields.get("farCost", 10))


class Scoring(exports.Scoring):
    def roster(self, instances):
        zone = POLICY.zone
        POLICY.capacities = [instance.capacity for instance in instances]
        POLICY.fars = [
            POLICY.far_cost if zone and instance.zone != zone else 0.0 for instance in instances
        ]

    def refresh(self, loads):
        POLICY.loads = loads
        POLICY.pending = list(loads.pending)

    def recommend(self, request):
        POLICY.take_in(request.committed)
        best = None
        for row in POLICY.choosable(request):
            score = POLICY.near(row) + POLICY.fars[row]
            # Of equal scores the first row wins.
            if best is None or score < best.score:
                best = scoring.Recommendation(row, score)
        if best is None:
            raise Err(lifecycle.Error_NoCandidate())
        return best

    def explain(self, request):
        POLICY.take_in(request.committed)
        parts = []
        for row in POLICY.choosable(request):
            near, far = POLICY.near(row), POLICY.fars[row]
            parts.append(scoring.ScoreParts(row, near + far, [("sessions", near), ("far", far)]))
        return parts
