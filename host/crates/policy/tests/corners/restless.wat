;; Hands the first partition to and fro between two members: legal, and without end.
;; expect: unsettled claiming/until-settled
    ;; <plan>
    (if (i32.and (i32.and
          (i32.ge_u (i32.load offset=12 (local.get $cycle)) (i32.const 2))
          (i32.ge_u (call $len (local.get $cycle)) (i32.const 1)))
        (i32.eqz (call $has_budget (local.get $cycle) (i32.const 0))))
      (then
        ;; Both members read both topics.
        (if (i32.and (i32.eqz (call $is_moving (local.get $cycle))) (i32.eq (i32.const 4) (i32.add
              (i32.load offset=44 (i32.load offset=8 (local.get $cycle)))
              (i32.load offset=92 (i32.load offset=8 (local.get $cycle))))))
          (then
            (i32.store (i32.const 0x104) (i32.const 0x200))
            (i32.store (i32.const 0x108) (i32.const 1))
            (i32.store (i32.const 0x10c)
              (select (i32.const 0x208) (i32.const 0x200) (i32.eqz (call $owner (local.get $cycle)))))
            (i32.store (i32.const 0x110) (i32.const 1))
            (i32.store (i32.const 0x114) (i32.const 0x20c))
            (i32.store (i32.const 0x118) (i32.const 1))))))
    ;; </plan>
