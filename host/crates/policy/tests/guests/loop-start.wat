;; Never comes back from its start function.
;; expect: load start
  ;; <import>
  (start $start)
  (func $start (loop $forever (br $forever)))
  ;; </import>
