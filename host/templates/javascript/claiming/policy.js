// Free partitions to the subscriber with the fewest, then single moves until counts are even.
//
// An interface of the contract is an exported object, a function of it a method. Names are in camelCase, integers of
// 64 bits are BigInts, `list<u32>` and `list<s32>` are arrays. To answer with an `error`, throw it:
// `throw { tag: "invalid-input", val: "owner is out of range" }`.
//
// Invariant: `plan` is a pure function of the cycle. Time is `cycle.nowMs`, chance is `cycle.seed`.

const FREE = "was free";
const EVEN = "evens the counts";

export const lifecycle = {
  describe() {
    return {
      name: "{{name}}",
      version: "0.1.0",
      summary: "Free partitions to the member with the fewest, then single moves until counts are even.",
      configSchema: JSON.stringify({ type: "object", additionalProperties: false }),
    };
  },

  configure(_text) {},
};

export const claiming = {
  plan(cycle) {
    const changes = {
      partition: [],
      member: [],
      reason: [],
      reasons: [FREE, EVEN],
      releases: [],
      nextCycleMs: undefined,
    };
    const topics = cycle.members.map((member) => new Set(member.topics));
    const counts = cycle.members.map(() => 0);
    for (const owner of cycle.owner) if (owner >= 0) counts[owner]++;
    let budget = cycle.movementBudget ?? Infinity;

    // Free partitions first: they need no hand-over.
    for (const pass of [0, 1]) {
      for (let partition = 0; partition < cycle.owner.length; partition++) {
        const owner = cycle.owner[partition];
        const isFree = owner < 0;
        if (isFree !== (pass === 0) || cycle.moving[partition] !== 0) continue;
        const member = emptiest(cycle.topic[partition], topics, counts);
        if (member === undefined) continue;
        if (!isFree) {
          // An owner that no longer subscribes gives up in any case.
          const isMember = topics[owner].has(cycle.topic[partition]);
          if ((isMember && counts[member] + 1 >= counts[owner]) || budget === 0) continue;
          budget--;
          counts[owner]--;
        }
        counts[member]++;
        changes.partition.push(partition);
        changes.member.push(member);
        changes.reason.push(pass);
      }
    }
    return changes;
  },
};

// The subscriber of a topic with the fewest partitions, of equals the first; undefined if nobody subscribes.
function emptiest(topic, topics, counts) {
  let best;
  for (let member = 0; member < counts.length; member++) {
    if (topics[member].has(topic) && (best === undefined || counts[member] < counts[best])) best = member;
  }
  return best;
}
