;; Writes a log line of 16 MiB whose first byte is no text: it is over before anybody looks at it.
;; expect: call limit
  ;; <import>
  (import "fulcrum:policy/host@1.0.0" "log" (func $log (param i32 i32 i32)))
  ;; </import>
  ;; <recommend>
  (func (export "fulcrum:policy/scoring@1.0.0#recommend")
    (param $id i32) (param $id_len i32) (param i32 i32 i32 i32) (param f64 f64)
    (param $avoid i32) (param $avoid_len i32) (param i32 i32) (param i64 i64) (result i32)
    (if (call $armed (local.get $id_len)) (then
      (drop (memory.grow (i32.const 256)))
      (i32.store8 (i32.const 0x10000) (i32.const 0xff))
      (call $log (i32.const 0) (i32.const 0x10000) (i32.const 0x1000000))))
    (i32.store (i32.const 0x108) (call $first (i32.const 0) (local.get $avoid) (local.get $avoid_len)))
    (f64.store (i32.const 0x110) (f64.const 0))
    (call $ok))
  ;; </recommend>
