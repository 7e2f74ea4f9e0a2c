;; A claim policy that changes nothing, written by hand. A corner replaces the marked block, which may write the plan:
;; 0x104 partitions, 0x10c members, 0x114 reasons, 0x124 releases (pointer and length each), 0x12c and 0x130 the next cycle.
;; Ready to be pointed at: at 0x200 the numbers 0, 0; at 0x208 the number 1; at 0x20c the reasons 0, 0.
(module
  (memory (export "memory") 2)
  (global $heap (mut i32) (i32.const 0x8000))
  (data (i32.const 0x40) "\90\00\00\00\06\00\00\00\96\00\00\00\05\00\00\00\a0\00\00\00\07\00\00\00\00\00\00\00\00\00\00\00")
  (data (i32.const 0x90) "claims1.0.0")
  (data (i32.const 0xa0) "by hand")
  (data (i32.const 0x208) "\01")
  ;; One reason: `why`.
  (data (i32.const 0x220) "\30\02\00\00\03\00\00\00")
  (data (i32.const 0x230) "why")

  (func (export "cabi_realloc") (param $old i32) (param $old_len i32) (param $align i32) (param $len i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and
      (i32.add (global.get $heap) (i32.sub (local.get $align) (i32.const 1)))
      (i32.sub (i32.const 0) (local.get $align))))
    (global.set $heap (i32.add (local.get $at) (local.get $len)))
    (block $fits (loop $grow
      (br_if $fits (i32.le_u (global.get $heap) (i32.mul (memory.size) (i32.const 65536))))
      (if (i32.eq (memory.grow (i32.const 1)) (i32.const -1)) (then unreachable))
      (br $grow)))
    (memory.copy (local.get $at) (local.get $old) (local.get $old_len))
    (local.get $at))

  (func (export "fulcrum:policy/lifecycle@1.0.0#describe") (result i32)
    (i32.const 0x40))

  (func (export "fulcrum:policy/lifecycle@1.0.0#configure") (param i32 i32) (result i32)
    (global.set $heap (i32.const 0x8000))
    (memory.fill (i32.const 0x100) (i32.const 0) (i32.const 16))
    (i32.const 0x100))

  ;; Number of partitions; whether the first is owned and stays; its owner.
  (func $len (param $cycle i32) (result i32) (i32.load offset=36 (local.get $cycle)))
  (func $owner (param $cycle i32) (result i32) (i32.load (i32.load offset=56 (local.get $cycle))))
  (func $is_moving (param $cycle i32) (result i32) (i32.load8_u (i32.load offset=64 (local.get $cycle))))
  ;; Whether the movement budget is exactly this.
  (func $has_budget (param $cycle i32) (param $budget i32) (result i32)
    (i32.and (i32.load8_u offset=88 (local.get $cycle))
      (i32.eq (i32.load offset=92 (local.get $cycle)) (local.get $budget))))

  (func (export "fulcrum:policy/claiming@1.0.0#plan") (param $cycle i32) (result i32)
    (global.set $heap (i32.const 0x8000))
    (memory.fill (i32.const 0x100) (i32.const 0) (i32.const 64))
    (i32.store (i32.const 0x11c) (i32.const 0x220))
    (i32.store (i32.const 0x120) (i32.const 1))
    ;; <plan>
    ;; </plan>
    (i32.const 0x100))
  ;; <more>
  ;; </more>
)
