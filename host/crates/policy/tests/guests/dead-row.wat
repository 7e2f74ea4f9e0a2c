;; Names a row that is dead, if there is one, else one that does not exist.
;; expect: call illegal
  ;; <recommend>
  (func (export "fulcrum:policy/scoring@1.0.0#recommend")
    (param $id i32) (param $id_len i32) (param i32 i32 i32 i32) (param f64 f64)
    (param $avoid i32) (param $avoid_len i32) (param i32 i32) (param i64 i64) (result i32)
    (local $row i32)
    (local.set $row (call $first (i32.const 0) (local.get $avoid) (local.get $avoid_len)))
    (if (call $armed (local.get $id_len)) (then
      (local.set $row (i32.const 0))
      (block $found (loop $next
        (br_if $found (i32.ge_u (local.get $row) (global.get $rows)))
        (br_if $found (i32.and (i32.load8_u (i32.add (i32.const 0x1000) (local.get $row))) (i32.const 4)))
        (local.set $row (i32.add (local.get $row) (i32.const 1)))
        (br $next)))))
    (i32.store (i32.const 0x108) (local.get $row))
    (f64.store (i32.const 0x110) (f64.const 0))
    (call $ok))
  ;; </recommend>
