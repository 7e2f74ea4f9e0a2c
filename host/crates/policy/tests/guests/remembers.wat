;; Counts its calls and chooses by the count: hidden state.
;; expect: load law
  ;; <recommend>
  (global $calls (mut i32) (i32.const 0))
  (func (export "fulcrum:policy/scoring@1.0.0#recommend")
    (param $id i32) (param $id_len i32) (param i32 i32 i32 i32) (param f64 f64)
    (param $avoid i32) (param $avoid_len i32) (param i32 i32) (param i64 i64) (result i32)
    (i32.store (i32.const 0x108) (call $first (i32.const 0) (local.get $avoid) (local.get $avoid_len)))
    (f64.store (i32.const 0x110) (f64.convert_i32_u (global.get $calls)))
    (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
    (call $ok))
  ;; </recommend>
