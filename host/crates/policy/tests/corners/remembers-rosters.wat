;; Counts its rosters: what it answers after the second one depends on the first.
;; expect: hidden_state scoring/rosters
  ;; <roster>
  (global $rosters (mut i32) (i32.const 0))
  (func (export "fulcrum:policy/scoring@1.0.0#roster") (param i32 i32) (result i32)
    (global.set $rosters (i32.add (global.get $rosters) (i32.const 1)))
    (call $ok))
  ;; </roster>
  ;; <recommend>
  (func (export "fulcrum:policy/scoring@1.0.0#recommend")
    (param $id i32) (param $id_len i32) (param i32 i32 i32 i32) (param f64 f64)
    (param $avoid i32) (param $avoid_len i32) (param i32 i32) (param i64 i64) (result i32)
    (i32.store (i32.const 0x108) (call $first (i32.const 0) (local.get $avoid) (local.get $avoid_len)))
    (f64.store (i32.const 0x110) (f64.convert_i32_u (global.get $rosters)))
    (call $ok))
  ;; </recommend>
