;; Gives a partition twice in a large group.
;; expect: claimed_twice claiming/thousand-members
    ;; <plan>
    (if (i32.ge_u (call $len (local.get $cycle)) (i32.const 1000)) (then
      (i32.store (i32.const 0x104) (i32.const 0x200))
      (i32.store (i32.const 0x108) (i32.const 2))
      (i32.store (i32.const 0x10c) (i32.const 0x200))
      (i32.store (i32.const 0x110) (i32.const 2))
      (i32.store (i32.const 0x114) (i32.const 0x20c))
      (i32.store (i32.const 0x118) (i32.const 2))))
    ;; </plan>
