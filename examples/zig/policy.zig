//! Fewest sessions for its capacity; an instance outside one zone costs extra.
//!
//! Every function of the contract is a function here; `abi.zig` calls it. Arguments are gone when the call ends: copy
//! what you keep. To answer with an `error`, put a text into `abi.reason` and return one of `abi.Error`.
//!
//! Invariant: `pending` holds what the host said plus every row of `committed` since, and nothing else is remembered
//! between two calls. Time is `request.now_ms`, chance is `request.seed`: nothing else may vary.

const std = @import("std");
const abi = @import("abi.zig");

const draining: u8 = 2;
const dead: u8 = 4;
/// What outlives a call is kept here.
const kept = std.heap.wasm_allocator;

pub const description: abi.Description = .{
    .name = .of("near-first"),
    .version = .of("0.1.0"),
    .summary = .of("Fewest sessions for its capacity, one zone preferred."),
    .config_schema = .of(
        \\{"type": "object", "additionalProperties": false, "properties": {
        \\"zone": {"description": "Zone to prefer; empty for none.", "type": "string",
        \\"pattern": "^[A-Za-z0-9._-]*$", "default": ""},
        \\"farCost": {"description": "Cost of an instance outside it. Unit: sessions per capacity.",
        \\"type": "number", "minimum": 0, "maximum": 1000000, "default": 10}}}
    ),
};

var zone: []const u8 = "";
var far_cost: f64 = 10;
/// Columns, one entry for each row.
var capacities: []f64 = &.{};
var fars: []f64 = &.{};
var sessions: []u32 = &.{};
var pending: []u32 = &.{};
var flags: []u8 = &.{};

/// It need not know all of JSON: the schema allows two fields, and no text with a quote or a backslash in it. The host
/// writes the text without spaces and without needless escapes.
pub fn configure(config: []const u8) abi.Error!void {
    if (after(config, "\"zone\":\"")) |rest| zone = try kept.dupe(u8, upTo(rest, "\""));
    if (after(config, "\"farCost\":")) |rest| {
        far_cost = std.fmt.parseFloat(f64, upTo(rest, ",}")) catch {
            abi.reason = "farCost must be a number";
            return error.InvalidConfig;
        };
    }
}

pub fn roster(rows: []const abi.Instance) abi.Error!void {
    capacities = try kept.realloc(capacities, rows.len);
    fars = try kept.realloc(fars, rows.len);
    for (rows, capacities, fars) |row, *capacity, *far| {
        const is_far = zone.len > 0 and !std.mem.eql(u8, row.zone.items(), zone);
        capacity.* = row.capacity;
        far.* = if (is_far) far_cost else 0;
    }
}

pub fn refresh(loads: abi.Loads) abi.Error!void {
    try keep(u32, &sessions, loads.sessions);
    try keep(u32, &pending, loads.pending);
    try keep(u8, &flags, loads.flags);
}

pub fn recommend(request: abi.Request) abi.Error!abi.Recommendation {
    takeIn(request.committed);
    var best: ?abi.Recommendation = null;
    for (0..flags.len) |row| {
        if (!isChoosable(row, request.avoid)) continue;
        const score = near(row) + fars[row];
        // Of equal scores the first row wins.
        if (best == null or score < best.?.score) best = .{ .row = @intCast(row), .score = score };
    }
    return best orelse error.NoCandidate;
}

/// The answer is in memory of `scratch`, which lasts until the answer has been read.
pub fn explain(request: abi.Request, scratch: std.mem.Allocator) abi.Error![]const abi.ScoreParts {
    takeIn(request.committed);
    const found = try scratch.alloc(abi.ScoreParts, flags.len);
    var len: usize = 0;
    for (0..flags.len) |row| {
        if (!isChoosable(row, request.avoid)) continue;
        const parts = try scratch.alloc(abi.Part, 2);
        parts[0] = .{ .name = .of("sessions"), .value = near(row) };
        parts[1] = .{ .name = .of("far"), .value = fars[row] };
        found[len] = .{ .row = @intCast(row), .score = near(row) + fars[row], .parts = .of(parts) };
        len += 1;
    }
    return found[0..len];
}

/// The law of `committed`: what was given out meanwhile is pending from now on.
fn takeIn(committed: []const u32) void {
    for (committed) |row| pending[row] +|= 1;
}

fn isChoosable(row: usize, avoid: []const u32) bool {
    if (flags[row] & (draining | dead) != 0) return false;
    // `avoid` ascends; with a filter by label it may name half of all rows.
    var low: usize = 0;
    var high: usize = avoid.len;
    while (low < high) {
        const middle = low + (high - low) / 2;
        if (avoid[middle] < row) low = middle + 1 else high = middle;
    }
    return low == avoid.len or avoid[low] != row;
}

fn near(row: usize) f64 {
    return (@as(f64, @floatFromInt(sessions[row])) + @as(f64, @floatFromInt(pending[row]))) / capacities[row];
}

fn keep(comptime T: type, column: *[]T, new: []const T) abi.Error!void {
    column.* = try kept.realloc(column.*, new.len);
    @memcpy(column.*, new);
}

/// Returns what comes after the first `key` in a text.
fn after(text: []const u8, key: []const u8) ?[]const u8 {
    var at: usize = 0;
    while (at + key.len <= text.len) : (at += 1) {
        if (std.mem.eql(u8, text[at..][0..key.len], key)) return text[at + key.len ..];
    }
    return null;
}

/// Returns the beginning of a text, without the first of `ends` and what comes after it.
fn upTo(text: []const u8, ends: []const u8) []const u8 {
    for (text, 0..) |byte, at| {
        for (ends) |end| {
            if (byte == end) return text[0..at];
        }
    }
    return text;
}
