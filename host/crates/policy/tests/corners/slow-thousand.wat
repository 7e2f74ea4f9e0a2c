;; Thinks for long about a thousand rows or more.
;; expect: slow scoring/thousand-rows
  ;; <recommend>
  (func (export "fulcrum:policy/scoring@1.0.0#recommend")
    (param $id i32) (param $id_len i32) (param i32 i32 i32 i32) (param f64 f64)
    (param $avoid i32) (param $avoid_len i32) (param i32 i32) (param i64 i64) (result i32)
    (local $left i32)
    (if (i32.ge_u (global.get $rows) (i32.const 1000)) (then (local.set $left (i32.const 200000000))))
    (block $end (loop $more
      (br_if $end (i32.eqz (local.get $left)))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br $more)))
    (i32.store (i32.const 0x108) (call $first (i32.const 0) (local.get $avoid) (local.get $avoid_len)))
    (f64.store (i32.const 0x110) (f64.const 0))
    (call $ok))
  ;; </recommend>
