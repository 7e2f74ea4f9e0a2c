//! Hot reload: the policies folder, the versions that served last, and the one task that reconciles them with what
//! serves.

mod folder;
mod keep;
pub mod manager;
mod seating;
mod signed;
mod task;
mod watch;
