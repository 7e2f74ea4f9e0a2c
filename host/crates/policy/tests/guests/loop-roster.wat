;; Never comes back from `roster`.
;; expect: load self_test
  ;; <roster>
  (func (export "fulcrum:policy/scoring@1.0.0#roster") (param i32 i32) (result i32)
    (loop $forever (br $forever)) unreachable)
  ;; </roster>
