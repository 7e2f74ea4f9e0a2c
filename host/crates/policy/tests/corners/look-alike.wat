;; Cannot put a number on a client whose id begins with an underscore.
;; expect: not_a_number scoring/hostile-text
  ;; <recommend>
  (func (export "fulcrum:policy/scoring@1.0.0#recommend")
    (param $id i32) (param $id_len i32) (param i32 i32 i32 i32) (param f64 f64)
    (param $avoid i32) (param $avoid_len i32) (param i32 i32) (param i64 i64) (result i32)
    (i32.store (i32.const 0x108) (call $first (i32.const 0) (local.get $avoid) (local.get $avoid_len)))
    (f64.store (i32.const 0x110) (f64.const 0))
    (if (local.get $id_len) (then
      (if (i32.eq (i32.load8_u (local.get $id)) (i32.const 0x5f))
        (then (f64.store (i32.const 0x110) (f64.const nan))))))
    (call $ok))
  ;; </recommend>
