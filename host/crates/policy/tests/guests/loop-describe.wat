;; Never comes back from `describe`.
;; expect: load describe
  ;; <describe>
  (func (export "fulcrum:policy/lifecycle@1.0.0#describe") (result i32)
    (loop $forever (br $forever)) unreachable)
  ;; </describe>
