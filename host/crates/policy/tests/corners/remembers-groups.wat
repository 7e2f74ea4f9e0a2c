;; Remembers the largest group it has planned for.
;; expect: hidden_state claiming/no-partitions
    ;; <plan>
    (if (i32.gt_u (call $len (local.get $cycle)) (global.get $most))
      (then (global.set $most (call $len (local.get $cycle)))))
    (i32.store8 (i32.const 0x12c) (i32.const 1))
    (i32.store (i32.const 0x130) (i32.add (i32.const 1000) (global.get $most)))
    ;; </plan>
  ;; <more>
  (global $most (mut i32) (i32.const 0))
  ;; </more>
