;; Explains one row with a million names that are all the same large text.
;; expect: explain limit
  ;; <explain>
  (func (export "fulcrum:policy/scoring@1.0.0#explain")
    (param $id i32) (param $id_len i32) (param i32 i32 i32 i32 f64 f64 i32 i32 i32 i32 i64 i64) (result i32)
    (local $at i32)
    (drop (call $ok))
    (if (call $armed (local.get $id_len)) (then
      (drop (memory.grow (i32.const 200)))
      (i32.store (i32.const 0x104) (i32.const 0x400))
      (i32.store (i32.const 0x108) (i32.const 1))
      ;; row 0, score 0, parts: 10,000 times (text at 0x20000 of 1 MB, 0.0)
      (i64.store (i32.const 0x400) (i64.const 0))
      (i64.store (i32.const 0x408) (i64.const 0))
      (i32.store (i32.const 0x410) (i32.const 0x200000))
      (i32.store (i32.const 0x414) (i32.const 10000))
      (loop $fill
        (i32.store (i32.add (i32.const 0x200000) (i32.shl (local.get $at) (i32.const 4))) (i32.const 0x20000))
        (i32.store (i32.add (i32.const 0x200004) (i32.shl (local.get $at) (i32.const 4))) (i32.const 1000000))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br_if $fill (i32.lt_u (local.get $at) (i32.const 10000))))
      (return (i32.const 0x100))))
    (i32.store8 (i32.const 0x100) (i32.const 1))
    (i32.store8 (i32.const 0x104) (i32.const 3))
    (i32.const 0x100))
  ;; </explain>
