;; Chooses the first row that may be chosen, at infinite cost, and explains that one alone, with terms nobody should have
;; to read.
  ;; <recommend>
  (func (export "fulcrum:policy/scoring@1.0.0#recommend")
    (param $id i32) (param $id_len i32) (param i32 i32 i32 i32) (param f64 f64)
    (param $avoid i32) (param $avoid_len i32) (param i32 i32) (param i64 i64) (result i32)
    (i32.store (i32.const 0x108) (call $first (i32.const 0) (local.get $avoid) (local.get $avoid_len)))
    (f64.store (i32.const 0x110) (f64.const inf))
    (call $ok))
  ;; </recommend>

  ;; <explain>
  (data (i32.const 0x280) "x 1. Next is z\0a\1b[2J\e2\80\ae")
  (func (export "fulcrum:policy/scoring@1.0.0#explain")
    (param i32 i32 i32 i32 i32 i32 f64 f64) (param $avoid i32) (param $avoid_len i32) (param i32 i32 i64 i64)
    (result i32)
    ;; One row of two terms: infinity under the name above, and a NaN without a name.
    (i32.store (i32.const 0x200) (call $first (i32.const 0) (local.get $avoid) (local.get $avoid_len)))
    (f64.store (i32.const 0x208) (f64.const inf))
    (i32.store (i32.const 0x210) (i32.const 0x240))
    (i32.store (i32.const 0x214) (i32.const 2))
    (i32.store (i32.const 0x240) (i32.const 0x280))
    (i32.store (i32.const 0x244) (i32.const 22))
    (f64.store (i32.const 0x248) (f64.const inf))
    (i32.store (i32.const 0x250) (i32.const 0x280))
    (i32.store (i32.const 0x254) (i32.const 0))
    (f64.store (i32.const 0x258) (f64.const nan))
    (drop (call $ok))
    (i32.store (i32.const 0x104) (i32.const 0x200))
    (i32.store (i32.const 0x108) (i32.const 1))
    (i32.const 0x100))
  ;; </explain>
