;; Never comes back from `explain`.
;; expect: explain timeout
  ;; <explain>
  (func (export "fulcrum:policy/scoring@1.0.0#explain")
    (param $id i32) (param $id_len i32) (param i32 i32 i32 i32 f64 f64 i32 i32 i32 i32 i64 i64) (result i32)
    (if (call $armed (local.get $id_len)) (then (loop $forever (br $forever))))
    (drop (call $ok))
    (i32.store8 (i32.const 0x100) (i32.const 1))
    (i32.store8 (i32.const 0x104) (i32.const 3))
    (i32.const 0x100))
  ;; </explain>
