//! Hot reload: the policies folder, the versions that served last, and the one task that reconciles them with what
//! serves.

mod acts;
mod back;
mod folder;
mod keep;
pub mod life;
pub mod lifecycle;
pub mod manager;
mod plain;
mod proving;
mod seating;
mod showing;
mod signed;
mod state;
mod task;
mod trial;
mod watch;
