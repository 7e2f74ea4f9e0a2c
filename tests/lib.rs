//! System tests; everything is in `it/`.
