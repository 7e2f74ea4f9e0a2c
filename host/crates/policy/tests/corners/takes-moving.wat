;; Gives up the first partition while it is being handed over.
;; expect: moving claiming/moving
    ;; <plan>
    (if (call $len (local.get $cycle)) (then (if (call $is_moving (local.get $cycle)) (then
      (i32.store (i32.const 0x124) (i32.const 0x200))
      (i32.store (i32.const 0x128) (i32.const 1))))))
    ;; </plan>
