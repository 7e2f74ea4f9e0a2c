;; Never comes back from `refresh`.
;; expect: load self_test
  ;; <refresh>
  (func (export "fulcrum:policy/scoring@1.0.0#refresh")
    (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)
    (loop $forever (br $forever)) unreachable)
  ;; </refresh>
