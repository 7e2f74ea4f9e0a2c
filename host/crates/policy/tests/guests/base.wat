;; A well-behaved policy, written by hand: it chooses the first row that may be chosen, at cost 0.
;; Each sin replaces one of the marked blocks. All of them behave until a client asks whose id has 66 bytes (`$armed`),
;; unless they are meant to fail while they are loaded.
(module
  ;; <import>
  ;; </import>
  (memory (export "memory") 2)
  (global $heap (mut i32) (i32.const 0x8000))
  (global $rows (mut i32) (i32.const 0))
  (data (i32.const 0x40) "\90\00\00\00\04\00\00\00\94\00\00\00\05\00\00\00\a0\00\00\00\07\00\00\00\00\00\00\00\00\00\00\00")
  (data (i32.const 0x90) "base1.0.0")
  (data (i32.const 0xa0) "by hand")

  (func (export "cabi_realloc") (param $old i32) (param $old_len i32) (param $align i32) (param $len i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and
      (i32.add (global.get $heap) (i32.sub (local.get $align) (i32.const 1)))
      (i32.sub (i32.const 0) (local.get $align))))
    (global.set $heap (i32.add (local.get $at) (local.get $len)))
    (block $fits
      (br_if $fits (i32.le_u (global.get $heap) (i32.mul (memory.size) (i32.const 65536))))
      (br_if $fits (i32.ne (i32.const -1) (memory.grow (i32.add (i32.const 1)
        (i32.div_u (i32.sub (global.get $heap) (i32.mul (memory.size) (i32.const 65536))) (i32.const 65536))))))
      unreachable)
    (memory.copy (local.get $at) (local.get $old) (local.get $old_len))
    (local.get $at))

  ;; Arguments are done with: frees them and returns an `ok` without payload.
  (func $ok (result i32)
    (global.set $heap (i32.const 0x8000))
    (i32.store (i32.const 0x100) (i32.const 0))
    (i32.const 0x100))

  (func $is_avoided (param $row i32) (param $list i32) (param $len i32) (result i32)
    (local $at i32)
    (block $no (loop $next
      (br_if $no (i32.ge_u (local.get $at) (local.get $len)))
      (if (i32.eq (local.get $row)
            (i32.load (i32.add (local.get $list) (i32.shl (local.get $at) (i32.const 2)))))
        (then (return (i32.const 1))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br $next)))
    (i32.const 0))

  ;; The first row from $from on that may be chosen, or the number of rows.
  (func $first (param $from i32) (param $avoid i32) (param $avoid_len i32) (result i32)
    (block $found (loop $next
      (br_if $found (i32.ge_u (local.get $from) (global.get $rows)))
      (br_if $found (i32.and
        (i32.eqz (i32.and (i32.load8_u (i32.add (i32.const 0x1000) (local.get $from))) (i32.const 6)))
        (i32.eqz (call $is_avoided (local.get $from) (local.get $avoid) (local.get $avoid_len)))))
      (local.set $from (i32.add (local.get $from) (i32.const 1)))
      (br $next)))
    (local.get $from))

  ;; Whether the client asks for trouble.
  (func $armed (param $id_len i32) (result i32)
    (i32.eq (local.get $id_len) (i32.const 66)))

  ;; <describe>
  (func (export "fulcrum:policy/lifecycle@1.0.0#describe") (result i32)
    (i32.const 0x40))
  ;; </describe>

  ;; <configure>
  (func (export "fulcrum:policy/lifecycle@1.0.0#configure") (param i32 i32) (result i32)
    (call $ok))
  ;; </configure>

  ;; <roster>
  (func (export "fulcrum:policy/scoring@1.0.0#roster") (param i32 i32) (result i32)
    (call $ok))
  ;; </roster>

  ;; <refresh>
  (func (export "fulcrum:policy/scoring@1.0.0#refresh")
    (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (param $flags i32) (param $len i32) (result i32)
    (memory.copy (i32.const 0x1000) (local.get $flags) (local.get $len))
    (global.set $rows (local.get $len))
    (call $ok))
  ;; </refresh>

  ;; <recommend>
  (func (export "fulcrum:policy/scoring@1.0.0#recommend")
    (param $id i32) (param $id_len i32) (param i32 i32 i32 i32) (param f64 f64)
    (param $avoid i32) (param $avoid_len i32) (param i32 i32) (param i64 i64) (result i32)
    (i32.store (i32.const 0x108) (call $first (i32.const 0) (local.get $avoid) (local.get $avoid_len)))
    (f64.store (i32.const 0x110) (f64.const 0))
    (call $ok))
  ;; </recommend>

  ;; <explain>
  (func (export "fulcrum:policy/scoring@1.0.0#explain")
    (param i32 i32 i32 i32 i32 i32 f64 f64 i32 i32 i32 i32 i64 i64) (result i32)
    ;; unsupported
    (drop (call $ok))
    (i32.store8 (i32.const 0x100) (i32.const 1))
    (i32.store8 (i32.const 0x104) (i32.const 3))
    (i32.const 0x100))
  ;; </explain>
)
