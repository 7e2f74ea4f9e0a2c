;; Describes itself with texts that overlap and are larger than the host takes.
;; expect: load describe
  ;; <describe>
  (func (export "fulcrum:policy/lifecycle@1.0.0#describe") (result i32)
    (local $at i32)
    (drop (memory.grow (i32.const 200)))
    (loop $each
      (i32.store (i32.add (i32.const 0x40) (local.get $at)) (i32.const 0x10000))
      (i32.store (i32.add (i32.const 0x44) (local.get $at)) (i32.const 8000000))
      (local.set $at (i32.add (local.get $at) (i32.const 8)))
      (br_if $each (i32.lt_u (local.get $at) (i32.const 32))))
    (i32.const 0x40))
  ;; </describe>
