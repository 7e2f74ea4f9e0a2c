;; Describes itself with a name that no file could have.
;; expect: load description
  ;; <describe>
  (data (i32.const 0xb0) "../Evil")
  (func (export "fulcrum:policy/lifecycle@1.0.0#describe") (result i32)
    (i32.store (i32.const 0x40) (i32.const 0xb0))
    (i32.store (i32.const 0x44) (i32.const 7))
    (i32.const 0x40))
  ;; </describe>
