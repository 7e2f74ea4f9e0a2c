;; Explains at most ten rows.
;; expect: explanation scoring/ties
  ;; <explain>
  (func $alloc (param $len i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
    (global.set $heap (i32.add (local.get $at) (local.get $len)))
    (block $fits (loop $grow
      (br_if $fits (i32.le_u (global.get $heap) (i32.mul (memory.size) (i32.const 65536))))
      (if (i32.eq (memory.grow (i32.const 1)) (i32.const -1)) (then unreachable))
      (br $grow)))
    (local.get $at))
  (func (export "fulcrum:policy/scoring@1.0.0#explain")
    (param i32 i32 i32 i32 i32 i32 f64 f64) (param $avoid i32) (param $avoid_len i32) (param i32 i32 i64 i64) (result i32)
    (local $row i32) (local $at i32) (local $list i32) (local $count i32)
    ;; 24 bytes for each row: the row, its score, and no terms.
    (local.set $list (call $alloc (i32.mul (global.get $rows) (i32.const 24))))
    (local.set $row (call $first (i32.const 0) (local.get $avoid) (local.get $avoid_len)))
    (block $end (loop $more
      (br_if $end (i32.ge_u (local.get $row) (global.get $rows)))
      (local.set $at (i32.add (local.get $list) (i32.mul (local.get $count) (i32.const 24))))
      (i32.store (local.get $at) (local.get $row))
      (f64.store offset=8 (local.get $at) (f64.const 0))
      (i64.store offset=16 (local.get $at) (i64.const 0))
      (local.set $count (i32.add (local.get $count) (i32.const 1)))
      (br_if $end (i32.ge_u (local.get $count) (i32.const 10)))
      (local.set $row (call $first (i32.add (local.get $row) (i32.const 1)) (local.get $avoid) (local.get $avoid_len)))
      (br $more)))
    (drop (call $ok))
    (i32.store (i32.const 0x104) (local.get $list))
    (i32.store (i32.const 0x108) (local.get $count))
    (i32.const 0x100))
  ;; </explain>
