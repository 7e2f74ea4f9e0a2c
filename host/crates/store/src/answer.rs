//! What a call to a store returns.

use std::pin::Pin;

use crate::Result;

/// The future of one call: boxed, so that the backend can be chosen while the host starts; `Send`, so that any
/// runtime can carry it. It does nothing until it is polled.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;
