//! Every limit on a guest: name, unit, default.

use std::time::Duration;

/// Limits on policies. Each has a guest in `tests/guests` that runs into it.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Wall time one scoring call may take.
    pub scoring_deadline: Duration,
    /// Wall time one claiming call may take.
    pub claiming_deadline: Duration,
    /// Wall time compiling may take, the wait for another compilation not included. An 18 MB component of a whole language
    /// runtime takes about 10 s of processor time, so this is no deadline for a call.
    pub compile_deadline: Duration,
    /// Wall time each call may take while a policy is loaded and proven.
    pub load_deadline: Duration,
    /// Memory of one instance: all its linear memories and tables together.
    pub memory_bytes: usize,
    /// Stack of one call.
    pub stack_bytes: usize,
    /// Size of a component.
    pub artifact_bytes: usize,
    /// Data a guest may hand the host as the answer of `describe`, `explain` or `plan`, lists and strings together.
    pub answer_bytes: usize,
    /// The same for the answers without lists, and for the arguments of each call into the host: reading them is host
    /// code, which no deadline interrupts. Nothing beyond it is looked at.
    pub argument_bytes: usize,
    /// Longest log line; more is cut off.
    pub log_line_bytes: usize,
    /// Log lines per second and policy version; more are counted and dropped.
    pub log_lines_per_second: u32,
    /// Instances alive at the same time, all policies together. Plans for groups have three eighths of them, shadows and
    /// proofs three sixteenths each, and scoring the rest; an instance of more than two memories or four tables counts as
    /// several.
    pub instances: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            scoring_deadline: Duration::from_millis(10),
            claiming_deadline: Duration::from_secs(1),
            compile_deadline: Duration::from_secs(120),
            load_deadline: Duration::from_secs(10),
            memory_bytes: 64 << 20,
            stack_bytes: 512 << 10,
            artifact_bytes: 64 << 20,
            answer_bytes: 16 << 20,
            argument_bytes: 64 << 10,
            log_line_bytes: 1024,
            log_lines_per_second: 10,
            instances: 64,
        }
    }
}
