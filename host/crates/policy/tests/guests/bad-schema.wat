;; Describes a configuration schema that is not JSON.
;; expect: load schema
  ;; <describe>
  (func (export "fulcrum:policy/lifecycle@1.0.0#describe") (result i32)
    (i32.store (i32.const 0x58) (i32.const 0x90))
    (i32.store (i32.const 0x5c) (i32.const 9))
    (i32.const 0x40))
  ;; </describe>
