;; A stand-in for WASI preview 1 that calls nobody: with it as adapter, a module that was built for wasip1 becomes a
;; component without imports.
;;
;; Everything is answered inside the component and the same way each time: no arguments, no environment, no files,
;; no sockets; output is swallowed; a clock that moves one microsecond per reading; chance from a fixed seed.
;; Function and field layouts: WASI 0.1 (`wasi_snapshot_preview1.witx`). Error numbers used: 8 = badf (no such
;; file descriptor), 28 = inval. Functions that a module does not import are left out of its component.
(module
  (import "env" "memory" (memory 0))

  ;; Nanoseconds, for every clock; starts at 2000-01-01 UTC so that no calendar code meets a zero.
  (global $clock (mut i64) (i64.const 946684800000000000))
  ;; State of xorshift64.
  (global $chance (mut i64) (i64.const 0x9E3779B97F4A7C15))

  (func $now (result i64)
    (global.set $clock (i64.add (global.get $clock) (i64.const 1000)))
    (global.get $clock))

  (func $next (result i64)
    (local $x i64)
    (local.set $x (global.get $chance))
    (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 13))))
    (local.set $x (i64.xor (local.get $x) (i64.shr_u (local.get $x) (i64.const 7))))
    (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 17))))
    (global.set $chance (local.get $x))
    (local.get $x))

  ;; Arguments and environment: none.
  (func $none (param $count i32) (param $bytes i32) (result i32)
    (i32.store (local.get $count) (i32.const 0))
    (i32.store (local.get $bytes) (i32.const 0))
    (i32.const 0))
  (func $nothing (param i32 i32) (result i32) (i32.const 0))
  (export "args_sizes_get" (func $none))
  (export "args_get" (func $nothing))
  (export "environ_sizes_get" (func $none))
  (export "environ_get" (func $nothing))

  ;; Time and chance.
  (func (export "clock_res_get") (param $id i32) (param $result i32) (result i32)
    (i64.store (local.get $result) (i64.const 1000))
    (i32.const 0))
  (func (export "clock_time_get") (param $id i32) (param $precision i64) (param $result i32) (result i32)
    (i64.store (local.get $result) (call $now))
    (i32.const 0))
  (func (export "random_get") (param $at i32) (param $length i32) (result i32)
    (local $end i32)
    (local.set $end (i32.add (local.get $at) (local.get $length)))
    (block $done
      (loop $byte
        (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
        (i64.store8 (local.get $at) (call $next))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $byte)))
    (i32.const 0))
  (func (export "sched_yield") (result i32) (i32.const 0))

  ;; Every subscription is ready at once. A relative timeout of a clock moves the clock on by the longest one.
  ;; Subscription, 48 bytes: userdata 0, tag 8; for a clock: timeout 24, flags 40 (bit 0 = absolute time).
  ;; Event, 32 bytes: userdata 0, errno 8, type 10, bytes 16, flags 24.
  (func (export "poll_oneoff") (param $in i32) (param $out i32) (param $count i32) (param $result i32) (result i32)
    (local $left i32) (local $longest i64)
    (if (i32.eqz (local.get $count)) (then (return (i32.const 28))))
    (local.set $left (local.get $count))
    (loop $subscription
      (i64.store (local.get $out) (i64.load (local.get $in)))
      (i64.store offset=8 (local.get $out) (i64.const 0))
      (i32.store8 offset=10 (local.get $out) (i32.load8_u offset=8 (local.get $in)))
      (i64.store offset=16 (local.get $out) (i64.const 0))
      (i64.store offset=24 (local.get $out) (i64.const 0))
      (if (i32.eqz (i32.or
            (i32.load8_u offset=8 (local.get $in))
            (i32.and (i32.load16_u offset=40 (local.get $in)) (i32.const 1))))
        (then
          (if (i64.gt_u (i64.load offset=24 (local.get $in)) (local.get $longest))
            (then (local.set $longest (i64.load offset=24 (local.get $in)))))))
      (local.set $in (i32.add (local.get $in) (i32.const 48)))
      (local.set $out (i32.add (local.get $out) (i32.const 32)))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $subscription (local.get $left)))
    (global.set $clock (i64.add (global.get $clock) (local.get $longest)))
    (i32.store (local.get $result) (local.get $count))
    (i32.const 0))

  ;; Output says that everything was written, and drops it. A vector is (address, length), 8 bytes.
  (func (export "fd_write") (param $fd i32) (param $in i32) (param $count i32) (param $result i32) (result i32)
    (local $sum i32)
    (block $done
      (loop $vector
        (br_if $done (i32.eqz (local.get $count)))
        (local.set $sum (i32.add (local.get $sum) (i32.load offset=4 (local.get $in))))
        (local.set $in (i32.add (local.get $in) (i32.const 8)))
        (local.set $count (i32.sub (local.get $count) (i32.const 1)))
        (br $vector)))
    (i32.store (local.get $result) (local.get $sum))
    (i32.const 0))

  ;; The end of the process is the end of the instance.
  (func (export "proc_exit") (param $code i32) (unreachable))
  (func (export "proc_raise") (param $signal i32) (result i32) (unreachable))

  ;; Go's bindings ask for it.
  (func (export "adapter_monotonic_clock_set_paused") (param $paused i32))

  ;; There are no files, folders or sockets: no such descriptor.
  (func (export "fd_advise") (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_allocate") (param i32 i64 i64) (result i32) (i32.const 8))
  (func (export "fd_close") (param i32) (result i32) (i32.const 8))
  (func (export "fd_datasync") (param i32) (result i32) (i32.const 8))
  (func (export "fd_fdstat_get") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_fdstat_set_flags") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_fdstat_set_rights") (param i32 i64 i64) (result i32) (i32.const 8))
  (func (export "fd_filestat_get") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_filestat_set_size") (param i32 i64) (result i32) (i32.const 8))
  (func (export "fd_filestat_set_times") (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_pread") (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_prestat_dir_name") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "fd_prestat_get") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_pwrite") (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_read") (param i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "fd_readdir") (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_renumber") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_seek") (param i32 i64 i32 i32) (result i32) (i32.const 8))
  (func (export "fd_sync") (param i32) (result i32) (i32.const 8))
  (func (export "fd_tell") (param i32 i32) (result i32) (i32.const 8))
  (func (export "path_create_directory") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_filestat_get") (param i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_filestat_set_times") (param i32 i32 i32 i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "path_link") (param i32 i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_open") (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32) (i32.const 8))
  (func (export "path_readlink") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_remove_directory") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_rename") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_symlink") (param i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_unlink_file") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "sock_accept") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "sock_recv") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "sock_send") (param i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "sock_shutdown") (param i32 i32) (result i32) (i32.const 8))
)
