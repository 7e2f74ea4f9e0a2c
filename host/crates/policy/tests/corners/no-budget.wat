;; Gives up a partition even where nothing may move.
;; expect: over_budget claiming/budget
    ;; <plan>
    (if (call $has_budget (local.get $cycle) (i32.const 0)) (then (if (call $len (local.get $cycle)) (then
      (if (i32.and (i32.ge_s (call $owner (local.get $cycle)) (i32.const 0)) (i32.eqz (call $is_moving (local.get $cycle))))
        (then
          (i32.store (i32.const 0x124) (i32.const 0x200))
          (i32.store (i32.const 0x128) (i32.const 1))))))))
    ;; </plan>
