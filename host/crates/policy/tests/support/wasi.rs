//! Guests that import WASI, made of text: a part of WASI 0.2 as tool chains import it, and one function that uses it.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part; a test may panic")]

use fulcrum_policy::contract::WIT;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// What of WASI the guests below use, in an older release than the host's.
const WASI: &str = r"
package wasi:io@0.2.3 {
  interface error { resource error; }
  interface poll {
    resource pollable { ready: func() -> bool; block: func(); }
    poll: func(in: list<borrow<pollable>>) -> list<u32>;
  }
  interface streams {
    use error.{error};
    variant stream-error { last-operation-failed(error), closed }
    resource input-stream { blocking-read: func(len: u64) -> result<list<u8>, stream-error>; }
    resource output-stream { blocking-write-and-flush: func(contents: list<u8>) -> result<_, stream-error>; write-zeroes: func(len: u64) -> result<_, stream-error>; }
  }
}
package wasi:clocks@0.2.3 {
  interface wall-clock { record datetime { seconds: u64, nanoseconds: u32 } now: func() -> datetime; }
  interface monotonic-clock {
    use wasi:io/poll@0.2.3.{pollable};
    now: func() -> u64;
    subscribe-duration: func(when: u64) -> pollable;
  }
}
package wasi:random@0.2.3 {
  interface random { get-random-bytes: func(len: u64) -> list<u8>; get-random-u64: func() -> u64; }
}
package wasi:cli@0.2.3 {
  interface environment {
    get-environment: func() -> list<tuple<string, string>>;
    get-arguments: func() -> list<string>;
  }
  interface exit { exit: func(status: result); }
  interface stdin { use wasi:io/streams@0.2.3.{input-stream}; get-stdin: func() -> input-stream; }
  interface stdout { use wasi:io/streams@0.2.3.{output-stream}; get-stdout: func() -> output-stream; }
}
package wasi:filesystem@0.2.3 {
  interface types { resource descriptor; }
  interface preopens { use types.{descriptor}; get-directories: func() -> list<tuple<descriptor, string>>; }
}
package wasi:sockets@0.2.3 {
  interface network {
    enum error-code {
      unknown, access-denied, not-supported, invalid-argument, out-of-memory, timeout, concurrency-conflict,
      not-in-progress, would-block, invalid-state, new-socket-limit, address-not-bindable, address-in-use,
      remote-unreachable, connection-refused, connection-reset, connection-aborted, datagram-too-large,
      name-unresolvable, temporary-resolver-failure, permanent-resolver-failure,
    }
    enum ip-address-family { ipv4, ipv6 }
  }
  interface tcp { resource tcp-socket; }
  interface tcp-create-socket {
    use network.{error-code, ip-address-family};
    use tcp.{tcp-socket};
    create-tcp-socket: func(address-family: ip-address-family) -> result<tcp-socket, error-code>;
  }
  interface udp { resource udp-socket; }
  interface udp-create-socket {
    use network.{error-code, ip-address-family};
    use udp.{udp-socket};
    create-udp-socket: func(address-family: ip-address-family) -> result<udp-socket, error-code>;
  }
}
package wasi:http@0.2.3 {
  interface outgoing-handler { handle: func(); }
}
";

/// Imports of the world; a component has those that its module uses.
const IMPORTS: &str = "
  import wasi:io/poll@0.2.3;
  import wasi:io/streams@0.2.3;
  import wasi:clocks/wall-clock@0.2.3;
  import wasi:clocks/monotonic-clock@0.2.3;
  import wasi:random/random@0.2.3;
  import wasi:cli/environment@0.2.3;
  import wasi:cli/exit@0.2.3;
  import wasi:cli/stdin@0.2.3;
  import wasi:cli/stdout@0.2.3;
  import wasi:filesystem/preopens@0.2.3;
  import wasi:sockets/tcp-create-socket@0.2.3;
  import wasi:sockets/udp-create-socket@0.2.3;
  import wasi:http/outgoing-handler@0.2.3;
";

/// Makes a policy that chooses the first row, at the cost that `cost` leaves on the stack (an `f64`).
///
/// `imports` are lines `NAME INTERFACE FUNCTION TYPE`; free to use are `$now` and `$seed` of the request, the locals
/// `$a` and `$b` (`i32`), and the memory from 0x200 to 0x1000.
pub(crate) fn wasi_guest(imports: &str, cost: &str) -> Vec<u8> {
    let imports: String = imports
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let mut words = line.trim().splitn(4, ' ');
            let mut word = || words.next().expect("name, interface, function, type");
            let (name, interface, function, ty) = (word(), word(), word(), word());
            format!("(import \"wasi:{interface}@0.2.3\" \"{function}\" (func ${name} {ty}))\n")
        })
        .collect();
    let sin = format!(
        ";; <import>\n{imports};; </import>\n;; <recommend>
        (func (export \"fulcrum:policy/scoring@1.0.0#recommend\")
          (param $id i32) (param $id_len i32) (param i32 i32 i32 i32) (param f64 f64)
          (param $avoid i32) (param $avoid_len i32) (param i32 i32) (param $now i64) (param $seed i64) (result i32)
          (local $a i32) (local $b i32)
          (i32.store (i32.const 0x108) (call $first (i32.const 0) (local.get $avoid) (local.get $avoid_len)))
          (f64.store (i32.const 0x110) {cost})
          (call $ok))
        ;; </recommend>"
    );
    let wit = WIT.replacen("world scoring-policy {", &format!("world scoring-policy {{{IMPORTS}"), 1) + WASI;
    let mut resolve = Resolve::default();
    let package = resolve.push_source("policy.wit", &wit).unwrap();
    let world = resolve.select_world(&[package], Some("scoring-policy")).unwrap();
    let mut module = wat::parse_str(super::guest_text(&sin)).unwrap();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
    ComponentEncoder::default().module(&module).unwrap().validate(true).encode().unwrap()
}

/// The time of the decision by the wall clock, in milliseconds.
pub(crate) const WALL_CLOCK: (&str, &str) = (
    "wall clocks/wall-clock now (param i32)",
    "(block (result f64)
      (call $wall (i32.const 0x200))
      (f64.convert_i64_u (i64.add
        (i64.mul (i64.load (i32.const 0x200)) (i64.const 1000))
        (i64.extend_i32_u (i32.div_u (i32.load (i32.const 0x208)) (i32.const 1000000))))))",
);

/// Sleeps an hour, then tells what the monotonic clock shows, in milliseconds.
pub(crate) const SLEEP: (&str, &str) = (
    "now clocks/monotonic-clock now (result i64)
     timer clocks/monotonic-clock subscribe-duration (param i64) (result i32)
     block io/poll [method]pollable.block (param i32)
     drop io/poll [resource-drop]pollable (param i32)",
    "(block (result f64)
      (local.set $a (call $timer (i64.const 3600000000000)))
      (call $block (local.get $a))
      (call $drop (local.get $a))
      (f64.convert_i64_u (i64.div_u (call $now) (i64.const 1000000))))",
);

/// Prints for ever if the client asks for trouble.
pub(crate) const PRINT: (&str, &str) = (
    "out cli/stdout get-stdout (result i32)
     drop io/streams [resource-drop]output-stream (param i32)
     write io/streams [method]output-stream.blocking-write-and-flush (param i32 i32 i32 i32)",
    "(block (result f64)
      (i64.store (i32.const 0x300) (i64.const 0x0a646c726f77))
      (local.set $a (call $out))
      (loop $again
        (call $write (local.get $a) (i32.const 0x300) (i32.const 6) (i32.const 0x200))
        (br_if $again (call $armed (local.get $id_len))))
      (call $drop (local.get $a))
      (f64.const 0))",
);
