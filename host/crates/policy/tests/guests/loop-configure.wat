;; Never comes back from `configure`.
;; expect: load configure
  ;; <configure>
  (func (export "fulcrum:policy/lifecycle@1.0.0#configure") (param i32 i32) (result i32)
    (loop $forever (br $forever)) unreachable)
  ;; </configure>
