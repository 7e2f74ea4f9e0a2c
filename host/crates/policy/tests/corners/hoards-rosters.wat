;; Wants more memory than there is for a roster of ten thousand rows.
;; expect: limit scoring/ten-thousand-rows
  ;; <refresh>
  (func (export "fulcrum:policy/scoring@1.0.0#refresh")
    (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (param $flags i32) (param $len i32) (result i32)
    (memory.copy (i32.const 0x1000) (local.get $flags) (local.get $len))
    (global.set $rows (local.get $len))
    (if (i32.ge_u (local.get $len) (i32.const 10000)) (then
      (if (i32.eq (memory.grow (i32.const 2000)) (i32.const -1)) (then unreachable))))
    (call $ok))
  ;; </refresh>
