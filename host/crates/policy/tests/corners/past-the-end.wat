;; Names a row past the end when there are a thousand or more.
;; expect: row_out_of_range scoring/thousand-rows
  ;; <recommend>
  (func (export "fulcrum:policy/scoring@1.0.0#recommend")
    (param $id i32) (param $id_len i32) (param i32 i32 i32 i32) (param f64 f64)
    (param $avoid i32) (param $avoid_len i32) (param i32 i32) (param i64 i64) (result i32)
    (i32.store (i32.const 0x108) (call $first (i32.const 0) (local.get $avoid) (local.get $avoid_len)))
    (f64.store (i32.const 0x110) (f64.const 0))
    (if (i32.ge_u (global.get $rows) (i32.const 1000))
      (then (i32.store (i32.const 0x108) (global.get $rows))))
    (call $ok))
  ;; </recommend>
