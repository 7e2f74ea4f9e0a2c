// Fewest sessions for its capacity; an instance outside one zone costs extra.
//
// An interface of the contract is an exported object, a function of it a method. Names are in camelCase, integers of
// 64 bits are BigInts, `list<u32>` and `list<f64>` are arrays. To answer with an `error`, throw it:
// `throw { tag: "invalid-config", val: "zone must be a text" }`.
//
// Invariant: `loads.pending` holds what the host said plus every row of `committed` since, and nothing else is
// remembered between two calls. Time is `request.nowMs`, chance is `request.seed`: nothing else may vary.

const DRAINING = 2;
const DEAD = 4;
const U32_MAX = 4294967295;

let config = { zone: "", farCost: 10 };
let rows = [];
let loads;

export const lifecycle = {
  describe() {
    return {
      name: "near-first",
      version: "0.1.0",
      summary: "Fewest sessions for its capacity, one zone preferred.",
      configSchema: JSON.stringify({
        type: "object",
        additionalProperties: false,
        properties: {
          zone: {
            description: "Zone to prefer; empty for none.",
            type: "string",
            pattern: "^[A-Za-z0-9._-]*$",
            default: "",
          },
          farCost: {
            description: "Cost of an instance outside it. Unit: sessions per capacity.",
            type: "number",
            minimum: 0,
            maximum: 1000000,
            default: 10,
          },
        },
      }),
    };
  },

  // The host has checked the text against the schema; fields that are absent keep their defaults.
  configure(text) {
    config = { ...config, ...JSON.parse(text) };
  },
};

export const scoring = {
  roster(instances) {
    rows = instances;
  },

  refresh(columns) {
    loads = { ...columns, pending: Array.from(columns.pending) };
  },

  recommend(request) {
    takeIn(request.committed);
    let best;
    for (const row of choosable(request)) {
      const score = near(row) + far(row);
      // Of equal scores the first row wins.
      if (best === undefined || score < best.score) best = { row, score };
    }
    if (best === undefined) throw { tag: "no-candidate" };
    return best;
  },

  explain(request) {
    takeIn(request.committed);
    return choosable(request).map((row) => ({
      row,
      score: near(row) + far(row),
      parts: [
        ["sessions", near(row)],
        ["far", far(row)],
      ],
    }));
  },
};

// The law of `committed`: what was given out meanwhile is pending from now on.
function takeIn(committed) {
  for (const row of committed) loads.pending[row] = Math.min(loads.pending[row] + 1, U32_MAX);
}

function choosable(request) {
  // `avoid` ascends as the rows do; with a filter by label it may name half of them.
  const { avoid } = request;
  let next = 0;
  const found = [];
  for (let row = 0; row < rows.length; row++) {
    if (avoid[next] === row) next++;
    else if ((loads.flags[row] & (DRAINING | DEAD)) === 0) found.push(row);
  }
  return found;
}

function near(row) {
  return (loads.sessions[row] + loads.pending[row]) / rows[row].capacity;
}

function far(row) {
  return config.zone !== "" && rows[row].zone !== config.zone ? config.farCost : 0;
}
