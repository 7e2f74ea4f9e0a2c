//! The contract's side of a scoring policy: what a generator of bindings writes for other languages, by hand.
//!
//! Records are `extern struct`s laid out as the canonical ABI lays them out, functions have their full names, and an
//! answer of more than one number is returned by its address.
//!
//! Invariant: what the host wrote for a call lies in `scratch`, which is emptied when the call ends, or, after a call
//! whose answer lies there too, when the next one ends.

const std = @import("std");
const policy = @import("policy.zig");

/// Why a call was refused; `reason` says more, where the contract has a text for it.
pub const Error = error{ InvalidConfig, InvalidInput, NoCandidate, Unsupported, Failed, OutOfMemory };
/// Text of the next error; it must outlive the call.
pub var reason: []const u8 = "";

/// A list as it crosses: address and length.
pub fn List(comptime T: type) type {
    return extern struct {
        ptr: [*]const T,
        len: usize,

        pub fn of(slice: []const T) @This() {
            return .{ .ptr = slice.ptr, .len = slice.len };
        }

        pub fn items(self: @This()) []const T {
            return self.ptr[0..self.len];
        }
    };
}
pub const Text = List(u8);

pub const Description = extern struct { name: Text, version: Text, summary: Text, config_schema: Text };
pub const Label = extern struct { key: Text, value: Text };
pub const Instance = extern struct { id: Text, zone: Text, capacity: f64, labels: List(Label), age_ms: u64 };
pub const Recommendation = extern struct { row: u32, score: f64 };
pub const Part = extern struct { name: Text, value: f64 };
pub const ScoreParts = extern struct { row: u32, score: f64, parts: List(Part) };

/// Columns of one length.
pub const Loads = struct {
    sessions: []const u32,
    inflow: []const f64,
    outflow: []const f64,
    cpu: []const f64,
    heartbeat_age_ms: []const u32,
    pending: []const u32,
    flags: []const u8,
};

pub const Request = struct {
    client_id: []const u8,
    session_rows: []const u32,
    session_counts: []const u32,
    client_inflow: f64,
    client_outflow: f64,
    avoid: []const u32,
    committed: []const u32,
    now_ms: u64,
    seed: u64,
};

const Failure = extern struct { tag: u8, text: Text };
const Done = extern struct { is_err: u8 = 0, failure: Failure = undefined };

fn Answer(comptime T: type) type {
    return extern struct { is_err: u8, value: extern union { ok: T, failure: Failure } };
}

var scratch: std.heap.ArenaAllocator = .init(std.heap.wasm_allocator);
var done: Done = .{};
var picked: Answer(Recommendation) = undefined;
var explained: Answer(List(ScoreParts)) = undefined;

/// Gives the host memory for arguments. Nothing in the contract is aligned to more than 8 bytes.
export fn cabi_realloc(old: ?[*]const u8, old_len: usize, alignment: usize, len: usize) [*]u8 {
    if (len == 0) return @ptrFromInt(alignment);
    const new = scratch.allocator().alignedAlloc(u8, .@"8", len) catch @trap();
    if (old) |bytes| @memcpy(new[0..@min(old_len, len)], bytes[0..@min(old_len, len)]);
    return new.ptr;
}

export fn @"fulcrum:policy/lifecycle@1.0.0#describe"() *const Description {
    return &policy.description;
}

export fn @"fulcrum:policy/lifecycle@1.0.0#configure"(ptr: [*]const u8, len: usize) *const Done {
    return end(policy.configure(ptr[0..len]));
}

export fn @"fulcrum:policy/scoring@1.0.0#roster"(ptr: [*]const Instance, len: usize) *const Done {
    return end(policy.roster(ptr[0..len]));
}

export fn @"fulcrum:policy/scoring@1.0.0#refresh"(
    sessions: [*]const u32,
    sessions_len: usize,
    inflow: [*]const f64,
    inflow_len: usize,
    outflow: [*]const f64,
    outflow_len: usize,
    cpu: [*]const f64,
    cpu_len: usize,
    heartbeat_age_ms: [*]const u32,
    heartbeat_age_ms_len: usize,
    pending: [*]const u32,
    pending_len: usize,
    flags: [*]const u8,
    flags_len: usize,
) *const Done {
    return end(policy.refresh(.{
        .sessions = sessions[0..sessions_len],
        .inflow = inflow[0..inflow_len],
        .outflow = outflow[0..outflow_len],
        .cpu = cpu[0..cpu_len],
        .heartbeat_age_ms = heartbeat_age_ms[0..heartbeat_age_ms_len],
        .pending = pending[0..pending_len],
        .flags = flags[0..flags_len],
    }));
}

export fn @"fulcrum:policy/scoring@1.0.0#recommend"(
    client_id: [*]const u8,
    client_id_len: usize,
    session_rows: [*]const u32,
    session_rows_len: usize,
    session_counts: [*]const u32,
    session_counts_len: usize,
    client_inflow: f64,
    client_outflow: f64,
    avoid: [*]const u32,
    avoid_len: usize,
    committed: [*]const u32,
    committed_len: usize,
    now_ms: u64,
    seed: u64,
) *const Answer(Recommendation) {
    const answer = policy.recommend(.{
        .client_id = client_id[0..client_id_len],
        .session_rows = session_rows[0..session_rows_len],
        .session_counts = session_counts[0..session_counts_len],
        .client_inflow = client_inflow,
        .client_outflow = client_outflow,
        .avoid = avoid[0..avoid_len],
        .committed = committed[0..committed_len],
        .now_ms = now_ms,
        .seed = seed,
    });
    _ = scratch.reset(.retain_capacity);
    picked = if (answer) |found|
        .{ .is_err = 0, .value = .{ .ok = found } }
    else |err|
        .{ .is_err = 1, .value = .{ .failure = failure(err) } };
    return &picked;
}

export fn @"fulcrum:policy/scoring@1.0.0#explain"(
    client_id: [*]const u8,
    client_id_len: usize,
    session_rows: [*]const u32,
    session_rows_len: usize,
    session_counts: [*]const u32,
    session_counts_len: usize,
    client_inflow: f64,
    client_outflow: f64,
    avoid: [*]const u32,
    avoid_len: usize,
    committed: [*]const u32,
    committed_len: usize,
    now_ms: u64,
    seed: u64,
) *const Answer(List(ScoreParts)) {
    const request: Request = .{
        .client_id = client_id[0..client_id_len],
        .session_rows = session_rows[0..session_rows_len],
        .session_counts = session_counts[0..session_counts_len],
        .client_inflow = client_inflow,
        .client_outflow = client_outflow,
        .avoid = avoid[0..avoid_len],
        .committed = committed[0..committed_len],
        .now_ms = now_ms,
        .seed = seed,
    };
    explained = if (policy.explain(request, scratch.allocator())) |rows|
        .{ .is_err = 0, .value = .{ .ok = .of(rows) } }
    else |err|
        .{ .is_err = 1, .value = .{ .failure = failure(err) } };
    return &explained;
}

fn end(result: Error!void) *const Done {
    _ = scratch.reset(.retain_capacity);
    done = if (result) .{} else |err| .{ .is_err = 1, .failure = failure(err) };
    return &done;
}

/// The tag is the case's place in the contract's `variant error`.
fn failure(err: Error) Failure {
    const text = switch (err) {
        error.OutOfMemory => "there is no memory left",
        else => reason,
    };
    const tag: u8 = switch (err) {
        error.InvalidConfig => 0,
        error.InvalidInput => 1,
        error.NoCandidate => 2,
        error.Unsupported => 3,
        error.Failed, error.OutOfMemory => 4,
    };
    return .{ .tag = tag, .text = .of(text) };
}
