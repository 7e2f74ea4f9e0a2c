;; A refresh of fewer rows leaves the number of rows as it was.
;; expect: row_out_of_range scoring/rosters
  ;; <refresh>
  (func (export "fulcrum:policy/scoring@1.0.0#refresh")
    (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (param $flags i32) (param $len i32) (result i32)
    (memory.copy (i32.const 0x1000) (local.get $flags) (local.get $len))
    (if (i32.gt_u (local.get $len) (global.get $rows)) (then (global.set $rows (local.get $len))))
    (call $ok))
  ;; </refresh>
  ;; <recommend>
  (func (export "fulcrum:policy/scoring@1.0.0#recommend")
    (param $id i32) (param $id_len i32) (param i32 i32 i32 i32) (param f64 f64)
    (param $avoid i32) (param $avoid_len i32) (param i32 i32) (param i64 i64) (result i32)
    (local $row i32) (local $next i32)
    ;; The last row that may be chosen.
    (block $end (loop $more
      (local.set $next (call $first (local.get $next) (local.get $avoid) (local.get $avoid_len)))
      (br_if $end (i32.ge_u (local.get $next) (global.get $rows)))
      (local.set $row (local.get $next))
      (local.set $next (i32.add (local.get $next) (i32.const 1)))
      (br $more)))
    (i32.store (i32.const 0x108) (local.get $row))
    (f64.store (i32.const 0x110) (f64.const 0))
    (call $ok))
  ;; </recommend>
