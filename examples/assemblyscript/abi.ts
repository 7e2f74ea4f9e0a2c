// The contract's side of a scoring policy: what a generator of bindings writes for other languages, by hand.
//
// Records are laid out as the canonical ABI lays them out, and an answer of more than one number is returned by its
// address. `names.mjs` gives the exported functions their full names, which TypeScript cannot write.
//
// Invariant: what the host wrote for a call, and an answer, lie in a chain of blocks that is freed when the call ends,
// before the answer is written; so an answer goes when the next call ends.

import * as policy from "./policy";

export class Description {
  constructor(
    public name: string,
    public version: string,
    public summary: string,
    public configSchema: string,
  ) {}
}

// The contract's `variant error`: a case's number is its place there.
export enum Kind {
  InvalidConfig,
  InvalidInput,
  NoCandidate,
  Unsupported,
  Failed,
}

export class Failure {
  constructor(
    public kind: Kind,
    public text: string = "",
  ) {}
}

// A list as the host wrote it.
@final
export class List<T> {
  private ptr: usize = 0;
  length: i32 = 0;

  @inline
  set(ptr: usize, length: i32): this {
    this.ptr = ptr;
    this.length = length;
    return this;
  }

  // Returns an entry: a number, or a record by its place.
  @inline
  at(index: i32): T {
    if (isReference<T>()) return changetype<T>(this.ptr + <usize>index * offsetof<T>());
    return load<T>(this.ptr + <usize>index * sizeof<T>());
  }

  // Returns a copy of a list of numbers, in the memory of a former one if it has that length.
  copyOver(former: StaticArray<T>): StaticArray<T> {
    const copy = former.length == this.length ? former : new StaticArray<T>(this.length);
    memory.copy(changetype<usize>(copy), this.ptr, <usize>this.length * sizeof<T>());
    return copy;
  }
}

// A row of the roster, where the host wrote it.
@unmanaged
export class Instance {
  private idPtr: usize;
  private idLen: usize;
  private zonePtr: usize;
  private zoneLen: usize;
  capacity: f64;
  private labelsPtr: usize;
  private labelsLen: usize;
  ageMs: u64;

  get id(): string {
    return String.UTF8.decodeUnsafe(this.idPtr, this.idLen);
  }

  get zone(): string {
    return String.UTF8.decodeUnsafe(this.zonePtr, this.zoneLen);
  }

  // Returns the value of a label, null if there is none.
  label(key: string): string | null {
    for (let at = this.labelsPtr; at < this.labelsPtr + this.labelsLen * 16; at += 16) {
      if (text(at) == key) return text(at + 8);
    }
    return null;
  }
}

// Columns of one length.
export class Loads {
  sessions: List<u32> = new List<u32>();
  inflow: List<f64> = new List<f64>();
  outflow: List<f64> = new List<f64>();
  cpu: List<f64> = new List<f64>();
  heartbeatAgeMs: List<u32> = new List<u32>();
  pending: List<u32> = new List<u32>();
  flags: List<u8> = new List<u8>();
}

export class Request {
  clientIdPtr: usize = 0;
  clientIdLen: usize = 0;
  sessionRows: List<u32> = new List<u32>();
  sessionCounts: List<u32> = new List<u32>();
  clientInflow: f64 = 0;
  clientOutflow: f64 = 0;
  avoid: List<u32> = new List<u32>();
  committed: List<u32> = new List<u32>();
  nowMs: u64 = 0;
  seed: u64 = 0;

  get clientId(): string {
    return String.UTF8.decodeUnsafe(this.clientIdPtr, this.clientIdLen);
  }
}

export class Recommendation {
  row: u32 = 0;
  score: f64 = 0;
}

export class Part {
  constructor(
    public name: string,
    public value: f64,
  ) {}
}

export class ScoreParts {
  constructor(
    public row: u32,
    public score: f64,
    public parts: Part[],
  ) {}
}

// Made once: a decision allocates nothing but its arguments.
const rows = new List<Instance>();
const loads = new Loads();
const request = new Request();
const best = new Recommendation();
// Answers of a fixed size.
const answer = memory.data(32, 8);

// The last block of the chain; each begins with the address of the one before it.
let blocks: usize = 0;
// Keeps what comes after it aligned to 8 bytes.
const LINK: usize = 16;

// Gives the host memory for arguments. Nothing in the contract is aligned to more than 8 bytes.
export function cabi_realloc(old: usize, oldLen: usize, align: usize, len: usize): usize {
  if (len == 0) return align;
  const block = heap.alloc(LINK + len);
  store<usize>(block, blocks);
  blocks = block;
  memory.copy(block + LINK, old, min(oldLen, len));
  return block + LINK;
}

export function describe(): usize {
  release();
  const found = policy.describe();
  putText(answer, found.name);
  putText(answer + 8, found.version);
  putText(answer + 16, found.summary);
  putText(answer + 24, found.configSchema);
  return answer;
}

export function configure(ptr: usize, len: usize): usize {
  return done(policy.configure(String.UTF8.decodeUnsafe(ptr, len)));
}

export function roster(ptr: usize, len: i32): usize {
  return done(policy.roster(rows.set(ptr, len)));
}

export function refresh(
  sessions: usize,
  sessionsLen: i32,
  inflow: usize,
  inflowLen: i32,
  outflow: usize,
  outflowLen: i32,
  cpu: usize,
  cpuLen: i32,
  heartbeatAgeMs: usize,
  heartbeatAgeMsLen: i32,
  pending: usize,
  pendingLen: i32,
  flags: usize,
  flagsLen: i32,
): usize {
  loads.sessions.set(sessions, sessionsLen);
  loads.inflow.set(inflow, inflowLen);
  loads.outflow.set(outflow, outflowLen);
  loads.cpu.set(cpu, cpuLen);
  loads.heartbeatAgeMs.set(heartbeatAgeMs, heartbeatAgeMsLen);
  loads.pending.set(pending, pendingLen);
  loads.flags.set(flags, flagsLen);
  return done(policy.refresh(loads));
}

export function recommend(
  clientId: usize,
  clientIdLen: usize,
  sessionRows: usize,
  sessionRowsLen: i32,
  sessionCounts: usize,
  sessionCountsLen: i32,
  clientInflow: f64,
  clientOutflow: f64,
  avoid: usize,
  avoidLen: i32,
  committed: usize,
  committedLen: i32,
  nowMs: u64,
  seed: u64,
): usize {
  take(
    clientId, clientIdLen, sessionRows, sessionRowsLen, sessionCounts, sessionCountsLen,
    clientInflow, clientOutflow, avoid, avoidLen, committed, committedLen, nowMs, seed,
  );
  const failure = policy.recommend(request, best);
  release();
  store<u8>(answer, failure !== null ? 1 : 0);
  if (failure !== null) {
    putFailure(answer + 8, failure);
  } else {
    store<u32>(answer + 8, best.row);
    store<f64>(answer + 16, best.score);
  }
  return answer;
}

export function explain(
  clientId: usize,
  clientIdLen: usize,
  sessionRows: usize,
  sessionRowsLen: i32,
  sessionCounts: usize,
  sessionCountsLen: i32,
  clientInflow: f64,
  clientOutflow: f64,
  avoid: usize,
  avoidLen: i32,
  committed: usize,
  committedLen: i32,
  nowMs: u64,
  seed: u64,
): usize {
  take(
    clientId, clientIdLen, sessionRows, sessionRowsLen, sessionCounts, sessionCountsLen,
    clientInflow, clientOutflow, avoid, avoidLen, committed, committedLen, nowMs, seed,
  );
  const found: ScoreParts[] = [];
  const failure = policy.explain(request, found);
  release();
  store<u8>(answer, failure !== null ? 1 : 0);
  if (failure !== null) {
    putFailure(answer + 4, failure);
    return answer;
  }
  const list = block(<usize>found.length * 24);
  for (let i = 0; i < found.length; i++) {
    const at = list + <usize>i * 24;
    const parts = found[i].parts;
    const inner = block(<usize>parts.length * 16);
    for (let j = 0; j < parts.length; j++) {
      putText(inner + <usize>j * 16, parts[j].name);
      store<f64>(inner + <usize>j * 16 + 8, parts[j].value);
    }
    store<u32>(at, found[i].row);
    store<f64>(at + 8, found[i].score);
    store<usize>(at + 16, inner);
    store<u32>(at + 20, parts.length);
  }
  store<usize>(answer + 4, list);
  store<u32>(answer + 8, found.length);
  return answer;
}

// Takes the place of the function a failed check calls, which would be an import.
export function fail(message: string | null, file: string | null, line: u32, column: u32): void {
  unreachable();
}

function take(
  clientId: usize,
  clientIdLen: usize,
  sessionRows: usize,
  sessionRowsLen: i32,
  sessionCounts: usize,
  sessionCountsLen: i32,
  clientInflow: f64,
  clientOutflow: f64,
  avoid: usize,
  avoidLen: i32,
  committed: usize,
  committedLen: i32,
  nowMs: u64,
  seed: u64,
): void {
  request.clientIdPtr = clientId;
  request.clientIdLen = clientIdLen;
  request.sessionRows.set(sessionRows, sessionRowsLen);
  request.sessionCounts.set(sessionCounts, sessionCountsLen);
  request.clientInflow = clientInflow;
  request.clientOutflow = clientOutflow;
  request.avoid.set(avoid, avoidLen);
  request.committed.set(committed, committedLen);
  request.nowMs = nowMs;
  request.seed = seed;
}

function done(failure: Failure | null): usize {
  release();
  store<u8>(answer, failure !== null ? 1 : 0);
  if (failure !== null) putFailure(answer + 4, failure);
  return answer;
}

function putFailure(at: usize, failure: Failure): void {
  store<u8>(at, failure.kind);
  putText(at + 4, failure.text);
}

function putText(at: usize, text: string): void {
  const len = String.UTF8.byteLength(text);
  const ptr = block(len);
  String.UTF8.encodeUnsafe(changetype<usize>(text), text.length, ptr);
  store<usize>(at, ptr);
  store<u32>(at + 4, len);
}

function text(at: usize): string {
  return String.UTF8.decodeUnsafe(load<usize>(at), load<usize>(at + 4));
}

function block(len: usize): usize {
  return cabi_realloc(0, 0, 8, len);
}

function release(): void {
  while (blocks != 0) {
    const before = load<usize>(blocks);
    heap.free(blocks);
    blocks = before;
  }
}
