;; Takes in one of the rows given out, however many there are.
;; expect: law scoring/one-row
  ;; <refresh>
  (global $sum (mut i32) (i32.const 0))
  (func (export "fulcrum:policy/scoring@1.0.0#refresh")
    (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (param $pending i32) (param $pending_len i32)
    (param $flags i32) (param $len i32) (result i32)
    (local $row i32)
    (memory.copy (i32.const 0x1000) (local.get $flags) (local.get $len))
    (global.set $rows (local.get $len))
    (global.set $sum (i32.const 0))
    (block $end (loop $more
      (br_if $end (i32.ge_u (local.get $row) (local.get $len)))
      (global.set $sum (i32.add (global.get $sum)
        (i32.load (i32.add (local.get $pending) (i32.shl (local.get $row) (i32.const 2))))))
      (local.set $row (i32.add (local.get $row) (i32.const 1)))
      (br $more)))
    (call $ok))
  ;; </refresh>
  ;; <recommend>
  (func (export "fulcrum:policy/scoring@1.0.0#recommend")
    (param $id i32) (param $id_len i32) (param i32 i32 i32 i32) (param f64 f64)
    (param $avoid i32) (param $avoid_len i32) (param $committed i32) (param $committed_len i32) (param i64 i64) (result i32)
    (global.set $sum (i32.add (global.get $sum) (i32.ne (local.get $committed_len) (i32.const 0))))
    (i32.store (i32.const 0x108) (call $first (i32.const 0) (local.get $avoid) (local.get $avoid_len)))
    (f64.store (i32.const 0x110) (f64.convert_i32_u (global.get $sum)))
    (call $ok))
  ;; </recommend>
