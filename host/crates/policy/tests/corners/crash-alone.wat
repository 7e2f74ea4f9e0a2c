;; Crashes when half of a large roster is excluded.
;; expect: trap scoring/thousand-rows
  ;; <recommend>
  (func (export "fulcrum:policy/scoring@1.0.0#recommend")
    (param $id i32) (param $id_len i32) (param i32 i32 i32 i32) (param f64 f64)
    (param $avoid i32) (param $avoid_len i32) (param i32 i32) (param i64 i64) (result i32)
    (if (i32.ge_u (local.get $avoid_len) (i32.const 500)) (then unreachable))
    (i32.store (i32.const 0x108) (call $first (i32.const 0) (local.get $avoid) (local.get $avoid_len)))
    (f64.store (i32.const 0x110) (f64.const 0))
    (call $ok))
  ;; </recommend>
