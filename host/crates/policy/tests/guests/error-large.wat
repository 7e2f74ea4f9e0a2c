;; Returns an error of its own with a text of 16 MiB.
;; expect: call limit
  ;; <recommend>
  (func (export "fulcrum:policy/scoring@1.0.0#recommend")
    (param $id i32) (param $id_len i32) (param i32 i32 i32 i32) (param f64 f64)
    (param $avoid i32) (param $avoid_len i32) (param i32 i32) (param i64 i64) (result i32)
    (if (call $armed (local.get $id_len)) (then
      (drop (memory.grow (i32.const 256)))
      (drop (call $ok))
      (i32.store8 (i32.const 0x100) (i32.const 1))
      (i32.store8 (i32.const 0x108) (i32.const 4))
      (i32.store (i32.const 0x10c) (i32.const 0x10000))
      (i32.store (i32.const 0x110) (i32.const 0x1000000))
      (return (i32.const 0x100))))
    (i32.store (i32.const 0x108) (call $first (i32.const 0) (local.get $avoid) (local.get $avoid_len)))
    (f64.store (i32.const 0x110) (f64.const 0))
    (call $ok))
  ;; </recommend>
