// Fewest sessions for its capacity; an instance outside one zone costs extra.
//
// Every function of the contract is a function here; `abi.ts` calls it. Arguments are gone when the call ends: copy what
// you keep. A function answers null, or an `error` of the contract: `return new Failure(Kind.InvalidInput, "a text")`.
//
// Invariant: `pending` holds what the host said plus every row of `committed` since, and nothing else is remembered
// between two calls. Time is `request.nowMs`, chance is `request.seed`: nothing else may vary.

import { Description, Failure, Instance, Kind, List, Loads, Part, Recommendation, Request, ScoreParts } from "./abi";

const DRAINING: u8 = 2;
const DEAD: u8 = 4;

let zone = "";
let farCost: f64 = 10;
// Columns, one entry for each row.
let capacities = new StaticArray<f64>(0);
let fars = new StaticArray<f64>(0);
let sessions = new StaticArray<u32>(0);
let pending = new StaticArray<u32>(0);
let flags = new StaticArray<u8>(0);

export function describe(): Description {
  return new Description(
    "near-first",
    "0.1.0",
    "Fewest sessions for its capacity, one zone preferred.",
    `{"type": "object", "additionalProperties": false, "properties": {
"zone": {"description": "Zone to prefer; empty for none.", "type": "string",
"pattern": "^[A-Za-z0-9._-]*$", "default": ""},
"farCost": {"description": "Cost of an instance outside it. Unit: sessions per capacity.",
"type": "number", "minimum": 0, "maximum": 1000000, "default": 10}}}`,
  );
}

// It need not know all of JSON: the schema allows two fields, and no text with a quote or a backslash in it. The host
// writes the text without spaces and without needless escapes.
export function configure(config: string): Failure | null {
  const ofZone = after(config, '"zone":"');
  if (ofZone !== null) zone = ofZone.substring(0, ofZone.indexOf('"'));
  const ofCost = after(config, '"farCost":');
  // It reads what a number begins with.
  if (ofCost !== null) farCost = parseFloat(ofCost);
  return null;
}

export function roster(rows: List<Instance>): Failure | null {
  capacities = new StaticArray<f64>(rows.length);
  fars = new StaticArray<f64>(rows.length);
  for (let row = 0; row < rows.length; row++) {
    const instance = rows.at(row);
    capacities[row] = instance.capacity;
    fars[row] = zone.length > 0 && instance.zone != zone ? farCost : 0;
  }
  return null;
}

export function refresh(loads: Loads): Failure | null {
  sessions = loads.sessions.copyOver(sessions);
  pending = loads.pending.copyOver(pending);
  flags = loads.flags.copyOver(flags);
  return null;
}

// Fills `best`.
export function recommend(request: Request, best: Recommendation): Failure | null {
  takeIn(request);
  let found = false;
  for (let row = 0; row < flags.length; row++) {
    if (!isChoosable(request, row)) continue;
    const score = near(row) + fars[row];
    // Of equal scores the first row wins.
    if (!found || score < best.score) {
      found = true;
      best.row = row;
      best.score = score;
    }
  }
  return found ? null : new Failure(Kind.NoCandidate);
}

// Fills `rows`; leave it out and answer `new Failure(Kind.Unsupported)` if there is nothing to tell.
export function explain(request: Request, rows: ScoreParts[]): Failure | null {
  takeIn(request);
  for (let row = 0; row < flags.length; row++) {
    if (!isChoosable(request, row)) continue;
    const parts = [new Part("sessions", near(row)), new Part("far", fars[row])];
    rows.push(new ScoreParts(row, near(row) + fars[row], parts));
  }
  return null;
}

// The law of `committed`: what was given out meanwhile is pending from now on.
function takeIn(request: Request): void {
  const committed = request.committed;
  for (let i = 0; i < committed.length; i++) {
    const row = committed.at(i);
    if (pending[row] < u32.MAX_VALUE) pending[row]++;
  }
}

function isChoosable(request: Request, row: i32): bool {
  if ((flags[row] & (DRAINING | DEAD)) != 0) return false;
  const avoid = request.avoid;
  // `avoid` ascends; with a filter by label it may name half of all rows.
  let low = 0;
  let high = avoid.length;
  while (low < high) {
    const middle = low + (high - low) / 2;
    if (<i32>avoid.at(middle) < row) low = middle + 1;
    else high = middle;
  }
  return low == avoid.length || avoid.at(low) != row;
}

function near(row: i32): f64 {
  return (<f64>sessions[row] + <f64>pending[row]) / capacities[row];
}

// Returns what comes after the first `key` in a text.
function after(text: string, key: string): string | null {
  const at = text.indexOf(key);
  return at < 0 ? null : text.substring(at + key.length);
}
